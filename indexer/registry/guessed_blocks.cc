// A pool is a least-recently-used list through `nodes`, linked by slot numbers, with a hash map to
// find a block. `free` has the slots of dropped nodes; the newest and oldest are the ends of the
// list.

#include "indexer/registry/guessed_blocks.h"

#include <algorithm>

namespace kvatlas {

void GuessedBlocks::Pool::Unlink(Slot slot) {
  const Node& node = nodes[slot];
  (node.newer == kNone ? newest : nodes[node.newer].older) = node.older;
  (node.older == kNone ? oldest : nodes[node.older].newer) = node.newer;
}

void GuessedBlocks::Pool::MakeNewest(Slot slot) {
  nodes[slot].newer = kNone;
  nodes[slot].older = newest;
  (newest == kNone ? oldest : nodes[newest].newer) = slot;
  newest = slot;
}

// Makes the block the newest, known or not. A known one keeps its parent.
void GuessedBlocks::Pool::Touch(SequenceHash hash, SequenceHash parent) {
  const auto [at, is_new] = by_hash.try_emplace(hash, kNone);
  if (!is_new) {
    Unlink(at->second);
  } else if (free.empty()) {
    at->second = static_cast<Slot>(nodes.size());
    nodes.push_back({.hash = hash, .parent = parent});
  } else {
    at->second = free.back();
    free.pop_back();
    nodes[at->second] = {.hash = hash, .parent = parent};
  }
  MakeNewest(at->second);
}

void GuessedBlocks::Pool::DropOldest() {
  const Slot slot = oldest;
  Unlink(slot);
  by_hash.erase(nodes[slot].hash);
  free.push_back(slot);
}

void GuessedBlocks::Shrink(Pool* pool, size_t blocks) {
  for (; pool->by_hash.size() > blocks; --blocks_) pool->DropOldest();
}

// 1. The prompt's blocks from the end to the beginning, so that the beginning is the newest and is
//    dropped last.
// 2. The blocks before it, parent by parent: they were used as well, and must stay newer than what
//    follows them, or a prefix would get a hole (`Depth` relies on that).
// 3. Bounds: this pool's size, then all pools together by forgetting the worker that was used
//    longest ago, never this one.
void GuessedBlocks::Sent(const Domain& domain, const HolderId& worker, SequenceHash parent,
                         std::span<const SequenceHash> blocks, size_t pool_blocks) {
  Pool& pool = pools_[{domain, worker}];
  pool.used = ++clock_;
  const size_t before = pool.by_hash.size();
  for (size_t i = blocks.size(); i-- > 0;) pool.Touch(blocks[i], i == 0 ? parent : blocks[i - 1]);
  // A chain is no longer than the pool: a frontend's parents may be wrong and lead in a circle.
  size_t left = pool.by_hash.size();
  for (auto at = pool.by_hash.find(parent); at != pool.by_hash.end() && left-- > 0;
       at = pool.by_hash.find(parent)) {
    const SequenceHash hash = parent;
    parent = pool.nodes[at->second].parent;
    pool.Touch(hash, parent);
  }
  blocks_ += pool.by_hash.size() - before;
  Shrink(&pool, pool_blocks);
  while (blocks_ > kBlocksMax && pools_.size() > 1) {
    const auto longest_ago = std::min_element(
        pools_.begin(), pools_.end(),
        [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
    blocks_ -= longest_ago->second.by_hash.size();
    pools_.erase(longest_ago);
  }
  Shrink(&pool, kBlocksMax);
}

// By halving: beginnings are dropped last, so the blocks that are there come before those that are
// not.
uint32_t GuessedBlocks::Depth(const Domain& domain, const HolderId& worker,
                              std::span<const SequenceHash> sequence) const {
  const auto found = pools_.find({domain, worker});
  if (found == pools_.end()) return 0;
  const Pool& pool = found->second;
  const auto first_missing =
      std::partition_point(sequence.begin(), sequence.end(),
                           [&](SequenceHash block) { return pool.by_hash.contains(block); });
  return static_cast<uint32_t>(first_missing - sequence.begin());
}

// Less than half of the guess: the engine has evicted much, or was restarted. A smaller difference
// changes nothing.
void GuessedBlocks::Served(const Domain& domain, const HolderId& worker, uint32_t guessed,
                           uint32_t served) {
  const auto found = pools_.find({domain, worker});
  if (found == pools_.end() || 2 * served >= guessed) return;
  Shrink(&found->second, found->second.by_hash.size() / 2);
}

void GuessedBlocks::Forget(const Domain& domain, std::string_view worker) {
  for (auto at = pools_.lower_bound({domain, {std::string(worker), 0, ""}});
       at != pools_.end() && at->first.first == domain && at->first.second.name == worker;
       at = pools_.erase(at))
    blocks_ -= at->second.by_hash.size();
}

}  // namespace kvatlas
