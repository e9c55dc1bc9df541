// Choices that a frontend tells leaves, and its use of those that other frontends told them.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "frontend/router/frontend.h"
#include "frontend/router/frontend_test_util.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

class FrontendPendingTest : public FrontendTest {
 protected:
  static WorkerFound With(WorkerFound worker, const Pending& pending) {
    worker.pending = pending;
    return worker;
  }
  RouteResult RouteOf(const std::string& session) {
    absl::StatusOr<RouteResult> result =
        frontend().Route({.domain = kDomain, .sequence_hashes = Prompt(20), .session_id = session});
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : RouteResult();
  }
};

TEST_F(FrontendPendingTest, TheLeafAndItsReplicasHearOfAChoiceAndOfItsEnd) {
  fleet_.AddCell("a", 0, {Worker("w0", 40)});
  fleet_.cells["h"].cells[0].other_addresses = {"a:2", "a:3"};
  const RouteResult route = Route(100);
  const std::vector<SequenceHash> prompt = Prompt(100);
  ASSERT_EQ(fleet_.told.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const FakeFleet::Told& told = fleet_.told[i];
    EXPECT_EQ(told.leaf, "a:" + std::to_string(i + 1));
    EXPECT_EQ(told.domain, kDomain);
    EXPECT_NE(told.frontend, 0u);
    EXPECT_EQ(told.frontend, fleet_.frontend_asked);
    EXPECT_EQ(told.routed.decision, route.decision_id);
    EXPECT_EQ(told.routed.worker, Id("w0"));
    EXPECT_EQ(told.routed.first, 40u);
    EXPECT_EQ(told.routed.parent, prompt[39]);
    EXPECT_EQ(told.blocks, std::vector<SequenceHash>(prompt.begin() + 40, prompt.end()));
  }
  frontend().Report(route.decision_id, {.accepted = true});
  EXPECT_TRUE(fleet_.over.empty());
  frontend().Report(route.decision_id, {.finished = true});
  frontend().Report(route.decision_id, {.finished = true});
  ASSERT_EQ(fleet_.over.size(), 3u);
  EXPECT_EQ(fleet_.over[2].leaf, "a:3");
  EXPECT_EQ(fleet_.over[2].over.decision, route.decision_id);
  EXPECT_FALSE(fleet_.over[2].over.failed);
}

TEST_F(FrontendPendingTest, TheHierarchyHearsOfTheWaypoints) {
  fleet_.AddCell("a", 0, {Worker("w0", 40)});
  Route(100);
  ASSERT_EQ(fleet_.cells_told.size(), 1u);
  const FakeFleet::Told& told = fleet_.cells_told[0];
  EXPECT_EQ(told.leaf, "h");
  EXPECT_EQ(told.routed.worker, Id("a"));
  const WaypointSchedule& schedule = WaypointSchedule::Standard();
  const std::vector<SequenceHash> all = schedule.Select(Prompt(100));
  EXPECT_EQ(told.routed.first, schedule.WaypointsIn(40));
  EXPECT_EQ(told.blocks,
            std::vector<SequenceHash>(all.begin() + schedule.WaypointsIn(40), all.end()));
}

TEST_F(FrontendPendingTest, ACellThatIsAboutToCoverThePromptIsAskedFirst) {
  options_.ask_cells = 1;
  fleet_.AddCell("a", 0, {Worker("w0", 0)});
  fleet_.AddCell("b", 0, {With(Worker("w1", 0), {.depth = 96, .blocks = 100, .requests = 1})},
                 {.waiting_prefill_blocks = 40, .workers = 1});
  fleet_.cells["h"].cells[1].pending_blocks = 96;
  const RouteResult route = Route(100);
  EXPECT_EQ(route.worker.name, "w1");
  EXPECT_EQ(route.overlap_blocks, 0u);
  EXPECT_EQ(fleet_.leaves_asked.front(), "b:1");
}

TEST_F(FrontendPendingTest, ARequestThatItsWorkerDidNotTakeHasFailed) {
  fleet_.AddCell("a", 0, {Worker("w0", 0), Worker("w1", 0)});
  frontend().Report(Route().decision_id, {.unreachable = true});
  frontend().Report(Route().decision_id, {.finished = true, .error = "500"});
  frontend().Report(Route().decision_id, {.abandoned = true});
  ASSERT_EQ(fleet_.over.size(), 3u);
  for (const FakeFleet::Told& told : fleet_.over) EXPECT_TRUE(told.over.failed);
}

TEST_F(FrontendPendingTest, NobodyHearsWhereThatIsNotWanted) {
  options_.tell_leaves = false;
  fleet_.AddCell("a", 0, {Worker("w0", 0)});
  frontend().Report(Route().decision_id, {.finished = true});
  EXPECT_TRUE(fleet_.told.empty());
  EXPECT_TRUE(fleet_.over.empty());
  EXPECT_EQ(fleet_.frontend_asked, 0u);
}

TEST_F(FrontendPendingTest, NobodyHearsOfAWorkerThatIsOnlyRemembered) {
  fleet_.AddCell("a", 0, {Worker("w0", 0)});
  Route();
  fleet_.told.clear();
  TearHierarchyDown();
  TearLeavesDown();
  EXPECT_EQ(Route().receipt.fallback, Fallback::kLoadOnly);
  EXPECT_TRUE(fleet_.told.empty());
}

TEST_F(FrontendPendingTest, APromptIsSentBesideAnotherFrontendsThatBeginsAlike) {
  fleet_.AddCell(
      "a", 0,
      {Worker("w0", 0), With(Worker("w1", 5), {.depth = 90, .blocks = 95, .requests = 1}),
       Worker("w2", 20)});
  const RouteResult route = Route(100);
  EXPECT_EQ(route.worker.name, "w1");
  EXPECT_EQ(route.overlap_blocks, 5u) << "what is on its way is never promised";
  EXPECT_EQ(route.receipt.candidates[0].overlap_blocks, 5u);
  EXPECT_EQ(route.receipt.candidates[0].pending_blocks, 90u);
  EXPECT_GT(route.receipt.candidates[1].cost.siblings, 0);
  // It computes what no other request computes.
  EXPECT_EQ(fleet_.told.back().routed.first, 90u);
  EXPECT_EQ(fleet_.told.back().blocks.size(), 10u);
}

TEST_F(FrontendPendingTest, WhatIsOnItsWayElsewhereIsNoReasonWhereSiblingsMaySpread) {
  options_.siblings_together = false;
  fleet_.AddCell("a", 0, {Worker("w0", 10), With(Worker("w1", 0), {.depth = 90, .requests = 1})});
  const RouteResult route = Route(100);
  EXPECT_EQ(route.worker.name, "w0");
  EXPECT_EQ(route.receipt.candidates[1].pending_blocks, 0u);
}

TEST_F(FrontendPendingTest, WhatOtherFrontendsSentIsLoad) {
  fleet_.AddCell("a", 0, {With(Worker("w0", 0), {.blocks = 500, .requests = 3}), Worker("w1", 0)});
  EXPECT_EQ(Route().worker.name, "w1");
}

TEST_F(FrontendPendingTest, AWorkerThatOtherFrontendsFilledIsOverItsThreshold) {
  options_.overload.queue_blocks = 400;
  fleet_.AddCell("a", 0, {With(Worker("w0", 0), {.blocks = 500, .requests = 3})});
  const auto refused = frontend().Route({.domain = kDomain, .sequence_hashes = Prompt(10)});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(FrontendPendingTest, ASessionStaysWhereItsLastRequestWentThroughAnotherFrontend) {
  options_.siblings_together = false;
  fleet_.AddCell("a", 0,
                 {Worker("w0", 0), With(Worker("w1", 0), {.session = true}), Worker("w2", 0)});
  const RouteResult route = RouteOf("s");
  EXPECT_EQ(route.worker.name, "w1");
  EXPECT_NE(fleet_.told.back().routed.session, 0u);
  // The leaf's word is newer than this frontend's memory.
  for (const size_t other : {2, 0}) {
    for (size_t i = 0; i < 3; ++i) fleet_.workers["a:1"].workers[i].pending.session = i == other;
    EXPECT_EQ(RouteOf("s").worker.name, "w" + std::to_string(other));
  }
}

TEST_F(FrontendPendingTest, PromptsThatBeginAlikeMeetAtOneWorkerWithoutATelling) {
  // Frontends that cannot hear of each other in time: each sends the first of its prompts.
  std::vector<std::string> chosen;
  for (uint64_t own = 1; own <= 8; ++own) {
    FakeFleet fleet(&clock_);
    std::vector<WorkerFound> workers;
    for (int i = 0; i < 12; ++i) workers.push_back(Worker("w" + std::to_string(i), 30));
    fleet.AddCell("a", 32, workers);
    Frontend frontend(options_, &fleet, &fleet, &clock_);
    std::vector<SequenceHash> prompt = Prompt(100);
    for (uint64_t i = 0; i < 5; ++i) prompt.push_back(SequenceHash{own << 32 | i});
    chosen.push_back(frontend.Route({.domain = kDomain, .sequence_hashes = prompt})->worker.name);
  }
  for (const std::string& name : chosen) EXPECT_EQ(name, chosen[0]);
}

}  // namespace
}  // namespace kvatlas
