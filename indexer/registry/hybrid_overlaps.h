// Blocks that the holders of a domain can reuse, where some have hybrid models: overlaps of the
// index, less what side classes do not have.
//
//   1. Versions of the hybrid holders.
//   2. Overlaps of main classes, from the index.
//   3. The part of them that side classes allow (`Reusable`).
//   4. Versions again: where they differ, main and side blocks may be of different instants: from
//      1, a few times.
//
// *Truth*: at most what was true at some instant during the call, but for holders marked `written`,
// which changed at every try.
// *Threads*: any; takes no lock but the side index's for readers, and the caller's when a holder's
// classes have changed.
// *Cost*: where no holder ever had side classes, one load beside the index's own.

#ifndef KVATLAS_INDEXER_REGISTRY_HYBRID_OVERLAPS_H_
#define KVATLAS_INDEXER_REGISTRY_HYBRID_OVERLAPS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/mutex.h"
#include "indexer/base/overlap.h"
#include "indexer/index/index.h"
#include "indexer/index/side_index.h"

namespace kvatlas {

// Beside the overlap of a hybrid holder, which is what it can reuse.
struct HybridOverlap {
  uint32_t held = 0;     // by the main class
  bool written = false;  // meanwhile, at each try
};

class HybridOverlaps {
 public:
  using OfHolder = std::pair<uint32_t, std::shared_ptr<const CacheLayout>>;

  // `version` grows after a holder's classes changed and before a block that needs them is visible;
  // 0: there never were any. `layouts` returns those of the holders that have side classes, by
  // number, in order.
  HybridOverlaps(uint32_t block_size, const std::atomic<uint64_t>* version,
                 std::function<std::vector<OfHolder>()> layouts)
      : block_size_(block_size), version_(version), layouts_(std::move(layouts)) {}
  // REQUIRES: before any question.
  void Start(const Index* index, const SideIndex* sides) {
    index_ = index;
    sides_ = sides;
  }

  // Some holder has side classes.
  bool Any() const { return At(version_->load()) != nullptr; }

  // Overlaps as the index gives them, where those of hybrid holders are what they can reuse: they
  // are the last, and of each `hybrids` says what it holds, in the same order. Holders that hold
  // something and can reuse nothing are among both. With `held_only` side classes are not looked
  // at.
  void Find(const OverlapQuery& query, bool held_only, std::vector<Overlap>* overlaps,
            std::vector<HybridOverlap>* hybrids) const;

 private:
  // Sets of holders: h is bit h % 64 of word h / 64.
  struct Hybrids {
    std::vector<std::shared_ptr<const CacheLayout>> layouts;  // different ones
    std::vector<std::vector<uint64_t>> of_layout;             // the holders of each
    std::vector<uint64_t> all;
    std::vector<uint32_t> numbers;  // of all

    bool Has(uint32_t number) const {
      return number / 64 < all.size() && (all[number / 64] >> (number % 64) & 1) != 0;
    }
  };
  // Null: no holder has side classes.
  std::shared_ptr<const Hybrids> At(uint64_t version) const;
  void FindReusable(const Hybrids& hybrids, const OverlapQuery& query,
                    std::vector<Overlap>* overlaps, std::vector<HybridOverlap>* of_main) const;

  const uint32_t block_size_;
  const std::atomic<uint64_t>* const version_;
  const std::function<std::vector<OfHolder>()> layouts_;
  const Index* index_ = nullptr;
  const SideIndex* sides_ = nullptr;
  mutable Mutex mutex_;
  mutable std::shared_ptr<const Hybrids> hybrids_ ABSL_GUARDED_BY(mutex_);
  mutable uint64_t hybrids_version_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_REGISTRY_HYBRID_OVERLAPS_H_
