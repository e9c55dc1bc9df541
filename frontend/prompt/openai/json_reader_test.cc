#include "frontend/prompt/openai/json_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "frontend/prompt/openai/json_depth.h"
#include "indexer/base/test_seed.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

// What the library says of the text: its value, or "refused".
std::string ByTheLibrary(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  return json.is_discarded() ? "refused" : json.dump();
}

std::string Read(const std::string& text) {
  const auto json = ReadJson(text);
  return json.ok() ? json->dump() : "refused";
}

TEST(ReadJsonTest, ValuesAreThoseOfTheLibrary) {
  for (const char* text : {"null",
                           "true",
                           " [ ] ",
                           "{}",
                           "0",
                           "-0",
                           "-1",
                           "1.0",
                           "-0.0",
                           "1e5",
                           "1E-7",
                           "9223372036854775807",
                           "9223372036854775808",
                           "18446744073709551615",
                           "18446744073709551616",
                           "-9223372036854775808",
                           "-9223372036854775809",
                           "0.1",
                           "123456789012345678901234567890",
                           "1e308",
                           "1e400",
                           "01",
                           "1.",
                           R"("a\"\\\/\b\f\n\r\t")",
                           R"("\u00e4\u20ac\ud83d\ude00")",
                           R"("\ud83d")",
                           R"("\ude00")",
                           R"("\ud83d\u0041")",
                           R"("\ude00\ud83d")",
                           "\"\xff\"",
                           "\"\xc3\xa4\"",
                           "\"\t\"",
                           "\"a",
                           "[1,]",
                           "{\"a\":1,}",
                           "{\"a\"}",
                           "[1] 2",
                           "",
                           " ",
                           "\xef\xbb\xbf[1]",
                           "nul",
                           R"({"\ude00":1})",
                           R"({"b":1,"a":{"z":[1,"x",null]},"b":2})",
                           R"({"a":1,"a":2,"a":3})"}) {
    EXPECT_EQ(Read(text), ByTheLibrary(text)) << text;
  }
}

TEST(ReadJsonTest, NumbersThatAreNotNegativeAreUnsigned) {
  const auto json = ReadJson("[0, 7, -7, 7.0]");
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_TRUE((*json)[0].is_number_unsigned());
  EXPECT_TRUE((*json)[1].is_number_unsigned());
  EXPECT_FALSE((*json)[2].is_number_unsigned());
  EXPECT_TRUE((*json)[3].is_number_float());
}

TEST(ReadJsonTest, OfManyEqualNamesTheLastValueCountsInTheFirstOnesPlace) {
  std::string text = "{";
  for (int i = 0; i < 100; ++i)
    text += "\"n" + std::to_string(i % 40) + "\":" + std::to_string(i) + ",";
  text.back() = '}';
  EXPECT_EQ(Read(text), ByTheLibrary(text));
}

TEST(ReadJsonTest, RandomTextsAreReadAsByTheLibrary) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  const std::vector<std::string> pieces = {
      "{",    "}",    "[",    "]", ",",           ":",     "\"a\"",  "\"b\\u0041\"", "1",
      "-2.5", "null", "true", " ", "\"\\ud800\"", "\"ä\"", "\"k\":", "\"k\":[",      "9e9"};
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (size_t size = random() % 12; size > 0; --size) text += pieces[random() % pieces.size()];
    ASSERT_EQ(Read(text), ByTheLibrary(text)) << text << " seed " << seed;
  }
}

TEST(ReadJsonTest, ALongTextAfterAShortOneAndShortOnesAfterIt) {
  const std::string large = Json{{"text", std::string(3 << 20, 'x')}}.dump();
  EXPECT_EQ(Read("[1]"), "[1]");
  EXPECT_EQ(Read(large), large);
  EXPECT_EQ(Read("[2]"), "[2]");
}

TEST(ReadJsonTest, WhatIsNestedTooDeepIsRefused) {
  const auto nested = [](int levels) {
    return std::string(levels, '[') + std::string(levels, ']');
  };
  EXPECT_TRUE(ReadJson(nested(kJsonDepthMax)).ok());
  EXPECT_THAT(std::string(ReadJson(nested(kJsonDepthMax + 1)).status().message()),
              HasSubstr("too deep"));
  EXPECT_THAT(std::string(ReadJson(nested(200'000)).status().message()), HasSubstr("too deep"));
}

}  // namespace
}  // namespace kvatlas
