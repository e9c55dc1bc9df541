#include "tools/kvatlas/table.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <string_view>

namespace kvatlas {
namespace {

std::string Printed(const Table& table) {
  std::ostringstream out;
  table.Print(out);
  return out.str();
}

TEST(TableTest, ColumnsAreAsWideAsTheirWidestCellAndNumbersToTheRight) {
  Table table({"NAME", "BLOCKS>", "TRUST"});
  table.Add({"w0", "7", "exact"});
  table.Add({"a-longer-one", "1,234,567", ""});
  EXPECT_EQ(Printed(table),
            "NAME             BLOCKS  TRUST\n"
            "w0                    7  exact\n"
            "a-longer-one  1,234,567\n");
}

TEST(TableTest, NamesCannotSteerATerminal) {
  EXPECT_EQ(Shown("w0 gr\xc3\xbcn \"a\\b\""), "w0 gr\xc3\xbcn \"a\\b\"");
  EXPECT_EQ(Shown("\x1b[2J\r\n\t\x7f"), "\\u001b[2J\\u000d\\u000a\\u0009\\u007f");
  EXPECT_EQ(Shown(std::string_view("a\0b", 3)), "a\\u0000b");
  EXPECT_EQ(Shown("\xc2\x9b"
                  "1m"),
            "\\u009b1m");  // CSI in one character
  EXPECT_EQ(Shown("a\xe2\x80\xae"
                  "b\xe2\x81\xa6"),
            "a\\u202eb\\u2066");  // to the left, isolated
  EXPECT_EQ(Shown("\xe2\x80\x8b\xef\xbb\xbf\xe2\x80\xa8"), "\\u200b\\ufeff\\u2028");
  EXPECT_EQ(Shown("\xff\xe4\xb8\xad\xf0\x9f\x99\x82"), "\xef\xbf\xbd\xe4\xb8\xad\xf0\x9f\x99\x82");
  EXPECT_EQ(ShownLines("a\n\x1b"
                       "b\n"),
            "a\n\\u001bb\n");
  Table table({"NAME"});
  table.Add({"one\ntwo"});
  EXPECT_EQ(Printed(table), "NAME\none\\u000atwo\n");
}

TEST(TableTest, CharactersCountAndNotBytes) {
  Table table({"NAME", "N>"});
  table.Add({"gr\xc3\xbcn", "1"});
  table.Add({"abcd", "2"});
  EXPECT_EQ(Printed(table), "NAME  N\ngr\xc3\xbcn  1\nabcd  2\n");
}

TEST(TableTest, StatesAreColouredWhereColoursAreWantedAndColumnsStayAsWide) {
  Table table({"NAME", "STATE*", "N>"});
  table.Add({"exact", "exact", "1"});
  table.Add({"w1", "unreachable: tcp://h:1", "2"});
  table.Add({"w2", "exactly", "3"});
  EXPECT_EQ(Printed(table),
            "NAME   STATE                   N\n"
            "exact  exact                   1\n"
            "w1     unreachable: tcp://h:1  2\n"
            "w2     exactly                 3\n");
  std::ostringstream out;
  table.Print(out, /*colours=*/true);
  EXPECT_EQ(out.str(),
            "NAME   STATE                   N\n"
            "exact  \x1b[32mexact\x1b[0m                   1\n"
            "w1     \x1b[31munreachable: tcp://h:1\x1b[0m  2\n"
            "w2     exactly                 3\n");
}

TEST(TableTest, WithoutRowsThereIsNothing) { EXPECT_EQ(Printed(Table({"NAME"})), ""); }

TEST(TableTest, NumbersForPeople) {
  EXPECT_EQ(Grouped(0), "0");
  EXPECT_EQ(Grouped(999), "999");
  EXPECT_EQ(Grouped(1000), "1,000");
  EXPECT_EQ(Grouped(12345678), "12,345,678");
  EXPECT_EQ(ShortMs(35), "35 ms");
  EXPECT_EQ(ShortMs(4200), "4.2 s");
  EXPECT_EQ(ShortMs(600000), "10 min");
  EXPECT_EQ(Hex(0x1a), "000000000000001a");
}

}  // namespace
}  // namespace kvatlas
