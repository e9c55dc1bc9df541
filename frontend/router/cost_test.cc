#include "frontend/router/cost.h"

#include <algorithm>
#include <map>
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
  const Cost cost = CostOf({.prompt_blocks = 100,
                            .overlap_blocks = 40,
                            .fetched = {.host = 20, .disk = 10, .remote = 4},
                            .load = Load{.running_requests = 3,
                                         .waiting_requests = 2,
                                         .used_blocks = 900,
                                         .free_blocks = 57,
                                         .waiting_prefill_blocks = 50},
                            .in_flight_blocks = 7,
                            .in_flight_requests = 1,
                            .distance = 4,
                            .leaves_session = true,
                            .transfer = 5},
                           {.prefill = 1.5,
                            .fetch_host = 0.25,
                            .fetch_disk = 0.5,
                            .fetch_remote = 2,
                            .decode = 2,
                            .memory = 3,
                            .distance = 0.5,
                            .session = 6});
  EXPECT_EQ(cost.prefill, 1.5 * 60);
  EXPECT_EQ(cost.fetch, 5 + 5 + 8);
  EXPECT_EQ(cost.queue, 50 + 7 * kInFlightWaiting);
  EXPECT_EQ(cost.decode, 12);
  EXPECT_EQ(cost.memory, 3 * (60 + 34 - 50));
  EXPECT_EQ(cost.distance, 2);
  EXPECT_EQ(cost.session, 6);
  EXPECT_EQ(cost.transfer, 5);
  EXPECT_EQ(cost.total(), 90 + 18 + 53.5 + 12 + 132 + 2 + 6 + 5);
}

// A random worker, and the same with one thing worse: it never costs less, and what the term names
// costs more.
struct Worse {
  const char* what;
  void (*make)(CostInput* input);
  double Cost::* term;
};

constexpr Worse kWorse[] = {
    {"less overlap", [](CostInput* i) { --i->overlap_blocks; }, &Cost::prefill},
    {"from host, not device", [](CostInput* i) { ++i->fetched.host; }, &Cost::fetch},
    {"from disk, not host", [](CostInput* i) { --i->fetched.host, ++i->fetched.disk; },
     &Cost::fetch},
    {"more waiting", [](CostInput* i) { ++i->load->waiting_prefill_blocks; }, &Cost::queue},
    {"more in flight", [](CostInput* i) { ++i->in_flight_blocks; }, &Cost::queue},
    {"more running", [](CostInput* i) { ++i->load->running_requests; }, &Cost::decode},
    {"more requests waiting", [](CostInput* i) { ++i->load->waiting_requests; }, &Cost::decode},
    {"more requests in flight", [](CostInput* i) { ++i->in_flight_requests; }, &Cost::decode},
    {"a longer answer", [](CostInput* i) { i->expected_output_tokens += 64; }, &Cost::decode},
    {"no room", [](CostInput* i) { i->load->free_blocks = 0; }, &Cost::memory},
    {"farther", [](CostInput* i) { ++i->distance; }, &Cost::distance},
    {"another's session", [](CostInput* i) { i->leaves_session = true; }, &Cost::session},
    {"more stored there lately", [](CostInput* i) { ++i->crowding; }, &Cost::crowding},
    {"a longer way to decode", [](CostInput* i) { ++i->transfer; }, &Cost::transfer},
};

TEST(CostTest, EveryTermIsMonotone) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    CostInput input = {.prompt_blocks = 200,
                       .overlap_blocks = 100 + static_cast<uint32_t>(random() % 100),
                       .fetched = {.host = 1 + static_cast<uint32_t>(random() % 20),
                                   .disk = static_cast<uint32_t>(random() % 20),
                                   .remote = static_cast<uint32_t>(random() % 20)},
                       .load = Load{.running_requests = 1 + static_cast<uint32_t>(random() % 30),
                                    .used_blocks = random() % 4000,
                                    .free_blocks = 200 + random() % 4000,
                                    .waiting_prefill_blocks = random() % 500},
                       .in_flight_blocks = random() % 100,
                       .in_flight_requests = static_cast<uint32_t>(random() % 4),
                       .distance = static_cast<double>(random() % 9),
                       .expected_output_tokens = 64 + static_cast<uint32_t>(random() % 512)};
    const Cost better = CostOf(input, {});
    for (const Worse& worse : kWorse) {
      CostInput changed = input;
      worse.make(&changed);
      const Cost cost = CostOf(changed, {});
      EXPECT_GT(cost.*worse.term, better.*worse.term) << worse.what;
      // A block that is fetched anyway, or is missing anyway, needs the same room: nothing else
      // falls.
      EXPECT_GE(cost.total() + 1e-9, better.total()) << worse.what;
    }
  }
}

TEST(CostTest, FetchingIsCheaperThanComputingWhereverFrom) {
  const CostWeights weights;
  EXPECT_LT(weights.fetch_host, weights.fetch_remote);
  EXPECT_LT(weights.fetch_remote, weights.fetch_disk);
  EXPECT_LT(weights.fetch_disk, weights.prefill);
}

TEST(CostTest, MoreIsFetchedThanIsThereOnlyOnPaper) {
  const Cost cost =
      CostOf({.prompt_blocks = 10, .overlap_blocks = 4, .fetched = {.host = 3, .disk = 9}},
             {.fetch_host = 1, .fetch_disk = 10});
  EXPECT_EQ(cost.fetch, 3 + 10);
}

TEST(CostTest, AWorkerThatNamesNoPoolHasRoom) {
  EXPECT_EQ(CostOf({.prompt_blocks = 10, .load = Load{.running_requests = 1}}, {}).memory, 0);
}

TEST(CostTest, LongAnswersLookMoreAtDecodeThanShortOnes) {
  CostInput input = {.prompt_blocks = 10, .load = Load{.running_requests = 4}};
  const double unknown = CostOf(input, {}).decode;
  input.expected_output_tokens = static_cast<uint32_t>(kTypicalOutputTokens);
  EXPECT_EQ(CostOf(input, {}).decode, unknown);
  input.expected_output_tokens = 1;
  EXPECT_EQ(CostOf(input, {}).decode, unknown / kOutputFactorMax);
  input.expected_output_tokens = 1'000'000;
  EXPECT_EQ(CostOf(input, {}).decode, unknown * kOutputFactorMax);
}

TEST(CostTest, DecodingElsewhereCostsTheWayTheRequestsThereAndTheRoom) {
  const CostInput input = {.prompt_blocks = 100,
                           .overlap_blocks = 40,
                           .load = Load{.running_requests = 3, .used_blocks = 1, .free_blocks = 50},
                           .distance = 2};
  const CostWeights weights = {.decode = 2, .memory = 3, .transfer = 0.5, .transfer_far = 1};
  EXPECT_EQ(DecodeElsewhereCost(input, /*far=*/false, weights), 30 + 6 + 30 + 2);
  EXPECT_EQ(DecodeElsewhereCost(input, /*far=*/true, weights), 60 + 6 + 30 + 2);
}

TEST(CostTest, OverlapBeyondThePromptIsNoGain) {
  EXPECT_EQ(CostOf({.prompt_blocks = 10, .overlap_blocks = 12}, {}).total(), 0);
}

TEST(CostTest, HitsDominateModestLoad) {
  EXPECT_EQ(Best({Worker("idle", 0), Worker("warm", 60, {.running_requests = 30})}), "warm");
}

TEST(CostTest, AQueueLongerThanTheGainSendsTheRequestElsewhere) {
  const auto gain = static_cast<uint64_t>(60 * CostWeights().prefill);
  EXPECT_EQ(Best({Worker("idle", 0), Worker("warm", 60, {.waiting_prefill_blocks = gain + 1})}),
            "idle");
  EXPECT_EQ(Best({Worker("idle", 0), Worker("warm", 60, {.waiting_prefill_blocks = gain - 1})}),
            "warm");
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

TEST(CostTest, TheDrawWithATemperatureRepeatsWithTheSeedAndDiffersWithout) {
  const std::vector<CostCandidate> candidates = {Worker("near", 50), Worker("far", 45)};
  int differ = 0;
  for (uint64_t key = 0; key < 200; ++key) {
    const std::string first = Best(candidates, {.temperature = 10, .seed = 3}, key);
    EXPECT_EQ(Best(candidates, {.temperature = 10, .seed = 3}, key), first);
    differ += Best(candidates, {.temperature = 10, .seed = 4}, key) != first ? 1 : 0;
  }
  EXPECT_GT(differ, 40);
}

// Each of n equal workers is drawn as often as the others: chi-squared with 9 degrees of freedom,
// far beyond its 99.9 %.
TEST(CostTest, EqualWorkersAreDrawnEquallyOften) {
  std::vector<CostCandidate> candidates;
  for (int i = 0; i < 10; ++i) candidates.push_back(Worker("w" + std::to_string(i), 10));
  for (double temperature : {0.0, 5.0}) {
    std::map<std::string, int> drawn;
    for (uint64_t key = 0; key < 10'000; ++key)
      ++drawn[Best(candidates, {.temperature = temperature}, key)];
    double chi2 = 0;
    for (const auto& [name, count] : drawn) chi2 += (count - 1000.0) * (count - 1000.0) / 1000.0;
    EXPECT_EQ(drawn.size(), 10u);
    EXPECT_LT(chi2, 40);
  }
}

TEST(CostTest, RankingGivesTheBestFewCheapestFirst) {
  std::vector<CostCandidate> candidates;
  for (uint32_t i = 0; i < 50; ++i) candidates.push_back(Worker("w" + std::to_string(i), i));
  const std::vector<RankedCandidate> ranked = RankCandidates(candidates, {}, 0, 3);
  ASSERT_EQ(ranked.size(), 3u);
  EXPECT_EQ(ranked[0].candidate, 49u);
  EXPECT_EQ(ranked[1].candidate, 48u);
  EXPECT_EQ(ranked[2].candidate, 47u);
  EXPECT_EQ(ranked[0].cost.prefill, 51 * CostWeights().prefill);
  EXPECT_TRUE(RankCandidates({}, {}, 0, 3).empty());
}

}  // namespace
}  // namespace kvatlas
