#include "frontend/router/shard_plan.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const WaypointSchedule& Schedule() {
  static const auto& schedule = *new WaypointSchedule({7, 15, 31}, 64);
  return schedule;
}

std::vector<SequenceHash> RandomWaypoints(size_t count, std::mt19937_64& random) {
  std::vector<SequenceHash> waypoints;
  for (size_t i = 0; i < count; ++i) waypoints.push_back(SequenceHash(random()));
  return waypoints;
}

ShardMap Map(int shards, uint32_t shallow) {
  std::string text = "shallow=" + std::to_string(shallow);
  for (int i = 0; i < shards; ++i) text += ",s" + std::to_string(i) + "=h:" + std::to_string(i + 1);
  return *ShardMap::Parse(text);
}

// As a node answers: bounds by the waypoints it is asked about, of a cell that covers `covered`.
CellFound Answer(const ShardQuestion& question, const std::set<SequenceHash>& covered,
                 uint32_t blocks) {
  CellFound found{.cell = "c", .address = "", .blocks_at_least = 0, .blocks_below = blocks + 1};
  for (size_t i = 0; i < question.waypoints.size(); ++i) {
    const Position position = question.positions.empty()
                                  ? Schedule().PositionOf(static_cast<uint32_t>(i))
                                  : question.positions[i];
    if (!covered.contains(question.waypoints[i])) {
      found.blocks_below = position + 1;
      break;
    }
    found.blocks_at_least = position + 1;
  }
  return found;
}

TEST(ShardPlanTest, ALevelThatIsNotSplitIsAskedAboutEverything) {
  std::mt19937_64 random(1);
  const std::vector<SequenceHash> waypoints = RandomWaypoints(9, random);
  const auto plan = PlanShards({"h:1", "h:2"}, Schedule(), waypoints, 5, 2);
  ASSERT_EQ(plan.size(), 1u);
  EXPECT_EQ(plan[0].waypoints, waypoints);
  EXPECT_THAT(plan[0].positions, IsEmpty());
}

TEST(ShardPlanTest, ShortPromptsAreSpreadOverShardsByTheirKey) {
  std::mt19937_64 random(1);
  const ShardMap map = Map(4, 2);
  std::set<size_t> asked;
  for (int i = 0; i < 100; ++i) {
    const auto plan = PlanShards(map, Schedule(), RandomWaypoints(2, random), random(), 2);
    ASSERT_EQ(plan.size(), 1u);
    asked.insert(plan[0].shard);
  }
  EXPECT_EQ(asked.size(), 4u);
}

TEST(ShardPlanTest, TheShardOfTheDeepestWaypointIsFirst) {
  std::mt19937_64 random(1);
  const ShardMap map = Map(4, 1);
  for (int i = 0; i < 100; ++i) {
    const std::vector<SequenceHash> waypoints = RandomWaypoints(2 + i % 12, random);
    const auto plan = PlanShards(map, Schedule(), waypoints, 0, 2);
    ASSERT_FALSE(plan.empty());
    EXPECT_LE(plan.size(), 2u);
    EXPECT_EQ(plan[0].shard, map.OwnerOf(waypoints.back()));
    for (const ShardQuestion& question : plan) {
      ASSERT_EQ(question.positions.size(), question.waypoints.size());
      EXPECT_EQ(question.waypoints[0], waypoints[0]) << "the shallow one";
      for (SequenceHash waypoint : question.waypoints) {
        const auto ordinal = static_cast<uint32_t>(
            std::find(waypoints.begin(), waypoints.end(), waypoint) - waypoints.begin());
        EXPECT_TRUE(map.Keeps(question.shard, ordinal, waypoint));
      }
    }
  }
}

// Random coverage with holes, shards that answer or not, against a look at the waypoints that were
// asked about.
TEST(ShardPlanTest, MergedBoundsAreThoseOfAllThatWasAsked) {
  for (uint32_t seed = 1; seed <= 3000; ++seed) {
    std::mt19937_64 random(seed);
    const ShardMap map = Map(1 + static_cast<int>(random() % 6), 1 + random() % 3);
    const size_t count = random() % 14;
    const uint32_t blocks = Schedule().BlocksCovered(static_cast<uint32_t>(count)) + random() % 8;
    const std::vector<SequenceHash> waypoints = RandomWaypoints(count, random);
    std::set<SequenceHash> covered;
    const size_t depth = random() % (count + 1);
    for (size_t i = 0; i < count; ++i)
      if (i < depth && random() % 8 != 0) covered.insert(waypoints[i]);
    const size_t shards_max = 1 + random() % 6;
    const auto plan = PlanShards(map, Schedule(), waypoints, random(), shards_max);

    std::vector<ShardAnswer> answers;
    std::map<Position, bool> known;  // waypoints asked about, and whether the cell covers them
    for (const ShardQuestion& question : plan) {
      if (plan.size() > 1 && random() % 8 == 0 && !(answers.empty() && &question == &plan.back()))
        continue;  // this one does not answer
      answers.push_back(
          {.question = &question,
           .answer = {.cells = {Answer(question, covered, blocks)}, .block_size = 16}});
      for (SequenceHash waypoint : question.waypoints) {
        const auto ordinal = static_cast<uint32_t>(
            std::find(waypoints.begin(), waypoints.end(), waypoint) - waypoints.begin());
        known[Schedule().PositionOf(ordinal)] = covered.contains(waypoint);
      }
    }
    uint32_t at_least = 0, below = blocks + 1;
    for (const auto& [position, has] : known) {
      if (!has) {
        below = position + 1;
        break;
      }
      at_least = position + 1;
    }
    const bool all = answers.size() == map.shards().size();
    const CellsAnswer merged = MergeAnswers(std::move(answers));
    ASSERT_EQ(merged.cells.size(), 1u);
    ASSERT_EQ(merged.cells[0].blocks_at_least, at_least) << "seed " << seed;
    ASSERT_EQ(merged.cells[0].blocks_below, below) << "seed " << seed;
    EXPECT_EQ(merged.block_size, 16u);
    if (all && map.shards().size() > 1 && count > map.shallow()) {
      EXPECT_EQ(known.size(), count) << "with all shards it is as if the level were not split";
    }
  }
}

TEST(ShardPlanTest, TheFreshestAnswerTellsAboutACellAndTheWorstHowSure) {
  const ShardQuestion first{.shard = 0, .waypoints = {SequenceHash(1)}, .positions = {7}};
  const ShardQuestion second{.shard = 1, .waypoints = {SequenceHash(2)}, .positions = {15}};
  const CellsAnswer merged = MergeAnswers(
      {{.question = &first,
        .answer = {.cells = {{.cell = "x", .address = "old", .blocks_below = 8, .age_ms = 900}}}},
       {.question = &second,
        .answer = {
            .cells = {
                {.cell = "x",
                 .address = "new",
                 .blocks_below = 16,
                 .trust = Trust::kDegraded,
                 .age_ms = 10},
                {.cell = "y", .address = "y:1", .blocks_at_least = 16, .blocks_below = 32}}}}});
  ASSERT_EQ(merged.cells.size(), 2u);
  EXPECT_EQ(merged.cells[0].cell, "y") << "deepest first";
  EXPECT_EQ(merged.cells[0].blocks_at_least, 16u);
  EXPECT_EQ(merged.cells[1].address, "new");
  EXPECT_EQ(merged.cells[1].age_ms, 900u);
  EXPECT_EQ(merged.cells[1].trust, Trust::kDegraded);
  EXPECT_EQ(merged.cells[1].blocks_below, 8u);
}

}  // namespace
}  // namespace kvatlas
