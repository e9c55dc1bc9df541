// Which holder numbers are given out, and what does a structure keep for each? The bookkeeping that
// the structures with locks of their own share.
//
//   number ──▶ group of 64 (made when its first number is given out, then stays)
//                ├ existing, masked   a bit each: the alive mask of queries
//                ├ removals           a count each, odd while blocks are being taken out
//                └ State              whatever the structure keeps
//
// *Threads*: any. A group never moves, so a number that was once given out can be looked at without
// a lock.
// *Bounds*: `holders_max` numbers; `Add` is RESOURCE_EXHAUSTED beyond.

#ifndef KVATLAS_INDEXER_INDEX_FIELD_HOLDER_TABLE_H_
#define KVATLAS_INDEXER_INDEX_FIELD_HOLDER_TABLE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/base/tier.h"

namespace kvatlas {

// What queries ask of a holder, whatever the structure keeps of it.
class HolderTableBase {
 public:
  explicit HolderTableBase(uint32_t holders_max)
      : holders_max_(std::min(holders_max, kHoldersMax)), groups_((holders_max_ + 63) / 64) {}
  HolderTableBase(const HolderTableBase&) = delete;
  HolderTableBase& operator=(const HolderTableBase&) = delete;

  bool Exists(HolderIndex holder) const {
    const Group* const group = GroupOf(Raw(holder) / 64);
    return group != nullptr && (group->existing.load(std::memory_order_acquire) & Bit(holder)) != 0;
  }

  void SetMasked(HolderIndex holder, bool masked) {
    if (!Exists(holder)) return;
    std::atomic<uint64_t>& mask = GroupOf(Raw(holder) / 64)->masked;
    if (masked) {
      mask.fetch_or(Bit(holder), std::memory_order_acq_rel);
    } else {
      mask.fetch_and(~Bit(holder), std::memory_order_acq_rel);
    }
  }

  // Holders 64 * word … 64 * word + 63 that may be in an answer.
  uint64_t Answering(uint32_t word) const {
    const Group* const group = GroupOf(word);
    if (group == nullptr) return 0;
    return group->existing.load(std::memory_order_acquire) &
           ~group->masked.load(std::memory_order_acquire);
  }

  // Words that `Answering` may be asked for.
  uint32_t words() const { return static_cast<uint32_t>(groups_.size()); }

  // How a reader notices that blocks were taken out while it looked from block to block. The
  // holder's one writer makes the count odd before the first block goes and even after the last. A
  // reader notes the count while it holds the lock under which it saw the first block, and looks
  // again at the end: if the count is the same and even, everything it saw was held at the end;
  // else only the first block is sure. Locks of the blocks order all that, so relaxed is enough.
  uint64_t Removals(HolderIndex holder) const {
    return GroupOf(Raw(holder) / 64)->removals[Raw(holder) % 64].load(std::memory_order_relaxed);
  }

  // Around every taking out of blocks; one at a time of a holder.
  class Removing {
   public:
    Removing(const HolderTableBase& table, HolderIndex holder)
        : removals_(table.GroupOf(Raw(holder) / 64)->removals[Raw(holder) % 64]) {
      removals_.fetch_add(1, std::memory_order_relaxed);
    }
    ~Removing() { removals_.fetch_add(1, std::memory_order_relaxed); }
    Removing(const Removing&) = delete;
    Removing& operator=(const Removing&) = delete;

   private:
    std::atomic<uint64_t>& removals_;
  };

 protected:
  static constexpr uint32_t kHoldersMax = 1u << 28;

  struct Group {
    virtual ~Group() = default;
    std::atomic<uint64_t> existing{0};
    std::atomic<uint64_t> masked{0};
    std::atomic<uint64_t> removals[64] = {};
  };

  static uint64_t Bit(HolderIndex holder) { return uint64_t{1} << Raw(holder) % 64; }

  Group* GroupOf(uint32_t group) const {
    return group < groups_.size() ? groups_[group].load(std::memory_order_acquire) : nullptr;
  }

  const uint32_t holders_max_;
  std::vector<std::atomic<Group*>> groups_;
};

template <typename State>
class HolderTable : public HolderTableBase {
 public:
  using HolderTableBase::HolderTableBase;
  ~HolderTable() {
    for (std::atomic<Group*>& group : groups_) delete group.load(std::memory_order_relaxed);
  }

  // The smallest free number; it exists and is not masked from now on.
  absl::StatusOr<HolderIndex> Add();

  // Out of every answer at once; false when it does not exist. The number stays taken.
  bool Hide(HolderIndex holder);

  // Gives a hidden number back.
  void Release(HolderIndex holder);

  // Null when the number was never given out.
  State* Find(HolderIndex holder) const {
    StateGroup* const group = static_cast<StateGroup*>(GroupOf(Raw(holder) / 64));
    return group == nullptr ? nullptr : &group->states[Raw(holder) % 64];
  }

  // Calls `visit(HolderIndex, State&)` for every number in a group that was made, also for those
  // that do not exist.
  template <typename Visit>
  void ForEach(Visit visit) const;

  uint64_t Count() const {
    MutexLock lock(&mutex_);
    return next_ - free_.size();
  }

  uint64_t Bytes() const;

 private:
  struct StateGroup : Group {
    State states[64];
  };

  mutable Mutex mutex_;
  uint32_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<uint32_t> free_ ABSL_GUARDED_BY(mutex_);
};

template <typename State>
absl::StatusOr<HolderIndex> HolderTable<State>::Add() {
  MutexLock lock(&mutex_);
  uint32_t number = next_;
  if (!free_.empty()) {
    number = *free_.begin();
    free_.erase(free_.begin());
  } else if (next_ >= holders_max_) {
    return absl::ResourceExhaustedError("holders_max reached");
  } else {
    if (next_ % 64 == 0) groups_[next_ / 64].store(new StateGroup, std::memory_order_release);
    ++next_;
  }
  const HolderIndex holder{number};
  Group* const group = GroupOf(number / 64);
  group->masked.fetch_and(~Bit(holder), std::memory_order_acq_rel);
  group->existing.fetch_or(Bit(holder), std::memory_order_acq_rel);
  return holder;
}

template <typename State>
bool HolderTable<State>::Hide(HolderIndex holder) {
  Group* const group = GroupOf(Raw(holder) / 64);
  if (group == nullptr) return false;
  return (group->existing.fetch_and(~Bit(holder), std::memory_order_acq_rel) & Bit(holder)) != 0;
}

template <typename State>
void HolderTable<State>::Release(HolderIndex holder) {
  MutexLock lock(&mutex_);
  free_.insert(Raw(holder));
}

template <typename State>
template <typename Visit>
void HolderTable<State>::ForEach(Visit visit) const {
  for (uint32_t word = 0; word < words(); ++word) {
    StateGroup* const group = static_cast<StateGroup*>(GroupOf(word));
    if (group == nullptr) return;
    for (uint32_t i = 0; i < 64; ++i) visit(HolderIndex{word * 64 + i}, group->states[i]);
  }
}

template <typename State>
uint64_t HolderTable<State>::Bytes() const {
  uint64_t bytes = groups_.size() * sizeof(groups_[0]);
  for (uint32_t word = 0; word < words() && GroupOf(word) != nullptr; ++word) {
    bytes += sizeof(StateGroup);
  }
  return bytes;
}

// ---- What every structure here needs ----

// The digest of a holder whose block was in tiers `before` and is in `after`.
inline void ChangeDigest(SequenceHash block, TierMask before, TierMask after, Digest* digest) {
  for (int i = 0; i < kTiers; ++i) {
    const Tier tier = static_cast<Tier>(i);
    if (after.Has(tier) && !before.Has(tier)) digest->Add(tier, block);
    if (before.Has(tier) && !after.Has(tier)) digest->Subtract(tier, block);
  }
}

// Local hashes count only where there is one for every block.
inline bool HasLocals(const Stored& stored) {
  return !stored.blocks.empty() && stored.local_hashes.size() == stored.blocks.size();
}

// How many distinct blocks there are, and may be. Any thread.
class BlockQuota {
 public:
  // 0: no limit.
  explicit BlockQuota(uint64_t blocks_max) : blocks_max_(blocks_max) {}

  // False when there are as many as there may be.
  bool Take() {
    const uint64_t blocks = blocks_.fetch_add(1, std::memory_order_relaxed) + 1;
    if (blocks_max_ == 0 || blocks <= blocks_max_) return true;
    Release();
    return false;
  }
  void Release() { blocks_.fetch_sub(1, std::memory_order_relaxed); }
  uint64_t value() const { return blocks_.load(std::memory_order_relaxed); }

 private:
  const uint64_t blocks_max_;
  std::atomic<uint64_t> blocks_{0};
};

// Memory of an Abseil flat table beside the object: its slots, a byte for each, and 16 more of
// those.
template <typename Table>
uint64_t TableBytes(const Table& table) {
  if (table.capacity() == 0) return 0;
  return table.capacity() * (sizeof(typename Table::value_type) + 1) + 16;
}

// Gives memory back when little of the table is used. Abseil's tables never shrink by themselves.
template <typename Table>
void ShrinkTable(Table* table) {
  if (table->size() * 8 < table->capacity()) table->rehash(0);
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_FIELD_HOLDER_TABLE_H_
