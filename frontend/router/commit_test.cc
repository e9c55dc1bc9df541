#include "frontend/router/commit.h"

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "frontend/router/fleet.h"
#include "frontend/router/fleet_view.h"
#include "frontend/router/frontend_test_util.h"
#include "frontend/router/prepared_prompt.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

class CommitTest : public testing::Test {
 protected:
  CommitTest() {
    options_.siblings_together = false;
    options_.engines = {{"e0", "http://e0:1"}, {"e1", "http://e1:1"}};
    request_.fleet = std::make_shared<FleetState>(options_, nullptr, nullptr, &clock_, nullptr);
    request_.input = std::make_shared<const RouteInput>(RouteInput{.domain = kDomain});
    request_.policy = request_.fleet->PolicyOf("m");
    request_.overload = request_.fleet->overload.Get();
    request_.engines = request_.fleet->engines.Get();
    request_.prompt = *PreparedPrompt::Make({.sequence_hashes = Prompt(10)}, 16, {},
                                            WaypointSchedule::Standard());
  }
  Answered LearnCell(const std::string& cell, std::vector<WorkerFound> workers) {
    auto answer = std::make_shared<WorkersAnswer>();
    answer->workers = std::move(workers);
    return Learn(request_, {.cell = cell, .answer = std::move(answer)}, cell + ":1", 0);
  }
  InFlight To(const std::string& cell, const std::string& worker) {
    const std::shared_ptr<ModelFleet> model = request_.Model();
    MutexLock lock(&model->mutex);
    return model->memory.choices().To(cell, Id(worker));
  }

  ManualClock clock_;
  FrontendOptions options_;
  RouteRequest request_;
};

TEST_F(CommitTest, AChoiceIsCountedAtOnceAndItsIdFindsItsModel) {
  const Answered cell = LearnCell("a", {Worker("w0", 4)});
  const Committed committed = ChooseAndCount(request_, {cell.cell}, {});
  ASSERT_EQ(committed.choice.verdict, Verdict::kChosen);
  EXPECT_EQ(To("a", "w0"), (InFlight{.blocks = 6, .requests = 1}));
  EXPECT_EQ(request_.fleet->ModelOf(committed.decision_id), request_.Model());
}

TEST_F(CommitTest, ThreadsThatChooseAtTheSameTimeSeeEachOther) {
  const Answered cell =
      LearnCell("a", {Worker("w0", 0), Worker("w1", 0), Worker("w2", 0), Worker("w3", 0)});
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) ChooseAndCount(request_, {cell.cell}, {});
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const char* worker : {"w0", "w1", "w2", "w3"}) EXPECT_EQ(To("a", worker).requests, 50u);
}

TEST_F(CommitTest, WhereOnlyAGoodOneWillDoNothingElseIsCounted) {
  const Answered cell = LearnCell("a", {Worker("w0", 4)});
  request_.fleet->Suspect({"a", Id("w0")});
  EXPECT_EQ(ChooseAndCount(request_, {cell.cell}, {.only_good = true}).choice.verdict,
            Verdict::kNone);
  EXPECT_EQ(To("a", "w0").requests, 0u);
  EXPECT_EQ(ChooseAndCount(request_, {cell.cell}, {}).choice.verdict, Verdict::kChosen);
}

TEST_F(CommitTest, WhenNothingIsRememberedTheGivenEnginesTakeTurns) {
  EXPECT_EQ(ChooseAndCount(request_, {}, {}).choice.verdict, Verdict::kNone);
  std::map<std::string, int> chosen;
  for (int i = 0; i < 6; ++i)
    ++chosen[ChooseAndCount(request_, {}, {.engines = true}).choice.ranked[0].worker.name];
  EXPECT_THAT(chosen, testing::UnorderedElementsAre(std::pair("e0", 3), std::pair("e1", 3)));
}

}  // namespace
}  // namespace kvatlas
