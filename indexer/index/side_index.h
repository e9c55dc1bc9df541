// The holders of side blocks of hybrid models (`cache_class.h`).
//
//   name ─▶ row of a `BucketTable` [ class, holders 4 ] ─▶ one holder with its tiers, or a `HolderSet` in the pool
//
// *Place*: one per domain beside the domain's index. It answers no prefix question by itself:
// `reusable.h` reads rows of it, a row being the holders of one name.
// *Truth*: a set of (holder, tier, name). Storing twice and removing the unknown change nothing.
// Names of different classes differ, so that a name has one class: the one it was first stored
// with.
// *Threads*: any. Writers take the lock alone, for at most `kNamesPerLock` names at a time; a
// `Reader` shares it. A holder's own calls are serialised by the caller, which also says when its
// holdings change (`BeginWrite`, `EndWrite`), so that a query can tell that what it read of a
// holder was of one instant.
// *Cost*: a name that one holder has takes 11.8 to 12.1 bytes (`bucket_table.h`: a row of 4 bytes,
// of which no call moves more than three buckets); one that several have 16 more and what
// `HolderSet` says. Store, remove and row are one look-up, and those of one call wait for memory
// together.
// *Bounds*: holders below 2^23; names with several holders, 2^27; `bytes_max`, beyond which new
// names are refused; `kClassesMax` different classes are told apart, names of further ones are held
// without.

#ifndef KVATLAS_INDEXER_INDEX_SIDE_INDEX_H_
#define KVATLAS_INDEXER_INDEX_SIDE_INDEX_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "indexer/base/bucket_table.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/clock.h"
#include "indexer/base/ids.h"
#include "indexer/base/memory_budget.h"
#include "indexer/base/mutex.h"
#include "indexer/base/tier.h"
#include "indexer/index/holder_set.h"

namespace kvatlas {

class SideIndex {
 public:
  static constexpr size_t kNamesPerLock = 64;
  static constexpr size_t kClassesMax = 15;

  // `bytes_max` 0: no limit. `memory`: none when null; full is as at the limit.
  explicit SideIndex(uint64_t bytes_max = 0, const MemoryBudget* memory = nullptr)
      : bytes_max_(bytes_max), memory_(memory) {}

  SideIndex(const SideIndex&) = delete;
  SideIndex& operator=(const SideIndex&) = delete;

  // `changed(name)` is called for each name that the holder did not have in that tier. `of`: the
  // class of these names (its kind, block size and window); null: it is not known.
  // RESOURCE_EXHAUSTED: the rest was refused.
  using Changed = std::function<void(SequenceHash name, TierMask before, TierMask after)>;
  absl::Status Store(HolderIndex holder, Tier tier, std::span<const SequenceHash> names,
                     const CacheClass* of, const Changed& changed);
  void Remove(HolderIndex holder, Tier tier, std::span<const SequenceHash> names,
              const Changed& changed);
  // Takes `tiers` of a holder away, everything there is of it; O(size of the index), in steps
  // between which others have their turn.
  void Clear(HolderIndex holder, TierMask tiers, const Changed& changed);

  // Everything a holder has. `tag`: `SideTag` of the name's class; 0: the class is not known.
  // O(size of the index).
  void ForEachOf(
      HolderIndex holder,
      const std::function<void(SequenceHash name, TierMask tiers, uint64_t tag)>& visit) const;
  TierMask Get(HolderIndex holder, SequenceHash name) const;

  // The holder's holdings, here or in the domain's index, begin to change, or are as they will be.
  // REQUIRES: in pairs.
  void BeginWrite(HolderIndex holder) {
    begun_.fetch_add(1, std::memory_order_seq_cst);
    Bump(holder);
  }
  void EndWrite(HolderIndex holder) {
    Bump(holder);
    ended_.fetch_add(1, std::memory_order_seq_cst);
  }
  // Counts over all holders. `WritesEnded`, then `WritesBegun`, the same number: nothing is being
  // written. `WritesBegun` later still that number: nothing was written meanwhile.
  uint64_t WritesBegun() const { return begun_.load(std::memory_order_seq_cst); }
  uint64_t WritesEnded() const { return ended_.load(std::memory_order_seq_cst); }
  // Even: nothing is being written. Unchanged between two calls: nothing was written. 0 for a
  // holder never written.
  uint32_t VersionOf(HolderIndex holder) const {
    const uint32_t chunk = Raw(holder) / kVersionsPerChunk;
    if (chunk >= kVersionChunks) return 0;
    const Versions* const versions = versions_[chunk].load(std::memory_order_acquire);
    if (versions == nullptr) return 0;
    return (*versions)[Raw(holder) % kVersionsPerChunk].load(std::memory_order_seq_cst);
  }

  // Shares the lock as long as it lives: microseconds.
  class ABSL_SCOPED_LOCKABLE Reader {
   public:
    explicit Reader(const SideIndex& index) ABSL_SHARED_LOCK_FUNCTION(index.mutex_)
        : index_(index) {
      index_.mutex_.ReaderLock();
    }
    ~Reader() ABSL_UNLOCK_FUNCTION() { index_.mutex_.ReaderUnlock(); }
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    // Sets `rows`, of `words` words for each name, to the holders below 64 * words that have the
    // name in one of `tiers`, a bit each. Several names cost little more than one, where memory is
    // what is waited for. REQUIRES: at most `kNamesAtOnce`.
    static constexpr size_t kNamesAtOnce = 8;
    void Rows(std::span<const SequenceHash> names, TierMask tiers, size_t words,
              uint64_t* rows) const ABSL_NO_THREAD_SAFETY_ANALYSIS;

   private:
    const SideIndex& index_;
  };

  struct Stats {
    uint64_t names = 0;     // distinct
    uint64_t holdings = 0;  // (holder, name) pairs
    uint64_t bytes = 0;
    uint64_t refused = 0;  // names, by `bytes_max`
  };
  Stats GetStats() const;

  // OK, or INTERNAL with what is wrong inside. Slow.
  absl::Status Check() const;

 private:
  // A row: `kShared`, the class's number, and a holder with its tiers, or where `kShared` is set a
  // number in the pool.
  static constexpr int kClassShift = 27;
  static constexpr uint32_t kShared = 1u << 31;
  static constexpr uint32_t kHoldersMask = (1u << kClassShift) - 1;
  static constexpr uint32_t kClassMask = ~(kShared | kHoldersMask);
  static constexpr uint32_t kHoldersEnd = 1u << (kClassShift - kTiers);
  static constexpr size_t kPoolEnd = size_t{1} << kClassShift;
  static constexpr uint32_t kVersionsPerChunk = 1024;
  static constexpr uint32_t kVersionChunks = 1024;

  static uint32_t Pack(HolderIndex holder, TierMask tiers) {
    return Raw(holder) << kTiers | tiers.bits();
  }
  // The content of a row, its class included.
  uint32_t HoldersAt(size_t row) const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    uint32_t holders;
    std::memcpy(&holders, rows_.Payload(row), sizeof(holders));
    return holders;
  }
  void SetHolders(size_t row, uint32_t holders) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::memcpy(rows_.Payload(row), &holders, sizeof(holders));
  }
  TierMask TiersOf(uint32_t holders, HolderIndex holder) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void Prefetch(std::span<const SequenceHash> names) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  uint64_t BytesNow() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return rows_.bytes() + pool_bytes_;
  }
  // Finds the holder's names among about `kNamesPerStep` from a cursor on; false: that was all.
  struct Found {
    SequenceHash name;
    TierMask tiers;
    uint64_t tag;
  };
  bool Step(HolderIndex holder, TierMask tiers, uint64_t* cursor, std::vector<Found>* found) const;
  // The class's bits of a row; makes a number for one that has none.
  uint32_t ClassBits(const CacheClass* of) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // An empty mask takes the holder out, and the row away where it was the last one.
  void SetTiers(size_t row, HolderIndex holder, TierMask before, TierMask after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint32_t AddToPool(HolderSet set) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FreeOfPool(uint32_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Bump(HolderIndex holder);

  const uint64_t bytes_max_;
  const MemoryBudget* const memory_;
  mutable SharedMutex mutex_;
  BucketTable rows_ ABSL_GUARDED_BY(mutex_){sizeof(uint32_t), RandomInstanceId()};
  std::vector<HolderSet> pool_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> pool_free_ ABSL_GUARDED_BY(mutex_);
  uint64_t pool_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<uint64_t> tags_ ABSL_GUARDED_BY(mutex_);  // of classes, by number less 1
  Stats counts_ ABSL_GUARDED_BY(mutex_);

  std::atomic<uint64_t> begun_{0}, ended_{0};
  // By holder; a chunk is made once, under the lock, and read without.
  using Versions = std::array<std::atomic<uint32_t>, kVersionsPerChunk>;
  std::array<std::atomic<Versions*>, kVersionChunks> versions_ = {};
  std::vector<std::unique_ptr<Versions>> version_chunks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_SIDE_INDEX_H_
