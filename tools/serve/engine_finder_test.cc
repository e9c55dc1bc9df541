// Engines of which nothing was heard are named beside what the leaf knows.

#include "tools/serve/engine_finder.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/event.h"

namespace kvatlas {
namespace {

// Answers by model.
class FakeLeaf : public OverlapFinder {
 public:
  std::map<std::string, WorkersAnswer> answers;
  std::string asked;

  void FindOverlaps(const std::string& leaf_address, const OverlapQuestion& question, Duration,
                    Callback callback) override {
    asked = leaf_address + " " + question.domain->model;
    const auto found = answers.find(question.domain->model);
    if (found == answers.end()) return callback(absl::NotFoundError("no such domain"));
    callback(found->second);
  }
};

class EngineFinderTest : public ::testing::Test {
 protected:
  EngineFinderTest() {
    auto view = std::make_shared<EngineView>();
    EngineView::Engines& engines = view->engines["m"];
    engines["heard"] = {
        .index = 0, .url = "http://heard", .loads = {{1, Load{.running_requests = 7}}}};
    engines["silent"] = {
        .index = 1, .url = "http://silent", .loads = {{0, Load{.running_requests = 3}}}};
    view->engines["new"]["silent"] = {.index = 0, .url = "http://silent", .loads = {}};
    view->names["nickname"] = {.model = "m"};
    view_ = view;
    WorkersAnswer answer;
    answer.block_size = 32;
    answer.workers.push_back({.worker = {.name = "heard", .rank = 1, .replica = ""}, .blocks = 5});
    auto labels = std::make_shared<LabelsByWorker>();
    (*labels)[{.name = "heard", .rank = 1, .replica = ""}] = {{"url", "http://said"},
                                                              {"role", "x"}};
    answer.labels = labels;
    leaf_.answers["m"] = answer;
  }

  absl::StatusOr<WorkersAnswer> Ask(const std::string& model, const std::string& address = "own") {
    const Domain domain{.model = model, .tenant = ""};
    std::optional<absl::StatusOr<WorkersAnswer>> answer;
    finder_.FindOverlaps(address, {.domain = &domain, .sequence = {}}, std::chrono::seconds(1),
                         [&](absl::StatusOr<WorkersAnswer> found) { answer = std::move(found); });
    return *std::move(answer);
  }

  FakeLeaf leaf_;
  std::shared_ptr<const EngineView> view_;
  EngineFinder finder_{"own", &leaf_, [this] { return view_; }};
};

TEST_F(EngineFinderTest, EnginesWithoutEventsAreNamedWithTheirLoadAndNeverExact) {
  for (const char* model : {"m", "nickname"}) {
    const auto answer = Ask(model);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(leaf_.asked, "own m");
    EXPECT_EQ(answer->block_size, 32u);
    ASSERT_EQ(answer->workers.size(), 2u);
    EXPECT_EQ(answer->workers[0].worker.name, "heard");
    EXPECT_EQ(answer->workers[0].blocks, 5u);
    EXPECT_EQ(answer->workers[0].load->running_requests, 7u);
    EXPECT_EQ(answer->LabelsOf(answer->workers[0].worker)->at("url"), "http://said");
    EXPECT_EQ(answer->LabelsOf(answer->workers[0].worker)->at("role"), "x");
    EXPECT_EQ(answer->workers[1].worker.name, "silent");
    EXPECT_EQ(answer->workers[1].trust, Trust::kStale);
    EXPECT_EQ(answer->workers[1].blocks, 0u);
    EXPECT_EQ(answer->workers[1].load->running_requests, 3u);
    EXPECT_EQ(answer->LabelsOf(answer->workers[1].worker)->at("url"), "http://silent");
  }
}

TEST_F(EngineFinderTest, AModelOfWhichTheLeafHeardNothingHasItsEngines) {
  const auto answer = Ask("new");
  ASSERT_TRUE(answer.ok()) << answer.status();
  ASSERT_EQ(answer->workers.size(), 1u);
  EXPECT_EQ(answer->workers[0].worker.name, "silent");
  EXPECT_EQ(Ask("unknown").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(EngineFinderTest, OtherLeavesAreAskedAsTheyAre) {
  const auto answer = Ask("nickname", "elsewhere:1");
  EXPECT_EQ(leaf_.asked, "elsewhere:1 nickname");
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kNotFound);
}

TEST_F(EngineFinderTest, LabelsAreJoinedOnceUntilSomethingChanges) {
  const auto first = Ask("m");
  EXPECT_EQ(first->labels, Ask("m")->labels);
  view_ = std::make_shared<EngineView>(*view_);
  EXPECT_NE(first->labels, Ask("m")->labels);
}

}  // namespace
}  // namespace kvatlas
