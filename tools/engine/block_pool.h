// Which blocks does an engine still have, and which does it give up next? A pool of KV blocks with prefix
// caching, as vLLM keeps it.
//
//   in use (refs > 0)                     free, still cached (refs 0)                      empty
//   blocks of running requests   ──▶   least recently freed … most recently freed        never used
//            ▲   finished: tails before heads │        │
//            └──── touched by a prefix hit ───┘        └──▶ evicted first, once nothing is empty
//
// *Truth*: a block is cached from `Take` until evicted. A sequence loses its tail before its head: whoever
// holds a block holds all before it, so there are no holes and a prefix can be bisected.
// *Threads*: none; the owner serialises.
// *Cost*: constant per block taken, freed or evicted; about 80 bytes a block.
// *Bounds*: `capacity` blocks.

#ifndef KVATLAS_TOOLS_ENGINE_BLOCK_POOL_H_
#define KVATLAS_TOOLS_ENGINE_BLOCK_POOL_H_

#include <cstdint>
#include <list>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "indexer/base/ids.h"

namespace kvatlas {

class BlockPool {
 public:
  explicit BlockPool(uint64_t capacity) : capacity_(capacity) {}

  // Leading blocks of `sequence` that are cached.
  uint32_t CachedPrefix(std::span<const SequenceHash> sequence) const;

  // Whether `sequence` fits beside the blocks in use.
  bool Fits(std::span<const SequenceHash> sequence) const;

  // Takes all blocks of `sequence` into use: its cached prefix first, then new ones for the rest, evicting
  // what they need, least recently used first. Returns the prefix; appends what was evicted, in order.
  // REQUIRES: `Fits(sequence)`.
  uint32_t Take(std::span<const SequenceHash> sequence, std::vector<SequenceHash>* evicted);

  // The opposite of one `Take`: blocks that nobody else uses become free, tails before heads.
  void Free(std::span<const SequenceHash> sequence);

  uint64_t capacity() const { return capacity_; }
  uint64_t cached() const { return blocks_.size(); }
  uint64_t in_use() const { return blocks_.size() - free_.size(); }

  // Every cached block, in no order.
  std::vector<SequenceHash> Contents() const;

 private:
  struct Block {
    uint32_t refs = 0;
    std::list<SequenceHash>::iterator in_free;  // valid when refs == 0
  };

  void Use(Block& block);
  void EvictOne(std::vector<SequenceHash>* evicted);

  const uint64_t capacity_;
  absl::flat_hash_map<SequenceHash, Block> blocks_;
  std::list<SequenceHash> free_;  // least recently used first
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_ENGINE_BLOCK_POOL_H_
