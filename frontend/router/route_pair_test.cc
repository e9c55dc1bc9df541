// A choice of two workers: one that prefills, and one that decodes.

#include <map>
#include <string>

#include "frontend/router/frontend.h"
#include "frontend/router/route_choice_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

class SplitTest : public RouteChoiceTest {
 protected:
  void AddSplit() {
    fleet_.Add("a", "p0", 40, {{"role", "prefill"}});
    fleet_.Add("a", "p1", 0, {{"role", "prefill"}});
    fleet_.Add("a", "d0", 0, {{"role", "decode"}});
    fleet_.Add("a", "d1", 0, {{"role", "decode"}});
  }
};

TEST_F(SplitTest, BothAreChosenAndBothAreInFlight) {
  AddSplit();
  fleet_.At("a", 2).load = Load{.running_requests = 30};
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "p0");
  ASSERT_TRUE(route.decode.has_value());
  EXPECT_EQ(route.decode->worker.name, "d1");
  EXPECT_EQ(route.decode->cell, "a");
  EXPECT_GT(route.receipt.candidates[0].cost.transfer, 0);
  frontend().Report(route.decision_id, {.accepted = true});
  EXPECT_EQ(frontend().stats().in_flight, 1u) << "the decoder does not know it yet";
  frontend().Report(route.decision_id, {.finished = true});
  EXPECT_EQ(frontend().stats().in_flight, 0u);
}

TEST_F(SplitTest, ASuspectedDecoderThatServesARequestIsOneNoMore) {
  AddSplit();
  const RouteResult broken = Route();
  const HolderId decoder = broken.decode->worker;
  frontend().Avoid("a", decoder);
  const RouteResult elsewhere = Route({.domain = {}, .sequence_hashes = Prompt(0, 10, 1)});
  EXPECT_NE(elsewhere.decode->worker, decoder);
  frontend().Report(elsewhere.decision_id, {.finished = true});
  EXPECT_EQ(frontend().stats().suspects, 1u) << "another one served it";
  frontend().Report(broken.decision_id, {.finished = true, .error = "it broke off"});
  EXPECT_EQ(frontend().stats().suspects, 1u);
  const RouteResult served = Route({.domain = {}, .sequence_hashes = Prompt(0, 10, 2)});
  frontend().Avoid("a", served.worker);
  frontend().Avoid("a", served.decode->worker);
  EXPECT_EQ(frontend().stats().suspects, 3u);
  frontend().Report(served.decision_id, {.finished = true});
  EXPECT_EQ(frontend().stats().suspects, 2u) << "who prefills may have been left out";
}

TEST_F(SplitTest, AReportSaysWhichOfTheTwoWasNotReached) {
  AddSplit();
  const RouteResult first = Route();
  frontend().Report(first.decision_id, {.decode_unreachable = true});
  EXPECT_EQ(frontend().stats().in_flight, 0u) << "the choice is over";
  const RouteResult second = Route();
  EXPECT_EQ(second.worker, first.worker) << "nothing is held against who prefills";
  EXPECT_NE(second.decode->worker, first.decode->worker);
  frontend().Report(second.decision_id, {.unreachable = true});
  const RouteResult third = Route();
  EXPECT_NE(third.worker, first.worker);
  EXPECT_EQ(third.decode->worker, second.decode->worker) << "nor against who decodes";
  frontend().Report(third.decision_id, {.unreachable = true, .decode_unreachable = true});
  EXPECT_EQ(frontend().stats().suspects, 4u);
}

TEST_F(SplitTest, ADecoderIsLostAfterThePrefillWasAccepted) {
  AddSplit();
  const RouteResult route = Route();
  frontend().Report(route.decision_id, {.accepted = true});
  frontend().Report(route.decision_id, {.decode_unreachable = true});
  EXPECT_EQ(frontend().stats().suspects, 1u);
  EXPECT_EQ(frontend().stats().in_flight, 0u);
  EXPECT_NE(Route().decode->worker, route.decode->worker);
}

TEST_F(RouteChoiceTest, TheOnlyWorkerOfAChoiceDecodesToo) {
  fleet_.Add("a", "w0", 40);
  fleet_.Add("a", "w1", 0);
  const RouteResult first = Route();
  EXPECT_EQ(first.worker.name, "w0");
  const RouteResult second = Route();
  frontend().Report(first.decision_id, {.decode_unreachable = true});
  EXPECT_EQ(Route().worker.name, "w1");
  frontend().Report(second.decision_id, {.finished = true});
  EXPECT_EQ(Route().worker.name, "w0") << "it served a request";
}

TEST_F(SplitTest, ABurstSpreadsOverTheDecoders) {
  AddSplit();
  std::map<std::string, int> decoders;
  for (uint64_t who = 0; who < 8; ++who)
    ++decoders[Route({.domain = {}, .sequence_hashes = Prompt(0, 10, who)}).decode->worker.name];
  EXPECT_EQ(decoders["d0"], 4);
  EXPECT_EQ(decoders["d1"], 4);
}

TEST_F(SplitTest, TheNearerDecoderIsTakenUnlessItIsMuchBusier) {
  fleet_.Add("a", "p0", 0, {{"role", "prefill"}});
  fleet_.Add("a", "near", 0, {{"role", "decode"}}).load = Load{.running_requests = 5};
  fleet_.Add("b", "far", 0, {{"role", "decode"}});
  EXPECT_EQ(Route().decode->worker.name, "near");
  fleet_.At("a", 1).load = Load{.running_requests = 60};
  frontend_ = nullptr;
  EXPECT_EQ(Route({.domain = {}, .excluded_workers = {}}).worker.name, "p0");
}

TEST_F(SplitTest, AWorkerThatDoesBothCompetesWithThePair) {
  AddSplit();
  fleet_.Add("a", "both", 90);
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "both");
  EXPECT_FALSE(route.decode.has_value());
}

TEST_F(SplitTest, WithoutAnyDecoderWhoOnlyPrefillsIsOfNoUse) {
  fleet_.Add("a", "p0", 90, {{"role", "prefill"}});
  fleet_.Add("a", "both", 0);
  EXPECT_EQ(WorkerFor(), "both");
}

}  // namespace
}  // namespace kvatlas
