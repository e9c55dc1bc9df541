#include "frontend/gateway/http/models_list.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kvatlas {
namespace {

std::string Listed(const std::vector<std::string>& lists) {
  std::vector<std::optional<std::string>> bodies = {std::nullopt, "no list"};
  for (const std::string& list : lists) bodies.push_back(R"({"data":[)" + list + "]}");
  return MergeModels(bodies).value_or("none");
}
std::string List(const std::string& models) {
  return R"({"object":"list","data":[)" + models + "]}";
}

// A client that takes the first model, as `vllm bench serve` does without --model, asks the model
// and no adapter of it.
TEST(ModelsListTest, ModelsStandInTheEnginesOwnOrder) {
  EXPECT_EQ(Listed({R"({"id":"q"},{"id":"ad1","parent":"q"})"}),
            List(R"({"id":"q"},{"id":"ad1","parent":"q"})"));
  EXPECT_EQ(Listed({R"({"id":"z"},{"id":"y"})", R"({"id":"y"},{"id":"a"})"}),
            List(R"({"id":"z"},{"id":"y"},{"id":"a"})"));
}

TEST(ModelsListTest, AModelStandsBeforeItsAdapters) {
  EXPECT_EQ(Listed({R"({"id":"p"},{"id":"ad","parent":"q"},{"id":"ae","parent":"q"})",
                    R"({"id":"q","parent":null},{"id":"ad","parent":"q"})"}),
            List(R"({"id":"p"},{"id":"q","parent":null},{"id":"ad","parent":"q"},)"
                 R"({"id":"ae","parent":"q"})"));
  EXPECT_EQ(Listed({R"({"id":"ad","parent":"ad"})"}), List(R"({"id":"ad","parent":"ad"})"));
}

// For each key a search among those before, for each model one among those before: some 10^11
// steps.
TEST(ModelsListTest, ManyKeysAndManyModelsAreOnePass) {
  std::string keys = R"({"id":"many keys")";
  for (int i = 0; i < 400'000; ++i) absl::StrAppend(&keys, ",\"k", i, "\":1");
  keys += '}';
  EXPECT_EQ(Listed({keys}), List(keys));
  EXPECT_EQ(ModelIn(List(keys), "many keys"), keys);
  std::string models;
  for (int i = 0; i < 90'000; ++i)
    absl::StrAppend(&models, i == 0 ? "" : ",", R"({"id":"m)", i, R"(","parent":"p"})");
  EXPECT_EQ(Listed({models, R"({"id":"p"})"}), List(R"({"id":"p"},)" + models));
}

TEST(ModelsListTest, AListHasSoManyModels) {
  std::string models;
  for (int i = 0; i < 100'001; ++i)
    absl::StrAppend(&models, i == 0 ? "" : ",", "{\"id\":\"", i, "\"}");
  const std::string list = Listed({models});
  EXPECT_TRUE(ModelIn(list, "99999").has_value());
  EXPECT_FALSE(ModelIn(list, "100000").has_value());
}

TEST(ModelsListTest, ANameThatIsNoTextSpoilsNoOtherList) {
  for (const char* bad : {R"("\ude42")", R"("\ud83d")", R"("\ud83d\u0041")", R"("\ud83d\ud83d")"})
    EXPECT_EQ(Listed({absl::StrCat("{\"id\":", bad, "}"), R"({"id":"a"})"}), List(R"({"id":"a"})"));
}

TEST(ModelsListTest, OnlyWhatIsToBeKeptStays) {
  const std::string list = List(R"({"id":"a","n":1},{"id":"b"})");
  EXPECT_EQ(ModelsOf(list, [](const std::string& id) { return id == "a"; }),
            List(R"({"id":"a","n":1})"));
  EXPECT_EQ(ModelsOf(list, [](const std::string&) { return false; }), List(""));
}

TEST(ModelsListTest, WhatIsNoListIsNone) { EXPECT_EQ(Listed({}), "none"); }

}  // namespace
}  // namespace kvatlas
