// Which holders hold which side blocks of hybrid models (`cache_class.h`)?
//
//   name ─▶ segment (of 256, by the name's upper bits) ─▶ slot [ name 8 | holders 4 ] ─▶ one holder with its tiers,
//                                                                                    or a `HolderSet` in the pool
//
// *Place*: one per domain beside the domain's index. It answers no prefix question by itself: `reusable.h` reads rows of it,
// a row being the holders of one name.
// *Truth*: a set of (holder, tier, name). Storing twice and removing the unknown change nothing.
// *Threads*: any. Writers take the lock alone, for at most `kNamesPerLock` names at a time; a `Reader` shares it. A holder's
// own calls are serialised by the caller, who also says when its holdings change (`BeginWrite`, `EndWrite`), so
// that a query can tell that what it read of a holder was of one instant.
// *Cost*: a name that one holder has takes 12 bytes a slot, at most 7/8 and at least about 2/3 full: 14 to 18; one that
// several have 16 more and what `HolderSet` says. Store, remove and row are one probe. A segment grows by a quarter at a
// time: 1/256 of all is moved.
// *Bounds*: holders below 2^27; `bytes_max`, beyond which new names are refused.

#ifndef KVATLAS_INDEXER_INDEX_SIDE_INDEX_H_
#define KVATLAS_INDEXER_INDEX_SIDE_INDEX_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "indexer/base/ids.h"
#include "indexer/base/memory_budget.h"
#include "indexer/base/mutex.h"
#include "indexer/base/tier.h"
#include "indexer/index/holder_set.h"

namespace kvatlas {

class SideIndex {
 public:
  static constexpr size_t kNamesPerLock = 64;

  // `bytes_max` 0: no limit. `memory`: none when null; full is as at the limit.
  explicit SideIndex(uint64_t bytes_max = 0, const MemoryBudget* memory = nullptr)
      : bytes_max_(bytes_max), memory_(memory) {}

  SideIndex(const SideIndex&) = delete;
  SideIndex& operator=(const SideIndex&) = delete;

  // `changed(name)` is called for each name that the holder did not have in that tier; `is_new` when it had it in no tier.
  // RESOURCE_EXHAUSTED: the rest was refused.
  using Changed = std::function<void(SequenceHash name, TierMask before, TierMask after)>;
  absl::Status Store(HolderIndex holder, Tier tier, std::span<const SequenceHash> names,
                     const Changed& changed);
  void Remove(HolderIndex holder, Tier tier, std::span<const SequenceHash> names,
              const Changed& changed);
  // Takes `tiers` of a holder away, everything there is of it; O(size of the index), in steps between which others have
  // their turn.
  void Clear(HolderIndex holder, TierMask tiers, const Changed& changed);

  // Everything a holder has. O(size of the index).
  void ForEachOf(HolderIndex holder,
                 const std::function<void(SequenceHash name, TierMask tiers)>& visit) const;
  TierMask Get(HolderIndex holder, SequenceHash name) const;

  // The holder's holdings, here or in the domain's index, begin to change, or are as they will be. REQUIRES: in pairs.
  void BeginWrite(HolderIndex holder) {
    begun_.fetch_add(1, std::memory_order_seq_cst);
    Bump(holder);
  }
  void EndWrite(HolderIndex holder) {
    Bump(holder);
    ended_.fetch_add(1, std::memory_order_seq_cst);
  }
  // Of all holders. `WritesEnded`, then `WritesBegun`, the same number: nothing is being written. `WritesBegun` later
  // still that number: nothing was written meanwhile.
  uint64_t WritesBegun() const { return begun_.load(std::memory_order_seq_cst); }
  uint64_t WritesEnded() const { return ended_.load(std::memory_order_seq_cst); }
  // Even: nothing is being written. Unchanged between two calls: nothing was written. 0 for a holder never written.
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

    // Sets `rows`, of `words` words for each name, to the holders below 64 * words that have the name in one of `tiers`, a bit
    // each. Several names cost little more than one, where memory is what is waited for. REQUIRES: at most `kNamesAtOnce`.
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
  static constexpr size_t kSegments = 256;
  static constexpr uint32_t kShared = 1u << 31;  // the rest is a number in the pool
  static constexpr uint32_t kHoldersEnd = 1u << 27;
  static constexpr uint32_t kVersionsPerChunk = 1024;
  static constexpr uint32_t kVersionChunks = 1024;

  // 12 bytes: the name in two halves. `holders` 0: an empty slot.
  struct Slot {
    uint32_t low = 0;
    uint32_t high = 0;
    uint32_t holders = 0;
  };
  static_assert(sizeof(Slot) == 12);

  struct Segment {
    std::vector<Slot> slots;
    size_t used = 0;
  };

  static uint64_t NameOf(const Slot& slot) { return uint64_t{slot.high} << 32 | slot.low; }
  static uint32_t Pack(HolderIndex holder, TierMask tiers) {
    return Raw(holder) << kTiers | tiers.bits();
  }
  const Segment& SegmentOf(uint64_t name) const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return segments_[name >> 56];
  }
  static size_t HomeOf(const Segment& segment, uint64_t name) {
    return static_cast<size_t>((static_cast<unsigned __int128>(name << 8) * segment.slots.size()) >>
                               64);
  }
  // The slot of the name, or the empty one where it would be; null in a segment without slots.
  static const Slot* Find(const Segment& segment, uint64_t name) {
    return segment.slots.empty() ? nullptr : FindFrom(segment, HomeOf(segment, name), name);
  }
  // REQUIRES: the segment has slots.
  static const Slot* FindFrom(const Segment& segment, size_t home, uint64_t name);
  Slot* FindOrInsert(uint64_t name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Erase(Segment* segment, Slot* slot) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Resize(Segment* segment, size_t slots) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  TierMask TiersOf(const Slot& slot, HolderIndex holder) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  // An empty mask takes the holder out, and the slot away where it was the last one; true: the slot went.
  bool SetTiers(Segment* segment, Slot* slot, HolderIndex holder, TierMask before, TierMask after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint32_t AddToPool(HolderSet set) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void FreeOfPool(uint32_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Bump(HolderIndex holder);

  const uint64_t bytes_max_;
  const MemoryBudget* const memory_;
  mutable SharedMutex mutex_;
  std::array<Segment, kSegments> segments_ ABSL_GUARDED_BY(mutex_);
  std::vector<HolderSet> pool_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint32_t> pool_free_ ABSL_GUARDED_BY(mutex_);
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  Stats counts_ ABSL_GUARDED_BY(mutex_);

  std::atomic<uint64_t> begun_{0}, ended_{0};
  // By holder; a chunk is made once, under the lock, and read without.
  using Versions = std::array<std::atomic<uint32_t>, kVersionsPerChunk>;
  std::array<std::atomic<Versions*>, kVersionChunks> versions_ = {};
  std::vector<std::unique_ptr<Versions>> version_chunks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_SIDE_INDEX_H_
