// Which holders have a block, and where does it stand? The sharded table of the flat structure.
//
// *Threads*: any; each call takes one shard's lock once. A read sees every change that finished
// before it in the order of that lock, and all that the changing thread had done before.
// *Bounds*: `blocks_max` distinct blocks (0: no limit).

#ifndef KVATLAS_INDEXER_INDEX_FLAT_BLOCKS_H_
#define KVATLAS_INDEXER_INDEX_FLAT_BLOCKS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/base/tier.h"
#include "indexer/index/holder_set.h"

namespace kvatlas {

// Gives memory back once a table of Abseil is less than an eighth full. Paid
// for by the erasures since.
template <typename Table>
void ShrinkIfSparse(Table* table) {
  if (table->empty() || (table->capacity() > 64 && table->size() < table->capacity() / 8))
    table->rehash(0);
}

// Memory of a table of Abseil: slots and a control byte for each.
template <typename Table>
size_t TableBytes(const Table& table) {
  return table.capacity() * (sizeof(typename Table::value_type) + 1);
}

class FlatBlocks {
 public:
  explicit FlatBlocks(uint64_t blocks_max) : blocks_max_(blocks_max), shards_(kShards) {}

  // What became of one holder's block.
  struct Change {
    bool refused = false;  // by `blocks_max`; nothing changed
    Position position = 0;
    TierMask before;
    TierMask after;
  };

  // A block that is new gets `position` and `parent`; one that exists keeps its
  // own.
  Change Store(HolderIndex holder, SequenceHash block, Tier tier, Position position,
               SequenceHash parent);

  Change Remove(HolderIndex holder, SequenceHash block, TierMask tiers);

  // Has the block's line on its way from memory while the caller does something else.
  void Prefetch(SequenceHash block) const;

  struct Place {
    Position position = 0;
    SequenceHash parent = kNoParent;
    TierMask tiers;  // of the holder; empty when it has not got the block
  };
  Place PlaceOf(HolderIndex holder, SequenceHash block) const;

  // Calls `read(const HolderSet&)` under the shard's lock; false when nobody
  // has the block.
  template <typename Read>
  bool ReadHolders(SequenceHash block, Read read) const;

  struct Size {
    uint64_t blocks = 0;
    uint64_t holdings = 0;
    uint64_t bytes = 0;
  };
  Size size() const;

  absl::Status Check() const;

 private:
  struct Block {
    SequenceHash parent = kNoParent;
    Position position = 0;
    HolderSet holders;
  };
  struct alignas(64) Shard {
    mutable SharedMutex mutex;
    absl::flat_hash_map<SequenceHash, Block> blocks ABSL_GUARDED_BY(mutex);
    uint64_t holdings ABSL_GUARDED_BY(mutex) = 0;
    uint64_t heap_bytes ABSL_GUARDED_BY(mutex) = 0;
  };

  static constexpr int kShardBits = 8;
  static constexpr size_t kShards = size_t{1} << kShardBits;

  // Fibonacci hashing: every bit of the hash reaches the top bits, so that
  // hashes that differ only in some bits spread.
  static size_t ShardNumber(SequenceHash block) {
    return Raw(block) * 0x9E3779B97F4A7C15u >> (64 - kShardBits);
  }
  const Shard& ShardOf(SequenceHash block) const { return shards_[ShardNumber(block)]; }
  Shard& ShardOf(SequenceHash block) { return shards_[ShardNumber(block)]; }

  // Sets the holder's mask and keeps the shard's sums.
  static void SetTiers(Shard& shard, Block& block, HolderIndex holder, TierMask before,
                       TierMask after) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard.mutex);
  // Takes one of `blocks_max`; false when none is left.
  bool Reserve();

  const uint64_t blocks_max_;
  // Distinct blocks; kept only where there is a limit. Relaxed: a count, it
  // publishes nothing.
  std::atomic<uint64_t> reserved_{0};
  std::vector<Shard> shards_;
};

template <typename Read>
bool FlatBlocks::ReadHolders(SequenceHash block, Read read) const {
  const Shard& shard = ShardOf(block);
  ReaderLock lock(&shard.mutex);
  const auto found = shard.blocks.find(block);
  if (found == shard.blocks.end()) return false;
  read(found->second.holders);
  return true;
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_FLAT_BLOCKS_H_
