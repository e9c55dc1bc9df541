// Which leaves a route asks ahead of the hierarchy, and which it does not.

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "frontend/router/frontend.h"
#include "frontend/router/frontend_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

// ---- Leaves that are asked ahead ----

TEST_F(FrontendTest, AFleetOfFewCellsIsAskedAtOnceWithTheHierarchyFromTheSecondRouteOn) {
  options_.ask_ahead = 2;
  fleet_.AddCell("a", 40, {Worker("w0", 40)});
  fleet_.AddCell("b", 64, {Worker("w1", 70)});
  frontend().Report(Route().decision_id, {.finished = true});
  EXPECT_EQ(frontend().stats().asked_ahead, 0u);
  fleet_.leaves_asked.clear();
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "w1");
  EXPECT_EQ(route.overlap_blocks, 70u);
  EXPECT_EQ(route.receipt.fallback, Fallback::kNone);
  EXPECT_EQ(route.receipt.candidates_considered, 2u);
  EXPECT_THAT(fleet_.leaves_asked, testing::UnorderedElementsAre("a:1", "b:1"));  // once each
  EXPECT_EQ(frontend().stats().asked_ahead, 2u);
  EXPECT_EQ(frontend().stats().asked_ahead_used, 2u);
}

TEST_F(FrontendTest, OfManyCellsTheOneThatWasSentMostOfThePromptIsAskedAheadAndTheSessions) {
  options_.ask_ahead = 2;
  for (const char* cell : {"a", "b", "c", "d"})
    fleet_.AddCell(cell, *cell == 'c' ? 64 : 0,
                   {Worker(std::string("w") + cell, *cell == 'c' ? 64 : 0)});
  EXPECT_EQ(Route().cell, "c");
  fleet_.leaves_asked.clear();
  EXPECT_EQ(Route().cell, "c");
  EXPECT_EQ(fleet_.leaves_asked.front(), "c:1");
  EXPECT_EQ(frontend().stats().asked_ahead, 1u);
  EXPECT_EQ(frontend().stats().asked_ahead_used, 1u);
  Route(1000);  // of which little was sent anywhere
  EXPECT_EQ(frontend().stats().asked_ahead, 1u);
  const auto in_session = [&] {
    const absl::StatusOr<RouteResult> route =
        frontend().Route({.domain = kDomain, .sequence_hashes = Prompt(10), .session_id = "s"});
    if (!route.ok()) return std::string(route.status().message());
    frontend().Report(route->decision_id, {.finished = true});
    return route->cell;
  };
  clock_.Advance(options_.memory.sent_ttl);
  const std::string cell = in_session();
  clock_.Advance(options_.memory.sent_ttl);
  fleet_.leaves_asked.clear();
  const uint64_t before = frontend().stats().asked_ahead;
  EXPECT_EQ(in_session(), cell);
  EXPECT_EQ(fleet_.leaves_asked.front(), cell + ":1");
  EXPECT_EQ(frontend().stats().asked_ahead, before + 1);
}

TEST_F(FrontendTest, ALeafThatFailsWhenAskedAheadIsNotAskedAgainAndAReplicaIs) {
  options_.ask_ahead = 2;
  fleet_.AddCell("a", 40, {Worker("w0", 40)});
  fleet_.cells["h"].cells[0].other_addresses = {"a:2"};
  fleet_.workers["a:2"] = fleet_.workers["a:1"];
  Route();
  fleet_.workers.erase("a:1");
  fleet_.leaves_asked.clear();
  EXPECT_EQ(Route().overlap_blocks, 40u);
  EXPECT_THAT(fleet_.leaves_asked, ElementsAre("a:1", "a:2"));
}

TEST_F(FrontendTest, AnAnswerThatIsStillOnItsWayIsWaitedForAndOneNobodyWantsIsNot) {
  options_.ask_ahead = 2;
  fleet_.AddCell("a", 64, {Worker("w0", 64)});
  fleet_.AddCell("b", 0, {Worker("w1", 0)});
  fleet_.cells["h"].cells[1].blocks_below =
      1;  // cannot win: no route asks it, but that it is known
  Route();
  fleet_.hold = true;
  std::optional<absl::StatusOr<RouteResult>> routed;
  frontend().RouteAsync({.domain = kDomain, .sequence_hashes = Prompt(100)},
                        [&](absl::StatusOr<RouteResult> result) { routed = std::move(result); });
  ASSERT_EQ(fleet_.held.size(), 2u);
  EXPECT_FALSE(routed.has_value());
  for (const auto& answer : fleet_.held) answer();
  ASSERT_TRUE(routed.has_value());
  EXPECT_EQ((*routed)->worker.name, "w0");
  EXPECT_EQ(frontend().stats().asked_ahead, 2u);
  EXPECT_EQ(frontend().stats().asked_ahead_used, 1u);
}

// ---- Ranks ----

TEST_F(FrontendTest, ARankThatIsNamedIsTheOneThatIsChosenWhereThereIsOne) {
  WorkerFound second = Worker("w0", 0);
  second.worker.rank = 1;
  fleet_.AddCell("a", 64, {Worker("w0", 64), second});
  const auto route = [&](std::optional<uint32_t> rank) {
    return *frontend().Route({.domain = kDomain, .sequence_hashes = Prompt(100), .rank = rank});
  };
  EXPECT_EQ(route({}).worker.rank, 0u);
  EXPECT_EQ(route(1).worker.rank, 1u);
  EXPECT_EQ(route(1).overlap_blocks, 0u);
  EXPECT_EQ(route(0).overlap_blocks, 64u);
  EXPECT_EQ(route(7).worker.name, "w0") << "its engine will say that it has none such";
}

// ---- Workers that are gone ----

TEST_F(FrontendTest, AWorkerThatWasNotReachedIsAvoidedUntilItAcceptsOrTimePasses) {
  fleet_.AddCell("a", 64, {Worker("w0", 64), Worker("w1", 0)});
  const RouteResult first = Route();
  const RouteResult second = Route();
  EXPECT_EQ(first.worker.name, "w0");
  frontend().Report(first.decision_id, {.unreachable = true});
  EXPECT_EQ(frontend().stats().suspects, 1u);
  const RouteResult other = Route();
  EXPECT_EQ(other.worker.name, "w1");
  EXPECT_EQ(other.receipt.candidates.size(), 1u);
  EXPECT_EQ(other.receipt.fallback, Fallback::kNone);
  frontend().Report(second.decision_id, {.accepted = true});
  EXPECT_EQ(Route().worker.name, "w0");
  frontend().Report(Route().decision_id, {.unreachable = true});
  EXPECT_EQ(Route().worker.name, "w1");
  clock_.Advance(options_.suspects.ttl);
  EXPECT_EQ(Route().worker.name, "w0");
}

TEST_F(FrontendTest, WhenNobodyElseIsLeftASuspectIsChosenByWhatItHolds) {
  fleet_.AddCell("a", 64, {Worker("w0", 64)});
  frontend().Report(Route().decision_id, {.unreachable = true});
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "w0");
  EXPECT_EQ(route.overlap_blocks, 64u);
}

TEST_F(FrontendTest, ARequestThatAllMayHaveRefusedIsNotSentTwiceToOneBeforeItWasSentToAll) {
  fleet_.AddCell("a", 64, {Worker("w0", 64), Worker("w1", 32)});
  fleet_.AddCell("b", 0, {Worker("w2", 0)});
  std::set<std::string> sent;
  // A second time too, when all are suspected already, and a third with none to ask.
  for (int time = 0; time < 3; ++time) {
    if (time == 2) TearLeavesDown();
    tried_.clear();
    sent.clear();
    for (int i = 0; i < 3; ++i) {
      const RouteResult route = Route();
      frontend().Report(route.decision_id, {.unreachable = true});
      tried_.emplace_back(route.cell, route.worker);
      EXPECT_TRUE(sent.insert(route.worker.name).second) << time << " " << route.worker.name;
    }
    // All were tried: the one that holds most, where that is known.
    const RouteResult again = Route();
    EXPECT_EQ(again.overlap_blocks, time < 2 ? 64u : 0u);
    frontend().Report(again.decision_id, {.unreachable = true});
  }
}

TEST_F(FrontendTest, CellsWithoutALiveWorkerDoNotKeepOthersFromBeingAsked) {
  options_.ask_cells = 1;
  fleet_.AddCell("dead", 96, {Worker("w0", 96)});
  fleet_.AddCell("empty", 90, {});
  fleet_.AddCell("alive", 0, {Worker("w1", 0)});
  frontend().Report(Route().decision_id, {.unreachable = true});
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "w1");
  EXPECT_EQ(route.receipt.cells.size(), 3u);
}

// ---- Engines that are given ----

TEST_F(FrontendTest, WithNothingToAskTheGivenEnginesServeByLoad) {
  options_.hierarchies = ShardMap();
  options_.engines = {{"e0", "http://e0:1"}, {"e1", "http://e1:1"}, {"e2", "http://e2:1"}};
  std::map<std::string, int> chosen;
  for (int i = 0; i < 9; ++i) {
    const RouteResult route = Route();
    EXPECT_EQ(route.receipt.fallback, Fallback::kLoadOnly);
    EXPECT_EQ(route.overlap_blocks, 0u);
    ++chosen[route.url];
    frontend().Report(route.decision_id, {.accepted = true});
  }
  EXPECT_THAT(chosen, UnorderedElementsAre(std::pair("http://e0:1", 3), std::pair("http://e1:1", 3),
                                           std::pair("http://e2:1", 3)));
}

TEST_F(FrontendTest, WithEverythingDownSinceTheStartTheGivenEnginesServeByLoad) {
  options_.engines = {{"e0", "http://e0:1"}};
  options_.leaves = {{.cell = "own", .address = "own:1"}};
  const RouteResult down = Route();
  EXPECT_EQ(down.worker.name, "e0");
  EXPECT_EQ(down.receipt.fallback, Fallback::kLoadOnly);
  EXPECT_THAT(down.receipt.reason, HasSubstr("hierarchy h: UNAVAILABLE"));
  // They answer, but have not heard of any model yet.
  fleet_.cells["h"] = {};
  fleet_.workers["own:1"] = {};
  EXPECT_EQ(Route().worker.name, "e0");
  // An engine that fails is left for another one.
  options_.engines["e1"] = "http://e1:1";
  frontend_ = nullptr;
  const RouteResult first = Route();
  frontend().Report(first.decision_id, {.unreachable = true});
  EXPECT_NE(Route().worker, first.worker);
}

TEST_F(FrontendTest, AModelThatTheFleetDoesNotKnowAmongOthersIsNotFoundThoughEnginesAreGiven) {
  options_.engines = {{"e0", "http://e0:1"}};
  fleet_.AddCell("a", 0, {Worker("w0", 0)});
  Route();
  fleet_.cells["h"] = {};
  EXPECT_EQ(
      frontend().Route({.domain = {"other", ""}, .sequence_hashes = Prompt(1)}).status().code(),
      absl::StatusCode::kNotFound);
}

TEST_F(FrontendTest, ARouteThatOnlyLearnsMeetsEnginesAndCountsNothing) {
  options_.engines = {{"w0", "http://w0:1"}};
  fleet_.AddCell("a", 0, {Worker("w0", 0)});
  const RouteInput learns = {.domain = {"m", ""}, .unknown_prompt = true, .only_learns = true};
  const absl::StatusOr<RouteResult> route = frontend().Route(learns);
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_EQ(route->decision_id, 0u);
  ASSERT_EQ(frontend().Engines(9).size(), 1u);
  EXPECT_EQ(frontend().Engines(9)[0].cell, "a");
  EXPECT_TRUE(frontend().Knows({"m", ""}));
  fleet_.cells["h"] = {};
  RouteInput other = learns;
  other.domain.model = "other";
  EXPECT_EQ(frontend().Route(other).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(frontend().Knows({"other", ""}));
  EXPECT_EQ(frontend().stats().routes, 0u);
  EXPECT_EQ(frontend().stats().failed, 0u);
  EXPECT_EQ(frontend().stats().in_flight, 0u);
}

// ---- Another worker for the same request ----

class RouteAgainTest : public FrontendTest {
 protected:
  absl::StatusOr<RouteResult> Again(const RouteResult& before) {
    tried_.emplace_back(before.cell, before.worker);
    std::optional<absl::StatusOr<RouteResult>> routed;
    frontend().RouteAgain(before.routed, tried_, Duration(0),
                          [&](absl::StatusOr<RouteResult> result) { routed = std::move(result); });
    return *std::move(routed);
  }
};

TEST_F(RouteAgainTest, AnotherWorkerIsChosenAndCounted) {
  fleet_.AddCell("a", 64, {Worker("w0", 64), Worker("w1", 32), Worker("w2", 0)});
  const RouteResult first = Route();
  EXPECT_EQ(first.worker.name, "w0");
  const absl::StatusOr<RouteResult> second = Again(first);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->worker.name, "w1");
  EXPECT_EQ(second->overlap_blocks, 32u);
  EXPECT_NE(second->decision_id, first.decision_id);
  EXPECT_EQ(frontend().stats().in_flight, 2u);
  const absl::StatusOr<RouteResult> third = Again(*second);
  ASSERT_TRUE(third.ok());
  EXPECT_EQ(third->worker.name, "w2");
}

TEST_F(RouteAgainTest, NobodyIsAskedAsLongAsAnotherWorkerIsThere) {
  fleet_.AddCell("a", 64, {Worker("w0", 64), Worker("w1", 32)});
  const RouteResult first = Route();
  fleet_.leaves_asked.clear();
  fleet_.hierarchies_asked.clear();
  const absl::StatusOr<RouteResult> second = Again(first);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->worker.name, "w1");
  EXPECT_EQ(second->receipt.fallback, Fallback::kNone);
  EXPECT_EQ(second->receipt.cells.size(), 1u) << "who was asked at first";
  EXPECT_THAT(fleet_.leaves_asked, testing::IsEmpty());
  EXPECT_THAT(fleet_.hierarchies_asked, testing::IsEmpty());
}

TEST_F(RouteAgainTest, WhenNobodyIsLeftOthersAreAsked) {
  fleet_.AddCell("a", 64, {Worker("w0", 64)});
  fleet_.AddCell("b", 0, {Worker("w1", 0)});  // cannot win at first
  const RouteResult first = Route();
  EXPECT_THAT(fleet_.leaves_asked, ElementsAre("a:1"));
  const absl::StatusOr<RouteResult> second = Again(first);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->worker.name, "w1");
}

TEST_F(RouteAgainTest, ARouteOfLongAgoIsMadeAnew) {
  fleet_.AddCell("a", 64, {Worker("w0", 64), Worker("w1", 32)});
  const RouteResult first = Route();
  fleet_.hierarchies_asked.clear();
  clock_.Advance(options_.route_again_ttl);
  fleet_.workers["a:1"].workers[1].blocks = 40;
  const absl::StatusOr<RouteResult> second = Again(first);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->overlap_blocks, 40u);
  EXPECT_THAT(fleet_.hierarchies_asked, ElementsAre("h"));
}

TEST_F(RouteAgainTest, APreparedPromptIsRoutedLikeItsTokensAndIsNotMadeAgain) {
  options_.block_size = 16;
  fleet_.AddCell("a", 2, {Worker("w0", 2)});
  RouteInput input = {.domain = kDomain, .tokens = std::vector<TokenId>(33, 7)};
  ASSERT_TRUE(frontend().Prepare(&input).ok());
  EXPECT_TRUE(input.tokens.empty());
  const absl::StatusOr<RouteResult> route = frontend().Route(input);
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_EQ(route->overlap_blocks, 2u);
  EXPECT_EQ(fleet_.blocks_asked, 2u);
  input.tokens = {1};
  EXPECT_EQ(frontend().Route(input).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(FrontendTest, AnAbandonedChoiceNoLongerCountsAndNobodyIsSuspected) {
  fleet_.AddCell("a", 0, {Worker("w0", 0)});
  frontend().Report(Route().decision_id, {.abandoned = true});
  EXPECT_EQ(frontend().stats().in_flight, 0u);
  EXPECT_EQ(frontend().stats().suspects, 0u);
}

}  // namespace
}  // namespace kvatlas
