#include "indexer/base/utf8.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace kvatlas {
namespace {

using std::string_view_literals::operator""sv;

TEST(Utf8Test, CharactersOfEveryLengthAtTheirBounds) {
  for (const std::string_view text :
       {"\0"sv, "\x7f"sv, "\xc2\x80"sv, "\xdf\xbf"sv, "\xe0\xa0\x80"sv, "\xed\x9f\xbf"sv,
        "\xee\x80\x80"sv, "\xef\xbf\xbf"sv, "\xf0\x90\x80\x80"sv, "\xf4\x8f\xbf\xbf"sv}) {
    EXPECT_EQ(Utf8CharacterBytes(text), text.size()) << text;
    EXPECT_TRUE(IsUtf8(text)) << text;
  }
}

TEST(Utf8Test, WhatIsNoCharacterIsRefused) {
  for (const std::string_view text :
       {"\x80"sv, "\xbf"sv, "\xc0\x80"sv, "\xc1\xbf"sv, "\xc2"sv, "\xc2\x41"sv, "\xe0\x9f\xbf"sv,
        "\xe1\x80"sv, "\xed\xa0\x80"sv, "\xed\xbf\xbf"sv, "\xf0\x8f\xbf\xbf"sv, "\xf0\x90\x80"sv,
        "\xf4\x90\x80\x80"sv, "\xf5\x80\x80\x80"sv, "\xff"sv}) {
    EXPECT_EQ(Utf8CharacterBytes(text), 0u);
    EXPECT_FALSE(IsUtf8(text));
    EXPECT_FALSE(IsUtf8("before" + std::string(text)));
  }
}

TEST(Utf8Test, TextsAreSequencesOfCharacters) {
  EXPECT_TRUE(IsUtf8(""));
  EXPECT_TRUE(
      IsUtf8("worker-3, gr\xc3\xbc\xc3\x9f Gott, \xe6\x97\xa5\xe6\x9c\xac, \xf0\x9f\x8c\x8d"));
  EXPECT_EQ(Utf8CharacterBytes("\xe6\x97\xa5 and more"), 3u);
  EXPECT_EQ(Utf8CharacterBytes(""), 0u);
}

}  // namespace
}  // namespace kvatlas
