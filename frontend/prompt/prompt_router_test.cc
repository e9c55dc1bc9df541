// Routes of prompts, by load and by tokens, and the end of a router.

#include "frontend/prompt/prompt_router.h"

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "frontend/prompt/discover_engines.h"
#include "frontend/prompt/engine_conventions.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/router/frontend.h"
#include "frontend/router/lookup_clients.h"
#include "frontend/router/prepared_prompt.h"
#include "frontend/router/route_observer.h"
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

// A leaf with one worker, which keeps the last question.
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

// A prompt whose tokens end before an image.
class BeginningTokenizer : public PromptTokenizer {
 public:
  void Tokenize(const std::string&, const Prompt&, Duration, Callback callback) override {
    callback(PromptTokens{
        .tokens = {1, 2, 3, 4, 5}, .ends_before = "up to image_url", .source = "files"});
  }
};

// Answers when the test lets it.
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

// Four prompts, of which the first is being tokenized when the router ends; each one gets an
// answer.
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

// Whether the other prompts are read before the end is chance, so there are many rounds.
TEST(PromptRouterTest, EveryPromptHasItsAnswerWhenTheRouterHasEnded) {
  for (int round = 0; round < 200; ++round) EndWithFourPrompts();
}

// Its name was being looked up when the router ended: no queue is full, and to ask again in a
// second is no remedy.
TEST(PromptRouterTest, APromptThatComesWhileTheRouterStopsIsToldSo) {
  NoPeers no_peers;
  Frontend frontend({}, &no_peers, &no_peers, &Clock::Real());
  std::function<void()> later;
  auto router = std::make_unique<PromptRouter>(
      PromptRouterOptions{.threads = 1,
                          .served_name =
                              [&](RouteInput*, std::function<void()> next) {
                                later = std::move(next);
                                return false;
                              }},
      &frontend, /*tokenizer=*/nullptr);
  PromptQuestion question;
  question.input.domain.model = "m";
  absl::Status status;
  router->RouteByLoad(question,
                      [&](const absl::StatusOr<PromptRoute>& route) { status = route.status(); });
  router = nullptr;
  later();
  EXPECT_EQ(status, absl::UnavailableError("the frontend is stopping"));
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
  router.RouteBody(RequestPath::kCompletions, body, question, expect_by_load);
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
  router.RouteBody(RequestPath::kCompletions, body, question,
                   [&](absl::StatusOr<PromptRoute> route) { answer = std::move(route); });
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->prompt_tokens, 5u);
  EXPECT_EQ(leaf.blocks_asked, 4u) << "by its prompt";
}

TEST(PromptRouterTest, APromptIsRoutedByItsBeginningWhereTheRestIsNotKnown) {
  OneWorker leaf;
  FrontendOptions options;
  options.deadline = std::chrono::minutes(1);
  options.block_size = 1;
  options.leaves = {{.cell = "c", .address = "leaf"}};
  Frontend frontend(options, &leaf, &leaf, &Clock::Real());
  BeginningTokenizer tokenizer;
  PromptRouter router({.threads = 1}, &frontend, &tokenizer);
  PromptQuestion question;
  question.input.domain.model = "m";
  question.inline_bytes_max = 1 << 10;
  question.by_load_without_tokens = true;
  absl::StatusOr<PromptRoute> answer = absl::UnknownError("none");
  router.RouteBody(RequestPath::kChat,
                   std::make_shared<const std::string>(R"({"model":"m","messages":[]})"), question,
                   [&](absl::StatusOr<PromptRoute> route) { answer = std::move(route); });
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(leaf.blocks_asked, 5u)
      << "more tokens follow: the last one known is none of the engine's";
  EXPECT_EQ(answer->no_tokens.message(), "up to image_url");
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

// ---- Engines that read one request differently ----

// A leaf with a vLLM and an SGLang, and the sequences that they hold.
class TwoKinds : public NoPeers {
 public:
  void FindOverlaps(const std::string&, const OverlapQuestion& question, Duration,
                    OverlapFinder::Callback callback) override {
    ++questions;
    WorkersAnswer answer{.workers = {}, .block_size = 1};
    LabelsByWorker labels;
    for (const auto& [name, tokens] : held) {
      const HolderId worker = {name, 0, ""};
      const auto prompt =
          PreparedPrompt::Make({.tokens = tokens}, 1, {}, WaypointSchedule::Standard());
      uint32_t blocks = 0;
      while (blocks < question.sequence.size() && blocks < tokens.size() &&
             question.sequence[blocks] == (*prompt)->sequence()[blocks])
        ++blocks;
      answer.workers.push_back({.worker = worker, .blocks = blocks});
      labels[worker] = {{kUrlLabel, "http://" + name + ":8000"}};
    }
    answer.labels = std::make_shared<const LabelsByWorker>(std::move(labels));
    callback(std::move(answer));
  }
  std::map<std::string, std::vector<TokenId>> held;
  int questions = 0;
};

// Tokens by convention; a convention without tokens is refused.
class TokenizerByKind : public PromptTokenizer {
 public:
  void Tokenize(const std::string&, const Prompt& prompt, Duration, Callback callback) override {
    ++asked;
    const std::string kind = ToString(std::get<BodyPrompt>(prompt).convention);
    if (!tokens.contains(kind)) return callback(absl::InvalidArgumentError(kind + " refuses it"));
    callback(PromptTokens{.tokens = tokens.at(kind), .source = kind + " tokens"});
  }
  std::map<std::string, std::vector<TokenId>> tokens;
  std::atomic<int> asked = 0;
};

class PromptReadingsTest : public testing::Test {
 protected:
  PromptReadingsTest() {
    LearnKinds();
    leaf_.held = {{"s", {1}}, {"v", {1}}};
    tokenizer_.tokens = {{"vllm", {1, 2, 3, 4, 5}}, {"sglang", {1, 7, 8, 9, 10, 11}}};
  }

  void LearnKinds() {
    conventions_.Set({{.model = "m", .authority = "v:8000", .convention = Convention()},
                      {.model = "m",
                       .authority = "s:8000",
                       .convention = Convention{.engine = EngineKind::kSglang}}});
  }

  PromptRoute Route() {
    PromptQuestion question;
    question.by_load_without_tokens = true;
    question.return_tokens = true;
    question.forward_tokens = true;
    question.inline_bytes_max = 1 << 20;
    absl::StatusOr<PromptRoute> result = absl::UnknownError("no answer");
    router_.RouteBody(RequestPath::kChat,
                      std::make_shared<const std::string>(
                          R"({"model":"m","messages":[{"role":"user","content":"hi"}]})"),
                      std::move(question),
                      [&](absl::StatusOr<PromptRoute> route) { result = std::move(route); });
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return {};
    frontend_.Report(result->route.decision_id, {.finished = true});
    return *std::move(result);
  }

  TwoKinds leaf_;
  Frontend frontend_{{.leaves = {{"c", "leaf"}}, .block_size = 1, .siblings_together = false},
                     &leaf_,
                     &leaf_,
                     &Clock::Real()};
  TokenizerByKind tokenizer_;
  EngineConventions conventions_;
  bool trusted_ = false;
  PromptRouter router_{
      {.conventions = &conventions_,
       .is_trusted = [this](const std::string&, const BodyPrompt&) { return trusted_; }},
      &frontend_,
      &tokenizer_};
};

TEST_F(PromptReadingsTest, EachEngineIsFoundByItsOwnTokens) {
  leaf_.held["s"] = tokenizer_.tokens["sglang"];
  PromptRoute answer = Route();
  EXPECT_EQ(answer.route.worker.name, "s");
  EXPECT_EQ(answer.route.overlap_blocks, 5u);
  EXPECT_EQ(answer.route.receipt.reading, "sglang");
  EXPECT_EQ(answer.prompt_tokens, 6u);
  EXPECT_EQ(answer.tokens, tokenizer_.tokens["sglang"]);
  EXPECT_EQ(answer.tokenizer, "sglang tokens");
  leaf_.held = {{"s", {1}}, {"v", tokenizer_.tokens["vllm"]}};
  answer = Route();
  EXPECT_EQ(answer.route.worker.name, "v");
  EXPECT_EQ(answer.route.overlap_blocks, 4u);
  EXPECT_EQ(answer.route.receipt.reading, "vllm");
  EXPECT_EQ(answer.prompt_tokens, 5u);
  EXPECT_EQ(answer.tokens, tokenizer_.tokens["vllm"]);
}

TEST_F(PromptReadingsTest, EqualReadingsAreOneQuestion) {
  Route();  // learns the block size from the leaf
  tokenizer_.tokens["sglang"] = tokenizer_.tokens["vllm"];
  leaf_.questions = 0;
  const PromptRoute answer = Route();
  EXPECT_EQ(leaf_.questions, 1);
  EXPECT_EQ(answer.route.receipt.reading, "vllm, sglang");
}

TEST_F(PromptReadingsTest, AKindLearnedLateCountsFromThenOn) {
  conventions_.Set({});
  leaf_.held["s"] = tokenizer_.tokens["sglang"];
  EXPECT_EQ(Route().route.overlap_blocks, 1u);
  LearnKinds();
  const PromptRoute answer = Route();
  EXPECT_EQ(answer.route.worker.name, "s");
  EXPECT_EQ(answer.route.overlap_blocks, 5u);
}

TEST_F(PromptReadingsTest, AnEngineWhoseReadingIsNotKnownIsChosenByLoadAndSaysWhy) {
  tokenizer_.tokens.erase("sglang");
  leaf_.held.erase("v");
  const PromptRoute answer = Route();
  EXPECT_EQ(answer.route.worker.name, "s");
  EXPECT_EQ(answer.route.overlap_blocks, 0u);
  EXPECT_EQ(answer.no_tokens.message(), "sglang refuses it");
  EXPECT_EQ(answer.prompt_tokens, 0u);
  leaf_.held["v"] = tokenizer_.tokens["vllm"];
  const PromptRoute known = Route();
  EXPECT_EQ(known.route.worker.name, "v");
  EXPECT_TRUE(known.no_tokens.ok()) << known.no_tokens;
}

TEST_F(PromptReadingsTest, TrustedIdsGoOnToAnEngineThatTakesThemAndToNoOther) {
  const auto learn = [&](bool takes_token_ids) {
    conventions_.Set({{.model = "m",
                       .authority = "v:8000",
                       .convention = Convention(),
                       .takes_token_ids = takes_token_ids},
                      {.model = "m", .authority = "s:8000", .convention = Convention()}});
  };
  learn(true);
  leaf_.held["v"] = tokenizer_.tokens["vllm"];
  EXPECT_EQ(Route().forward, nullptr) << "not trusted";
  trusted_ = true;
  PromptRoute answer = Route();
  ASSERT_EQ(answer.route.worker.name, "v");
  ASSERT_NE(answer.forward, nullptr);
  EXPECT_EQ(*answer.forward, tokenizer_.tokens["vllm"]);
  leaf_.held = {{"s", tokenizer_.tokens["vllm"]}, {"v", {1}}};
  answer = Route();
  ASSERT_EQ(answer.route.worker.name, "s");
  EXPECT_EQ(answer.forward, nullptr) << "an engine that takes none";
  learn(false);
  leaf_.held = {{"s", {1}}, {"v", tokenizer_.tokens["vllm"]}};
  EXPECT_EQ(Route().forward, nullptr);
  LearnKinds();
  EXPECT_EQ(Route().forward, nullptr) << "engines that read it differently";
}

TEST_F(PromptReadingsTest, AnotherWorkerIsToldByItsOwnReading) {
  leaf_.held["s"] = tokenizer_.tokens["sglang"];
  const PromptRoute first = Route();
  ASSERT_EQ(first.route.worker.name, "s");
  const int tokenized = tokenizer_.asked;
  absl::StatusOr<PromptRoute> again = absl::UnknownError("no answer");
  router_.RouteAgain(first, {{first.route.cell, first.route.worker}},
                     [&](absl::StatusOr<PromptRoute> route) { again = std::move(route); });
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->route.worker.name, "v");
  EXPECT_EQ(again->prompt_tokens, 5u);
  EXPECT_EQ(again->tokenizer, "vllm tokens");
  EXPECT_EQ(tokenizer_.asked, tokenized);
}

// Observers of routes get the same data on tokens as the client.
class Listener : public RouteObserver {
 public:
  void OnDecided(const Decided& decided) override {
    tokenizer = decided.input.tokenizer;
    no_tokens = decided.input.no_tokens;
    ++decisions;
  }
  void OnReported(uint64_t, const RouteReport&, Time) override {}

  std::string tokenizer, no_tokens;
  std::atomic<int> decisions = 0;
};

TEST(PromptRouterTest, AnObserverHearsWhatMadeTheTokensOrWhyThereAreNone) {
  OneWorker leaf;
  Listener listener;
  FrontendOptions options;
  options.deadline = std::chrono::minutes(1);
  options.leaves = {{.cell = "c", .address = "leaf"}};
  options.observer = &listener;
  Frontend frontend(options, &leaf, &leaf, &Clock::Real());
  EngineTokenizer tokenizer(&frontend);
  for (const bool has : {false, true}) {
    PromptRouter router({.threads = 1}, &frontend, has ? &tokenizer : nullptr);
    PromptQuestion question;
    question.input.domain.model = "m";
    question.prompt = TextPrompt{.text = "hello"};
    question.by_load_without_tokens = true;
    std::atomic<bool> answered = false;
    PromptRoute answer;
    router.Route(std::move(question), [&](absl::StatusOr<PromptRoute> route) {
      if (route.ok()) answer = *std::move(route);
      answered = true;
    });
    ASSERT_TRUE(Await([&] { return answered.load(); }, std::chrono::seconds(60)));
    EXPECT_EQ(answer.no_tokens.ok(), has);
    EXPECT_EQ(listener.tokenizer, has ? "engine" : "");
    EXPECT_EQ(listener.no_tokens, std::string(answer.no_tokens.message()));
    EXPECT_EQ(listener.decisions, has ? 2 : 1);
  }
}

}  // namespace
}  // namespace kvatlas
