// A turn that uses the store of prefixes has the tokens that the whole text has without it: for
// every tokenizer at hand, random conversations that grow, branch and come back, memories large and
// small, one thread and many. A failure prints its seed.

#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/prompt/text/text_model.h"
#include "frontend/prompt/text/text_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "indexer/base/test_seed.h"

namespace kvatlas {
namespace {

std::shared_ptr<TextModel> Load(const std::string& name, size_t cache_bytes) {
  auto model = TextModel::Load(
      {.path = absl::StrCat("frontend/prompt/text/testdata/", name), .cache_bytes = cache_bytes});
  if (!model.ok()) std::cerr << model.status() << "\n";
  return model.ok() ? *model : nullptr;
}

TextPrompt PromptOf(std::string text, Random& random) {
  return {.text = std::move(text), .add_special_tokens = random() % 2 == 0};
}

class NextTurnTest : public ::testing::TestWithParam<const char*> {
 protected:
  // Grows one of a few conversations by a turn, now and then from its middle, and compares. Returns
  // the tokens reused.
  static size_t Compare(TextModel& remembering, TextModel& fresh, uint64_t seed, int turns) {
    Random random(seed);
    std::vector<std::string> conversations(4);
    size_t reused = 0;
    for (int turn = 0; turn < turns; ++turn) {
      std::string& text = conversations[random() % conversations.size()];
      if (random() % 5 == 0) text = conversations[random() % conversations.size()];
      if (random() % 5 == 0) text = CutAnywhere(text, random);
      if (text.size() > 60'000) text.clear();
      text += RandomText(random, 1 + random() % 6000);
      const TextPrompt prompt = PromptOf(text, random);
      const auto from_memory = remembering.Tokenize(prompt);
      const auto from_scratch = fresh.Tokenize(prompt);
      EXPECT_TRUE(from_memory.ok() && from_scratch.ok());
      if (!from_memory.ok() || from_memory->tokens != from_scratch->tokens) {
        ADD_FAILURE() << "seed " << seed << ", turn " << turn << ", " << text.size() << " bytes";
        return reused;
      }
      reused += from_memory->reused;
    }
    return reused;
  }
};

TEST_P(NextTurnTest, TokensFromMemoryAreThoseFromScratch) {
  const auto fresh = Load(GetParam(), 0);
  ASSERT_NE(fresh, nullptr);
  const uint64_t seed = TestSeed();
  size_t reused = 0;
  for (uint64_t i = 0; i < 4; ++i) {
    // From large to so small that chunks of one text evict each other.
    const auto remembering = Load(GetParam(), size_t{16} << (20 - 3 * i));
    reused += Compare(*remembering, *fresh, seed + i, 60);
  }
  if (std::string(GetParam()) != "sentences") {
    EXPECT_GT(reused, 0u) << "seed " << seed;
  }
}

TEST_P(NextTurnTest, ManyThreadsShareAMemory) {
  const auto fresh = Load(GetParam(), 0);
  const auto remembering = Load(GetParam(), 200'000);
  const uint64_t seed = TestSeed();
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 4; ++i) {
    // Two threads have the same conversations, so that both store the same beginnings at once.
    threads.emplace_back([&, i] { Compare(*remembering, *fresh, seed + i / 2, 30); });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(Models, NextTurnTest,
                         ::testing::Values("bytes", "blanks", "unigram", "sentences"),
                         [](const auto& name) { return std::string(name.param); });

TEST(NextTurnTest, OnlyTheTailIsNew) {
  const auto model = Load("bytes", size_t{16} << 20);
  Random random(1);
  const std::string first = RandomText(random, 100'000) + "<|end|>\n<|turn|>user\n";
  ASSERT_TRUE(model->Tokenize(TextPrompt{.text = first}).ok());
  const auto second = model->Tokenize(TextPrompt{.text = first + "One more question\n"});
  ASSERT_TRUE(second.ok());
  EXPECT_GT(second->reused, second->tokens.size() - 2000);
}

TEST(NextTurnTest, ATextWithoutSpecialTokensIsCutBetweenLines) {
  const auto model = Load("bytes", size_t{16} << 20);
  std::string text;
  for (int i = 0; i < 2000; ++i) text += absl::StrCat("line ", i, " of a document\n");
  ASSERT_TRUE(model->Tokenize(TextPrompt{.text = text}).ok());
  const auto second = model->Tokenize(TextPrompt{.text = text + "and one more\n"});
  ASSERT_TRUE(second.ok());
  EXPECT_GT(second->reused, second->tokens.size() * 9 / 10);
}

}  // namespace
}  // namespace kvatlas
