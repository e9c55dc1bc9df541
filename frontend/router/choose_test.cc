#include "frontend/router/choose.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "frontend/router/fleet.h"
#include "frontend/router/frontend_test_util.h"
#include "frontend/router/prepared_prompt.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

class ChooseTest : public testing::Test {
 protected:
  ChooseTest() { options_.overload.requests = 5; }

  const RouteRequest& request() {
    if (request_.fleet == nullptr) {
      request_.fleet =
          std::make_shared<FleetState>(options_, nullptr, nullptr, &clock_, /*timer=*/nullptr);
      request_.input = std::make_shared<const RouteInput>(input_);
      request_.policy = request_.fleet->PolicyOf("m");
      request_.overload = request_.fleet->overload.Get();
      request_.engines = request_.fleet->engines.Get();
      request_.prompt = *PreparedPrompt::Make({.sequence_hashes = Prompt(100)}, 16, {},
                                              WaypointSchedule::Standard());
      view_.suspects = request_.fleet->suspects.Get();
    }
    return request_;
  }
  CandidateCellPtr Cell(const std::string& cell, std::vector<WorkerFound> workers,
                        Fallback fallback = Fallback::kNone, bool remembered = false) {
    auto answer = std::make_shared<WorkersAnswer>();
    answer->workers = std::move(workers);
    made_.push_back(MakeCandidateCell(request(), nullptr,
                                      {.cell = cell,
                                       .fallback = fallback,
                                       .remembered = remembered,
                                       .answer = std::move(answer)}));
    return made_.back();
  }
  Choice ChooseAmong(const std::vector<CandidateCellPtr>& cells) {
    view_.cells.resize(cells.size());
    view_.remembered_now.resize(view_.remembered.size());
    return Choose(request(), cells, view_);
  }

  ManualClock clock_;
  FrontendOptions options_;
  RouteInput input_ = {.domain = kDomain};
  RouteRequest request_;
  FleetView view_;
  std::vector<CandidateCellPtr> made_;  // choices point to them
};

TEST_F(ChooseTest, TheCheapestWorkerWithItsTermsAndTheOthersBehind) {
  const Choice choice =
      ChooseAmong({Cell("a", {Worker("w0", 10), Worker("w1", 60)}), Cell("b", {Worker("w2", 30)})});
  ASSERT_EQ(choice.verdict, Verdict::kChosen);
  EXPECT_EQ(choice.worker->id().name, "w1");
  EXPECT_EQ(choice.overlap_blocks, 60u);
  ASSERT_EQ(choice.ranked.size(), 3u);
  EXPECT_EQ(choice.ranked[1].worker.name, "w2");
  EXPECT_EQ(choice.ranked[0].cost.prefill, 40 * CostWeights().prefill);
}

TEST_F(ChooseTest, WhatIsInFlightAndWhatASiblingWillHaveCount) {
  const CandidateCellPtr cell = Cell("a", {Worker("w0", 10), Worker("w1", 0)});
  view_.cells = {{{.in_flight = {.blocks = 50, .requests = 1}}, {}}};
  EXPECT_EQ(ChooseAmong({cell}).worker->id().name, "w1");
  view_.sibling = {.cell = "a", .worker = Id("w0"), .waypoints = 3};
  EXPECT_EQ(ChooseAmong({cell}).worker->id().name, "w0");
}

TEST_F(ChooseTest, AllOverTheirThresholdsIsNoChoiceUnlessASuspectHasRoom) {
  const CandidateCellPtr full = Cell("a", {Worker("w0", 90, {.running_requests = 5})});
  const Choice none = ChooseAmong({full});
  EXPECT_EQ(none.verdict, Verdict::kOverloaded);
  EXPECT_EQ(none.overloaded, 1u);
  request_.fleet->Suspect({"b", Id("w1")});
  view_.suspects = request_.fleet->suspects.Get();
  const Choice suspect =
      ChooseAmong({full, Cell("b", {Worker("w1", 0)}, Fallback::kLastGoodCells)});
  ASSERT_EQ(suspect.verdict, Verdict::kChosen);
  EXPECT_EQ(suspect.worker->id().name, "w1");
  EXPECT_EQ(suspect.fallback, Fallback::kLastGoodCells);
  EXPECT_FALSE(suspect.stands_well());
}

TEST_F(ChooseTest, WithoutAnyGoodCellMemoryIsWantedAndThenChosenByLoad) {
  EXPECT_EQ(ChooseAmong({}).verdict, Verdict::kNeedsMemory);
  view_.with_memory = true;
  EXPECT_EQ(ChooseAmong({}).verdict, Verdict::kNone);
  view_.remembered = {Cell("a", {Worker("w0", 90, {.running_requests = 9}), Worker("w1", 0)},
                           Fallback::kLoadOnly,
                           /*remembered=*/true)};
  const Choice choice = ChooseAmong({});
  ASSERT_EQ(choice.verdict, Verdict::kChosen);
  EXPECT_EQ(choice.worker->id().name, "w1");
  EXPECT_EQ(choice.fallback, Fallback::kLoadOnly);
  EXPECT_EQ(choice.overlap_blocks, 0u) << "nothing was answered about this prompt";
}

// A cell that answers is remembered by that answer.
TEST_F(ChooseTest, WorkersOfACellThatAnsweredAndIsRememberedAreCountedOnce) {
  input_.excluded_workers = {"w0", "w1"};
  view_.with_memory = true;
  view_.remembered = {
      Cell("a", {Worker("w0", 0)}, Fallback::kLoadOnly, /*remembered=*/true),
      Cell("b", {Worker("w1", 0), Worker("w2", 0)}, Fallback::kLoadOnly, /*remembered=*/true)};
  const Choice choice = ChooseAmong({Cell("a", {Worker("w0", 0)})});
  ASSERT_EQ(choice.verdict, Verdict::kChosen);
  EXPECT_EQ(choice.worker->id().name, "w2");
  EXPECT_EQ(choice.not_allowed, 2u) << "w0 and w1";
}

TEST_F(ChooseTest, DrainingWorkersOfSuchACellAreCountedOnce) {
  request().fleet->draining.Set({"w0"});
  view_.with_memory = true;
  view_.remembered = {Cell("a", {Worker("w0", 0)}, Fallback::kLoadOnly, /*remembered=*/true),
                      Cell("b", {Worker("w1", 0)}, Fallback::kLoadOnly, /*remembered=*/true)};
  const Choice choice = ChooseAmong({Cell("a", {Worker("w0", 0)})});
  ASSERT_EQ(choice.verdict, Verdict::kChosen);
  EXPECT_EQ(choice.draining, 1u);
}

TEST_F(ChooseTest, WorkersByLoadAloneTakeTurns) {
  view_.with_memory = true;
  view_.remembered = {
      Cell("", {Worker("w0", 0), Worker("w1", 0)}, Fallback::kLoadOnly, /*remembered=*/true)};
  view_.remembered_now = {{{.turn = 7}, {.turn = 6}}};
  EXPECT_EQ(ChooseAmong({}).worker->id().name, "w1");
  view_.remembered_now = {{{.turn = 7}, {.turn = 8}}};
  EXPECT_EQ(ChooseAmong({}).worker->id().name, "w0");
}

TEST_F(ChooseTest, OnlySuspectsRemainThenWhatTheyHoldCounts) {
  request().fleet->Suspect({"a", Id("w0")});
  view_.suspects = request_.fleet->suspects.Get();
  view_.with_memory = true;
  const CandidateCellPtr cell = Cell("a", {Worker("w0", 60)});
  view_.remembered = {Cell("a", {Worker("w0", 60)}, Fallback::kLoadOnly, /*remembered=*/true)};
  const Choice alone = ChooseAmong({cell});
  ASSERT_EQ(alone.verdict, Verdict::kChosen);
  EXPECT_EQ(alone.overlap_blocks, 60u);
  view_.remembered.push_back(
      Cell("b", {Worker("w1", 0)}, Fallback::kLoadOnly, /*remembered=*/true));
  const Choice other = ChooseAmong({cell});
  EXPECT_EQ(other.worker->id().name, "w1");
  EXPECT_EQ(other.fallback, Fallback::kLoadOnly);
}

}  // namespace
}  // namespace kvatlas
