#include "frontend/serve/served_namespaces.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "frontend/router/frontend.h"
#include "frontend/router/prepared_prompt.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"
#include "indexer/base/waypoints.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;

class Counting : public RouteObserver {
 public:
  void OnDecided(const Decided&) override { ++decided; }
  void OnReported(uint64_t, const RouteReport&, Time) override { ++reported; }
  int decided = 0;
  int reported = 0;
};

class ServedNamespacesTest : public ::testing::Test {
 protected:
  void Decide(uint64_t id, const std::string& worker, const std::string& salt,
              const std::string& cell = "own", bool decode = false) {
    RouteInput input;
    input.cache_salt = salt;
    RouteResult result;
    result.decision_id = id;
    result.worker.name = worker;
    result.cell = cell;
    if (decode) result.decode = DecodeChoice{};
    const PreparedPrompt::Ptr prompt = *PreparedPrompt::Make(
        {.tokens = std::vector<TokenId>(40, 7)}, 16, {}, WaypointSchedule::Standard());
    const HashContract contract;
    served_.OnDecided({.input = input, .result = result, .prompt = prompt, .contract = contract});
  }
  void Report(uint64_t id, const RouteReport& report, int at = 1) {
    served_.OnReported(id, report, Time(seconds(at)));
  }

  Counting next_;
  ServedNamespaces served_{"own", &next_};
};

TEST_F(ServedNamespacesTest, APromptThatWasFinishedIsTakenOnceItsTimeHasCome) {
  Decide(1, "a", "pepper");
  Report(1, {.accepted = true});
  EXPECT_TRUE(served_.Take(Time(seconds(9))).empty());
  Report(1, {.finished = true}, 5);
  EXPECT_TRUE(served_.Take(Time(seconds(4))).empty());
  const std::vector<ServedNamespace> taken = served_.Take(Time(seconds(5)));
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].worker, "a");
  EXPECT_EQ(taken[0].cache_salt, "pepper");
  EXPECT_EQ(taken[0].prompt_tokens, 40u);
  EXPECT_TRUE(served_.Take(Time(seconds(9))).empty());
  EXPECT_EQ(next_.decided, 1);
  EXPECT_EQ(next_.reported, 2);
}

TEST_F(ServedNamespacesTest, OfAWorkerEachNamespaceIsTakenOnce) {
  for (uint64_t id = 1; id <= 6; ++id) Decide(id, id % 2 == 0 ? "a" : "b", id < 5 ? "" : "s");
  for (uint64_t id = 1; id <= 6; ++id) Report(id, {.finished = true});
  EXPECT_EQ(served_.Take(Time(seconds(9))).size(), 4u);
}

// Else those that come all the time would never be old enough.
TEST_F(ServedNamespacesTest, APromptIsTakenThoughMoreAreFinished) {
  for (uint64_t id = 1; id <= 9; ++id) {
    Decide(id, "a", "");
    Report(id, {.finished = true}, static_cast<int>(id));
  }
  EXPECT_EQ(served_.Take(Time(seconds(5))).size(), 5u);
  EXPECT_EQ(served_.Take(Time(seconds(5))).size(), 0u);
  EXPECT_EQ(served_.Take(Time(seconds(9))).size(), 4u);
}

TEST_F(ServedNamespacesTest, WhatWasNotServedHereSaysNothing) {
  Decide(1, "a", "");
  Report(1, {.abandoned = true});
  Decide(2, "a", "");
  Report(2, {.finished = true, .error = "the engine answered 400"});
  Decide(3, "a", "", "other cell");
  Report(3, {.finished = true});
  Decide(4, "a", "", "own", /*decode=*/true);
  Report(4, {.finished = true});
  Report(5, {.finished = true});
  EXPECT_TRUE(served_.Take(Time(seconds(9))).empty());
}

TEST_F(ServedNamespacesTest, RoutesThatAreNeverReportedOnAreForgotten) {
  const uint64_t count = ServedNamespaces::kWaitingMax + 1;
  for (uint64_t id = 1; id <= count; ++id) Decide(id, "a", std::to_string(id));
  Report(1, {.finished = true});
  Report(2, {.finished = true});
  const std::vector<ServedNamespace> taken = served_.Take(Time(seconds(9)));
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].cache_salt, "2");
}

}  // namespace
}  // namespace kvatlas
