// What becomes of prompts when their router ends.

#include "frontend/prompt/prompt_router.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "frontend/prompt/meet_engines.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/route/finders.h"
#include "frontend/route/frontend.h"
#include "gtest/gtest.h"
#include "indexer/base/await.h"
#include "indexer/base/clock.h"

namespace kvatlas {
namespace {

class NoPeers : public CellFinder, public OverlapFinder {
 public:
  void FindCells(const std::string&, const CellQuestion&, Duration,
                 CellFinder::Callback callback) override {
    callback(absl::UnavailableError("no peers"));
  }
  void FindOverlaps(const std::string&, const OverlapQuestion&, Duration,
                    OverlapFinder::Callback callback) override {
    callback(absl::UnavailableError("no peers"));
  }
};

// A leaf with one worker, and what it was last asked.
class OneWorker : public NoPeers {
 public:
  void FindOverlaps(const std::string&, const OverlapQuestion& question, Duration,
                    OverlapFinder::Callback callback) override {
    blocks_asked = question.sequence.size();
    WorkersAnswer answer{.workers = {}, .block_size = 1};
    answer.workers.push_back({.worker = {"w0", 0, ""}});
    answer.labels = std::make_shared<const LabelsByWorker>(
        LabelsByWorker{{{"w0", 0, ""}, {{kUrlLabel, "http://10.0.0.1:8000"}}}});
    callback(std::move(answer));
  }
  size_t blocks_asked = 99;
};

// Engines that the frontend has met.
class EngineTokenizer : public PromptTokenizer {
 public:
  explicit EngineTokenizer(Frontend* frontend) : frontend_(frontend) {}
  void Tokenize(const std::string& model, const Prompt&, Duration, Callback callback) override {
    if (frontend_->Engines(1).empty()) return callback(NoEngineMet(model));
    callback(PromptTokens{.tokens = {1, 2, 3, 4, 5}, .source = "engine"});
  }

 private:
  Frontend* const frontend_;
};

// Takes as long as it is let.
class SlowTokenizer : public PromptTokenizer {
 public:
  void Tokenize(const std::string&, const Prompt&, Duration, Callback callback) override {
    begun = true;
    EXPECT_TRUE(Await([&] { return let_go.load(); }, std::chrono::seconds(60)));
    callback(absl::InvalidArgumentError("no tokens"));
  }
  std::atomic<bool> begun = false;
  std::atomic<bool> let_go = false;
};

// Of four prompts the first is being read when the router ends; each has its answer.
void EndWithFourPrompts() {
  NoPeers no_peers;
  Frontend frontend({}, &no_peers, &no_peers, &Clock::Real());
  SlowTokenizer tokenizer;
  auto router =
      std::make_unique<PromptRouter>(PromptRouterOptions{.threads = 1}, &frontend, &tokenizer);
  std::atomic<int> read = 0, stopped = 0;
  for (int i = 0; i < 4; ++i) {
    PromptQuestion question;
    question.input.domain.model = "m";
    question.prompt = TextPrompt{.text = "hello"};
    router->Route(std::move(question), [&](const absl::StatusOr<PromptRoute>& route) {
      read += route.status().code() == absl::StatusCode::kInvalidArgument;
      stopped += route.status().code() == absl::StatusCode::kUnavailable;
    });
  }
  ASSERT_TRUE(Await([&] { return tokenizer.begun.load(); }, std::chrono::seconds(60)));
  std::atomic<bool> ending = false;
  std::thread ends([&] {
    ending = true;
    router = nullptr;
  });
  EXPECT_TRUE(Await([&] { return ending.load(); }, std::chrono::seconds(60)));
  tokenizer.let_go = true;
  ends.join();
  EXPECT_GE(read, 1);
  EXPECT_EQ(read + stopped, 4);
}

// Whether the others are read first is chance: there are many rounds.
TEST(PromptRouterTest, EveryPromptHasItsAnswerWhenTheRouterHasEnded) {
  for (int round = 0; round < 200; ++round) EndWithFourPrompts();
}

TEST(PromptRouterTest, WithoutTokensNoBlockIsAskedAboutEvenWhereABlockIsOneToken) {
  OneWorker leaf;
  FrontendOptions options;
  options.deadline = std::chrono::minutes(1);
  options.block_size = 1;
  options.leaves = {{.cell = "c", .address = "leaf"}};
  Frontend frontend(options, &leaf, &leaf, &Clock::Real());
  PromptRouter router({.threads = 1}, &frontend, /*tokenizer=*/nullptr);
  PromptQuestion question;
  question.input.domain.model = "m";
  const auto expect_by_load = [&](const absl::StatusOr<PromptRoute>& route) {
    ASSERT_TRUE(route.ok()) << route.status();
    EXPECT_EQ(route->route.worker.name, "w0");
    EXPECT_EQ(route->prompt_tokens, 0u);
    EXPECT_EQ(route->route.receipt.blocks, 0u);
  };
  router.RouteByLoad(question, expect_by_load);
  EXPECT_EQ(leaf.blocks_asked, 0u);
  leaf.blocks_asked = 99;
  question.by_load_without_tokens = true;
  question.inline_bytes_max = 1 << 10;
  const auto body = std::make_shared<const std::string>(R"({"model": "m", "prompt": "hello"})");
  router.RouteBody(OpenAiCall::kCompletion, body, question, expect_by_load);
  EXPECT_EQ(leaf.blocks_asked, 0u);
}

TEST(PromptRouterTest, TheFirstTextMeetsTheEngineThatMakesItsTokens) {
  OneWorker leaf;
  FrontendOptions options;
  options.deadline = std::chrono::minutes(1);
  options.block_size = 1;
  options.leaves = {{.cell = "c", .address = "leaf"}};
  Frontend frontend(options, &leaf, &leaf, &Clock::Real());
  EngineTokenizer tokenizer(&frontend);
  PromptRouter router({.threads = 1}, &frontend, &tokenizer);
  PromptQuestion question;
  question.input.domain.model = "m";
  question.inline_bytes_max = 1 << 10;
  const auto body = std::make_shared<const std::string>(R"({"model": "m", "prompt": "hello"})");
  absl::StatusOr<PromptRoute> answer = absl::UnknownError("none");
  router.RouteBody(OpenAiCall::kCompletion, body, question,
                   [&](absl::StatusOr<PromptRoute> route) { answer = std::move(route); });
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->prompt_tokens, 5u);
  EXPECT_EQ(leaf.blocks_asked, 4u) << "by its prompt";
}

TEST(PromptRouterTest, AModelWithoutATokenizerIsNotFound) {
  NoPeers no_peers;
  Frontend frontend({}, &no_peers, &no_peers, &Clock::Real());
  PromptRouter router({.threads = 1}, &frontend, /*tokenizer=*/nullptr);
  PromptQuestion question;
  question.input.domain.model = "m";
  question.prompt = TextPrompt{.text = "hello"};
  std::atomic<bool> answered = false;
  absl::Status status;
  router.Route(std::move(question), [&](const absl::StatusOr<PromptRoute>& route) {
    status = route.status();
    answered = true;
  });
  ASSERT_TRUE(Await([&] { return answered.load(); }, std::chrono::seconds(60)));
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(std::string(status.message()).find("model \"m\""), std::string::npos) << status;
}

}  // namespace
}  // namespace kvatlas
