#include "frontend/prompt/text/json_text.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "indexer/base/test_seed.h"

namespace kvatlas {
namespace {

using Json = nlohmann::ordered_json;

std::string Written(const Json& json) {
  std::string text;
  AppendJson(json, &text);
  return text;
}

TEST(JsonTextTest, EveryByteOfAsciiIsWrittenAsTheLibraryWritesIt) {
  std::string bytes;
  for (int c = 0; c < 128; ++c) bytes += static_cast<char>(c);
  const Json json = {{"all", bytes}, {bytes, "ä€😀"}, {"", ""}};
  EXPECT_EQ(Written(json), json.dump());
}

TEST(JsonTextTest, EveryKindIsWrittenAsTheLibraryWritesIt) {
  for (const char* text :
       {"null", "true", "[]", "{}", "[[],{}]", "-1", "18446744073709551615", "1.0", "1e-7", "0.1",
        R"({"b":[1,-2,3.5,{"a":null}],"a":"x","c":{"z":false}})"}) {
    const Json json = Json::parse(text);
    EXPECT_EQ(Written(json), json.dump());
  }
}

TEST(JsonTextTest, RandomStringsAreReadBackAsTheyWere) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  for (int i = 0; i < 200; ++i) {
    std::string text;
    for (size_t size = random() % 100; size > 0; --size) text += static_cast<char>(random() % 128);
    const Json json = Json::array({text});
    EXPECT_EQ(Json::parse(Written(json)), json) << "seed " << seed;
  }
}

}  // namespace
}  // namespace kvatlas
