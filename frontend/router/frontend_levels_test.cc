// Hierarchies of several levels and of several shards.

#include <string>
#include <vector>

#include "frontend/router/frontend.h"
#include "frontend/router/frontend_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "indexer/base/shard_map.h"
#include "indexer/base/waypoints.h"

namespace kvatlas {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A world "h" that knows two regions, each of which knows two cells.
class LevelsTest : public FrontendTest {
 protected:
  LevelsTest() {
    for (const char* region : {"east", "west"}) {
      for (const char* cell : {"1", "2"}) {
        const std::string name = std::string(region) + cell;
        fleet_.AddCell(name, 0, {Worker("w-" + name, 0)});
        fleet_.cells[std::string(region) + ":9"].cells.push_back(fleet_.cells["h"].cells.back());
      }
    }
    fleet_.cells["h"].cells.clear();
    for (const char* region : {"east", "west"}) {
      fleet_.cells["h"].cells.push_back({.cell = region,
                                         .address = std::string(region) + ":9",
                                         .blocks_below = 32,
                                         .is_node = true});
    }
  }
  CellFound& Cell(const std::string& node, size_t i) { return fleet_.cells[node].cells[i]; }
};

TEST_F(LevelsTest, TheFrontendGoesDownToTheCellThatARegionNames) {
  Cell("h", 1).blocks_at_least = 64;
  Cell("h", 1).blocks_below = 128;
  Cell("west:9", 1).blocks_at_least = 64;
  Cell("west:9", 1).blocks_below = 96;
  fleet_.workers["west2:1"].workers[0].blocks = 80;
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "w-west2");
  EXPECT_EQ(route.receipt.fallback, Fallback::kNone);
  EXPECT_THAT(fleet_.hierarchies_asked, ElementsAre("h", "west:9")) << "east cannot win";
  EXPECT_THAT(fleet_.leaves_asked, ElementsAre("west2:1"));
  ASSERT_EQ(route.receipt.nodes.size(), 1u);
  EXPECT_EQ(route.receipt.nodes[0].cell, "west");
  EXPECT_EQ(route.receipt.nodes[0].best_blocks, 64u);
}

TEST_F(LevelsTest, AColdPromptGoesWhereLoadSaysInTheRegionsThatCanWin) {
  for (CellFound& cell : fleet_.cells["west:9"].cells) cell.load = Load{.running_requests = 9};
  EXPECT_THAT(Route().worker.name, testing::StartsWith("w-east"));
  EXPECT_THAT(fleet_.hierarchies_asked, ElementsAre("h", "east:9", "west:9"));
}

TEST_F(LevelsTest, AnotherReplicaOfARegionAnswersForIt) {
  Cell("h", 0).other_addresses = {"east:8"};
  Cell("h", 0).blocks_at_least = 96;
  fleet_.cells["east:8"] = fleet_.cells["east:9"];
  fleet_.cells.erase("east:9");
  const RouteResult route = Route();
  EXPECT_THAT(route.worker.name, testing::StartsWith("w-east"));
  EXPECT_EQ(route.receipt.fallback, Fallback::kNone);
  EXPECT_EQ(route.receipt.nodes[0].address, "east:8");
}

TEST_F(LevelsTest, ARegionThatIsDownLeavesTheOther) {
  Cell("h", 0).blocks_at_least = 96;
  fleet_.cells.erase("east:9");
  const RouteResult route = Route();
  EXPECT_THAT(route.worker.name, testing::StartsWith("w-west"));
  EXPECT_EQ(route.receipt.fallback, Fallback::kNone);
  EXPECT_THAT(route.receipt.nodes[0].error, HasSubstr("UNAVAILABLE"));
}

TEST_F(LevelsTest, WithoutTheTopRememberedRegionsAreAsked) {
  Route();
  fleet_.cells.erase("h");
  Cell("west:9", 0).blocks_at_least = 64;
  fleet_.workers["west1:1"].workers[0].blocks = 70;
  fleet_.leaves_asked.clear();
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "w-west1");
  EXPECT_EQ(route.receipt.fallback, Fallback::kLastGoodCells);
  EXPECT_EQ(route.receipt.nodes.size(), 2u);
  EXPECT_EQ(route.receipt.cells[0].blocks_at_least, 64u) << "who covers what is still known";
}

TEST_F(LevelsTest, WithoutAnyHierarchyRememberedCellsAreAsked) {
  Route();
  fleet_.cells.clear();
  fleet_.workers["west1:1"].workers[0].blocks = 70;
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "w-west1");
  EXPECT_EQ(route.receipt.fallback, Fallback::kLastGoodCells);
}

TEST_F(LevelsTest, ARegionThatHasACellWhichWasJustSentThePromptIsAskedForIt) {
  options_.ask_cells = 1;
  const RouteResult first = Route();
  frontend().Report(first.decision_id, {.accepted = true});
  const size_t region = first.cell.starts_with("east") ? 0 : 1;
  Cell("h", region).load = Load{.running_requests = 20};  // busy with it
  fleet_.workers[first.cell + ":1"].workers[0].blocks = 100;
  EXPECT_EQ(Route().worker, first.worker);
}

TEST_F(LevelsTest, NodesThatNameOneAnotherEndSomewhere) {
  fleet_.cells["east:9"] = fleet_.cells["west:9"] = fleet_.cells["h"];
  for (int i = 0; i < 20; ++i) {
    const std::string name = "n" + std::to_string(i);
    fleet_.cells[name + ":9"].cells = {{.cell = "n" + std::to_string(i + 1),
                                        .address = "n" + std::to_string(i + 1) + ":9",
                                        .blocks_below = 99,
                                        .is_node = true}};
  }
  fleet_.cells["east:9"].cells.push_back(
      {.cell = "n0", .address = "n0:9", .blocks_below = 99, .is_node = true});
  EXPECT_FALSE(frontend().Route({.domain = kDomain, .sequence_hashes = Prompt(100)}).ok());
  EXPECT_LE(fleet_.hierarchies_asked.size(), 24u);
}

// A top level of three shards; a cell covers waypoints as each of them was told.
class ShardsTest : public FrontendTest {
 protected:
  ShardsTest() {
    options_.hierarchies = *ShardMap::Parse("a=a:9|a:8,b=b:9,c=c:9");
    for (const char* shard : {"a:9", "a:8", "b:9", "c:9"}) {
      fleet_.cells[shard].cells = {
          {.cell = "x", .address = "x:1", .blocks_at_least = 0, .blocks_below = 1000}};
    }
    fleet_.workers["x:1"] = {.workers = {Worker("w", 0)}};
  }
  std::string First(const std::string& shard) { return shard + ":9"; }
};

TEST_F(ShardsTest, TwoShardsAreAskedAboutWhatTheyHave) {
  const RouteResult route = Route(2000);
  EXPECT_EQ(route.receipt.fallback, Fallback::kNone);
  ASSERT_EQ(fleet_.hierarchies_asked.size(), 2u);
  const ShardMap& map = options_.hierarchies;
  const WaypointSchedule& schedule = WaypointSchedule::Standard();
  const std::vector<SequenceHash> waypoints = schedule.Select(Prompt(2000));
  EXPECT_EQ(fleet_.hierarchies_asked[0], First(map.shards()[map.OwnerOf(waypoints.back())].name));
  for (size_t shard = 0; shard < map.shards().size(); ++shard) {
    std::vector<Position> expected;
    for (uint32_t i = 0; i < waypoints.size(); ++i)
      if (map.Keeps(shard, i, waypoints[i])) expected.push_back(schedule.PositionOf(i));
    const auto asked = fleet_.positions_asked.find(First(map.shards()[shard].name));
    if (asked == fleet_.positions_asked.end()) continue;
    EXPECT_EQ(asked->second, expected);
  }
}

TEST_F(ShardsTest, AShortPromptAsksOne) {
  Route(10);
  EXPECT_EQ(fleet_.hierarchies_asked.size(), 1u);
}

TEST_F(ShardsTest, WhenTheShardsThatMatterAreDownAnotherKnowsTheShallowWaypoints) {
  Route(2000);
  const std::vector<std::string> asked = fleet_.hierarchies_asked;
  for (const std::string& address : asked) {
    fleet_.cells.erase(address);
    if (address == "a:9") fleet_.cells.erase("a:8");
  }
  fleet_.hierarchies_asked.clear();
  const RouteResult route = Route(2000);
  EXPECT_EQ(route.receipt.fallback, Fallback::kNone);
  EXPECT_EQ(fleet_.positions_asked[fleet_.hierarchies_asked.back()],
            std::vector<Position>{WaypointSchedule::Standard().PositionOf(0)});
}

TEST_F(ShardsTest, OtherShardsAreAskedFromTheNextRouteOn) {
  Route(2000);
  fleet_.hierarchies_asked.clear();
  fleet_.cells["d:9"] = fleet_.cells["a:9"];
  frontend().SetHierarchies({"d:9"});
  Route(2000);
  EXPECT_THAT(fleet_.hierarchies_asked, ElementsAre("d:9"));
  EXPECT_EQ(frontend().hierarchies().ToString(), "d:9");
}

}  // namespace
}  // namespace kvatlas
