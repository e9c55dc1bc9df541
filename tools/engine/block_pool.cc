#include "tools/engine/block_pool.h"

#include <algorithm>

namespace kvatlas {

uint32_t BlockPool::CachedPrefix(std::span<const SequenceHash> sequence) const {
  size_t cached = 0;
  size_t missing =
      sequence.size() + 1;  // position + 1 of some block that is not cached, or the end
  while (cached + 1 < missing) {
    const size_t middle = (cached + missing) / 2;
    (blocks_.contains(sequence[middle - 1]) ? cached : missing) = middle;
  }
  return static_cast<uint32_t>(cached);
}

bool BlockPool::Fits(std::span<const SequenceHash> sequence) const {
  const uint32_t cached = CachedPrefix(sequence);
  uint64_t kept = in_use();
  for (SequenceHash hash : sequence.first(cached)) kept += blocks_.at(hash).refs == 0;
  return kept + (sequence.size() - cached) <= capacity_;
}

uint32_t BlockPool::Take(std::span<const SequenceHash> sequence,
                         std::vector<SequenceHash>* evicted) {
  const uint32_t cached = CachedPrefix(sequence);
  for (SequenceHash hash : sequence.first(cached)) Use(blocks_.at(hash));
  for (SequenceHash hash : sequence.subspan(cached)) {
    if (blocks_.size() == capacity_) EvictOne(evicted);
    blocks_.try_emplace(hash, Block{.refs = 1, .in_free = {}});
  }
  return cached;
}

void BlockPool::Free(std::span<const SequenceHash> sequence) {
  for (size_t i = sequence.size(); i-- > 0;) {
    Block& block = blocks_.at(sequence[i]);
    if (--block.refs == 0) block.in_free = free_.insert(free_.end(), sequence[i]);
  }
}

std::vector<SequenceHash> BlockPool::Contents() const {
  std::vector<SequenceHash> contents;
  contents.reserve(blocks_.size());
  for (const auto& [hash, block] : blocks_) contents.push_back(hash);
  return contents;
}

void BlockPool::Use(Block& block) {
  if (block.refs++ == 0) free_.erase(block.in_free);
}

void BlockPool::EvictOne(std::vector<SequenceHash>* evicted) {
  const SequenceHash victim = free_.front();
  free_.pop_front();
  blocks_.erase(victim);
  evicted->push_back(victim);
}

}  // namespace kvatlas
