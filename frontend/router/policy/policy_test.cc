#include "frontend/router/policy/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "indexer/base/event.h"
#include "indexer/base/ids.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<const Policy> Make(const std::string& name, const CostWeights& weights = {}) {
  absl::StatusOr<std::unique_ptr<const Policy>> policy = MakePolicy(name, weights);
  EXPECT_TRUE(policy.ok()) << policy.status();
  return *std::move(policy);
}

CostCandidate Worker(const std::string& name, CostInput input) {
  return {.cell = "a", .worker = {.name = name, .rank = 0, .replica = ""}, .input = input};
}

std::string Best(const std::string& policy, const std::vector<CostCandidate>& candidates) {
  return candidates[Rank(*Make(policy), candidates, 7, 1).at(0).candidate].worker.name;
}

TEST(PolicyTest, NamesAreKnownAndOthersAreRefusedWithThem) {
  EXPECT_THAT(PolicyNames(), ElementsAre("kvatlas", "dynamo", "lmetric", "prefix", "session",
                                         "least_load", "round_robin"));
  for (const std::string& name : PolicyNames()) EXPECT_EQ(Make(name)->Name(), name);
  const absl::Status unknown = MakePolicy("random", {}).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("least_load"));
}

TEST(PolicyTest, OursIsTheCostOfTheFrontend) {
  const CostInput input = {.prompt_blocks = 100, .overlap_blocks = 40, .distance = 3};
  EXPECT_EQ(Make("kvatlas", {.prefill = 2})->CostOf(input).total(),
            CostOf(input, {.prefill = 2}).total());
}

// The formula by hand: waiting + prompt - (device + 0.75 host + 0.25 disk), and the blocks of all
// running requests.
TEST(PolicyTest, DynamoIsItsFormula) {
  const Cost cost = Make("dynamo")->CostOf(
      {.prompt_blocks = 100,
       .overlap_blocks = 40,
       .fetched = {.host = 8, .disk = 4},
       .load = Load{.running_requests = 9, .used_blocks = 200, .waiting_prefill_blocks = 30}});
  EXPECT_DOUBLE_EQ(cost.prefill, 30 + 100 - (28 + 0.75 * 8 + 0.25 * 4));
  EXPECT_DOUBLE_EQ(cost.decode, 200 + 100);
  EXPECT_DOUBLE_EQ(cost.total(), cost.prefill + cost.decode);
}

TEST(PolicyTest, PrefixLooksAtLoadOnlyAmongEqualOverlaps) {
  const CostInput deep = {
      .prompt_blocks = 100, .overlap_blocks = 41, .load = Load{.waiting_prefill_blocks = 100'000}};
  const CostInput idle = {.prompt_blocks = 100, .overlap_blocks = 40};
  CostInput busy = idle;
  busy.in_flight_requests = 1;
  EXPECT_EQ(Best("prefix", {Worker("deep", deep), Worker("idle", idle)}), "deep");
  EXPECT_EQ(Best("prefix", {Worker("busy", busy), Worker("idle", idle)}), "idle");
}

// The formula by hand: (waiting + sent + missing) x (running + waiting + sent + 1).
TEST(PolicyTest, LmetricIsItsProduct) {
  const Cost cost = Make("lmetric")->CostOf(
      {.prompt_blocks = 100,
       .overlap_blocks = 40,
       .load = Load{.running_requests = 9, .waiting_requests = 2, .waiting_prefill_blocks = 30},
       .in_flight_blocks = 5,
       .in_flight_requests = 1});
  EXPECT_DOUBLE_EQ(cost.total(), (30 + 5 + 60) * (9 + 2 + 1 + 1.0));
}

TEST(PolicyTest, LmetricAmongWorkersThatHaveAllTakesTheSmallestBatch) {
  const CostInput busy = {
      .prompt_blocks = 8, .overlap_blocks = 8, .load = Load{.running_requests = 2}};
  CostInput busier = busy;
  busier.load->running_requests = 3;
  EXPECT_EQ(Best("lmetric", {Worker("busier", busier), Worker("busy", busy)}), "busy");
}

TEST(PolicyTest, SessionStaysWhateverTheLoadAndBeginsWhereLeastWaits) {
  const CostInput home = {.prompt_blocks = 100, .load = Load{.waiting_prefill_blocks = 100'000}};
  const CostInput other = {.prompt_blocks = 100, .overlap_blocks = 100, .leaves_session = true};
  EXPECT_EQ(Best("session", {Worker("other", other), Worker("home", home)}), "home");
  const CostInput idle = {.prompt_blocks = 100};
  EXPECT_EQ(Best("session", {Worker("full", home), Worker("idle", idle)}), "idle");
}

TEST(PolicyTest, LeastLoadDoesNotLookAtOverlap) {
  const CostInput warm = {
      .prompt_blocks = 100, .overlap_blocks = 100, .load = Load{.waiting_prefill_blocks = 1}};
  const CostInput cold = {.prompt_blocks = 100, .load = Load{.running_requests = 60}};
  EXPECT_EQ(Best("least_load", {Worker("warm", warm), Worker("cold", cold)}), "cold");
}

TEST(PolicyTest, RoundRobinTakesWhoeverWaitedLongest) {
  EXPECT_EQ(Best("round_robin", {Worker("x", {.prompt_blocks = 9, .turn = 3}),
                                 Worker("y", {.prompt_blocks = 9, .turn = 2}),
                                 Worker("z", {.prompt_blocks = 9, .turn = 4})}),
            "y");
}

TEST(PolicyTest, OnlyOursIsBoundedByCoverage) {
  for (const std::string& name : PolicyNames())
    EXPECT_EQ(Make(name)->bounded_by_coverage(), name == "kvatlas") << name;
}

// Ranking against the obvious way: cost of each, sorted.
TEST(PolicyTest, RankingEqualsSortingByCostUnderRandomCandidates) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    std::mt19937 random(seed);
    std::vector<CostCandidate> candidates;
    for (int i = 0; i < 40; ++i) {
      const uint32_t overlap = static_cast<uint32_t>(random() % 101);
      candidates.push_back(
          Worker("w" + std::to_string(i),
                 {.prompt_blocks = 100,
                  .overlap_blocks = overlap,
                  .fetched = {.host = static_cast<uint32_t>(random() % (overlap + 1))},
                  .load = Load{.running_requests = static_cast<uint32_t>(random() % 20),
                               .used_blocks = random() % 4096,
                               .free_blocks = random() % 200,
                               .waiting_prefill_blocks = random() % 300},
                  .in_flight_blocks = random() % 50,
                  .leaves_session = random() % 2 == 0,
                  .turn = random()}));
    }
    for (const std::string& name : PolicyNames()) {
      const std::unique_ptr<const Policy> policy = Make(name);
      std::vector<double> costs;
      for (const CostCandidate& candidate : candidates)
        costs.push_back(policy->CostOf(candidate.input).total());
      std::sort(costs.begin(), costs.end());
      const std::vector<RankedCandidate> ranked = Rank(*policy, candidates, seed, 40);
      ASSERT_EQ(ranked.size(), 40u);
      for (size_t i = 0; i < ranked.size(); ++i) {
        ASSERT_EQ(ranked[i].cost.total(), costs[i]) << name << ", seed " << seed;
        ASSERT_EQ(ranked[i].cost.total(),
                  policy->CostOf(candidates[ranked[i].candidate].input).total());
      }
    }
  }
}

}  // namespace
}  // namespace kvatlas
