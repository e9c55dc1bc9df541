#include "indexer/index/flat_blocks.h"

namespace kvatlas {

FlatBlocks::Change FlatBlocks::Store(HolderIndex holder, SequenceHash hash, Tier tier,
                                     Position position, SequenceHash parent) {
  Shard& shard = ShardOf(hash);
  WriterLock lock(&shard.mutex);
  const auto [at, is_new] = shard.blocks.try_emplace(hash);
  Block& block = at->second;
  if (is_new) {
    if (!Reserve()) {
      shard.blocks.erase(at);
      return Change{.refused = true, .position = 0, .before = {}, .after = {}};
    }
    block.parent = parent;
    block.position = position;
  }
  const TierMask before = block.holders.Get(holder);
  const TierMask after = before | tier;
  if (before != after) SetTiers(shard, block, holder, before, after);
  return {.position = block.position, .before = before, .after = after};
}

FlatBlocks::Change FlatBlocks::Remove(HolderIndex holder, SequenceHash hash, TierMask tiers) {
  Shard& shard = ShardOf(hash);
  WriterLock lock(&shard.mutex);
  const auto at = shard.blocks.find(hash);
  if (at == shard.blocks.end()) return {};
  Block& block = at->second;
  const TierMask before = block.holders.Get(holder);
  const Change change{.position = block.position, .before = before, .after = before & ~tiers};
  if (change.before == change.after) return change;
  SetTiers(shard, block, holder, change.before, change.after);
  if (block.holders.empty()) {
    shard.blocks.erase(at);
    ShrinkIfSparse(&shard.blocks);
    if (blocks_max_ != 0) reserved_.fetch_sub(1, std::memory_order_relaxed);
  }
  return change;
}

void FlatBlocks::SetTiers(Shard& shard, Block& block, HolderIndex holder, TierMask before,
                          TierMask after) {
  shard.heap_bytes -= block.holders.HeapBytes();
  block.holders.Set(holder, after);
  shard.heap_bytes += block.holders.HeapBytes();
  shard.holdings += before.empty();
  shard.holdings -= after.empty();
}

bool FlatBlocks::Reserve() {
  if (blocks_max_ == 0) return true;
  uint64_t reserved = reserved_.load(std::memory_order_relaxed);
  while (reserved < blocks_max_) {
    if (reserved_.compare_exchange_weak(reserved, reserved + 1, std::memory_order_relaxed))
      return true;
  }
  return false;
}

// The lock is for the table's own fields, which a growing table changes.
void FlatBlocks::Prefetch(SequenceHash hash) const {
  const Shard& shard = ShardOf(hash);
  ReaderLock lock(&shard.mutex);
  shard.blocks.prefetch(hash);
}

FlatBlocks::Place FlatBlocks::PlaceOf(HolderIndex holder, SequenceHash hash) const {
  const Shard& shard = ShardOf(hash);
  ReaderLock lock(&shard.mutex);
  const auto at = shard.blocks.find(hash);
  if (at == shard.blocks.end()) return {};
  const Block& block = at->second;
  return {.position = block.position, .parent = block.parent, .tiers = block.holders.Get(holder)};
}

FlatBlocks::Size FlatBlocks::size() const {
  Size sum;
  sum.bytes = sizeof(*this) + shards_.size() * sizeof(Shard);
  for (const Shard& shard : shards_) {
    ReaderLock lock(&shard.mutex);
    sum.blocks += shard.blocks.size();
    sum.holdings += shard.holdings;
    sum.bytes += TableBytes(shard.blocks) + shard.heap_bytes;
  }
  return sum;
}

absl::Status FlatBlocks::Check() const {
  uint64_t blocks = 0;
  for (const Shard& shard : shards_) {
    ReaderLock lock(&shard.mutex);
    uint64_t holdings = 0;
    uint64_t heap_bytes = 0;
    for (const auto& [hash, block] : shard.blocks) {
      if (&ShardOf(hash) != &shard) return absl::InternalError("flat: block in the wrong shard");
      if (block.holders.empty()) return absl::InternalError("flat: block that nobody holds");
      if (absl::Status status = block.holders.Check(); !status.ok()) return status;
      holdings += block.holders.size();
      heap_bytes += block.holders.HeapBytes();
    }
    if (holdings != shard.holdings) return absl::InternalError("flat: wrong count of holdings");
    if (heap_bytes != shard.heap_bytes) return absl::InternalError("flat: wrong sum of memory");
    blocks += shard.blocks.size();
  }
  if (blocks_max_ != 0 && blocks != reserved_.load(std::memory_order_relaxed)) {
    return absl::InternalError("flat: wrong count of blocks");
  }
  return absl::OkStatus();
}

}  // namespace kvatlas
