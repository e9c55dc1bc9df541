#include "frontend/router/frontend.h"

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "frontend/router/frontend_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "indexer/base/memory_budget.h"
#include "indexer/base/shard_map.h"
#include "indexer/base/waypoints.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

TEST_F(FrontendTest, RoutesToTheDeepestWorkerOfTheDeepestCell) {
  fleet_.AddCell("a", 40, {Worker("w0", 40), Worker("w1", 0)});
  fleet_.AddCell("b", 64, {Worker("w2", 70), Worker("w3", 65)});
  fleet_.AddCell("c", 0, {Worker("w4", 99)});
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "w2");
  EXPECT_EQ(route.cell, "b");
  EXPECT_EQ(route.overlap_blocks, 70u);
  EXPECT_THAT(fleet_.leaves_asked, ElementsAre("b:1", "a:1"));
  EXPECT_EQ(route.receipt.fallback, Fallback::kNone);
  EXPECT_THAT(route.receipt.reason, IsEmpty());
  EXPECT_EQ(route.receipt.blocks, 100u);
  EXPECT_EQ(route.receipt.candidates_considered, 4u);
  EXPECT_EQ(route.receipt.candidates[0].cost.prefill, 30 * CostWeights().prefill);
  EXPECT_EQ(route.receipt.cells[0].best_blocks, 70u);
  EXPECT_EQ(route.receipt.cells[0].blocks_at_least, 64u);
  EXPECT_EQ(route.receipt.cells[0].error, "");
}

TEST_F(FrontendTest, ABusyDeepCellIsStillAskedBesideTheCheapest) {
  fleet_.AddCell("idle1", 0, {Worker("w0", 0)});
  fleet_.AddCell("idle2", 0, {Worker("w1", 0)});
  fleet_.AddCell("deep", 96, {Worker("w2", 96)}, {.waiting_prefill_blocks = 1000, .workers = 1});
  EXPECT_EQ(Route().worker.name, "w2");
  EXPECT_THAT(fleet_.leaves_asked, ElementsAre(testing::StartsWith("idle"), "deep:1"));
}

TEST_F(FrontendTest, ABurstOfSiblingsSpreadsBeforeAnyLoadReportWhereThatIsWanted) {
  options_.siblings_together = false;
  fleet_.AddCell("a", 0, {Worker("w0", 0), Worker("w1", 0), Worker("w2", 0)});
  std::map<std::string, int> chosen;
  for (int i = 0; i < 9; ++i) chosen[Route().worker.name]++;
  EXPECT_THAT(chosen,
              UnorderedElementsAre(std::pair("w0", 3), std::pair("w1", 3), std::pair("w2", 3)));
  EXPECT_EQ(frontend().stats().in_flight, 9u);
}

TEST_F(FrontendTest, AnAcceptedChoiceIsCountedByItsWorkerOnly) {
  fleet_.AddCell("a", 0, {Worker("w0", 0), Worker("w1", 0)});
  const RouteResult first = Route();
  frontend().Report(first.decision_id, {.accepted = true});
  EXPECT_EQ(Route().worker, first.worker);
  frontend().Report(first.decision_id, {.finished = true});
  frontend().Report(4711, {.accepted = true});
  EXPECT_EQ(frontend().stats().in_flight, 1u);
}

TEST_F(FrontendTest, AChoiceNobodyReportsOnIsForgottenAfterItsTime) {
  fleet_.AddCell("a", 0, {Worker("w0", 0), Worker("w1", 0)});
  const RouteResult first = Route();
  clock_.Advance(seconds(31));
  EXPECT_EQ(Route().worker, first.worker);
  EXPECT_EQ(frontend().stats().in_flight, 1u);
  EXPECT_EQ(frontend().stats().expired_choices, 1u);
}

TEST_F(FrontendTest, TheUrlOfAnEngineIsItsWorkersLabelOrElseTheOptions) {
  options_.engines = {{"w0", "http://given:1"}, {"w1", "http://given:2"}};
  fleet_.AddCell("a", 64, {Worker("w0", 64), Worker("w1", 0)});
  fleet_.workers["a:1"].labels = std::make_shared<LabelsByWorker>(
      LabelsByWorker{{Id("w0"), {{"url", "http://announced:1"}, {"zone", "x"}}}});
  const RouteResult announced = Route();
  EXPECT_EQ(announced.url, "http://announced:1");
  frontend().Report(announced.decision_id, {.unreachable = true});
  EXPECT_EQ(Route().url, "http://given:2");
  clock_.Advance(options_.suspects.ttl);
  EXPECT_EQ(Route().url, "http://announced:1");
  TearHierarchyDown();
  TearLeavesDown();  // what was announced is remembered
  for (int i = 0; i < 4; ++i) {
    const RouteResult remembered = Route();
    EXPECT_EQ(remembered.url,
              remembered.worker.name == "w0" ? "http://announced:1" : "http://given:2");
  }
}

TEST_F(FrontendTest, BadInputIsRefusedBeforeAnybodyIsAsked) {
  EXPECT_EQ(frontend().Route({.domain = kDomain}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(frontend().Route({.domain = Domain(), .tokens = {1}}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(frontend()
                .Route({.domain = kDomain, .tokens = {1}, .sequence_hashes = Prompt(1)})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(frontend()
                .Route({.domain = kDomain, .sequence_hashes = Prompt(kRouteBlocksMax + 1)})
                .status()
                .code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(fleet_.hierarchies_asked, IsEmpty());
}

TEST_F(FrontendTest, WhileMemoryIsCriticalLargePromptsAreRefused) {
  fleet_.AddCell("a", 0, {Worker("w0", 2)});
  uint64_t used = 96;
  MemoryBudget memory(100, [&] { return used; });
  memory.Measure();
  options_.memory_budget = &memory;
  const absl::Status refused =
      frontend().Route({.domain = kDomain, .sequence_hashes = Prompt(1025)}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--memory_budget"));
  EXPECT_TRUE(frontend().Route({.domain = kDomain, .sequence_hashes = Prompt(1024)}).ok());
  used = 90;
  memory.Measure();
  EXPECT_TRUE(frontend().Route({.domain = kDomain, .sequence_hashes = Prompt(1025)}).ok());
}

TEST_F(FrontendTest, TokensAreHashedWithTheBlockSizeThatTheFleetNames) {
  options_.block_size = 16;
  fleet_.AddCell("a", 0, {Worker("w0", 2)});
  fleet_.cells["h"].block_size = 64;
  std::vector<TokenId> tokens(64 * 3 + 5);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<TokenId>(i);
  absl::StatusOr<RouteResult> route = frontend().Route({.domain = kDomain, .tokens = tokens});
  ASSERT_TRUE(route.ok());
  EXPECT_EQ(route->receipt.blocks, 3u);
  EXPECT_EQ(fleet_.blocks_asked, 3u);
  EXPECT_EQ(fleet_.first_asked,
            SequenceHashes(LocalHashes(tokens, {.block_size = 64}, BlockSeed({})))[0]);
  EXPECT_EQ(fleet_.hierarchies_asked.size(), 2u);  // asked again, once
  ASSERT_TRUE(frontend().Route({.domain = kDomain, .tokens = tokens}).ok());
  EXPECT_EQ(fleet_.hierarchies_asked.size(), 3u);  // remembered
}

TEST_F(FrontendTest, TokensAreHashedUnderTheFleetsOwnSeed) {
  options_.contract.seed = 7;
  fleet_.AddCell("a", 0, {Worker("w0", 1)});
  const std::vector<TokenId> tokens(options_.block_size + 1, 5);
  ASSERT_TRUE(frontend().Route({.domain = kDomain, .tokens = tokens}).ok());
  const HashContract contract = {.seed = 7};
  const uint64_t seed = BlockSeed({}, contract);
  EXPECT_EQ(
      fleet_.first_asked,
      SequenceHashes(LocalHashes(tokens, {.block_size = options_.block_size}, seed), contract)[0]);
}

TEST_F(FrontendTest, ALeafsBlockSizeIsLearntToo) {
  options_.hierarchies = ShardMap();
  options_.leaves = {{.cell = "own", .address = "own:1"}};
  fleet_.workers["own:1"] = {.workers = {Worker("w0", 1)}, .block_size = 8};
  absl::StatusOr<RouteResult> route =
      frontend().Route({.domain = kDomain, .tokens = std::vector<TokenId>(32)});
  ASSERT_TRUE(route.ok());
  EXPECT_EQ(route->receipt.blocks, 4u);
  EXPECT_EQ(route->receipt.cells.size(), 1u);
}

// An engine computes a prompt's last token, and with it the block it is in.
TEST_F(FrontendTest, TheBlockOfTheLastTokenIsNeverPromised) {
  options_.block_size = 16;
  fleet_.AddCell("a", 4, {Worker("w0", 4)});
  const auto route = [&](std::vector<TokenId> tokens, bool eagle) {
    absl::StatusOr<RouteResult> result =
        frontend().Route({.domain = kDomain, .tokens = std::move(tokens), .eagle = eagle});
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : RouteResult();
  };
  const RouteResult exact = route(std::vector<TokenId>(64), false);
  EXPECT_EQ(exact.overlap_blocks, 3u);
  EXPECT_EQ(fleet_.blocks_asked, 3u);   // so that hybrids answer the longest prefix below it
  EXPECT_EQ(exact.receipt.blocks, 4u);  // that are computed or reused
  EXPECT_GT(exact.receipt.candidates[0].cost.prefill, 0);
  EXPECT_EQ(route(std::vector<TokenId>(65), false).overlap_blocks, 4u);
  EXPECT_EQ(route(std::vector<TokenId>(63), false).overlap_blocks, 3u);
  EXPECT_EQ(route(std::vector<TokenId>(16), false).overlap_blocks, 0u);
  // Blocks of EAGLE end one token before their last one is known.
  EXPECT_EQ(route(std::vector<TokenId>(65), true).overlap_blocks, 4u);
  // Hashes alone are taken for the whole prompt.
  const auto of_hashes = [&](uint32_t prompt_tokens) {
    return frontend()
        .Route({.domain = kDomain, .sequence_hashes = Prompt(4), .prompt_tokens = prompt_tokens})
        ->overlap_blocks;
  };
  EXPECT_EQ(of_hashes(0), 3u);
  EXPECT_EQ(of_hashes(64), 3u);
  EXPECT_EQ(of_hashes(65), 4u);
}

// Coverage is of full attention: a cell that covers less may have more that is reusable.
TEST_F(FrontendTest, WhereHybridsReuseLessThanTheyHoldMoreCellsAreAsked) {
  const auto hybrid = [](const std::string& name, uint32_t reusable, uint32_t held) {
    WorkerFound found = Worker(name, reusable);
    found.held = held;
    return found;
  };
  fleet_.AddCell("a", 96, {hybrid("a0", 8, 96)});
  fleet_.AddCell("b", 96, {hybrid("b0", 8, 96)});
  fleet_.AddCell("c", 64, {hybrid("c0", 64, 64)});
  fleet_.AddCell("d", 0, {hybrid("d0", 0, 0)});
  const RouteResult route = Route();
  EXPECT_EQ(route.worker, Id("c0"));
  EXPECT_EQ(route.overlap_blocks, 64u);
  // The main class holds what its cell promised: no cell is doubted for the other classes.
  EXPECT_THAT(fleet_.leaves_asked, testing::Contains("c:1"));
  for (const CellPromises& cell : frontend().promises(8)) EXPECT_EQ(cell.broken, 0u) << cell.cell;
  // Coverage that holds what it says is believed: two leaves are enough.
  fleet_.leaves_asked.clear();
  fleet_.AddCell("a", 96, {Worker("a0", 96)});
  EXPECT_EQ(Route().worker, Id("a0"));
  EXPECT_THAT(fleet_.leaves_asked, testing::Not(testing::Contains("c:1")));
}

// Blocks that were sent to a worker, and are not shown yet, count no more than it could show.
TEST_F(FrontendTest, TheBlockOfTheLastTokenIsNotExpectedOfASiblingEither) {
  options_.block_size = 16;
  fleet_.AddCell("a", 0, {Worker("w0", 0)});
  const std::vector<TokenId> tokens(16 * 64);
  for (int i = 0; i < 3; ++i) {
    absl::StatusOr<RouteResult> route = frontend().Route({.domain = kDomain, .tokens = tokens});
    ASSERT_TRUE(route.ok()) << route.status();
    EXPECT_GT(route->receipt.candidates[0].cost.prefill, 0);
  }
}

TEST_F(FrontendTest, APromptShorterThanABlockIsRoutedByLoad) {
  fleet_.AddCell("a", 0, {Worker("w0", 0, {.running_requests = 5}), Worker("w1", 0)});
  absl::StatusOr<RouteResult> route = frontend().Route({.domain = kDomain, .tokens = {1, 2, 3}});
  ASSERT_TRUE(route.ok());
  EXPECT_EQ(route->worker.name, "w1");
  EXPECT_EQ(route->receipt.blocks, 0u);
  EXPECT_EQ(fleet_.blocks_asked, 0u);
}

TEST_F(FrontendTest, AnUnknownPromptHasNoBlockEvenWhereABlockIsOneToken) {
  options_.block_size = 1;
  fleet_.AddCell("a", 0, {Worker("w0", 0, {.running_requests = 5}), Worker("w1", 0)});
  const absl::StatusOr<RouteResult> route =
      frontend().Route({.domain = kDomain, .unknown_prompt = true});
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_EQ(route->worker.name, "w1");
  EXPECT_EQ(route->receipt.blocks, 0u);
  EXPECT_EQ(fleet_.blocks_asked, 0u);
  EXPECT_EQ(fleet_.waypoints_asked, 0u);
  EXPECT_EQ(
      frontend().Route({.domain = kDomain, .tokens = {1}, .unknown_prompt = true}).status().code(),
      absl::StatusCode::kInvalidArgument);
}

TEST_F(FrontendTest, OfAPromptWhoseCacheIsNotReadNothingIsPromisedAndLoadAloneChooses) {
  fleet_.AddCell("a", 64, {Worker("deep", 64, {.running_requests = 1}), Worker("idle", 0)});
  EXPECT_EQ(Route().worker.name, "deep");
  std::shared_ptr<const RoutedPrompt> routed;
  for (const std::string tried : {"", "idle"}) {
    absl::StatusOr<RouteResult> route = absl::UnknownError("not asked");
    if (routed == nullptr) {
      route = frontend().Route({.domain = kDomain,
                                .sequence_hashes = Prompt(100),
                                .prompt_tokens = 1601,
                                .cache_not_read = true});
    } else {
      frontend().RouteAgain(routed, {CellWorker("a", Id(tried))}, seconds(0),
                            [&](absl::StatusOr<RouteResult> again) { route = again; });
    }
    ASSERT_TRUE(route.ok()) << route.status();
    EXPECT_EQ(route->worker.name, tried.empty() ? "idle" : "deep");
    EXPECT_EQ(route->overlap_blocks, 0u);
    // It is work all the same.
    EXPECT_EQ(route->receipt.blocks, 100u);
    EXPECT_EQ(route->receipt.candidates[0].cost.prefill, 100 * CostWeights().prefill);
    EXPECT_EQ(fleet_.blocks_asked, 0u);
    EXPECT_EQ(fleet_.waypoints_asked, 0u);
    routed = route->routed;
  }
}

TEST_F(FrontendTest, EnginesThatNoLeafKnowsAreChosenByTheLoadTheySay) {
  options_.engines = {{"w0", "http://10.0.0.1:8000"}, {"w1", "http://10.0.0.2:8000"}};
  std::string busy = "w0";
  options_.engine_load = [&](const HolderId& worker) -> std::optional<Load> {
    return Load{.running_requests = worker.name == busy ? 9u : 0u};
  };
  EXPECT_EQ(Route().worker.name, "w1");
  busy = "w1";
  EXPECT_EQ(Route().worker.name, "w0");
}

TEST_F(FrontendTest, WaypointsOfTheStandardScheduleAreAsked) {
  fleet_.AddCell("a", 0, {Worker("w0", 0)});
  Route(200);
  EXPECT_EQ(fleet_.waypoints_asked, WaypointSchedule::Standard().WaypointsIn(200));
}

TEST_F(FrontendTest, AStaleWorkersOverlapIsNotBelieved) {
  fleet_.AddCell("a", 64, {Worker("w0", 64), Worker("w1", 10)});
  fleet_.workers["a:1"].workers[0].trust = Trust::kStale;
  EXPECT_EQ(Route().worker.name, "w1");
}

TEST_F(FrontendTest, AnotherZoneCostsItsDistance) {
  options_.zone = "here";
  options_.zone_distance = 50;
  fleet_.AddCell("far", 32, {Worker("w0", 32)});
  fleet_.AddCell("near", 0, {Worker("w1", 0)});
  fleet_.cells["h"].cells[0].labels = {{"zone", "there"}};
  fleet_.cells["h"].cells[1].labels = {{"zone", "here"}};
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "w1");
  EXPECT_EQ(route.receipt.candidates[1].cost.distance, 50);
}

TEST_F(FrontendTest, AHierarchyThatKnowsNoCellsIsNoHelp) {
  fleet_.AddCell("a", 0, {Worker("w0", 0)});
  Route();
  fleet_.cells["h"].cells.clear();  // restarted
  const RouteResult route = Route();
  EXPECT_EQ(route.receipt.fallback, Fallback::kLastGoodCells);
  EXPECT_THAT(route.receipt.reason, HasSubstr("knows no cell"));
}

TEST_F(FrontendTest, AtMostTheStatedNumberOfLeavesIsAsked) {
  options_.asked_max = 5;
  for (int i = 0; i < 20; ++i) fleet_.AddCell("c" + std::to_string(i), 0, {Worker("w", 0)});
  TearLeavesDown();
  EXPECT_FALSE(frontend().Route({.domain = kDomain, .sequence_hashes = Prompt(1)}).ok());
  EXPECT_EQ(fleet_.leaves_asked.size(), 5u);
}

TEST_F(FrontendTest, LeavesAreAskedInParallelAndAnyOrderOfAnswersWillDo) {
  fleet_.AddCell("a", 64, {Worker("w0", 64)});
  fleet_.AddCell("b", 40, {Worker("w1", 40)});
  fleet_.hold = true;
  int called = 0;
  frontend().RouteAsync({.domain = kDomain, .sequence_hashes = Prompt(100)},
                        [&](absl::StatusOr<RouteResult> route) {
                          ++called;
                          ASSERT_TRUE(route.ok());
                          EXPECT_EQ(route->worker.name, "w0");
                        });
  ASSERT_EQ(fleet_.held.size(), 2u);
  fleet_.held[1]();
  EXPECT_EQ(called, 0);
  frontend_.reset();  // a route may finish after the frontend is gone
  fleet_.held[0]();
  EXPECT_EQ(called, 1);
}

TEST_F(FrontendTest, ACellThatCannotWinIsNotAsked) {
  fleet_.AddCell("a", 64, {Worker("w0", 64)});
  fleet_.AddCell("b", 0, {Worker("w1", 0)});  // below 32: 69 blocks to prefill at best, not 36
  EXPECT_EQ(Route().worker.name, "w0");
  EXPECT_THAT(fleet_.leaves_asked, ElementsAre("a:1"));
}

TEST_F(FrontendTest, ACellThatSeemedUnableToWinIsAskedWhenTheFirstDisappoints) {
  fleet_.AddCell("a", 64, {Worker("w0", 0)});
  fleet_.AddCell("b", 0, {Worker("w1", 31)});
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "w1");
  EXPECT_EQ(route.receipt.candidates_considered, 2u);
  EXPECT_THAT(fleet_.leaves_asked, ElementsAre("a:1", "b:1"));
}

TEST_F(FrontendTest, ALateLeafIsNotWaitedForWhenItCannotWin) {
  fleet_.AddCell("a", 64, {Worker("w0", 99)});
  fleet_.AddCell("b", 40, {Worker("w1", 40)});
  fleet_.hold = true;
  std::string chosen;
  frontend().RouteAsync({.domain = kDomain, .sequence_hashes = Prompt(100)},
                        [&](absl::StatusOr<RouteResult> route) { chosen = route->worker.name; });
  ASSERT_EQ(fleet_.held.size(), 2u);
  fleet_.held[0]();
  EXPECT_EQ(chosen, "w0") << "b has 71 blocks at most";
  fleet_.held[1]();
}

TEST_F(FrontendTest, AnotherReplicaOfALeafAnswersForIt) {
  fleet_.AddCell("a", 64, {Worker("w0", 64)});
  fleet_.cells["h"].cells[0].other_addresses = {"a:2"};
  fleet_.workers["a:2"] = fleet_.workers["a:1"];
  fleet_.workers.erase("a:1");
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "w0");
  EXPECT_EQ(route.receipt.cells[0].address, "a:2");
  EXPECT_EQ(route.receipt.cells[0].error, "");
}

}  // namespace
}  // namespace kvatlas
