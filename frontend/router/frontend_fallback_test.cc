// Routes when hierarchies, nodes or leaves are away, late, or wrong.

#include <map>
#include <string>

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
using testing::IsEmpty;
using testing::UnorderedElementsAre;

TEST_F(FrontendTest, TheSecondHierarchyAnswersForTheFirstAndIsRememberedForIt) {
  options_.hierarchies = {"dead", "h"};
  fleet_.AddCell("a", 0, {Worker("w0", 0)});
  EXPECT_EQ(Route().receipt.fallback, Fallback::kNone);
  Route();
  EXPECT_THAT(fleet_.hierarchies_asked, ElementsAre("dead", "h", "h"));
}

TEST_F(FrontendTest, ANodeWithAnotherScheduleIsCountedAndTheRouteGoesOnWithoutIt) {
  const WaypointSchedule ours({3}, 9);
  options_.schedule = &ours;
  options_.hierarchies = {"other", "h"};
  fleet_.refusing = {"other"};
  fleet_.AddCell("a", 0, {Worker("w0", 0)});
  EXPECT_EQ(Route().receipt.fallback, Fallback::kNone);
  EXPECT_EQ(frontend().stats().refused_by_nodes, 1u);
  fleet_.refusing.insert("h");
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "w0");
  EXPECT_EQ(route.receipt.fallback, Fallback::kLastGoodCells);
  EXPECT_THAT(route.receipt.reason, HasSubstr("schedule 'early:3;every:9' is not ours"));
  EXPECT_EQ(frontend().stats().refused_by_nodes, 3u);
}

TEST_F(FrontendTest, WithoutHierarchyTheLastGoodCellsAreAsked) {
  for (const char* cell : {"a", "b", "c"})
    fleet_.AddCell(cell, 0, {Worker(std::string("w") + cell, 0)});
  Route();
  TearHierarchyDown();
  fleet_.leaves_asked.clear();
  fleet_.workers["c:1"].workers[0].blocks = 90;
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "wc");  // found although no peer could say where
  EXPECT_EQ(route.overlap_blocks, 90u);
  EXPECT_EQ(route.receipt.fallback, Fallback::kLastGoodCells);
  EXPECT_THAT(route.receipt.reason, HasSubstr("hierarchy h: UNAVAILABLE: down"));
  EXPECT_THAT(fleet_.leaves_asked, UnorderedElementsAre("a:1", "b:1", "c:1"));
}

TEST_F(FrontendTest, ACellThatWasJustSentThePromptIsAskedBeforeItsCoverageIsReported) {
  for (int i = 0; i < 8; ++i)
    fleet_.AddCell("c" + std::to_string(i), 0, {Worker("w" + std::to_string(i), 0)});
  const RouteResult first = Route();
  frontend().Report(first.decision_id, {.accepted = true});
  // It is busy with it now, and holds it; the hierarchy knows only that it is busy.
  for (CellFound& cell : fleet_.cells["h"].cells) {
    if (cell.cell == first.cell) cell.load = Load{.running_requests = 20};
  }
  fleet_.workers[first.cell + ":1"].workers[0].blocks = 100;
  const RouteResult second = Route();
  EXPECT_EQ(second.worker, first.worker);
  EXPECT_EQ(second.overlap_blocks, 100u);
  EXPECT_EQ(second.receipt.cells[0].blocks_at_least, 0u);  // as reported
}

TEST_F(FrontendTest, WithoutHierarchyAndMemoryTheConfiguredLeavesAreAsked) {
  options_.leaves = {{.cell = "own", .address = "own:1"}};
  fleet_.workers["own:1"] = {.workers = {Worker("w0", 12)}};
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "w0");
  EXPECT_EQ(route.cell, "own");
  EXPECT_EQ(route.receipt.fallback, Fallback::kOwnCell);
  EXPECT_THAT(route.receipt.reason, HasSubstr("UNAVAILABLE"));
}

TEST_F(FrontendTest, WhereNoHierarchyIsConfiguredTheConfiguredLeavesAreNoFallback) {
  options_.hierarchies = ShardMap();
  options_.leaves = {{.cell = "own", .address = "own:1"}};
  fleet_.workers["own:1"] = {.workers = {Worker("w0", 12)}};
  const RouteResult route = Route();
  EXPECT_EQ(route.overlap_blocks, 12u);
  EXPECT_EQ(route.receipt.fallback, Fallback::kNone);
  EXPECT_THAT(route.receipt.reason, IsEmpty());
  TearLeavesDown();
  EXPECT_EQ(Route().receipt.fallback, Fallback::kLoadOnly);
}

TEST_F(FrontendTest, WithEverythingDownARememberedWorkerIsChosenByLoad) {
  fleet_.AddCell(
      "a", 64,
      {Worker("w0", 64, {.running_requests = 9}), Worker("w1", 0, {.running_requests = 1})});
  EXPECT_EQ(Route().worker.name, "w0");
  TearHierarchyDown();
  TearLeavesDown();
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "w1");
  EXPECT_EQ(route.overlap_blocks, 0u);
  EXPECT_EQ(route.receipt.fallback, Fallback::kLoadOnly);
  EXPECT_THAT(route.receipt.reason, HasSubstr("hierarchy h: UNAVAILABLE"));
  EXPECT_THAT(route.receipt.reason, HasSubstr("leaf a at a:1: UNAVAILABLE"));
  EXPECT_EQ(frontend().stats().by_fallback[static_cast<int>(Fallback::kLoadOnly)], 1u);
}

TEST_F(FrontendTest, WithEverythingDownABurstStillSpreads) {
  fleet_.AddCell("a", 0, {Worker("w0", 0), Worker("w1", 0)});
  Route();
  TearHierarchyDown();
  TearLeavesDown();
  std::map<std::string, int> chosen;
  for (int i = 0; i < 9; ++i) chosen[Route().worker.name]++;
  EXPECT_GE(chosen["w0"], 4);
  EXPECT_GE(chosen["w1"], 4);
}

TEST_F(FrontendTest, WhenTheBestCellsFailTheNextOnesAreAsked) {
  for (int i = 0; i < 6; ++i) {
    fleet_.AddCell("c" + std::to_string(i), 96 - 10 * i,
                   {Worker("w" + std::to_string(i), 96 - 10 * i)});
  }
  for (const char* dead : {"c0:1", "c1:1", "c2:1", "c3:1"}) fleet_.workers.erase(dead);
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "w4");
  EXPECT_EQ(route.receipt.fallback, Fallback::kNone);
  EXPECT_EQ(route.receipt.cells.size(), 6u);
  EXPECT_THAT(route.receipt.cells[0].error, HasSubstr("UNAVAILABLE"));
}

TEST_F(FrontendTest, ALateLeafIsUnknownAndTheOtherOneCounts) {
  fleet_.AddCell("a", 64, {Worker("w0", 64)});
  fleet_.AddCell("b", 32, {Worker("w1", 32)});
  fleet_.hanging = {"a:1"};
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "w1");
  EXPECT_THAT(route.receipt.cells[0].error, HasSubstr("DEADLINE_EXCEEDED"));
}

TEST_F(FrontendTest, EverythingHangingStillYieldsAWorkerInTime) {
  options_.hierarchies = {"h", "h2"};
  fleet_.AddCell("a", 64, {Worker("w0", 64)});
  Route();
  fleet_.hanging = {"h", "h2", "a:1"};
  const Time before = clock_.Now();
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "w0");
  EXPECT_EQ(route.receipt.fallback, Fallback::kLoadOnly);
  EXPECT_LE(clock_.Now() - before, options_.deadline);
}

// Clients ask again after an outage, and not for a model that is not there.
TEST_F(FrontendTest, AnOutageIsUnavailableWithATimeToComeAgainAndNamesNoAddress) {
  const auto status = [&] {
    return frontend().Route({.domain = kDomain, .sequence_hashes = Prompt(1)}).status();
  };
  const absl::Status down = status();
  EXPECT_EQ(down.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(down.message()),
              testing::AllOf(HasSubstr("did not answer"), testing::Not(HasSubstr("hierarchy h"))));
  EXPECT_TRUE(RetryAfter(down).has_value());
  EXPECT_EQ(frontend().stats().failed, 1u);
  // The hierarchy answers, but the only cell's leaf does not.
  fleet_.AddCell("a", 1, {Worker("w0", 1)});
  TearLeavesDown();
  EXPECT_EQ(status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status().message()), testing::Not(HasSubstr("a:1")));
}

TEST_F(FrontendTest, AModelThatAFleetWhichAnswersDoesNotKnowIsNotFound) {
  fleet_.cells["h"] = {};
  const absl::Status none =
      frontend().Route({.domain = kDomain, .sequence_hashes = Prompt(1)}).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.message()), HasSubstr("The model `m` does not exist."));
  EXPECT_TRUE(IsUnknownModel(none));
  EXPECT_FALSE(RetryAfter(none).has_value());
}

TEST_F(FrontendTest, WithoutAnythingToAskTheErrorIsAnOutageToo) {
  options_.hierarchies = ShardMap();
  EXPECT_FALSE(frontend().HasUpstreams());
  EXPECT_EQ(frontend().Route({.domain = kDomain, .sequence_hashes = Prompt(1)}).status().code(),
            absl::StatusCode::kUnavailable);
  frontend().SetLeaves({{.cell = "own", .address = "own:1"}});
  EXPECT_TRUE(frontend().HasUpstreams());
}

}  // namespace
}  // namespace kvatlas
