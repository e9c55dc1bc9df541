#include "tools/testing/mock_engine/block_pool.h"

#include <algorithm>

namespace kvatlas {

uint32_t BlockPool::CachedPrefix(std::span<const SequenceHash> sequence) const {
  size_t cached = 0;
  size_t missing =
      sequence.size() + 1;  // position + 1 of some block that is not cached, or the end
  while (cached + 1 < missing) {
    const size_t middle = (cached + missing) / 2;
    (Has({sequence[middle - 1]}) ? cached : missing) = middle;
  }
  return static_cast<uint32_t>(cached);
}

bool BlockPool::Fits(std::span<const SequenceHash> sequence, uint64_t more) const {
  const uint32_t cached = CachedPrefix(sequence);
  uint64_t kept = in_use();
  for (SequenceHash hash : sequence.first(cached)) kept += blocks_.at({hash}).refs == 0;
  return kept + (sequence.size() - cached) + more <= capacity_;
}

uint32_t BlockPool::Take(std::span<const SequenceHash> sequence,
                         std::vector<SequenceHash>* evicted) {
  const uint32_t cached = CachedPrefix(sequence);
  for (SequenceHash hash : sequence.first(cached)) Use(blocks_.at({hash}));
  for (SequenceHash hash : sequence.subspan(cached)) {
    if (blocks_.size() == capacity_) evicted->push_back(EvictOne().hash);
    blocks_.try_emplace({hash}, Block{.refs = 1, .in_free = {}});
  }
  return cached;
}

void BlockPool::Free(std::span<const SequenceHash> sequence) {
  for (size_t i = sequence.size(); i-- > 0;) Release({sequence[i]});
}

void BlockPool::Touch(PoolBlock block) { Use(blocks_.at(block)); }

void BlockPool::Add(PoolBlock block, std::vector<PoolBlock>* evicted) {
  if (blocks_.size() == capacity_) evicted->push_back(EvictOne());
  blocks_.try_emplace(block, Block{.refs = 1, .in_free = {}});
}

void BlockPool::Release(PoolBlock block) {
  Block& state = blocks_.at(block);
  if (--state.refs == 0) state.in_free = free_.insert(free_.end(), block);
}

std::vector<SequenceHash> BlockPool::Contents(SideClass side) const {
  std::vector<SequenceHash> contents;
  if (side == 0) contents.reserve(blocks_.size());
  for (const auto& [block, state] : blocks_) {
    if (block.side == side) contents.push_back(block.hash);
  }
  return contents;
}

void BlockPool::Use(Block& block) {
  if (block.refs++ == 0) free_.erase(block.in_free);
}

PoolBlock BlockPool::EvictOne() {
  const PoolBlock victim = free_.front();
  free_.pop_front();
  blocks_.erase(victim);
  return victim;
}

}  // namespace kvatlas
