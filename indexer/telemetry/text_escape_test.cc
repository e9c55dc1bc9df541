#include "indexer/telemetry/text_escape.h"

#include <gtest/gtest.h>

namespace kvatlas {
namespace {

std::string Escaped(std::string_view text) {
  std::string out;
  AppendJsonEscaped(&out, text);
  return out;
}

TEST(TextEscapeTest, PlainTextAndUtf8AreKept) {
  EXPECT_EQ(Escaped(""), "");
  EXPECT_EQ(Escaped("a b/c='d'"), "a b/c='d'");
  EXPECT_EQ(Escaped("é€😀"), "é€😀");
}

TEST(TextEscapeTest, QuotesAndControlsAreEscaped) {
  EXPECT_EQ(Escaped("\"\\\n\r\t"), "\\\"\\\\\\n\\r\\t");
  EXPECT_EQ(Escaped(std::string_view("\0\x1b\x7f", 3)), "\\u0000\\u001b\\u007f");
}

TEST(TextEscapeTest, WhatIsNotUtf8IsReplacedByteByByte) {
  const std::string r = "\xef\xbf\xbd";
  EXPECT_EQ(Escaped("\xff"
                    "a"),
            r + "a");
  EXPECT_EQ(Escaped("\xc0\xaf"), r + r);          // overlong
  EXPECT_EQ(Escaped("\xed\xa0\x80"), r + r + r);  // surrogate
  EXPECT_EQ(Escaped("\xf4\x90\x80\x80"), r + r + r + r);
  EXPECT_EQ(Escaped("\xe2\x82"), r + r);  // cut short
  EXPECT_EQ(Escaped("\xe2\x82x"), r + r + "x");
}

TEST(TextEscapeTest, OfALabelQuotesBackslashesAndEndsOfLinesAreEscaped) {
  EXPECT_EQ(MetricLabel("model", "a \"b\"\\c\nd\te\xff"), "model=\"a \\\"b\\\"\\\\c\\nd\te\xff\"");
}

}  // namespace
}  // namespace kvatlas
