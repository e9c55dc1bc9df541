// A few rounds of the long simulation, and that it finds what is wrong.

#include "tests/long_simulation.h"

#include "gtest/gtest.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

TEST(LongSimulationTest, LeavesAndNodesKnowAtRestWhatEnginesHave) {
  ConfigureLog({.component = "long_simulation_test", .level_min = LogLevel::kError});
  RoundResult total;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    const RoundResult result = RunRound({.seed = seed, .events = 150'000});
    EXPECT_EQ(result.over, 0u);
    EXPECT_EQ(result.under, 0u);
    EXPECT_EQ(result.error, "");
    EXPECT_GE(result.events, 150'000u);
    EXPECT_GT(result.compared, 1000u);
    total += result;
  }
  EXPECT_GT(total.kills, 0u);
  EXPECT_GT(total.clock_jumps, 0u);
  EXPECT_GT(total.snapshots, 0u);
  EXPECT_GT(total.batches_dropped, 0u);
  EXPECT_GT(total.messages_lost, 0u);
}

TEST(LongSimulationTest, FindsABlockTooManyAndABlockTooFew) {
  const RoundResult result = RunRound({.seed = 1, .events = 10'000, .plant_errors = true});
  EXPECT_GE(result.over, 1u);
  EXPECT_GE(result.under, 1u);
  EXPECT_FALSE(result.ok());
}

TEST(LongSimulationTest, ARoundIsTheSameWheneverItRuns) {
  const RoundResult first = RunRound({.seed = 3, .events = 50'000});
  const RoundResult again = RunRound({.seed = 3, .events = 50'000});
  EXPECT_EQ(first.events, again.events);
  EXPECT_EQ(first.snapshots, again.snapshots);
  EXPECT_EQ(first.messages_lost, again.messages_lost);
}

}  // namespace
}  // namespace kvatlas
