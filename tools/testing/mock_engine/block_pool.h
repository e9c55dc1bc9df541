// Which blocks does an engine still have, and which does it give up next? A pool of KV blocks with
// prefix caching, as vLLM keeps it. Blocks of side classes (`cache_class.h`) share it with those of
// the main class.
//
//   in use (refs > 0)                     free, still cached (refs 0)                      empty
//   blocks of running requests   ──▶   least recently freed … most recently freed        never used
//            ▲   finished: tails before heads │        │
//            └──── touched by a prefix hit ───┘        └──▶ evicted first, once nothing is empty
//
// *Truth*: a block is cached from `Take` or `Add` until evicted. A sequence of main blocks loses
// its tail before its head: a pool that holds a main block holds all before it, so there are no
// holes and a prefix can be bisected. Blocks of side classes come and go one by one.
// *Threads*: none; the owner serialises.
// *Cost*: constant per block taken, freed or evicted; about 90 bytes a block.
// *Bounds*: `capacity` blocks, of all classes together.

#ifndef KVATLAS_TOOLS_TESTING_MOCK_ENGINE_BLOCK_POOL_H_
#define KVATLAS_TOOLS_TESTING_MOCK_ENGINE_BLOCK_POOL_H_

#include <cstdint>
#include <list>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/ids.h"

namespace kvatlas {

// A block of a class: of the main class by its hash, of a side class by that of the main block that
// ends where it ends.
struct PoolBlock {
  SequenceHash hash{};
  SideClass side = 0;

  friend bool operator==(const PoolBlock&, const PoolBlock&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const PoolBlock& block) {
    return H::combine(std::move(state), block.hash, block.side);
  }
};

class BlockPool {
 public:
  explicit BlockPool(uint64_t capacity) : capacity_(capacity) {}

  // Leading main blocks of `sequence` that are cached.
  uint32_t CachedPrefix(std::span<const SequenceHash> sequence) const;

  // Whether `sequence` fits beside the blocks in use, with room for `more` blocks.
  bool Fits(std::span<const SequenceHash> sequence, uint64_t more = 0) const;

  // Takes all main blocks of `sequence` into use: its cached prefix first, then new ones for the
  // rest, evicting what they need, least recently used first. Returns the prefix; appends what was
  // evicted, in order. REQUIRES: `Fits(sequence)`, and no side class was ever added.
  uint32_t Take(std::span<const SequenceHash> sequence, std::vector<SequenceHash>* evicted);

  // The opposite of one `Take`: blocks that no other request uses become free, tails before heads.
  void Free(std::span<const SequenceHash> sequence);

  // The same a block at a time.
  bool Has(PoolBlock block) const { return blocks_.contains(block); }
  // Into use once more. REQUIRES: `Has(block)`.
  void Touch(PoolBlock block);
  // A new block into use; appends what had to be evicted. REQUIRES: not `Has(block)`; fewer than
  // `capacity` are in use.
  void Add(PoolBlock block, std::vector<PoolBlock>* evicted);
  // The opposite of one `Touch` or `Add`.
  void Release(PoolBlock block);

  uint64_t capacity() const { return capacity_; }
  uint64_t cached() const { return blocks_.size(); }
  uint64_t in_use() const { return blocks_.size() - free_.size(); }

  // Every cached block of a class, in no order.
  std::vector<SequenceHash> Contents(SideClass side = 0) const;

 private:
  struct Block {
    uint32_t refs = 0;
    std::list<PoolBlock>::iterator in_free;  // valid when refs == 0
  };

  void Use(Block& block);
  PoolBlock EvictOne();

  const uint64_t capacity_;
  absl::flat_hash_map<PoolBlock, Block> blocks_;
  std::list<PoolBlock> free_;  // least recently used first
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_MOCK_ENGINE_BLOCK_POOL_H_
