// Prefill in one cell, decode in another: which leaves a route asks so that both are found.

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "frontend/router/frontend.h"
#include "frontend/router/frontend_test_util.h"
#include "frontend/router/policy/worker_fit.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::UnorderedElementsAre;

class DecodersTest : public FrontendTest {
 protected:
  DecodersTest() { clock_.Advance(seconds(1000)); }

  void SetRole(const std::string& cell, const std::string& worker, const std::string& role) {
    WorkersAnswer& answer = fleet_.workers[cell + ":1"];
    auto labels = answer.labels == nullptr ? std::make_shared<LabelsByWorker>()
                                           : std::make_shared<LabelsByWorker>(*answer.labels);
    (*labels)[Id(worker)][kRoleLabel] = role;
    answer.labels = std::move(labels);
  }
  // A cell that covers so much of the prompt; of one that covers nothing the hierarchy says so.
  void Add(const std::string& cell, uint32_t covers, const std::string& worker,
           const std::string& role, Load load = {}) {
    fleet_.AddCell(cell, covers, {Worker(worker, covers, load)}, load);
    if (covers == 0) fleet_.cells["h"].cells.back().blocks_below = 1;
    if (!role.empty()) SetRole(cell, worker, role);
  }
  // Two cells prefill, and cover the prompt; the third decodes, and covers nothing.
  void AddSplitFleet() {
    Add("p0", 64, "w0", kPrefillRole);
    Add("p1", 40, "w1", kPrefillRole);
    Add("d0", 0, "w2", kDecodeRole);
  }
  absl::StatusOr<RouteResult> TryRoute() {
    return frontend().Route({.domain = kDomain, .sequence_hashes = Prompt(100)});
  }
  // So that nothing is in flight to anybody.
  RouteResult RouteAndFinish() {
    RouteResult route = Route();
    frontend().Report(route.decision_id, {.finished = true});
    return route;
  }
};

TEST_F(DecodersTest, ADecoderIsFoundInACellThatCannotWinByCoverage) {
  AddSplitFleet();
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "w0");
  ASSERT_TRUE(route.decode.has_value());
  EXPECT_EQ(route.decode->worker.name, "w2");
  EXPECT_EQ(route.decode->cell, "d0");
  EXPECT_EQ(route.receipt.fallback, Fallback::kNone);
  EXPECT_THAT(fleet_.leaves_asked, Contains("d0:1").Times(1));
}

TEST_F(DecodersTest, ACellThatIsKnownToDecodeIsAskedInTheSameWave) {
  AddSplitFleet();
  RouteAndFinish();
  fleet_.leaves_asked.clear();
  fleet_.hold = true;
  std::optional<absl::StatusOr<RouteResult>> routed;
  frontend().RouteAsync({.domain = kDomain, .sequence_hashes = Prompt(100)},
                        [&](absl::StatusOr<RouteResult> result) { routed = std::move(result); });
  EXPECT_THAT(fleet_.leaves_asked, Contains("d0:1"));
  EXPECT_THAT(fleet_.leaves_asked, Contains("p0:1"));
  // Its answer is waited for, though by coverage it could not win.
  for (size_t i = 0; i < fleet_.leaves_asked.size(); ++i) {
    if (fleet_.leaves_asked[i] != "d0:1") fleet_.held[i]();
  }
  EXPECT_FALSE(routed.has_value());
  for (size_t i = 0; i < fleet_.leaves_asked.size(); ++i) {
    if (fleet_.leaves_asked[i] == "d0:1") fleet_.held[i]();
  }
  ASSERT_TRUE(routed.has_value() && routed->ok());
  EXPECT_EQ((*routed)->decode->worker.name, "w2");
}

TEST_F(DecodersTest, ACellThatOnlyDecodesTakesNobodysPlaceHoweverMuchItCovers) {
  Add("p0", 64, "w0", kPrefillRole);
  Add("p1", 40, "w1", kPrefillRole);
  Add("d0", 90, "w2", kDecodeRole);
  RouteAndFinish();
  fleet_.leaves_asked.clear();
  const RouteResult route = RouteAndFinish();
  EXPECT_EQ(route.worker.name, "w0");
  EXPECT_EQ(route.decode->overlap_blocks, 90u);
  EXPECT_THAT(fleet_.leaves_asked, Contains("p0:1"));
  EXPECT_EQ(fleet_.leaves_asked.back(), "d0:1") << "beside them";
  // Roles change: it is not last for ever.
  SetRole("d0", "w2", "both");
  clock_.Advance(seconds(10));
  EXPECT_EQ(Route().worker.name, "w2");
}

// A leaf that is no longer asked for a decoder is known only by what its cell covers.
TEST_F(DecodersTest, ACellThatOnlyDecodedIsAskedAgainForWhatItCovers) {
  Add("p0", 64, "w0", kPrefillRole);
  Add("p1", 40, "w1", kPrefillRole);
  Add("d0", 90, "w2", kDecodeRole, Load{.running_requests = 9});
  Add("d1", 0, "w3", kDecodeRole);
  for (int i = 0; i < 3; ++i) RouteAndFinish();
  for (const auto& [cell, worker] :
       std::map<std::string, std::string>{{"p0", "w0"}, {"p1", "w1"}, {"d0", "w2"}, {"d1", "w3"}})
    SetRole(cell, worker, "both");
  RouteAndFinish();  // it is the other cell's turn to be asked for decoders
  fleet_.leaves_asked.clear();
  EXPECT_EQ(RouteAndFinish().worker.name, "w0");
  EXPECT_THAT(fleet_.leaves_asked, Not(Contains("d0:1")));
  clock_.Advance(seconds(10));
  EXPECT_EQ(RouteAndFinish().worker.name, "w2");
}

TEST_F(DecodersTest, WhenTheCellThatDecodesIsSilentAnotherIsLookedFor) {
  AddSplitFleet();
  RouteAndFinish();
  Add("d1", 0, "w3", kDecodeRole);
  fleet_.workers.erase("d0:1");
  const RouteResult route = RouteAndFinish();
  EXPECT_EQ(route.decode->worker.name, "w3");
  EXPECT_EQ(route.decode->cell, "d1");
  EXPECT_EQ(RouteAndFinish().decode->worker.name, "w3");
  fleet_.leaves_asked.clear();
  EXPECT_EQ(RouteAndFinish().decode->worker.name, "w3");
  EXPECT_THAT(fleet_.leaves_asked, Not(Contains("d0:1"))) << "before it answers again";
}

TEST_F(DecodersTest, WhenNobodyElseDecodesTheOneThatIsRememberedDoes) {
  AddSplitFleet();
  RouteAndFinish();
  fleet_.workers.erase("d0:1");
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "w0");
  EXPECT_EQ(route.decode->worker.name, "w2");
}

TEST_F(DecodersTest, OfTwoCellsTheLessBusyOneIsAskedAndABusyOneIsNotForgotten) {
  AddSplitFleet();
  Add("d1", 0, "w3", kDecodeRole);
  fleet_.workers["d0:1"].workers[0].load = Load{.running_requests = 50};
  fleet_.cells["h"].cells[2].load = Load{.running_requests = 50};
  RouteAndFinish();
  RouteAndFinish();  // now and then others are asked too
  for (int i = 0; i < 4; ++i) EXPECT_EQ(RouteAndFinish().decode->worker.name, "w3") << i;
  // It has become idle, and the other one busy.
  fleet_.workers["d0:1"].workers[0].load = Load();
  fleet_.workers["d1:1"].workers[0].load = Load{.running_requests = 20};
  clock_.Advance(seconds(2));
  RouteAndFinish();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(RouteAndFinish().decode->worker.name, "w2") << i;
}

TEST_F(DecodersTest, ACellThatIsNewIsFoundThoughOthersDecode) {
  AddSplitFleet();
  for (int i = 0; i < 3; ++i) RouteAndFinish();  // others are looked for now and then alone
  Add("d1", 0, "w3", kDecodeRole);
  fleet_.workers["d0:1"].workers[0].load = Load{.running_requests = 50};
  clock_.Advance(seconds(1));
  RouteAndFinish();
  RouteAndFinish();  // the busy one was not heard of for so long that it is asked once more
  EXPECT_EQ(RouteAndFinish().decode->worker.name, "w3");
}

TEST_F(DecodersTest, WhatAnswersAfterTheChoiceIsRememberedForTheNext) {
  AddSplitFleet();
  Add("d1", 0, "w3", kDecodeRole);
  fleet_.workers["d0:1"].workers[0].load = Load{.running_requests = 50};
  fleet_.hold = true;
  std::optional<absl::StatusOr<RouteResult>> routed;
  frontend().RouteAsync({.domain = kDomain, .sequence_hashes = Prompt(100)},
                        [&](absl::StatusOr<RouteResult> result) { routed = std::move(result); });
  const auto answer = [&] {
    for (const auto& held : std::exchange(fleet_.held, {})) held();
  };
  answer();  // the cell that prefills
  EXPECT_FALSE(routed.has_value());
  answer();  // both cells that decode: the first is enough
  ASSERT_TRUE(routed.has_value() && routed->ok());
  EXPECT_EQ((*routed)->decode->worker.name, "w2");
  // The next one asks it, and not the busy one, in whatever order they answer.
  fleet_.leaves_asked.clear();
  routed.reset();
  frontend().RouteAsync({.domain = kDomain, .sequence_hashes = Prompt(100)},
                        [&](absl::StatusOr<RouteResult> result) { routed = std::move(result); });
  EXPECT_THAT(fleet_.leaves_asked, UnorderedElementsAre("p0:1", "p1:1", "d1:1"));
  answer();
  ASSERT_TRUE(routed.has_value() && routed->ok());
  EXPECT_EQ((*routed)->decode->worker.name, "w3");
}

TEST_F(DecodersTest, WhatIsInFlightToACellsDecodersCountsWhenACellIsChosen) {
  AddSplitFleet();
  Add("d1", 0, "w3", kDecodeRole);
  for (int i = 0; i < 3; ++i) RouteAndFinish();
  std::map<std::string, int> cells;
  for (int i = 0; i < 6; ++i) ++cells[Route().decode->cell];
  EXPECT_EQ(cells["d0"], 3);
  EXPECT_EQ(cells["d1"], 3);
}

TEST_F(DecodersTest, ASuspectedDecoderIsChosenOnlyWhenNobodyElseDecodes) {
  AddSplitFleet();
  RouteAndFinish();
  const RouteResult tried = Route();
  frontend().Report(tried.decision_id, {.decode_unreachable = true});
  const RouteResult again = Route();
  EXPECT_EQ(again.decode->worker.name, "w2") << "no other worker does";
  frontend().Report(again.decision_id, {.abandoned = true});
  Add("d1", 0, "w3", kDecodeRole, Load{.running_requests = 3});
  EXPECT_EQ(Route().decode->worker.name, "w3") << "busier, but not suspected";
}

// As when a leaf that was just started knows no other cell yet, and then is not asked or does not
// answer.
TEST_F(DecodersTest, ASuspectedDecoderThatIsOnlyRememberedIsChosenWhenNobodyElseDecodes) {
  AddSplitFleet();
  RouteAndFinish();
  frontend().Report(Route().decision_id, {.decode_unreachable = true});
  fleet_.workers.erase("d0:1");
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "w0");
  ASSERT_TRUE(route.decode.has_value());
  EXPECT_EQ(route.decode->worker.name, "w2");
  Add("d1", 0, "w3", kDecodeRole, Load{.running_requests = 9});
  clock_.Advance(seconds(1));
  EXPECT_EQ(RouteAndFinish().decode->worker.name, "w3");
  fleet_.workers.erase("d1:1");
  EXPECT_EQ(Route().decode->worker.name, "w3") << "busier, but not suspected";
}

TEST_F(DecodersTest, WhenAllWhoDecodeAreOverTheirThresholdsTheRouteIsRefused) {
  options_.overload.requests = 5;
  AddSplitFleet();
  RouteAndFinish();
  fleet_.workers["d0:1"].workers[0].load = Load{.running_requests = 5};
  const absl::Status refused = TryRoute().status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(RetryAfter(refused).has_value());
  Add("d1", 0, "w3", kDecodeRole);
  EXPECT_EQ(Route().decode->worker.name, "w3");
}

TEST_F(DecodersTest, AWorkerThatDoesBothIsTakenBeforeCellsAreSearchedForADecoder) {
  Add("p0", 64, "w0", kPrefillRole);
  Add("p1", 40, "w1", "");
  for (int i = 0; i < 6; ++i) Add("c" + std::to_string(i), 0, "v" + std::to_string(i), "");
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "w1");
  EXPECT_FALSE(route.decode.has_value());
  EXPECT_THAT(fleet_.leaves_asked, UnorderedElementsAre("p0:1", "p1:1"));
}

TEST_F(DecodersTest, WhenNobodyDecodesTheErrorSaysSoAndEveryCellIsAskedOnce) {
  Add("p0", 64, "w0", kPrefillRole);
  for (int i = 0; i < 12; ++i)
    Add("q" + std::to_string(i), 0, "v" + std::to_string(i), kPrefillRole);
  const absl::Status none = TryRoute().status();
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(none.message()), HasSubstr("decodes"));
  EXPECT_THAT(fleet_.leaves_asked, SizeIs(13));
  for (int i = 0; i < 12; ++i)
    EXPECT_THAT(fleet_.leaves_asked, Contains("q" + std::to_string(i) + ":1").Times(1));
  // They have just said that they do not: they are not asked for it again at once.
  fleet_.leaves_asked.clear();
  EXPECT_EQ(TryRoute().status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(fleet_.leaves_asked.size(), testing::Le(2u));
}

TEST_F(DecodersTest, NoMoreLeavesAreAskedThanMayBe) {
  options_.asked_max = 5;
  Add("p0", 64, "w0", kPrefillRole);
  for (int i = 0; i < 12; ++i)
    Add("q" + std::to_string(i), 0, "v" + std::to_string(i), kPrefillRole);
  EXPECT_EQ(TryRoute().status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(fleet_.leaves_asked, SizeIs(5));
}

TEST_F(DecodersTest, ACellWhoseLabelSaysThatItDecodesIsAskedFirst) {
  options_.asked_max = 3;
  Add("p0", 64, "w0", kPrefillRole);
  Add("p1", 40, "w1", kPrefillRole);
  for (int i = 0; i < 12; ++i)
    Add("q" + std::to_string(i), 0, "v" + std::to_string(i), kPrefillRole);
  Add("z", 0, "w2", "");
  fleet_.cells["h"].cells.back().labels = {{kRoleLabel, kDecodeRole}};
  EXPECT_EQ(Route().decode->cell, "z");
}

// A hierarchy that names no more cells than it is asked for.
class BestAlone : public CellFinder {
 public:
  explicit BestAlone(FakeFleet* fleet) : fleet_(fleet) {}
  void FindCells(const std::string& address, const CellQuestion& question, Duration deadline,
                 Callback callback) override {
    bests.push_back(question.best);
    fleet_->FindCells(address, question, deadline,
                      [best = question.best, callback](absl::StatusOr<CellsAnswer> answer) {
                        if (answer.ok() && best > 0 && answer->cells.size() > best)
                          answer->cells.resize(best);
                        callback(std::move(answer));
                      });
  }
  std::vector<uint32_t> bests;

 private:
  FakeFleet* const fleet_;
};

TEST_F(DecodersTest, ADecoderOutsideOfTheHierarchysBestCellsIsFoundOnceAndThenRemembered) {
  options_.cells_best = 4;
  for (int i = 0; i < 8; ++i)
    Add("p" + std::to_string(i), 64, "w" + std::to_string(i), kPrefillRole);
  Add("d0", 0, "v", kDecodeRole);
  BestAlone hierarchy(&fleet_);
  frontend_ = std::make_unique<Frontend>(options_, &hierarchy, &fleet_, &clock_);
  EXPECT_EQ(RouteAndFinish().decode->worker.name, "v");
  EXPECT_THAT(hierarchy.bests, ElementsAre(4, 0));
  EXPECT_EQ(RouteAndFinish().decode->worker.name, "v");
  EXPECT_THAT(hierarchy.bests, ElementsAre(4, 0, 4));
  clock_.Advance(seconds(10));
  RouteAndFinish();
  EXPECT_THAT(hierarchy.bests, ElementsAre(4, 0, 4, 0)) << "others may have come";
}

TEST_F(DecodersTest, ADecoderBelowANodeIsFound) {
  Add("p0", 64, "w0", kPrefillRole);
  Add("p1", 40, "w1", kPrefillRole);
  fleet_.cells["h"].cells.push_back({.cell = "n",
                                     .address = "n:1",
                                     .blocks_at_least = 0,
                                     .blocks_below = 1,
                                     .load = Load(),
                                     .labels = {},
                                     .is_node = true});
  fleet_.cells["n:1"].cells.push_back({.cell = "d0",
                                       .address = "d0:1",
                                       .blocks_at_least = 0,
                                       .blocks_below = 1,
                                       .load = Load(),
                                       .labels = {}});
  fleet_.workers["d0:1"] = {.workers = {Worker("w2", 0)}};
  SetRole("d0", "w2", kDecodeRole);
  const RouteResult route = RouteAndFinish();
  EXPECT_EQ(route.worker.name, "w0");
  EXPECT_EQ(route.decode->cell, "d0");
  EXPECT_THAT(route.receipt.nodes, SizeIs(1));
  EXPECT_THAT(RouteAndFinish().receipt.nodes, IsEmpty()) << "its address is known";
}

TEST_F(DecodersTest, WithoutAnyHierarchyTheConfiguredLeavesAreSearched) {
  options_.hierarchies = {};
  options_.ask_cells_blind = 2;
  AddSplitFleet();
  for (const char* cell : {"p0", "p1", "d0"})
    options_.leaves.push_back({.cell = cell, .address = std::string(cell) + ":1"});
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "w0");
  EXPECT_EQ(route.decode->worker.name, "w2");
  EXPECT_EQ(route.receipt.fallback, Fallback::kNone);
}

TEST_F(DecodersTest, WhenOnlyTheDecodersLeafAnswersItsAnswerCountsForWhoIsRemembered) {
  AddSplitFleet();
  Add("d1", 0, "w3", kDecodeRole);
  RouteAndFinish();
  fleet_.workers.erase("p0:1");
  fleet_.workers.erase("p1:1");
  const RouteResult route = Route();
  EXPECT_EQ(route.receipt.fallback, Fallback::kLoadOnly);
  ASSERT_TRUE(route.decode.has_value());
}

}  // namespace
}  // namespace kvatlas
