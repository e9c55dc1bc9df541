#include "frontend/accuracy/what_if.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace kvatlas {
namespace {

using Kind = Supposition::Kind;

PromptFacts PromptOf(size_t tokens) {
  PromptFacts prompt;
  prompt.tokens.resize(tokens);
  std::iota(prompt.tokens.begin(), prompt.tokens.end(), 1000);
  return prompt;
}

std::vector<SequenceHash> HashesOf(const std::vector<TokenId>& tokens, uint32_t block_size,
                                   const CacheNamespace& cache_namespace = {},
                                   const HashContract& contract = {}) {
  return SequenceHashes(
      LocalHashes(tokens, {.block_size = block_size}, BlockSeed(cache_namespace, contract)),
      contract);
}

const WhatIfQuestion* Find(const std::vector<WhatIfQuestion>& questions, Supposition what) {
  for (const WhatIfQuestion& question : questions)
    if (question.what == what) return &question;
  return nullptr;
}

TEST(WhatIfTest, HashesAsAnEngineThatDiffersInOneThing) {
  PromptFacts prompt = PromptOf(200);
  prompt.cache_salt = "salt";
  prompt.bos = 1;
  const std::vector<WhatIfQuestion> questions = WhatIf(prompt);
  std::vector<TokenId> with_bos = prompt.tokens;
  with_bos.insert(with_bos.begin(), 1);
  const CacheNamespace salted{.lora_name = {}, .cache_salt = "salt"};
  ASSERT_NE(Find(questions, {Kind::kBosAdded, 0}), nullptr);
  EXPECT_EQ(Find(questions, {Kind::kBosAdded, 0})->sequence, HashesOf(with_bos, 16, salted));
  ASSERT_NE(Find(questions, {Kind::kNoSalt, 0}), nullptr);
  EXPECT_EQ(Find(questions, {Kind::kNoSalt, 0})->sequence, HashesOf(prompt.tokens, 16));
  ASSERT_NE(Find(questions, {Kind::kBlockSize, 64}), nullptr);
  EXPECT_EQ(Find(questions, {Kind::kBlockSize, 64})->sequence, HashesOf(prompt.tokens, 64, salted));
  ASSERT_NE(Find(questions, {Kind::kSeed, 42}), nullptr);
  EXPECT_EQ(Find(questions, {Kind::kSeed, 42})->sequence,
            HashesOf(prompt.tokens, 16, salted, {.seed = 42}));
}

TEST(WhatIfTest, LeavesOutWhatChangesNothingAndWhatHasNoBlock) {
  PromptFacts prompt = PromptOf(40);
  prompt.bos = prompt.tokens[0];
  const std::vector<WhatIfQuestion> questions = WhatIf(prompt);
  EXPECT_EQ(Find(questions, {Kind::kBosAdded, 0}), nullptr);
  EXPECT_EQ(Find(questions, {Kind::kNoSalt, 0}), nullptr);
  EXPECT_EQ(Find(questions, {Kind::kNoLora, 0}), nullptr);
  EXPECT_EQ(Find(questions, {Kind::kBlockSize, 16}), nullptr);
  EXPECT_EQ(Find(questions, {Kind::kBlockSize, 64}), nullptr);
  EXPECT_EQ(Find(questions, {Kind::kSeed, kDefaultHashSeed}), nullptr);
  std::set<uint64_t> first;
  for (const WhatIfQuestion& question : questions) {
    ASSERT_FALSE(question.sequence.empty()) << ToString(question.what);
    EXPECT_TRUE(first.insert(Raw(question.sequence[0])).second) << ToString(question.what);
  }
  EXPECT_TRUE(WhatIf(PromptFacts()).empty());
}

}  // namespace
}  // namespace kvatlas
