#include "frontend/router/cell_search.h"

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "frontend/router/fleet.h"
#include "frontend/router/frontend_test_util.h"
#include "frontend/router/prepared_prompt.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class CellSearchTest : public testing::Test {
 protected:
  CellSearchTest() {
    options_.leaves = {{.cell = "own", .address = "own:1"}};
    auto request = std::make_shared<RouteRequest>();
    request->fleet = std::make_shared<FleetState>(options_, nullptr, nullptr, &clock_, nullptr);
    request->input = std::make_shared<const RouteInput>(RouteInput{.domain = kDomain});
    request->policy = request->fleet->PolicyOf("m");
    request->overload = request->fleet->overload.Get();
    request->engines = request->fleet->engines.Get();
    request->prompt = *PreparedPrompt::Make({.sequence_hashes = Prompt(100)}, 16, {},
                                            WaypointSchedule::Standard());
    request->until = std::chrono::seconds(1);
    request_ = std::move(request);
  }
  static Target At(const std::string& cell, double cost, double best_cost) {
    return {.asked = {.cell = cell, .address = cell + ":1"}, .cost = cost, .best_cost = best_cost};
  }
  static std::vector<std::string> Names(const std::vector<Target>& targets) {
    std::vector<std::string> names;
    for (const Target& target : targets) names.push_back(target.asked.cell);
    return names;
  }

  ManualClock clock_;
  FrontendOptions options_;
  RequestPtr request_;
};

TEST_F(CellSearchTest, TheCheapestAreTakenAsFarAsTheyCanWin) {
  CellSearch search(request_, SourcesAfterHierarchy());
  search.Start({At("b", 50, 10), At("a", 20, 5), At("c", 60, 30)});
  EXPECT_THAT(Names(search.Take({})), ElementsAre("a", "b"));
  EXPECT_THAT(Names(search.Take({})), ElementsAre("c"));
  EXPECT_THAT(search.Take({}), IsEmpty());
  CellSearch other(request_, SourcesAfterHierarchy());
  other.Start({At("a", 20, 5), At("b", 50, 25)});
  EXPECT_THAT(Names(other.Take({})), ElementsAre("a")) << "b is dearer than a at best";
}

TEST_F(CellSearchTest, SourcesFollowInTheirOrderAndNameTheirFallback) {
  CellSearch search(request_, SourcesAfterHierarchy());
  EXPECT_EQ(search.fallback(), Fallback::kNone);
  std::vector<Fallback> fallbacks;
  while (search.NextSource()) fallbacks.push_back(search.fallback());
  EXPECT_THAT(fallbacks,
              ElementsAre(Fallback::kLastGoodCells, Fallback::kLastGoodCells, Fallback::kOwnCell));
  EXPECT_THAT(Names(search.Take({})), ElementsAre("own"));
  CellSearch alone(request_, SourcesWithoutHierarchy());
  ASSERT_TRUE(alone.NextSource());
  EXPECT_EQ(alone.fallback(), Fallback::kNone) << "nothing is missing in a fleet of one cell";
  EXPECT_THAT(Names(alone.Take({})), ElementsAre("own"));
}

TEST_F(CellSearchTest, NoMoreThanMayBeAskedAreTakenAndNoneTwice) {
  CellSearch search(request_, SourcesAfterHierarchy());
  std::vector<Target> many;
  for (int i = 0; i < 40; ++i) many.push_back(At("c" + std::to_string(i), i, 0));
  search.Start(many);
  size_t taken = 0;
  for (;;) {
    const std::vector<Target> wave = search.Take({});
    if (wave.empty()) break;
    search.CountAsked(wave);
    taken += wave.size();
  }
  EXPECT_EQ(taken, options_.asked_max);
  EXPECT_FALSE(search.TakeCell("c0", At("c0", 0, 0)).has_value());
  EXPECT_TRUE(search.TakeCell("c39", At("c39", 0, 0)).has_value());
}

}  // namespace
}  // namespace kvatlas
