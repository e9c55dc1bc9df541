// The choice of a frontend beside overlap and load: siblings, sessions, filters, policies.

#include <chrono>
#include <map>
#include <string>

#include "frontend/router/frontend.h"
#include "frontend/router/route_choice_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

// ---- Siblings ----

RouteInput Sibling(uint64_t who, size_t shared = 256) {
  return {.domain = {}, .sequence_hashes = Prompt(shared, 4, who)};
}

TEST_F(RouteChoiceTest, SiblingsGoToOneWorkerBeforeAnyEventIsBack) {
  for (int i = 0; i < 4; ++i) fleet_.Add("a", "w" + std::to_string(i));
  const std::string first = WorkerFor(Sibling(0));
  for (uint64_t who = 1; who < 8; ++who) EXPECT_EQ(WorkerFor(Sibling(who)), first) << who;
  const RouteResult sibling = Route(Sibling(8));
  EXPECT_EQ(sibling.overlap_blocks, 0u) << "nothing is promised that no leaf has shown";
  EXPECT_LT(sibling.receipt.candidates[0].cost.prefill, 20);
  EXPECT_GT(sibling.receipt.candidates[1].cost.siblings, 100);
}

TEST_F(RouteChoiceTest, TooManySiblingsForOneWorkerSpreadOverFewRatherThanAll) {
  for (int i = 0; i < 16; ++i) fleet_.Add("a", "w" + std::to_string(i));
  std::map<std::string, int> chosen;
  for (uint64_t who = 0; who < 256; ++who) ++chosen[WorkerFor(Sibling(who))];
  EXPECT_GT(chosen.size(), 1u);
  EXPECT_LT(chosen.size(), 6u);
}

TEST_F(RouteChoiceTest, OtherPromptsAreNoSiblings) {
  fleet_.Add("a", "w0");
  fleet_.Add("a", "w1");
  const std::string first = WorkerFor(Sibling(0));
  EXPECT_NE(WorkerFor({.domain = {}, .sequence_hashes = Prompt(0, 100, 7)}), first);
}

TEST_F(RouteChoiceTest, WhatWasSentLongAgoIsExpectedOfNobody) {
  fleet_.Add("a", "w0");
  fleet_.Add("a", "w1");
  const RouteResult first = Route(Sibling(0));
  frontend().Report(first.decision_id, {.accepted = true});
  fleet_.Pass(options_.sibling_ttl);
  EXPECT_EQ(Route(Sibling(1)).receipt.candidates[0].cost.prefill, 260 * CostWeights().prefill);
}

TEST_F(RouteChoiceTest, OnceTheLeafHasShownTheSiblingItsAnswersCountAlone) {
  fleet_.Add("a", "w0");
  fleet_.Add("a", "w1");
  const RouteResult first = Route(Sibling(0));
  const size_t at = first.worker.name == "w0" ? 0 : 1;
  fleet_.At("a", at).blocks = 256;
  EXPECT_EQ(WorkerFor(Sibling(1)), first.worker.name);
  // It was evicted at once: what was sent is no longer believed to be there.
  fleet_.At("a", at).blocks = 0;
  const RouteResult later = Route(Sibling(2));
  for (const ReceiptCandidate& candidate : later.receipt.candidates)
    EXPECT_EQ(candidate.cost.siblings, 0) << candidate.worker.name;
}

// ---- In flight ----

TEST_F(RouteChoiceTest, AChoiceIsReleasedByTheFirstEventThatShowsIt) {
  fleet_.Add("a", "w0");
  Route();
  EXPECT_EQ(frontend().stats().in_flight, 1u);
  fleet_.At("a", 0).blocks = 1;
  Route({.domain = {}, .sequence_hashes = Prompt(1)});
  EXPECT_EQ(frontend().stats().in_flight, 1u) << "the second alone";
}

TEST_F(RouteChoiceTest, AChoiceIsReleasedByTheLoadThatCountsIt) {
  fleet_.Add("a", "w0");
  Route();
  Route();
  EXPECT_EQ(frontend().stats().in_flight, 2u);
  clock_.Advance(seconds(1));
  fleet_.At("a", 0).load = Load{.running_requests = 2};
  Route();
  EXPECT_EQ(frontend().stats().in_flight, 1u) << "the third alone";
}

// ---- Sessions ----

TEST_F(RouteChoiceTest, ASessionStaysUnlessAnotherWorkerIsClearlyBetter) {
  fleet_.Add("a", "w0");
  fleet_.Add("a", "w1");
  const RouteResult first = Route({.domain = {}, .session_id = "s"});
  frontend().Report(first.decision_id, {.finished = true});
  fleet_.Pass(seconds(10));  // no longer a sibling
  const size_t at = first.worker.name == "w0" ? 0 : 1;
  fleet_.At("a", at).load = Load{.waiting_prefill_blocks = 7};
  const RouteResult second = Route({.domain = {}, .session_id = "s"});
  EXPECT_EQ(second.worker, first.worker);
  EXPECT_EQ(second.receipt.candidates[1].cost.session, CostWeights().session);
  frontend().Report(second.decision_id, {.finished = true});
  fleet_.Pass(seconds(10));
  fleet_.At("a", at).load = Load{.waiting_prefill_blocks = 9};
  const RouteResult third = Route({.domain = {}, .session_id = "s"});
  EXPECT_NE(third.worker, first.worker);
  frontend().Report(third.decision_id, {.finished = true});
  fleet_.Pass(seconds(10));
  fleet_.At("a", at).load = Load();
  EXPECT_EQ(WorkerFor({.domain = {}, .session_id = "s"}), third.worker.name) << "it moved";
}

TEST_F(RouteChoiceTest, TheCellOfASessionIsAskedThoughOthersLookCheaper) {
  for (int i = 0; i < 6; ++i)
    fleet_.Add("cell" + std::to_string(i), "w" + std::to_string(i), i == 0 ? 90 : 0);
  options_.siblings_together = false;
  const RouteResult first = Route({.domain = {}, .session_id = "s", .allowed_workers = {"w5"}});
  EXPECT_EQ(first.worker.name, "w5");
  frontend().Report(first.decision_id, {.finished = true});
  fleet_.At("cell5", 0).blocks = 100;
  EXPECT_EQ(WorkerFor({.domain = {}, .session_id = "s"}), "w5");
}

// ---- Filters ----

TEST_F(RouteChoiceTest, OnlyAllowedWorkersAreChosenWhereverTheyAre) {
  for (int i = 0; i < 6; ++i)
    fleet_.Add("cell" + std::to_string(i), "w" + std::to_string(i), i == 5 ? 0 : 90);
  EXPECT_EQ(WorkerFor({.domain = {}, .allowed_workers = {"w5"}}), "w5");
  const RouteResult route = Route({.domain = {}, .excluded_workers = {"w0", "w1"}});
  EXPECT_NE(route.worker.name, "w0");
  EXPECT_NE(route.worker.name, "w1");
}

TEST_F(RouteChoiceTest, NobodyAllowedIsNotFoundAndSaysHowManyWereSeen) {
  fleet_.Add("a", "w0");
  const absl::Status none = TryRoute({.domain = {}, .allowed_workers = {"w9"}}).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.message()), HasSubstr("that this request allows"));
}

TEST_F(RouteChoiceTest, RequiredLabelsAreTheWorkersOrTheCells) {
  fleet_.Add("a", "w0", 90);
  fleet_.Add("a", "w1", 0, {{"gpu", "h100"}});
  fleet_.Add("b", "w2", 50);
  fleet_.labels["b"] = {{"zone", "z"}};
  EXPECT_EQ(WorkerFor({.domain = {}, .required_labels = {{"gpu", "h100"}}}), "w1");
  EXPECT_EQ(WorkerFor({.domain = {}, .required_labels = {{"zone", "z"}}}), "w2");
}

TEST_F(RouteChoiceTest, DrainingWorkersGetNothingNotEvenTheirOwnSessions) {
  fleet_.Add("a", "w0", 90);
  fleet_.Add("a", "w1");
  fleet_.Add("a", "w2", 95, {{"draining", "true"}});
  EXPECT_EQ(WorkerFor({.domain = {}, .session_id = "s"}), "w0");
  frontend().SetDraining({"w0"});
  EXPECT_EQ(WorkerFor({.domain = {}, .session_id = "s"}), "w1");
  frontend().SetDraining({});
  EXPECT_EQ(WorkerFor(), "w0");
}

TEST_F(RouteChoiceTest, WhenAllThatAreAllowedDrainTheRequestMayComeAgain) {
  fleet_.Add("a", "w0", 90, {{"draining", "true"}});
  fleet_.Add("a", "w1");
  frontend().SetDraining({"w1"});
  const absl::Status refused = TryRoute({}).status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(refused.message(), HasSubstr("draining"));
  EXPECT_TRUE(RetryAfter(refused).has_value());
  const absl::Status not_allowed = TryRoute({.domain = {}, .allowed_workers = {"other"}}).status();
  EXPECT_TRUE(absl::IsNotFound(not_allowed)) << not_allowed;
}

// ---- Requests that go on ----

TEST_F(RouteChoiceTest, ABurstOfStreamsIsSpreadThoughLoadsAreAskedForSeldom) {
  for (const char* name : {"w0", "w1", "w2", "w3"}) fleet_.Add("a", name).load = Load{};
  std::map<std::string, std::vector<uint64_t>> running;
  for (uint64_t who = 0; who < 40; ++who) {
    const RouteResult route =
        Route({.domain = {}, .sequence_hashes = Prompt(0, 4, who), .end_follows = true});
    frontend().Report(route.decision_id, {.accepted = true});
    running[route.worker.name].push_back(route.decision_id);
  }
  for (const auto& [worker, ids] : running) EXPECT_EQ(ids.size(), 10u) << worker;
  EXPECT_EQ(frontend().stats().in_flight, 0u);
  // The loads are asked for; then those of one worker end, and it is the least loaded at once.
  for (size_t i = 0; i < 4; ++i) fleet_.At("a", i).load = Load{.running_requests = 10};
  EXPECT_FALSE(WorkerFor({.domain = {}, .sequence_hashes = Prompt(0, 4, 100)}).empty());
  for (size_t i = 0; i < 8; ++i) frontend().Report(running["w2"][i], {.finished = true});
  for (uint64_t who = 200; who < 204; ++who)
    EXPECT_EQ(WorkerFor({.domain = {}, .sequence_hashes = Prompt(0, 4, who)}), "w2");
}

// ---- Policies ----

TEST_F(RouteChoiceTest, EveryPolicyChoosesInTheFrontendAndTheReceiptNamesIt) {
  for (const std::string& policy : PolicyNames()) {
    options_.policy = policy;
    frontend_ = nullptr;
    fleet_.cells.clear();
    fleet_.Add("a", "deep", 90).load =
        Load{.running_requests = 2, .used_blocks = 500, .waiting_prefill_blocks = 20};
    fleet_.Add("b", "idle", 0);
    fleet_.Add("c", "deepest", 95).load =
        Load{.running_requests = 1, .used_blocks = 100, .waiting_prefill_blocks = 5000};
    const RouteResult route = Route();
    EXPECT_EQ(route.receipt.policy, policy);
    const std::map<std::string, std::string> expected = {
        {"kvatlas", "deep"},   {"dynamo", "idle"},  {"lmetric", "deep"},
        {"prefix", "deepest"}, {"session", "idle"}, {"least_load", "idle"}};
    if (const auto at = expected.find(policy); at != expected.end()) {
      EXPECT_EQ(route.worker.name, at->second) << policy;
    }
    if (policy != "kvatlas") {
      EXPECT_EQ(route.receipt.candidates_considered, 3u) << policy;
    }
  }
}

TEST_F(RouteChoiceTest, TurnsGoRoundOverAllCells) {
  options_.policy = "round_robin";
  for (int i = 0; i < 6; ++i)
    fleet_.Add("cell" + std::to_string(i % 3), "w" + std::to_string(i), i == 0 ? 100 : 0);
  std::map<std::string, int> chosen;
  for (int i = 0; i < 30; ++i) ++chosen[WorkerFor()];
  EXPECT_EQ(chosen.size(), 6u);
  for (const auto& [worker, times] : chosen) EXPECT_EQ(times, 5) << worker;
}

TEST_F(RouteChoiceTest, AModelMayHaveWeightsOfItsOwn) {
  options_.model_weights["other"] = {.prefill = 0};
  fleet_.Add("a", "deep", 90).load = Load{.running_requests = 9};
  fleet_.Add("a", "idle", 0);
  EXPECT_EQ(WorkerFor(), "deep");
  absl::StatusOr<RouteResult> other =
      frontend().Route({.domain = {"other", ""}, .sequence_hashes = Prompt(0, 100, 3)});
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(other->worker.name, "idle");
}

TEST_F(RouteChoiceTest, WeightsMayChangeWhileItRuns) {
  options_.siblings_together = false;
  const CostWeights by_load = {.prefill = 0, .queue = 0};
  fleet_.Add("a", "deep", 90).load = Load{.running_requests = 9};
  fleet_.Add("a", "idle", 0);
  EXPECT_EQ(WorkerFor(), "deep");
  frontend().SetWeights(by_load, {});
  EXPECT_EQ(WorkerFor(), "idle");
  frontend().SetWeights(by_load, {{"", {}}, {"other", {}}});
  EXPECT_EQ(WorkerFor(), "idle");
  frontend().SetWeights({}, {{"other", by_load}});
  EXPECT_EQ(WorkerFor(), "deep");
}

TEST_F(RouteChoiceTest, BlocksOfLowerTiersCostTheirFetching) {
  fleet_.Add("a", "disk", 100).fetched = {.disk = 100};
  fleet_.Add("a", "device", 60);
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "device");
  EXPECT_EQ(route.receipt.candidates[1].fetched.disk, 100u);
  EXPECT_EQ(route.receipt.candidates[1].cost.fetch, 50);
  fleet_.At("a", 0).fetched = {.host = 100};
  frontend_ = nullptr;
  EXPECT_EQ(WorkerFor(), "disk");
}

// A store that workers share has more than this one itself.
TEST_F(RouteChoiceTest, BlocksOfAStoreCostTheirFetchingAndAreAsSureAsItIs) {
  fleet_.Add("a", "reader", 40).AddLoadable(100, Trust::kDegraded);
  fleet_.Add("a", "device", 45);
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "reader");
  EXPECT_EQ(route.overlap_blocks, 100u);
  const ReceiptCandidate& reader = route.receipt.candidates[0];
  EXPECT_EQ(reader.store_blocks, 60u);
  EXPECT_EQ(reader.fetched.remote, 60u);
  EXPECT_EQ(reader.cost.fetch, 0.3 * 60);
  EXPECT_EQ(reader.trust, Trust::kDegraded);
  EXPECT_EQ(route.receipt.candidates[1].store_blocks, 0u);
}

}  // namespace
}  // namespace kvatlas
