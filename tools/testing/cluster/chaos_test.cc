#include "tools/testing/cluster/chaos.h"

#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

ChaosOptions Options(uint64_t seed, size_t requests) {
  ChaosOptions options;
  options.seed = seed;
  options.requests = requests;
  options.turns = {{"redis"}, {"leaf-0", "leaf-1", "leaf-2"}, {"hierarchy"}};
  return options;
}

TEST(ChaosTest, TheSameSeedGivesTheSamePlan) {
  EXPECT_EQ(MakeChaosPlan(Options(5, 1000)), MakeChaosPlan(Options(5, 1000)));
  EXPECT_NE(MakeChaosPlan(Options(5, 1000)), MakeChaosPlan(Options(6, 1000)));
}

TEST(ChaosTest, OneProcessIsDownAtATimeAndAllAreBackBeforeTheEnd) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const size_t requests = 10 + seed * 7;
    const std::vector<ChaosStep> plan = MakeChaosPlan(Options(seed, requests));
    SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + ToText(plan));
    ASSERT_EQ(plan.size() % 2, 0u);
    size_t last = 0;
    for (size_t i = 0; i < plan.size(); i += 2) {
      EXPECT_TRUE(plan[i].kill);
      EXPECT_FALSE(plan[i + 1].kill);
      EXPECT_EQ(plan[i].process, plan[i + 1].process);
      EXPECT_LE(last, plan[i].request);
      EXPECT_LT(plan[i].request, plan[i + 1].request);
      last = plan[i + 1].request;
    }
    EXPECT_LE(last, requests * 9 / 10 + 1);
  }
}

TEST(ChaosTest, EveryKindHasItsTurn) {
  std::set<std::string> killed;
  for (const ChaosStep& step : MakeChaosPlan(Options(1, 1000))) {
    killed.insert(step.process.substr(0, 4));
  }
  EXPECT_THAT(killed, ElementsAre("hier", "leaf", "redi"));
}

TEST(ChaosTest, TooFewRequestsOrNobodyToKillAreNoPlan) {
  EXPECT_THAT(MakeChaosPlan(Options(1, 3)), IsEmpty());
  ChaosOptions none = Options(1, 1000);
  none.turns.clear();
  EXPECT_THAT(MakeChaosPlan(none), IsEmpty());
}

TEST(ChaosTest, StepsAreDoneInOrderEachOnce) {
  const std::vector<ChaosStep> plan = {
      {2, true, "a"}, {4, false, "a"}, {4, true, "b"}, {9, false, "b"}, {11, true, "a"}};
  std::vector<ChaosStep> acted;
  Chaos chaos(plan, [&](const ChaosStep& step) {
    acted.push_back(step);
    return absl::OkStatus();
  });
  for (size_t i = 0; i < 6; ++i) chaos.Before(i);
  EXPECT_EQ(acted.size(), 3u);
  chaos.Finish();
  EXPECT_EQ(acted, std::vector<ChaosStep>(plan.begin(), plan.begin() + 4));
  EXPECT_EQ(chaos.done(), acted);
}

TEST(ChaosTest, AfterAnErrorNothingMoreIsDone) {
  int acted = 0;
  Chaos chaos({{0, true, "a"}, {1, false, "a"}}, [&](const ChaosStep&) {
    ++acted;
    return absl::NotFoundError("a: no such process");
  });
  chaos.Before(5);
  chaos.Finish();
  EXPECT_EQ(acted, 1);
  EXPECT_EQ(chaos.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(chaos.done(), IsEmpty());
}

}  // namespace
}  // namespace kvatlas
