#include "indexer/index/flat_holders.h"

#include <algorithm>

#include "indexer/index/holder_set.h"

namespace kvatlas {

FlatHolders::FlatHolders(uint32_t holders_max)
    : holders_max_(std::min(holders_max, HolderSet::kHoldersMax)),
      groups_((holders_max_ + 63) / 64) {}

FlatHolders::~FlatHolders() {
  for (std::atomic<FlatHolderGroup*>& group : groups_) delete group.load(std::memory_order_relaxed);
}

absl::StatusOr<HolderIndex> FlatHolders::Take() {
  MutexLock lock(&mutex_);
  if (!free_.empty()) {
    const uint32_t number = *free_.begin();
    free_.erase(free_.begin());
    return HolderIndex{number};
  }
  if (next_ >= holders_max_) return absl::ResourceExhaustedError("holders_max reached");
  if (next_ % 64 == 0) groups_[next_ / 64].store(new FlatHolderGroup, std::memory_order_release);
  return HolderIndex{next_++};
}

void FlatHolders::Release(HolderIndex holder) {
  MutexLock lock(&mutex_);
  free_.insert(Raw(holder));
}

uint64_t FlatHolders::Bytes() const {
  uint64_t bytes = groups_.size() * sizeof(groups_[0]);
  for (uint32_t group = 0; GroupOf(group) != nullptr; ++group) bytes += sizeof(FlatHolderGroup);
  return bytes;
}

}  // namespace kvatlas
