#include "frontend/router/prepared_prompt.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace kvatlas {
namespace {

PreparedPrompt::Ptr Prepare(PromptSource source, uint32_t block_size = 16) {
  absl::StatusOr<PreparedPrompt::Ptr> prompt =
      PreparedPrompt::Make(std::move(source), block_size, {}, WaypointSchedule::Standard());
  EXPECT_TRUE(prompt.ok()) << prompt.status();
  return prompt.ok() ? *prompt : nullptr;
}

PromptSource Tokens(size_t count) { return {.tokens = std::vector<TokenId>(count, 3)}; }

TEST(PreparedPromptTest, AllBlocksOfABeginningCanBeReused) {
  PromptSource source = Tokens(64);
  source.is_beginning = true;
  const PreparedPrompt::Ptr prompt = Prepare(std::move(source));
  EXPECT_EQ(prompt->blocks(), 4u);
  EXPECT_EQ(prompt->reusable().size(), 4u);
  EXPECT_EQ(prompt->prompt_tokens(), 0u);
}

// A block with a part of an image is named as its engine's events name it.
TEST(PreparedPromptTest, BlocksOfAnImageAreHashedWithIt) {
  std::vector<TokenId> tokens(64, TokenId{9});
  const PromptItem image{.offset = 20, .length = 16, .hash = 7};
  const auto prompt = Prepare({.tokens = tokens, .items = {image}});
  const std::vector<std::vector<uint64_t>> blocks = {{}, {7}, {7}};
  EXPECT_EQ(prompt->sequence(),
            SequenceHashes(LocalHashes(tokens, {.block_size = 16}, BlockSeed({}), blocks)));
  EXPECT_EQ((*prompt->InBlocksOf(32))->sequence(),
            SequenceHashes(LocalHashes(tokens, {.block_size = 32}, BlockSeed({}), {{{7}, {7}}})));
  const auto other =
      Prepare({.tokens = tokens, .items = {{.offset = 20, .length = 16, .hash = 8}}});
  EXPECT_EQ(other->sequence()[0], prompt->sequence()[0]);
  EXPECT_NE(other->sequence()[1], prompt->sequence()[1]);
}

TEST(PreparedPromptTest, TheBlockOfTheLastTokenCannotBeReused) {
  for (const auto& [tokens, blocks, reusable] :
       {std::tuple(64, 4u, 3u), std::tuple(65, 4u, 4u), std::tuple(63, 3u, 3u),
        std::tuple(16, 1u, 0u), std::tuple(15, 0u, 0u)}) {
    const PreparedPrompt::Ptr prompt = Prepare(Tokens(static_cast<size_t>(tokens)));
    EXPECT_EQ(prompt->blocks(), blocks) << tokens;
    EXPECT_EQ(prompt->reusable().size(), reusable) << tokens;
  }
}

TEST(PreparedPromptTest, TokensAreHashedUnderTheirNamespaceAndTheFleetsSeed) {
  const std::vector<TokenId> tokens(33, 5);
  const HashContract contract = {.seed = 7};
  const absl::StatusOr<PreparedPrompt::Ptr> prompt =
      PreparedPrompt::Make({.tokens = tokens, .lora_name = "l", .cache_salt = "s"}, 16, contract,
                           WaypointSchedule::Standard());
  ASSERT_TRUE(prompt.ok());
  const uint64_t seed = BlockSeed({.lora_name = "l", .cache_salt = "s"}, contract);
  EXPECT_EQ((*prompt)->sequence(),
            SequenceHashes(LocalHashes(tokens, {.block_size = 16}, seed), contract));
}

TEST(PreparedPromptTest, HashesAloneAreTheWholePromptWhateverTheBlockSize) {
  const std::vector<SequenceHash> hashes(40, SequenceHash{9});
  const PreparedPrompt::Ptr alone = Prepare({.sequence_hashes = hashes});
  EXPECT_EQ(alone->reusable_blocks(), 39u);
  EXPECT_FALSE(alone->DiffersIn(64));
  EXPECT_EQ(alone->waypoints(), WaypointSchedule::Standard().Select(hashes));
  const PreparedPrompt::Ptr counted =
      Prepare({.sequence_hashes = hashes, .prompt_tokens = 40 * 16 + 1});
  EXPECT_EQ(counted->reusable_blocks(), 40u);
  EXPECT_TRUE(counted->DiffersIn(64));
}

TEST(PreparedPromptTest, OtherBlockSizesShareTheTokens) {
  const PreparedPrompt::Ptr small = Prepare(Tokens(197));
  const absl::StatusOr<PreparedPrompt::Ptr> large = small->InBlocksOf(64);
  ASSERT_TRUE(large.ok());
  EXPECT_EQ((*large)->blocks(), 3u);
  EXPECT_EQ(&(*large)->tokens(), &small->tokens());
  EXPECT_EQ((*large)->prompt_tokens(), 197u);
}

TEST(PreparedPromptTest, AnUnknownPromptHasNoBlocksOfAnySize) {
  for (const uint32_t block_size : {1u, 16u}) {
    const PreparedPrompt::Ptr prompt = Prepare({.unknown = true}, block_size);
    EXPECT_EQ(prompt->blocks(), 0u);
    EXPECT_EQ(prompt->reusable_blocks(), 0u);
    EXPECT_EQ(prompt->prompt_tokens(), 0u);
    EXPECT_TRUE(prompt->waypoints().empty());
    EXPECT_FALSE(prompt->DiffersIn(64));
  }
}

TEST(PreparedPromptTest, NoPromptTwoPromptsAndTooManyBlocksAreRefused) {
  const auto code = [](PromptSource source) {
    return PreparedPrompt::Make(std::move(source), 1, {}, WaypointSchedule::Standard())
        .status()
        .code();
  };
  EXPECT_EQ(code({}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.tokens = {1}, .sequence_hashes = {SequenceHash{1}}}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.tokens = {1}, .unknown = true}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Tokens(kRouteBlocksMax)), absl::StatusCode::kOk);
  EXPECT_EQ(code(Tokens(kRouteBlocksMax + 1)), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace kvatlas
