#include "indexer/registry/guessed_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>
#include <string>
#include <vector>

#include "indexer/base/test_seed.h"

namespace kvatlas {
namespace {

const Domain kModel{"m", ""};
const HolderId kA{"a", 0, ""}, kB{"b", 0, ""};

std::vector<SequenceHash> Prompt(uint64_t own, size_t common, size_t blocks) {
  std::vector<SequenceHash> prompt;
  for (size_t i = 0; i < blocks; ++i)
    prompt.push_back(SequenceHash{(i < common ? 0 : (own * 1000 + common + 1) << 20) + i + 1});
  return prompt;
}

void Send(GuessedBlocks* guessed, const HolderId& worker, const std::vector<SequenceHash>& prompt,
          size_t pool = 1000) {
  const uint32_t has = guessed->Depth(kModel, worker, prompt);
  guessed->Sent(kModel, worker, has == 0 ? kNoParent : prompt[has - 1],
                std::span(prompt).subspan(has), pool);
}

TEST(GuessedBlocksTest, WhatWasSentIsGuessedThereAndNowhereElse) {
  GuessedBlocks guessed;
  Send(&guessed, kA, Prompt(1, 10, 30));
  EXPECT_EQ(guessed.Depth(kModel, kA, Prompt(1, 10, 40)), 30u);
  EXPECT_EQ(guessed.Depth(kModel, kA, Prompt(1, 10, 30)), 30u);
  EXPECT_EQ(guessed.Depth(kModel, kA, Prompt(2, 10, 30)), 10u);
  EXPECT_EQ(guessed.Depth(kModel, kB, Prompt(1, 10, 30)), 0u);
  EXPECT_EQ(guessed.Depth({"m", "tenant"}, kA, Prompt(1, 10, 30)), 0u);
}

TEST(GuessedBlocksTest, TheLeastRecentlyUsedGoesAndEndsGoFirst) {
  GuessedBlocks guessed;
  const auto first = Prompt(1, 0, 40), second = Prompt(2, 0, 40), third = Prompt(3, 0, 40);
  Send(&guessed, kA, first, 100);
  Send(&guessed, kA, second, 100);
  Send(&guessed, kA, first, 100);  // used again
  Send(&guessed, kA, third, 100);
  EXPECT_EQ(guessed.blocks(), 100u);
  EXPECT_EQ(guessed.Depth(kModel, kA, first), 40u);
  EXPECT_EQ(guessed.Depth(kModel, kA, second), 20u);
  EXPECT_EQ(guessed.Depth(kModel, kA, third), 40u);
}

TEST(GuessedBlocksTest, APromptLargerThanThePoolLeavesItsBeginning) {
  GuessedBlocks guessed;
  Send(&guessed, kA, Prompt(1, 0, 500), 100);
  EXPECT_EQ(guessed.Depth(kModel, kA, Prompt(1, 0, 500)), 100u);
}

TEST(GuessedBlocksTest, AnEngineThatServedLessHasForgotten) {
  GuessedBlocks guessed;
  Send(&guessed, kA, Prompt(1, 0, 50));
  Send(&guessed, kA, Prompt(2, 0, 50));
  guessed.Served(kModel, kA, 50, 49);
  EXPECT_EQ(guessed.blocks(), 100u);
  guessed.Served(kModel, kA, 50, 0);
  EXPECT_EQ(guessed.blocks(), 50u);
  EXPECT_EQ(guessed.Depth(kModel, kA, Prompt(2, 0, 50)), 50u);
}

TEST(GuessedBlocksTest, AWorkerThatIsHeardIsForgottenWithAllItsRanks) {
  GuessedBlocks guessed;
  const HolderId rank1{"a", 1, ""};
  Send(&guessed, kA, Prompt(1, 0, 50));
  Send(&guessed, rank1, Prompt(1, 0, 50));
  Send(&guessed, kB, Prompt(1, 0, 50));
  guessed.Forget(kModel, "a");
  EXPECT_EQ(guessed.blocks(), 50u);
  EXPECT_EQ(guessed.workers(), 1u);
  EXPECT_EQ(guessed.Depth(kModel, kB, Prompt(1, 0, 50)), 50u);
}

TEST(GuessedBlocksTest, AChainThatLeadsInACircleEnds) {
  GuessedBlocks guessed;
  const std::vector<SequenceHash> one = {SequenceHash{1}}, two = {SequenceHash{2}};
  guessed.Sent(kModel, kA, SequenceHash{2}, one, 10);
  guessed.Sent(kModel, kA, SequenceHash{1}, two, 10);
  guessed.Sent(kModel, kA, SequenceHash{2}, one, 10);
  EXPECT_EQ(guessed.blocks(), 2u);
}

// An LRU of blocks as a plain list, newest first.
TEST(GuessedBlocksTest, IsAsASlowTwinSays) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(SeedText(seed));
  std::mt19937_64 random(seed);
  for (int round = 0; round < 30; ++round) {
    GuessedBlocks guessed;
    std::list<SequenceHash> slow;
    const size_t pool = 20 + random() % 200;
    for (int step = 0; step < 200; ++step) {
      const auto prompt = Prompt(random() % 10, random() % 40, 1 + random() % 60);
      uint32_t has = 0;
      while (has < prompt.size() && std::find(slow.begin(), slow.end(), prompt[has]) != slow.end())
        ++has;
      ASSERT_EQ(guessed.Depth(kModel, kA, prompt), has) << "round " << round << " step " << step;
      Send(&guessed, kA, prompt, pool);
      for (size_t i = prompt.size(); i-- > 0;) {
        slow.remove(prompt[i]);
        slow.push_front(prompt[i]);
      }
      while (slow.size() > pool) slow.pop_back();
      if (random() % 20 == 0) {
        guessed.Served(kModel, kA, 10, 2);
        slow.resize(slow.size() / 2);
      }
      ASSERT_EQ(guessed.blocks(), slow.size());
    }
  }
}

}  // namespace
}  // namespace kvatlas
