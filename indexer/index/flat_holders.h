// What does an index know of each holder, and how is it reached by number without a lock? The
// holders of the flat structure, in groups of 64 that are made when their first number is given out
// and stay.
//
// *Threads*: any. A group never moves, so a number that was once given out can always be looked at.

#ifndef KVATLAS_INDEXER_INDEX_FLAT_HOLDERS_H_
#define KVATLAS_INDEXER_INDEX_FLAT_HOLDERS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

struct FlatHolder {
  // Serialises the holder's events, and cuts of it with them.
  mutable Mutex mutex;
  bool exists ABSL_GUARDED_BY(mutex) = false;
  // Its blocks; the tiers and places are in the table of blocks.
  absl::flat_hash_set<SequenceHash> held ABSL_GUARDED_BY(mutex);
  Digest digest ABSL_GUARDED_BY(mutex);
};

struct FlatHolderGroup {
  // Bit b is holder 64 * group + b. Relaxed: a query may see a change of them
  // late, but no later than anything that this thread did after the change was
  // made known to it.
  std::atomic<uint64_t> existing{0};
  std::atomic<uint64_t> masked{0};
  // How many runs of removals of each holder have finished (flat.cc,
  // `FindOverlaps`). Never set back, not even when a number is given out again.
  std::atomic<uint64_t> removals[64] = {};
  FlatHolder holders[64];

  uint64_t Answering() const {
    return existing.load(std::memory_order_relaxed) & ~masked.load(std::memory_order_relaxed);
  }
};

class FlatHolders {
 public:
  explicit FlatHolders(uint32_t holders_max);
  ~FlatHolders();

  // The smallest free number, not existing yet for others.
  absl::StatusOr<HolderIndex> Take();
  // Gives the number back. REQUIRES: taken.
  void Release(HolderIndex holder);

  // Null when no holder of the group was ever added.
  FlatHolderGroup* GroupOf(uint32_t group) const {
    return group < groups_.size() ? groups_[group].load(std::memory_order_acquire) : nullptr;
  }
  FlatHolder* Find(HolderIndex holder) const {
    FlatHolderGroup* const group = GroupOf(Raw(holder) / 64);
    return group == nullptr ? nullptr : &group->holders[Raw(holder) % 64];
  }
  std::atomic<uint64_t>& RemovalsOf(HolderIndex holder) const {
    return GroupOf(Raw(holder) / 64)->removals[Raw(holder) % 64];
  }

  // Calls `visit(HolderIndex, FlatHolder&)` for every number ever given out.
  template <typename Visit>
  void ForEach(Visit visit) const;

  uint64_t Bytes() const;

 private:
  const uint32_t holders_max_;
  Mutex mutex_;
  // Numbers below `next_` that are free.
  std::set<uint32_t> free_ ABSL_GUARDED_BY(mutex_);
  uint32_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  // Release where a group is made (`Take`), acquire where it is looked up
  // (`GroupOf`).
  std::vector<std::atomic<FlatHolderGroup*>> groups_;
};

template <typename Visit>
void FlatHolders::ForEach(Visit visit) const {
  for (uint32_t group = 0; FlatHolderGroup* const found = GroupOf(group); ++group) {
    for (uint32_t i = 0; i < 64; ++i) visit(HolderIndex{group * 64 + i}, found->holders[i]);
  }
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_FLAT_HOLDERS_H_
