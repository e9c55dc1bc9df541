#include "frontend/doors/http/models_list.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

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

// Who takes the first, as `vllm bench serve` does without --model, asks the model and no adapter of it.
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

TEST(ModelsListTest, WhatIsNoListIsNone) { EXPECT_EQ(Listed({}), "none"); }

}  // namespace
}  // namespace kvatlas
