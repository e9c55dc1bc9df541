// What the choice of a frontend goes by beside overlap and load: siblings, sessions, filters, thresholds, roles, policies.

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "frontend/route/frontend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

const Domain kDomain = {"m", ""};

HolderId Id(const std::string& name) { return {.name = name, .rank = 0, .replica = ""}; }

// A hierarchy and leaves that answer at once, and a timer whose time is the clock's.
class FakeFleet : public CellFinder, public OverlapFinder, public Timer {
 public:
  explicit FakeFleet(ManualClock* clock) : clock_(clock) {}

  void FindCells(const std::string&, const CellQuestion&, Duration,
                 CellFinder::Callback callback) override {
    CellsAnswer answer;
    for (const auto& [cell, workers] : cells)
      answer.cells.push_back(
          {.cell = cell, .address = cell + ":1", .blocks_below = 1000, .labels = labels[cell]});
    callback(std::move(answer));
  }
  void FindOverlaps(const std::string& address, const OverlapQuestion&, Duration,
                    OverlapFinder::Callback callback) override {
    ++leaves_asked;
    callback(cells.at(address.substr(0, address.find(':'))));
  }
  void After(Duration delay, std::function<void()> callback) override {
    timers.push_back({clock_->Now() + delay, std::move(callback)});
  }
  // Time passes, and whatever is due then happens.
  void Pass(Duration time) {
    clock_->Advance(time);
    std::vector<std::pair<Time, std::function<void()>>> due;
    for (auto& timer : std::exchange(timers, {}))
      (timer.first <= clock_->Now() ? due : timers).push_back(std::move(timer));
    for (auto& timer : due) timer.second();
  }

  WorkerFound& Add(const std::string& cell, const std::string& worker, uint32_t blocks = 0,
                   Labels of_worker = {}) {
    WorkersAnswer& answer = cells[cell];
    if (!of_worker.empty()) {
      auto all = answer.labels == nullptr ? std::make_shared<LabelsByWorker>()
                                          : std::make_shared<LabelsByWorker>(*answer.labels);
      (*all)[Id(worker)] = std::move(of_worker);
      answer.labels = std::move(all);
    }
    answer.workers.push_back({.worker = Id(worker), .blocks = blocks, .load = Load()});
    return answer.workers.back();
  }
  WorkerFound& At(const std::string& cell, size_t worker) { return cells[cell].workers[worker]; }

  std::map<std::string, WorkersAnswer> cells;
  std::map<std::string, Labels> labels;
  std::vector<std::pair<Time, std::function<void()>>> timers;
  int leaves_asked = 0;

 private:
  ManualClock* const clock_;
};

std::vector<SequenceHash> Prompt(size_t shared, size_t own = 0, uint64_t who = 0) {
  std::vector<SequenceHash> sequence;
  for (size_t i = 1; i <= shared; ++i) sequence.push_back(SequenceHash(i * 1000));
  for (size_t i = 1; i <= own; ++i) sequence.push_back(SequenceHash((who + 2) * 1'000'000 + i));
  return sequence;
}

class RouteChoiceTest : public testing::Test {
 protected:
  RouteChoiceTest() : fleet_(&clock_) {
    options_.hierarchies = {"h"};
    clock_.Advance(seconds(1000));
  }

  Frontend& frontend() {
    if (frontend_ == nullptr)
      frontend_ = std::make_unique<Frontend>(options_, &fleet_, &fleet_, &clock_, &fleet_);
    return *frontend_;
  }
  absl::StatusOr<RouteResult> TryRoute(RouteInput input) {
    input.domain = kDomain;
    if (input.sequence_hashes.empty()) input.sequence_hashes = Prompt(100);
    // One token follows the last block, so that all blocks can be reused.
    input.prompt_tokens =
        static_cast<uint32_t>(input.sequence_hashes.size()) * options_.block_size + 1;
    absl::StatusOr<RouteResult> result = absl::UnknownError("still waiting");
    frontend().RouteAsync(std::move(input),
                          [&](absl::StatusOr<RouteResult> route) { result = std::move(route); });
    return result;
  }
  RouteResult Route(RouteInput input = {}) {
    absl::StatusOr<RouteResult> result = TryRoute(std::move(input));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : RouteResult();
  }
  std::string WorkerFor(RouteInput input = {}) { return Route(std::move(input)).worker.name; }

  ManualClock clock_;
  FakeFleet fleet_;
  FrontendOptions options_;
  std::unique_ptr<Frontend> frontend_;
};

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
  for (uint64_t who = 0; who < 64; ++who) ++chosen[WorkerFor(Sibling(who))];
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

// ---- Overload ----

TEST_F(RouteChoiceTest, AnOverloadedWorkerIsPassedOverHoweverDeepItReaches) {
  options_.overload.requests = 5;
  fleet_.Add("a", "w0", 100).load = Load{.running_requests = 5};
  fleet_.Add("a", "w1");
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "w1");
  EXPECT_EQ(route.receipt.overloaded, 1u);
  // What its depth was worth is in the figures.
  const FrontendStats stats = frontend().stats();
  EXPECT_EQ(stats.prompt_blocks, 100u);
  EXPECT_EQ(stats.chosen_blocks, route.overlap_blocks);
  EXPECT_GT(stats.best_blocks, stats.chosen_blocks);
}

TEST_F(RouteChoiceTest, ThresholdsMayChangeWhileItRuns) {
  fleet_.Add("a", "w0", 100).load = Load{.running_requests = 5};
  fleet_.Add("a", "w1");
  EXPECT_EQ(WorkerFor(), "w0");
  frontend().SetOverload({.requests = 5});
  EXPECT_EQ(WorkerFor(), "w1");
  frontend().SetOverload({});
  EXPECT_EQ(WorkerFor(), "w0");
}

TEST_F(RouteChoiceTest, EnginesMayChangeWhileItRuns) {
  options_.engines = {{"w0", "http://before:1"}};
  fleet_.Add("a", "w0");
  EXPECT_EQ(Route().url, "http://before:1");
  frontend().SetEngines({{"w0", "http://after:1"}});
  EXPECT_EQ(Route().url, "http://after:1");
}

// Those of a model without a request so far, too.
TEST_F(RouteChoiceTest, EveryEngineThatIsGivenIsKnown) {
  options_.engines = {{"w0", "http://given:1"}, {"w1", "http://given:2"}};
  fleet_.Add("a", "w0");
  const auto urls = [&] {
    std::vector<std::string> urls;
    for (const KnownEngine& engine : frontend().Engines(8)) urls.push_back(engine.url);
    return urls;
  };
  EXPECT_THAT(urls(), ::testing::ElementsAre("http://given:1", "http://given:2"));
  EXPECT_EQ(WorkerFor(), "w0");
  EXPECT_THAT(urls(), ::testing::ElementsAre("http://given:1", "http://given:2"));
  frontend().Avoid("", {"w1", 0, ""});
  ASSERT_EQ(frontend().Engines(8).size(), 2u);
  EXPECT_FALSE(frontend().Engines(8)[0].suspect);
  EXPECT_TRUE(frontend().Engines(8)[1].suspect);
}

TEST_F(RouteChoiceTest, WhenAllAreOverloadedTheRouteIsRefusedAndToldWhenToComeAgain) {
  options_.overload.queue_blocks = 100;
  options_.prefill_per_block = milliseconds(10);
  for (int i = 0; i < 6; ++i)
    fleet_.Add("cell" + std::to_string(i), "w" + std::to_string(i)).load =
        Load{.waiting_prefill_blocks = 149u + static_cast<uint32_t>(i)};
  const absl::Status refused = TryRoute({}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RetryAfter(refused), milliseconds(500));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("all 6 workers"));
  EXPECT_EQ(frontend().stats().rejected, 1u);
  EXPECT_EQ(RetryAfter(absl::ResourceExhaustedError("a prompt")), std::nullopt);
}

TEST_F(RouteChoiceTest, ChoicesInFlightOverloadTooAndReportsEndThat) {
  options_.overload.requests = 2;
  fleet_.Add("a", "w0");
  const RouteResult first = Route();
  Route();
  EXPECT_FALSE(TryRoute({}).ok());
  frontend().Report(first.decision_id, {.finished = true});
  EXPECT_TRUE(TryRoute({}).ok());
}

TEST_F(RouteChoiceTest, ARouteThatMayWaitIsAnsweredAsSoonAsSomebodyIsBelow) {
  options_.overload.requests = 1;
  options_.queue_wait = seconds(2);
  fleet_.Add("a", "w0").load = Load{.running_requests = 1};
  absl::StatusOr<RouteResult> result = absl::UnknownError("still waiting");
  frontend().RouteAsync({.domain = kDomain, .sequence_hashes = Prompt(10)},
                        [&](absl::StatusOr<RouteResult> route) { result = std::move(route); });
  fleet_.Pass(milliseconds(20));
  EXPECT_EQ(frontend().stats().waiting, 1u);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kUnknown);
  fleet_.At("a", 0).load = Load();
  fleet_.Pass(milliseconds(20));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->worker.name, "w0");
  EXPECT_EQ(result->receipt.queued_us, 40'000u);
  EXPECT_EQ(result->receipt.overloaded, 0u) << "of the try that found a worker";
  EXPECT_EQ(frontend().stats().waiting, 0u);
}

TEST_F(RouteChoiceTest, AWaitInVainEndsInARefusalAndSoDoesAFullQueue) {
  options_.overload.requests = 1;
  options_.queue_max = 1;
  fleet_.Add("a", "w0").load = Load{.running_requests = 1};
  absl::StatusOr<RouteResult> result = absl::UnknownError("still waiting");
  frontend().RouteAsync(
      {.domain = kDomain, .sequence_hashes = Prompt(10), .queue_wait = milliseconds(50)},
      [&](absl::StatusOr<RouteResult> route) { result = std::move(route); });
  EXPECT_EQ(TryRoute({.domain = {}, .queue_wait = seconds(9)}).status().code(),
            absl::StatusCode::kResourceExhausted);
  for (int i = 0; i < 4; ++i) fleet_.Pass(milliseconds(20));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(frontend().stats().rejected, 2u);
}

TEST_F(RouteChoiceTest, ASuspectWithRoomIsTriedBeforeTheRouteIsRefused) {
  options_.overload.requests = 5;
  options_.queue_wait = seconds(2);
  for (const bool same_cell : {true, false}) {
    frontend_ = nullptr;
    fleet_.cells.clear();
    fleet_.Add("a", "full").load = Load{.running_requests = 5};
    const std::string cell = same_cell ? "a" : "b";
    fleet_.Add(cell, "suspect");
    frontend().Avoid(cell, Id("suspect"));
    const RouteResult route = Route();
    EXPECT_EQ(route.worker.name, "suspect") << same_cell;
    EXPECT_EQ(route.receipt.overloaded, 1u);
    EXPECT_EQ(route.receipt.fallback, Fallback::kNone);
  }
}

TEST_F(RouteChoiceTest, AWorkerThatHasFailedThisVeryRequestIsNotTriedAgainInstead) {
  options_.overload.requests = 5;
  fleet_.Add("a", "full").load = Load{.running_requests = 5};
  fleet_.Add("a", "tried");
  EXPECT_EQ(TryRoute({.domain = {}, .tried = {{"a", Id("tried")}}}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST_F(RouteChoiceTest, WhoeverWaitsWhenTheFrontendStopsIsTold) {
  options_.overload.requests = 1;
  options_.queue_wait = seconds(60);
  for (const bool by_destructor : {true, false}) {
    frontend_ = nullptr;
    fleet_.cells.clear();
    fleet_.Add("a", "w0").load = Load{.running_requests = 1};
    std::vector<absl::Status> answers;
    for (uint64_t who = 0; who < 3; ++who)
      frontend().RouteAsync(
          {.domain = kDomain, .sequence_hashes = Prompt(10, 1, who)},
          [&](const absl::StatusOr<RouteResult>& route) { answers.push_back(route.status()); });
    EXPECT_EQ(frontend().stats().waiting, 3u);
    EXPECT_THAT(answers, testing::IsEmpty());
    if (by_destructor) {
      frontend_ = nullptr;
    } else {
      frontend().Stop();
      EXPECT_EQ(frontend().stats().waiting, 0u);
      EXPECT_EQ(TryRoute({}).status().code(), absl::StatusCode::kUnavailable);
    }
    ASSERT_EQ(answers.size(), 3u) << by_destructor;
    for (const absl::Status& answer : answers) {
      EXPECT_EQ(answer.code(), absl::StatusCode::kUnavailable);
      EXPECT_THAT(std::string(answer.message()), HasSubstr("stopping"));
    }
    // What they waited for comes too late to say anything.
    fleet_.At("a", 0).load = Load();
    fleet_.Pass(seconds(1));
    EXPECT_EQ(answers.size(), 3u);
    if (by_destructor) continue;
    EXPECT_EQ(TryRoute({}).status().code(), absl::StatusCode::kUnavailable) << "with room, too";
    frontend().Stop();
  }
}

// ---- Prefill here, decode there ----

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

}  // namespace
}  // namespace kvatlas
