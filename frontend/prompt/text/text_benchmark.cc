// The cost of a prompt of 24 KB: met before, with a new turn, or never met; and the cost of the
// library alone.
//
//   bazel run -c opt //frontend/prompt/text:text_benchmark
//   KVATLAS_MODEL=/models/qwen3 bazel run -c opt //frontend/prompt/text:text_benchmark
//
// The text is this folder's own: prose and code. tests/interop/run_tokenizers.py --speed compares
// with the Python package.

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frontend/prompt/text/model_files.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/prompt/text/text_model.h"
#include "frontend/prompt/text/tokenizer.h"

namespace kvatlas {
namespace {

constexpr size_t kPromptBytes = 24'000;
constexpr size_t kCacheBytes = size_t{64} << 20;
const std::string kFolder = "frontend/prompt/text/";

std::string ModelPath() {
  const char* path = std::getenv("KVATLAS_MODEL");
  return path == nullptr ? kFolder + "testdata/bytes" : path;
}

std::string Must(absl::StatusOr<std::string> text) {
  if (text.ok()) return *std::move(text);
  std::cerr << text.status() << "\n";
  std::exit(1);
}

// `size` bytes of ASCII, begun with `number` so that texts differ from the start.
std::string Text(int number, size_t size) {
  static const std::string all = [] {
    std::string text;
    for (const char* name : {"README.md", "token_cache.h", "tokenizer.h", "next_turn_test.cc",
                             "local_tokenizer_test.cc"}) {
      text += Must(ReadFile(kFolder + name));
    }
    std::erase_if(text, [](char c) { return static_cast<unsigned char>(c) >= 0x80; });
    return text;
  }();
  std::string text = absl::StrCat("Text ", number, ": ");
  while (text.size() < size) text += all.substr(0, size - text.size());
  return text;
}

std::shared_ptr<TextModel> Model(size_t cache_bytes) {
  auto model = TextModel::Load({.path = ModelPath(), .cache_bytes = cache_bytes});
  if (model.ok()) return *model;
  std::cerr << model.status() << "\n";
  std::exit(1);
}

// A system prompt and ten turns.
BodyPrompt Chat(int number) {
  auto messages = nlohmann::ordered_json::array();
  const std::string text = Text(number, kPromptBytes);
  constexpr size_t kMessages = 11;
  for (size_t i = 0; i < kMessages; ++i) {
    const char* role = i == 0 ? "system" : i % 2 == 1 ? "user" : "assistant";
    const size_t part = text.size() / kMessages;
    messages.push_back({{"role", role}, {"content", text.substr(i * part, part)}});
  }
  return {.path = RequestPath::kChat,
          .body = std::make_shared<const std::string>(
              nlohmann::ordered_json({{"messages", messages}}).dump())};
}

void Run(benchmark::State& state, TextModel& model, const Prompt& prompt) {
  size_t tokens = 0;
  for (auto _ : state) {
    auto made = model.Tokenize(prompt);
    if (!made.ok()) return state.SkipWithError(made.status().ToString().c_str());
    tokens = made->tokens.size();
    state.counters["reused"] = static_cast<double>(made->reused);
  }
  state.counters["tokens"] = static_cast<double>(tokens);
}

void TextMetBefore(benchmark::State& state) {
  const auto model = Model(kCacheBytes);
  Run(state, *model, TextPrompt{.text = Text(0, kPromptBytes)});
}
BENCHMARK(TextMetBefore)->Unit(benchmark::kMicrosecond);

void ChatMetBefore(benchmark::State& state) {
  const auto model = Model(kCacheBytes);
  Run(state, *model, Chat(0));
}
BENCHMARK(ChatMetBefore)->Unit(benchmark::kMicrosecond);

void ChatTemplateAlone(benchmark::State& state) {
  const auto model = Model(0);
  const BodyPrompt chat = Chat(0);
  for (auto _ : state) benchmark::DoNotOptimize(model->Render(chat));
}
BENCHMARK(ChatTemplateAlone)->Unit(benchmark::kMicrosecond);

// Each turn has 200 bytes that were never met.
void TextWithANewTurn(benchmark::State& state) {
  const auto model = Model(kCacheBytes);
  const std::string text = Text(0, kPromptBytes);
  int turn = 0;
  for (auto _ : state) {
    const std::string next = text + Text(++turn, 200);
    benchmark::DoNotOptimize(model->Tokenize(TextPrompt{.text = next}));
  }
}
BENCHMARK(TextWithANewTurn)->Unit(benchmark::kMicrosecond);

// Each text is stored and none is ever found.
void TextNeverMet(benchmark::State& state) {
  const auto model = Model(kCacheBytes);
  int number = 0;
  for (auto _ : state) {
    const std::string text = Text(++number, kPromptBytes);
    benchmark::DoNotOptimize(model->Tokenize(TextPrompt{.text = text}));
  }
}
BENCHMARK(TextNeverMet)->Unit(benchmark::kMicrosecond);

void TextByTheLibraryAlone(benchmark::State& state) {
  const auto files = ReadModelFiles(ModelPath(), TokenizerRules::kTransformers);
  if (!files.ok()) return state.SkipWithError("no tokenizer.json");
  const auto tokenizer = MakeTokenizer(files->tokenizer);
  if (!tokenizer.ok()) return state.SkipWithError("no tokenizer.json");
  const std::string text = Text(0, kPromptBytes);
  for (auto _ : state) {
    std::vector<TokenId> tokens;
    benchmark::DoNotOptimize((*tokenizer)->Encode(text, 0, kOnePiece, tokens, nullptr));
  }
}
BENCHMARK(TextByTheLibraryAlone)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvatlas

BENCHMARK_MAIN();
