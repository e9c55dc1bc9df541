// What does an atlas keep for one holder? Its digest, and in which runs it may have something, so that what it
// has can be found and cleared at the cost of its own blocks.
//
// *Truth*: the list names every run in which the holder has a block, by the run's first line; it may name others,
// and name one twice. Whoever uses an entry looks whether the run is still there and the holder still in it.
// *Threads*: `mutex` orders the holder's own events. The list has a lock of its own, because whoever splits or
// merges a run adds to the lists of all its holders.

#ifndef KVATLAS_INDEXER_INDEX_ATLAS_HOLDER_H_
#define KVATLAS_INDEXER_INDEX_ATLAS_HOLDER_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>

#include "absl/base/thread_annotations.h"
#include "indexer/base/event.h"
#include "indexer/base/mutex.h"
#include "indexer/index/atlas/heap.h"
#include "indexer/index/atlas/spin_lock.h"

namespace kvatlas::atlas {

// A list of lines, in chunks of the heap.
class LineList {
 public:
  explicit LineList(Heap* heap) : heap_(heap) {}
  ~LineList() { Clear(); }
  LineList(const LineList&) = delete;
  LineList& operator=(const LineList&) = delete;

  // False when there is no memory.
  bool Add(uint32_t line);
  // False when there is none.
  bool TakeLast(uint32_t* line);
  // Copies all of them, the oldest first; returns the end.
  uint32_t* CopyTo(uint32_t* lines) const;
  uint32_t size() const { return size_; }
  void Clear();

  // Keeps those for which keep(line), each once. Needs no memory of the heap.
  template <typename Keep>
  void Tidy(Keep keep);

 private:
  static constexpr uint32_t kLines = 62;
  struct Chunk {
    Ref previous;
    uint32_t used;
    uint32_t lines[kLines];
  };
  static_assert(sizeof(Chunk) == 256);

  Chunk* last() const { return last_ == 0 ? nullptr : heap_->At<Chunk>(last_); }
  void DropLast();
  // REQUIRES: count <= size().
  void Assign(const uint32_t* lines, uint32_t count);

  Heap* const heap_;
  Ref last_ = 0;
  uint32_t size_ = 0;
};

template <typename Keep>
void LineList::Tidy(Keep keep) {
  const std::unique_ptr<uint32_t[]> all(new (std::nothrow) uint32_t[size_]);
  if (all == nullptr) return;
  uint32_t* end = CopyTo(all.get());
  std::sort(all.get(), end);
  end = std::unique(all.get(), end);
  end = std::remove_if(all.get(), end, [&](uint32_t line) { return !keep(line); });
  Assign(all.get(), static_cast<uint32_t>(end - all.get()));
}

struct HolderState {
  HolderState(Heap* heap, uint32_t holder_number) : number(holder_number), runs(heap) {}

  const uint32_t number;
  Mutex mutex;
  Digest digest ABSL_GUARDED_BY(mutex);
  uint64_t holdings ABSL_GUARDED_BY(mutex) = 0;

  SpinLock runs_lock;
  LineList runs ABSL_GUARDED_BY(runs_lock);
  // The list is tidied when it is this long.
  uint32_t tidy_at ABSL_GUARDED_BY(runs_lock) = 64;
};

}  // namespace kvatlas::atlas

#endif  // KVATLAS_INDEXER_INDEX_ATLAS_HOLDER_H_
