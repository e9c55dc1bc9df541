// Engines of one model that read one prompt differently, behind leaves that answer what each worker
// really holds.

#include "frontend/router/readings.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/router/frontend.h"
#include "frontend/router/frontend_test_util.h"
#include "frontend/router/route_observer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

using testing::ElementsAre;

constexpr uint32_t kBlockSize = 4;

// `count` tokens of which the first `shared` are those of every prompt.
std::vector<TokenId> Tokens(size_t shared, size_t count, TokenId of) {
  std::vector<TokenId> tokens;
  for (size_t i = 0; i < count; ++i)
    tokens.push_back(i < shared ? static_cast<TokenId>(i) : of * 1000 + static_cast<TokenId>(i));
  return tokens;
}

std::vector<SequenceHash> HashesOf(const std::vector<TokenId>& tokens) {
  return (*PreparedPrompt::Make({.tokens = tokens}, kBlockSize, {}, WaypointSchedule::Standard()))
      ->sequence();
}

// Cells by the name of their leaf, with workers that hold sequences.
class HoldingFleet : public CellFinder, public OverlapFinder {
 public:
  struct Held {
    std::vector<SequenceHash> sequence;
    std::string url;
  };

  void FindCells(const std::string&, const CellQuestion& question, Duration,
                 CellFinder::Callback callback) override {
    ++cell_questions;
    CellsAnswer answer{.cells = {}, .block_size = kBlockSize};
    for (const auto& [cell, workers] : cells) {
      uint32_t covered = 0;
      for (size_t i = 0; i < question.waypoints.size(); ++i) {
        for (const auto& [name, held] : workers)
          if (std::count(held.sequence.begin(), held.sequence.end(), question.waypoints[i]) > 0)
            covered = question.schedule->BlocksCovered(static_cast<uint32_t>(i) + 1);
      }
      answer.cells.push_back(
          {.cell = cell, .address = cell, .blocks_at_least = covered, .blocks_below = covered + 1});
    }
    callback(std::move(answer));
  }

  void FindOverlaps(const std::string& address, const OverlapQuestion& question, Duration,
                    OverlapFinder::Callback callback) override {
    ++leaf_questions;
    if (question.sequence.size() == failing_blocks) return callback(absl::UnavailableError("down"));
    WorkersAnswer answer{.workers = {}, .block_size = kBlockSize};
    auto labels = std::make_shared<LabelsByWorker>();
    for (const auto& [name, held] : cells.at(address)) {
      uint32_t blocks = 0;
      while (blocks < question.sequence.size() && blocks < held.sequence.size() &&
             question.sequence[blocks] == held.sequence[blocks])
        ++blocks;
      answer.workers.push_back(Worker(name, blocks));
      (*labels)[Id(name)] = {{kUrlLabel, held.url}};
    }
    answer.labels = std::move(labels);
    callback(std::move(answer));
  }

  std::map<std::string, std::map<std::string, Held>> cells;
  std::optional<size_t> failing_blocks = {};  // questions of so many
  int leaf_questions = 0;
  int cell_questions = 0;
};

class LastDecision : public RouteObserver {
 public:
  void OnDecided(const Decided& decided) override { sequence = decided.prompt->sequence(); }
  void OnReported(uint64_t, const RouteReport&, Time) override {}
  std::vector<SequenceHash> sequence;
};

class ReadingsTest : public testing::Test {
 protected:
  ReadingsTest() {
    options_.block_size = kBlockSize;
    options_.leaves = {{"cell", "cell"}};
    options_.observer = &observer_;
    fleet_.cells["cell"] = {{"s", {.sequence = {}, .url = "http://s:1"}},
                            {"v", {.sequence = {}, .url = "http://v:1"}}};
  }

  Frontend& frontend() {
    if (frontend_ == nullptr)
      frontend_ = std::make_unique<Frontend>(options_, &fleet_, &fleet_, &clock_);
    return *frontend_;
  }
  // Read in one way by engines at v:1, in another by those at s:1.
  RouteInput Input() const {
    return {.domain = kDomain,
            .tokens = vllm_,
            .reading = "vllm",
            .other_readings = {{.name = "sglang", .tokens = sglang_}},
            .reading_of = [](const std::string& url) -> size_t { return url == "http://s:1"; }};
  }
  RouteResult Route(RouteInput input) {
    absl::StatusOr<RouteResult> result = frontend().Route(std::move(input));
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : RouteResult();
  }
  HoldingFleet::Held& Of(const std::string& worker) { return fleet_.cells["cell"][worker]; }

  ManualClock clock_;
  HoldingFleet fleet_;
  LastDecision observer_;
  FrontendOptions options_;
  std::unique_ptr<Frontend> frontend_;
  std::vector<TokenId> vllm_ = Tokens(8, 401, 1);    // 100 blocks
  std::vector<TokenId> sglang_ = Tokens(8, 361, 2);  // 90 blocks
};

TEST_F(ReadingsTest, EachEngineIsFoundByItsOwnTokens) {
  Of("s").sequence = HashesOf(sglang_);
  RouteResult route = Route(Input());
  EXPECT_EQ(route.worker, Id("s"));
  EXPECT_EQ(route.overlap_blocks, 90u);
  EXPECT_EQ(route.reading, 1u);
  EXPECT_EQ(route.receipt.reading, "sglang");
  EXPECT_EQ(route.receipt.blocks, 90u);
  EXPECT_EQ(observer_.sequence, HashesOf(sglang_));
  frontend().Report(route.decision_id, {.finished = true});

  Of("s").sequence = {};
  Of("v").sequence = HashesOf(vllm_);
  route = Route(Input());
  EXPECT_EQ(route.worker, Id("v"));
  EXPECT_EQ(route.overlap_blocks, 100u);
  EXPECT_EQ(route.reading, 0u);
  EXPECT_EQ(route.receipt.reading, "vllm");
  EXPECT_EQ(observer_.sequence, HashesOf(vllm_));
}

// Blocks of the other reading's tokens are of no use to an engine.
TEST_F(ReadingsTest, TokensThatAnEngineDoesNotReadCountForNothing) {
  Of("s").sequence = HashesOf(vllm_);
  std::vector<SequenceHash> some = HashesOf(vllm_);
  some.resize(30);
  Of("v").sequence = some;
  const RouteResult route = Route(Input());
  EXPECT_EQ(route.worker, Id("v"));
  EXPECT_EQ(route.overlap_blocks, 30u);
  ASSERT_EQ(route.receipt.candidates.size(), 2u);
  EXPECT_EQ(route.receipt.candidates[1].worker, Id("s"));
  EXPECT_EQ(route.receipt.candidates[1].overlap_blocks, 2u);  // the head that both have
  EXPECT_EQ(route.receipt.candidates[1].reading, "sglang");
}

// 60 of 90 blocks leave less to compute than 65 of 100.
TEST_F(ReadingsTest, CostsAreOfEachEnginesOwnLength) {
  Of("s").sequence = HashesOf(sglang_);
  Of("s").sequence.resize(60);
  Of("v").sequence = HashesOf(vllm_);
  Of("v").sequence.resize(65);
  EXPECT_EQ(Route(Input()).worker, Id("s"));
}

TEST_F(ReadingsTest, EnginesOfAReadingThatIsNotKnownAreCandidatesByLoad) {
  Of("s").sequence = HashesOf(sglang_);
  RouteInput input = Input();
  input.other_readings[0].tokens.clear();
  RouteResult route = Route(input);
  ASSERT_EQ(route.receipt.candidates.size(), 2u);
  for (const ReceiptCandidate& candidate : route.receipt.candidates) {
    EXPECT_EQ(candidate.overlap_blocks, 0u);
    EXPECT_EQ(candidate.cost.prefill, 1.25 * 100);
  }
  EXPECT_EQ(fleet_.leaf_questions, 1);
  Of("v").sequence = HashesOf(vllm_);
  EXPECT_EQ(Route(input).worker, Id("v"));
  // Nothing is promised where it alone may be chosen.
  input.allowed_workers = {"s"};
  route = Route(input);
  EXPECT_EQ(route.worker, Id("s"));
  EXPECT_EQ(route.overlap_blocks, 0u);
  EXPECT_TRUE(observer_.sequence.empty());
}

// The least that a worker may have to compute follows from it.
TEST(ReadingsOfTest, TheShortestIsAKnownOneWhicheverIsNot) {
  const auto prompt = [](size_t blocks) {
    PromptSource source{.unknown = blocks == 0};
    if (blocks > 0) source.tokens = Tokens(8, blocks * kBlockSize, 1);
    return *PreparedPrompt::Make(std::move(source), kBlockSize, {}, WaypointSchedule::Standard());
  };
  const auto shortest = [&](size_t first, const std::vector<size_t>& others) {
    std::vector<PreparedPrompt::Ptr> prompts;
    for (const size_t blocks : others) prompts.push_back(prompt(blocks));
    return Readings::Of(nullptr, prompt(first), std::move(prompts), nullptr)->shortest().blocks();
  };
  EXPECT_EQ(shortest(100, {90, 95}), 90u);
  EXPECT_EQ(shortest(100, {0}), 100u);
  EXPECT_EQ(shortest(0, {90}), 90u);
  EXPECT_EQ(shortest(0, {90, 95}), 90u);
  EXPECT_EQ(shortest(0, {95, 0, 90}), 90u);
  EXPECT_EQ(shortest(0, {0}), 0u);
}

TEST_F(ReadingsTest, OneReadingIsOneQuestion) {
  Route({.domain = kDomain, .tokens = vllm_});
  EXPECT_EQ(fleet_.leaf_questions, 1);
  Route(Input());
  EXPECT_EQ(fleet_.leaf_questions, 3);
}

TEST_F(ReadingsTest, ALeafThatFailsOneOfTheQuestionsHasNotAnswered) {
  fleet_.failing_blocks = 90;
  const absl::StatusOr<RouteResult> route = frontend().Route(Input());
  EXPECT_EQ(route.status().code(), absl::StatusCode::kUnavailable) << route.status();
}

TEST_F(ReadingsTest, AnotherWorkerIsChosenByItsOwnReading) {
  Of("s").sequence = HashesOf(sglang_);
  Of("v").sequence = HashesOf(vllm_);
  Of("v").sequence.resize(50);
  const RouteResult first = Route(Input());
  ASSERT_EQ(first.worker, Id("s"));
  const int asked = fleet_.leaf_questions;
  absl::StatusOr<RouteResult> again = absl::UnknownError("no answer");
  const auto route_again = [&] {
    frontend().RouteAgain(first.routed, {{"cell", Id("s")}}, Duration(0),
                          [&](absl::StatusOr<RouteResult> result) { again = std::move(result); });
  };
  route_again();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->worker, Id("v"));
  EXPECT_EQ(again->overlap_blocks, 50u);
  EXPECT_EQ(again->reading, 0u);
  EXPECT_EQ(observer_.sequence, HashesOf(vllm_));
  EXPECT_EQ(fleet_.leaf_questions, asked);
  // The whole route, later on: no tokens are needed.
  clock_.Advance(std::chrono::seconds(10));
  route_again();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->worker, Id("v"));
  EXPECT_EQ(again->overlap_blocks, 50u);
  EXPECT_EQ(fleet_.leaf_questions, asked + 2);
}

// The second of two requests with one prompt, before the first one's blocks are announced.
TEST_F(ReadingsTest, ASiblingGoesWhereTheFirstWentByThatEnginesReading) {
  Of("s").sequence = HashesOf(sglang_);
  Of("s").sequence.resize(8);
  ASSERT_EQ(Route(Input()).worker, Id("s"));
  const RouteResult second = Route(Input());
  EXPECT_EQ(second.worker, Id("s"));
  EXPECT_GT(second.receipt.candidates[1].cost.siblings, 0);
}

// Its hashes are made with the size that the leaf names, for all readings.
TEST_F(ReadingsTest, AnotherBlockSizeIsOfAllReadings) {
  options_.block_size = 16;
  Of("s").sequence = HashesOf(sglang_);
  const RouteResult route = Route(Input());
  EXPECT_EQ(route.worker, Id("s"));
  EXPECT_EQ(route.overlap_blocks, 90u);
}

TEST_F(ReadingsTest, TheHierarchyIsAskedForCellsOfEachReading) {
  options_.leaves.clear();
  options_.hierarchies = {"h"};
  options_.ask_ahead = 0;
  options_.ask_cells = 1;
  fleet_.cells = {{"a", {{"v", {.sequence = {}, .url = "http://v:1"}}}},
                  {"b", {{"s", {.sequence = HashesOf(sglang_), .url = "http://s:1"}}}},
                  {"c", {{"w", {.sequence = {}, .url = "http://v:1"}}}}};
  const RouteResult route = Route(Input());
  EXPECT_EQ(fleet_.cell_questions, 2);
  EXPECT_EQ(route.worker, Id("s"));
  EXPECT_EQ(route.overlap_blocks, 90u);
  ASSERT_EQ(route.receipt.cells.size(), 1u);
  EXPECT_EQ(route.receipt.cells[0].cell, "b");
}

// Asked beside the hierarchy, a leaf is asked about each reading too.
TEST_F(ReadingsTest, LeavesAskedAheadAnswerEachReading) {
  options_.leaves.clear();
  options_.hierarchies = {"h"};
  Of("s").sequence = HashesOf(sglang_);
  Route(Input());
  fleet_.leaf_questions = 0;
  EXPECT_EQ(Route(Input()).worker, Id("s"));
  EXPECT_EQ(fleet_.leaf_questions, 2);
  EXPECT_GT(frontend().stats().asked_ahead_used, 0u);
}

// Which engine is at a worker's name may be given, where no label says it.
TEST_F(ReadingsTest, GivenEnginesHaveReadingsToo) {
  Of("s") = {.sequence = HashesOf(sglang_), .url = ""};
  options_.engines = {{"s", "http://s:1"}};
  EXPECT_EQ(Route(Input()).worker, Id("s"));
}

}  // namespace
}  // namespace kvatlas
