#include "frontend/cost.h"

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

HolderId Id(const std::string& name) { return {.name = name, .rank = 0, .replica = ""}; }

CostCandidate Worker(const std::string& name, uint32_t overlap, Load load = {}) {
  return {.cell = "a",
          .worker = Id(name),
          .input = {.prompt_blocks = 100, .overlap_blocks = overlap, .load = load}};
}

std::string Best(const std::vector<CostCandidate>& candidates, const CostWeights& weights = {},
                 uint64_t key = 7) {
  return candidates[RankCandidates(candidates, weights, key, 1).at(0).candidate].worker.name;
}

TEST(CostTest, TermsAreBlocksOfPrefill) {
  const Cost cost = CostOf(
      {.prompt_blocks = 100,
       .overlap_blocks = 40,
       .load = Load{.running_requests = 3, .waiting_requests = 2, .waiting_prefill_blocks = 50},
       .in_flight_blocks = 7,
       .in_flight_requests = 1,
       .distance = 4},
      {.decode = 2, .distance = 0.5});
  EXPECT_EQ(cost.prefill, 60);
  EXPECT_EQ(cost.queue, 57);
  EXPECT_EQ(cost.decode, 12);
  EXPECT_EQ(cost.distance, 2);
  EXPECT_EQ(cost.total(), 131);
}

TEST(CostTest, OverlapBeyondThePromptIsNoGain) {
  EXPECT_EQ(CostOf({.prompt_blocks = 10, .overlap_blocks = 12}, {}).total(), 0);
}

TEST(CostTest, HitsDominateModestLoad) {
  EXPECT_EQ(Best({Worker("idle", 0), Worker("warm", 60, {.running_requests = 30})}), "warm");
}

TEST(CostTest, AQueueLongerThanTheGainSendsTheRequestElsewhere) {
  EXPECT_EQ(Best({Worker("idle", 0), Worker("warm", 60, {.waiting_prefill_blocks = 61})}), "idle");
}

TEST(CostTest, EqualOverlapGoesToTheLessLoaded) {
  EXPECT_EQ(
      Best({Worker("x", 60, {.running_requests = 2}), Worker("y", 60, {.running_requests = 1})}),
      "y");
}

TEST(CostTest, TheChoiceDoesNotDependOnTheOrderOfCandidates) {
  std::mt19937 random(1);
  std::vector<CostCandidate> candidates;
  for (int i = 0; i < 20; ++i) candidates.push_back(Worker("w" + std::to_string(i), 10));
  const std::string best = Best(candidates);
  for (int i = 0; i < 20; ++i) {
    std::shuffle(candidates.begin(), candidates.end(), random);
    EXPECT_EQ(Best(candidates), best);
  }
}

TEST(CostTest, TiesAreSpreadOverPromptsAndSeeds) {
  std::vector<CostCandidate> candidates;
  for (int i = 0; i < 4; ++i) candidates.push_back(Worker("w" + std::to_string(i), 10));
  std::set<std::string> by_prompt, by_seed;
  for (uint64_t i = 0; i < 64; ++i) {
    by_prompt.insert(Best(candidates, {}, i));
    by_seed.insert(Best(candidates, {.seed = i}));
  }
  EXPECT_EQ(by_prompt.size(), 4u);
  EXPECT_EQ(by_seed.size(), 4u);
}

TEST(CostTest, TemperatureSpreadsAndStillPrefersTheCheaper) {
  const std::vector<CostCandidate> candidates = {Worker("near", 50), Worker("far", 40)};
  int near = 0;
  for (uint64_t key = 0; key < 1000; ++key)
    near += Best(candidates, {.temperature = 10}, key) == "near" ? 1 : 0;
  // 1 / (1 + 1/e) = 0.73.
  EXPECT_GT(near, 680);
  EXPECT_LT(near, 780);
}

TEST(CostTest, RankingGivesTheBestFewCheapestFirst) {
  std::vector<CostCandidate> candidates;
  for (uint32_t i = 0; i < 50; ++i) candidates.push_back(Worker("w" + std::to_string(i), i));
  const std::vector<RankedCandidate> ranked = RankCandidates(candidates, {}, 0, 3);
  ASSERT_EQ(ranked.size(), 3u);
  EXPECT_EQ(ranked[0].candidate, 49u);
  EXPECT_EQ(ranked[1].candidate, 48u);
  EXPECT_EQ(ranked[2].candidate, 47u);
  EXPECT_EQ(ranked[0].cost.prefill, 51);
  EXPECT_TRUE(RankCandidates({}, {}, 0, 3).empty());
}

}  // namespace
}  // namespace kvatlas
