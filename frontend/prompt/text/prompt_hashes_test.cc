#include "frontend/prompt/text/prompt_hashes.h"

#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "indexer/base/hash.h"
#include "indexer/base/test_seed.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAreArray;

TEST(PromptHashesTest, TheyAreThoseOfTheWholePromptWhateverCameBefore) {
  const uint64_t seed = TestSeed();
  std::mt19937_64 random(seed);
  for (const Blocking blocking :
       {Blocking{.block_size = 16}, Blocking{.block_size = 4, .eagle = true}}) {
    const uint64_t hash_seed = BlockSeed({.lora_name = "pirate", .cache_salt = ""});
    PromptHashes hashes(blocking, hash_seed);
    std::vector<TokenId> tokens;
    for (int turn = 0; turn < 200; ++turn) {
      if (!tokens.empty() && random() % 4 == 0) tokens.resize(random() % tokens.size());
      if (!tokens.empty() && random() % 8 == 0) tokens[random() % tokens.size()] ^= 1;
      const size_t more = random() % 100;
      for (size_t i = 0; i < more; ++i) tokens.push_back(static_cast<TokenId>(random() % 1000));
      const std::vector<LocalHash> locals = LocalHashes(tokens, blocking, hash_seed);
      const auto sequence = hashes.Update(tokens);
      ASSERT_THAT(sequence, ElementsAreArray(SequenceHashes(locals))) << "seed " << seed;
      ASSERT_THAT(hashes.locals(), ElementsAreArray(locals)) << "seed " << seed;
    }
  }
}

TEST(PromptHashesTest, OnlyNewBlocksAreHashed) {
  PromptHashes hashes({.block_size = 16}, BlockSeed({}));
  std::vector<TokenId> tokens(1000, 7);
  hashes.Update(tokens);
  EXPECT_EQ(hashes.reused_blocks(), 0u);
  tokens.resize(1100, 8);
  EXPECT_EQ(hashes.Update(tokens).size(), 68u);
  EXPECT_EQ(hashes.reused_blocks(), 62u);
}

}  // namespace
}  // namespace kvatlas
