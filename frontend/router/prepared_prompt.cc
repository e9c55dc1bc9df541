// `Make` checks the source, `Hash` computes all that routes need of it. The source is shared by the
// prompts of several block sizes, so hashing again copies no token.

#include "frontend/router/prepared_prompt.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"

namespace kvatlas {

absl::StatusOr<PreparedPrompt::Ptr> PreparedPrompt::Make(PromptSource source, uint32_t block_size,
                                                         const HashContract& contract,
                                                         const WaypointSchedule& schedule) {
  const int prompts = (source.tokens.empty() ? 0 : 1) + (source.sequence_hashes.empty() ? 0 : 1) +
                      (source.unknown ? 1 : 0);
  if (prompts == 0)
    return absl::InvalidArgumentError("no prompt: neither tokens nor sequence_hashes");
  if (prompts > 1)
    return absl::InvalidArgumentError(source.unknown
                                          ? "a prompt that is unknown has tokens or sequence_hashes"
                                          : "two prompts: tokens and sequence_hashes");
  return Hash(std::make_shared<const PromptSource>(std::move(source)), block_size, contract,
              schedule);
}

// Hashes the prompt:
//   1. Blocks are counted and bounded before anything is hashed.
//   2. Tokens: local hashes with the seed of adapter and salt, and with the items (images, audio)
//      of each block; then the sequence hashes. Given hashes are used as they are.
//   3. `cache_not_read`: no reusable blocks and no waypoints, so that nothing is looked for or
//      promised.
//   4. The last token is always computed: with a known length that is (length - 1) / block_size
//      blocks; with hashes alone one block less; a beginning of a longer prompt loses none.
absl::StatusOr<PreparedPrompt::Ptr> PreparedPrompt::Hash(std::shared_ptr<const PromptSource> source,
                                                         uint32_t block_size,
                                                         const HashContract& contract,
                                                         const WaypointSchedule& schedule) {
  const Blocking blocking{.block_size = block_size, .eagle = source->eagle};
  const std::vector<TokenId>& tokens = source->tokens;
  const size_t blocks =
      tokens.empty() ? source->sequence_hashes.size() : FullBlocks(tokens.size(), blocking);
  if (blocks > kRouteBlocksMax) {
    return absl::ResourceExhaustedError("a prompt has at most " + std::to_string(kRouteBlocksMax) +
                                        " blocks");
  }
  std::shared_ptr<PreparedPrompt> prompt(
      new PreparedPrompt(std::move(source), block_size, contract, schedule));
  if (!prompt->tokens().empty()) {
    const uint64_t seed = BlockSeed(
        {.lora_name = prompt->source_->lora_name, .cache_salt = prompt->source_->cache_salt},
        contract);
    const std::vector<std::vector<uint64_t>> items =
        ItemsByBlock(prompt->source_->items, prompt->tokens().size(), block_size);
    prompt->hashed_ =
        SequenceHashes(LocalHashes(prompt->tokens(), blocking, seed, items), contract);
  }
  if (prompt->cache_not_read()) return prompt;
  // Of a prompt of whole blocks the last block has the last token.
  const size_t computed = blocks == 0 || prompt->source_->is_beginning ? 0 : 1;
  const size_t length = prompt->prompt_tokens();
  const size_t reusable = length == 0 ? blocks - computed : (length - 1) / block_size;
  prompt->reusable_blocks_ = static_cast<uint32_t>(std::min(reusable, blocks));
  prompt->waypoints_ = schedule.Select(prompt->sequence());
  return prompt;
}

// Hashes without a length cannot be made anew, and are the same for any block size.
bool PreparedPrompt::DiffersIn(uint32_t block_size) const {
  const bool hashes_alone = source_->tokens.empty() && source_->prompt_tokens == 0;
  return block_size != block_size_ && !hashes_alone;
}

absl::StatusOr<PreparedPrompt::Ptr> PreparedPrompt::InBlocksOf(uint32_t block_size) const {
  return Hash(source_, block_size, contract_, schedule_);
}

uint32_t PreparedPrompt::prompt_tokens() const {
  if (source_->is_beginning) return 0;
  return source_->tokens.empty() ? source_->prompt_tokens
                                 : static_cast<uint32_t>(source_->tokens.size());
}

}  // namespace kvatlas
