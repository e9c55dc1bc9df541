#include "frontend/router/policy/weights_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kvatlas {
namespace {

using ::testing::HasSubstr;

std::string ErrorOf(const std::string& json) {
  const auto weights = ParseModelWeights(json, {});
  EXPECT_EQ(weights.status().code(), absl::StatusCode::kInvalidArgument) << json;
  return std::string(weights.status().message());
}

TEST(WeightsFileTest, AModelHasItsOwnAndTheOthersForTheRest) {
  const auto weights = ParseModelWeights(R"({"m": {"prefill": 2, "memory": 0.5}, "n": {}})",
                                         {.queue = 3, .seed = 7});
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->at("m").prefill, 2);
  EXPECT_EQ(weights->at("m").memory, 0.5);
  EXPECT_EQ(weights->at("m").queue, 3);
  EXPECT_EQ(weights->at("m").seed, 7u);
  EXPECT_EQ(weights->at("n").prefill, CostWeights().prefill);
  EXPECT_EQ(weights->size(), 2u);
}

TEST(WeightsFileTest, WhatIsNoWeightIsRefusedByName) {
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(ErrorOf("{"), HasSubstr("not a JSON object"));
  EXPECT_THAT(ErrorOf(R"({"m": 1})"), HasSubstr("m: not an object"));
  EXPECT_THAT(ErrorOf(R"({"m": {"speed": 1}})"), HasSubstr("m: no weight \"speed\""));
  EXPECT_THAT(ErrorOf(R"({"m": {"queue": -1}})"), HasSubstr("m: queue"));
  EXPECT_THAT(ErrorOf(R"({"m": {"queue": "1"}})"), HasSubstr("m: queue"));
}

TEST(WeightsFileTest, AMissingFileIsNotFound) {
  EXPECT_EQ(ReadModelWeights("/nonexistent/weights.json", {}).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace kvatlas
