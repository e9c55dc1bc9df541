// Workers over their thresholds are passed over; routes wait, or are refused.

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "frontend/router/frontend.h"
#include "frontend/router/route_choice_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

TEST_F(RouteChoiceTest, AnOverloadedWorkerIsPassedOverHoweverDeepItReaches) {
  options_.overload.requests = 5;
  fleet_.Add("a", "w0", 100).load = Load{.running_requests = 5};
  fleet_.Add("a", "w1");
  const RouteResult route = Route();
  EXPECT_EQ(route.worker.name, "w1");
  EXPECT_EQ(route.receipt.overloaded, 1u);
  // The figures show what its depth was worth.
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

// Engines of a model without a request so far, too.
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
    // Room comes too late for them.
    fleet_.At("a", 0).load = Load();
    fleet_.Pass(seconds(1));
    EXPECT_EQ(answers.size(), 3u);
    if (by_destructor) continue;
    EXPECT_EQ(TryRoute({}).status().code(), absl::StatusCode::kUnavailable) << "with room, too";
    frontend().Stop();
  }
}

}  // namespace
}  // namespace kvatlas
