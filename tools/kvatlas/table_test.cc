#include "tools/kvatlas/table.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

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
