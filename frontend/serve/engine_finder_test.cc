// Engines of which nothing was heard are named beside what the leaf knows.

#include "frontend/serve/engine_finder.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/routed.h"

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

  absl::StatusOr<WorkersAnswer> Ask(const std::string& model, const std::string& address = "own",
                                    const std::vector<SequenceHash>& sequence = {}) {
    const Domain domain{.model = model, .tenant = ""};
    std::optional<absl::StatusOr<WorkersAnswer>> answer;
    finder_.FindOverlaps(address, {.domain = &domain, .sequence = sequence},
                         std::chrono::seconds(1),
                         [&](absl::StatusOr<WorkersAnswer> found) { answer = std::move(found); });
    return *std::move(answer);
  }

  // Blocks of the prompt that the engine may have, beyond those promised of it.
  uint32_t GuessedOf(const std::string& engine, const std::vector<SequenceHash>& prompt) {
    const auto answer = Ask("m", "own", prompt);
    for (const WorkerFound& worker : answer->workers) {
      if (worker.worker.name != engine) continue;
      EXPECT_EQ(worker.blocks, engine == "heard" ? 5u : 0u);
      return worker.pending.depth;
    }
    return 0;
  }
  void Send(const std::string& engine, uint64_t decision, const std::vector<SequenceHash>& prompt) {
    const uint32_t first = GuessedOf(engine, prompt);
    finder_.Tell("own", {"m", ""}, /*frontend=*/1,
                 {.decision = decision,
                  .worker = {.name = engine, .rank = 0, .replica = ""},
                  .first = first,
                  .blocks = std::span(prompt).subspan(first),
                  .parent = first == 0 ? kNoParent : prompt[first - 1]});
  }
  void End(uint64_t decision, std::optional<uint32_t> cached_tokens) {
    finder_.End("own", {"m", ""}, 1, {.decision = decision, .cached_tokens = cached_tokens});
  }
  static std::vector<SequenceHash> Prompt(uint64_t first, size_t blocks) {
    std::vector<SequenceHash> prompt;
    for (uint64_t i = 0; i < blocks; ++i) prompt.push_back(SequenceHash{first + i});
    return prompt;
  }

  FakeLeaf leaf_;
  std::shared_ptr<const EngineView> view_;
  EngineFinder finder_{"own", &leaf_, [this] { return view_; }, GuessOptions{}};
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
    EXPECT_EQ(answer->workers[1].trust, Trust::kGuessed);
    EXPECT_EQ(answer->workers[1].blocks, 0u);
    EXPECT_EQ(answer->workers[1].load->running_requests, 3u);
    EXPECT_EQ(answer->LabelsOf(answer->workers[1].worker)->at("url"), "http://silent");
  }
}

TEST_F(EngineFinderTest, WhatWasSentToAnEngineWithoutEventsIsGuessedThere) {
  const auto prompt = Prompt(100, 40);
  EXPECT_EQ(GuessedOf("silent", prompt), 0u);
  Send("silent", 1, prompt);
  EXPECT_EQ(GuessedOf("silent", prompt), 40u);
  EXPECT_EQ(GuessedOf("silent", Prompt(100, 50)), 40u);
  // Nothing is guessed about an engine whose events are heard.
  Send("heard", 2, prompt);
  EXPECT_EQ(GuessedOf("heard", prompt), 0u);
}

TEST_F(EngineFinderTest, AGuessEndsWithTheFirstEventThatIsHeard) {
  const auto prompt = Prompt(100, 40);
  Send("silent", 1, prompt);
  const WorkersAnswer before = leaf_.answers["m"];
  leaf_.answers["m"].workers.push_back(
      {.worker = {.name = "silent", .rank = 0, .replica = ""}, .blocks = 0});
  EXPECT_EQ(GuessedOf("silent", prompt), 0u);
  leaf_.answers["m"] = before;  // lost again: nothing is known of what it has now
  EXPECT_EQ(GuessedOf("silent", prompt), 0u);
}

TEST_F(EngineFinderTest, WhatTheEngineServedCorrectsTheGuess) {
  Send("silent", 1, Prompt(100, 40));
  Send("silent", 2, Prompt(1000, 40));
  Send("silent", 3, Prompt(1000, 40));
  End(3, 39 * 32);
  EXPECT_EQ(GuessedOf("silent", Prompt(100, 40)), 40u);
  Send("silent", 4, Prompt(1000, 40));
  End(4, 0);
  EXPECT_EQ(GuessedOf("silent", Prompt(100, 40)), 0u) << "the older half";
  EXPECT_EQ(GuessedOf("silent", Prompt(1000, 40)), 40u);
  End(4, 0);  // again: it is over already
  EXPECT_EQ(GuessedOf("silent", Prompt(1000, 40)), 40u);
}

TEST_F(EngineFinderTest, AnEngineIsTakenToHaveThePoolThatItsMetricsSay) {
  auto view = std::make_shared<EngineView>(*view_);
  view->engines["m"]["silent"].loads[0] = {.used_blocks = 10, .free_blocks = 20};
  view_ = view;
  Send("silent", 1, Prompt(100, 40));
  EXPECT_EQ(GuessedOf("silent", Prompt(100, 40)), 30u);
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
