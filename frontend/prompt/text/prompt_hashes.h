// The sequence hashes of a conversation that grows: hashes only the part of a prompt that is new
// since the turn before.
//
// *Threads*: one at a time.
// *Cost*: a comparison of the old tokens, and the hashing of the new blocks.
// *Bounds*: memory for one prompt.
//
// Example:
//   PromptHashes hashes({.block_size = 16}, BlockSeed({}));
//   hashes.Update(first_turn);
//   std::span<const SequenceHash> sequence = hashes.Update(second_turn);

#ifndef KVATLAS_FRONTEND_PROMPT_TEXT_PROMPT_HASHES_H_
#define KVATLAS_FRONTEND_PROMPT_TEXT_PROMPT_HASHES_H_

#include <span>
#include <vector>

#include "indexer/base/hash.h"

namespace kvatlas {

class PromptHashes {
 public:
  // `seed`: of local hashes (BlockSeed).
  PromptHashes(const Blocking& blocking, uint64_t seed, const HashContract& contract = {});

  // The sequence hashes of all full blocks of `tokens`, valid until the next call.
  std::span<const SequenceHash> Update(std::span<const TokenId> tokens);

  // Their local hashes, after Update.
  std::span<const LocalHash> locals() const { return locals_; }
  // How many blocks of the last call were not hashed again.
  size_t reused_blocks() const { return reused_blocks_; }

 private:
  const Blocking blocking_;
  const uint64_t seed_;
  const HashContract contract_;
  std::vector<TokenId> tokens_;
  std::vector<LocalHash> locals_;
  std::vector<SequenceHash> sequence_;
  size_t reused_blocks_ = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PROMPT_TEXT_PROMPT_HASHES_H_
