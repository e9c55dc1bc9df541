#include "frontend/prompt/text/prompt_hashes.h"

#include <algorithm>

namespace kvatlas {

PromptHashes::PromptHashes(const Blocking& blocking, uint64_t seed, const HashContract& contract)
    : blocking_(blocking), seed_(seed), contract_(contract) {}

// 1. Finds how many leading tokens are those of the last call.
// 2. Keeps the hashes of the blocks that lie within them.
// 3. Hashes the blocks behind, continuing the chain from the last one that was kept.
std::span<const SequenceHash> PromptHashes::Update(std::span<const TokenId> tokens) {
  const size_t shared = static_cast<size_t>(
      std::mismatch(tokens.begin(), tokens.end(), tokens_.begin(), tokens_.end()).first -
      tokens.begin());
  // A block of an EAGLE model also covers tokens behind it (`Blocking::eagle`). `FullBlocks` counts
  // only blocks of which all of these are shared.
  const size_t kept = std::min(FullBlocks(shared, blocking_), locals_.size());
  locals_.resize(kept);
  sequence_.resize(kept);
  reused_blocks_ = kept;
  tokens_.resize(shared);
  tokens_.insert(tokens_.end(), tokens.begin() + static_cast<ptrdiff_t>(shared), tokens.end());

  const std::vector<LocalHash> locals =
      LocalHashes(tokens.subspan(kept * blocking_.block_size), blocking_, seed_);
  const std::vector<SequenceHash> sequence =
      SequenceHashesAfter(kept == 0 ? kNoParent : sequence_.back(), locals, contract_);
  locals_.insert(locals_.end(), locals.begin(), locals.end());
  sequence_.insert(sequence_.end(), sequence.begin(), sequence.end());
  return sequence_;
}

}  // namespace kvatlas
