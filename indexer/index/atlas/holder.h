// The state of one holder in an atlas: its digest, and the runs in which it may have something, so
// that its blocks can be found and cleared at the cost of these alone.
//
// *Truth*: the list names every run in which the holder has a block, by its Ref; it may name
// others, some that are gone or are another's now, and name one twice. Before an entry is used, it
// is looked up whether the run is still there and the holder still in it.
// *Lifetime*: a number's state stays where it is until the index ends, and serves the next holder
// of that number: threads that found it before its holder was removed may still lock it, and see an
// empty one.
// *Threads*: `mutex` orders the holder's own events, and comes before the index's. The list is the
// index's writer's: a split or a merge adds to the lists of all holders of a run.

#ifndef KVATLAS_INDEXER_INDEX_ATLAS_HOLDER_H_
#define KVATLAS_INDEXER_INDEX_ATLAS_HOLDER_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>

#include "absl/base/thread_annotations.h"
#include "indexer/base/event.h"
#include "indexer/base/mutex.h"
#include "indexer/index/atlas/heap.h"

namespace kvatlas::atlas {

// A list of runs, in chunks of the heap.
class RunList {
 public:
  explicit RunList(Heap* heap) : heap_(heap) {}
  ~RunList() { Clear(); }
  RunList(const RunList&) = delete;
  RunList& operator=(const RunList&) = delete;

  // False when there is no memory.
  bool Add(Ref run);
  // False when there is none.
  bool TakeLast(Ref* run);
  // Copies all of them, the oldest first; returns the end.
  uint32_t* CopyTo(Ref* runs) const;
  uint32_t size() const { return size_; }
  void Clear();

  // Keeps those for which keep(run), each once. Needs no memory of the heap.
  template <typename Keep>
  void Tidy(Keep keep);

 private:
  static constexpr uint32_t kRuns = 62;
  struct Chunk {
    Ref previous;
    uint32_t used;
    Ref runs[kRuns];
  };
  static_assert(sizeof(Chunk) == 256);

  Chunk* last() const { return last_ == 0 ? nullptr : heap_->At<Chunk>(last_); }
  void DropLast();
  // REQUIRES: count <= size().
  void Assign(const Ref* runs, uint32_t count);

  Heap* const heap_;
  Ref last_ = 0;
  uint32_t size_ = 0;
};

template <typename Keep>
void RunList::Tidy(Keep keep) {
  const std::unique_ptr<uint32_t[]> all(new (std::nothrow) uint32_t[size_]);
  if (all == nullptr) return;
  uint32_t* end = CopyTo(all.get());
  std::sort(all.get(), end);
  end = std::unique(all.get(), end);
  end = std::remove_if(all.get(), end, [&](Ref run) { return !keep(run); });
  Assign(all.get(), static_cast<uint32_t>(end - all.get()));
}

struct HolderState {
  static constexpr uint32_t kTidyAt = 64;

  HolderState(Heap* heap, uint32_t holder_number) : number(holder_number), runs(heap) {}

  // Empty, and no holder's. REQUIRES: no block is held.
  void Reset() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    digest = {};
    holdings = 0;
    runs.Clear();
    tidy_at = kTidyAt;
  }

  const uint32_t number;
  // The number is some holder's. Partner: `AtlasIndex::StateOf`.
  std::atomic<bool> in_use{true};
  Mutex mutex;
  Digest digest ABSL_GUARDED_BY(mutex);
  uint64_t holdings ABSL_GUARDED_BY(mutex) = 0;

  // The writer's. The list is tidied when it is `tidy_at` long.
  RunList runs;
  uint32_t tidy_at = kTidyAt;
};

}  // namespace kvatlas::atlas

#endif  // KVATLAS_INDEXER_INDEX_ATLAS_HOLDER_H_
