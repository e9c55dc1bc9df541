// Epoch-based reclamation: when memory that readers might still look at may be used again.
//
// A thread that reads atlas holds an `EpochGuard`. Memory that a writer has unlinked is tagged with
// `RetireEpoch()`; it may be reused once `OldestActiveEpoch()` is larger than the tag, for then no
// guard is left that was taken before it was unlinked.
//
// *Threads*: every thread has a line of its own that only it writes; guards nest. One set of lines
// serves every index of the process.
// *Cost*: a guard is a store and a fence (5–10 ns). `OldestActiveEpoch` looks at a line per thread.
// *Source*: K. Fraser, "Practical lock-freedom", 2004.

#ifndef KVATLAS_INDEXER_INDEX_ATLAS_EPOCH_H_
#define KVATLAS_INDEXER_INDEX_ATLAS_EPOCH_H_

#include <atomic>
#include <cstdint>

namespace kvatlas::atlas {

// One thread's line: the epoch in which its outermost guard was taken, 0 while it has none.
struct alignas(64) EpochLine {
  std::atomic<uint64_t> epoch{0};
  std::atomic<bool> taken{false};
};

struct EpochThread {
  EpochLine* line = nullptr;
  uint32_t depth = 0;
};

extern std::atomic<uint64_t> g_epoch;
extern thread_local constinit EpochThread t_epoch;

// Gives the calling thread a line; it is given back when the thread ends.
void TakeEpochLine();

class EpochGuard {
 public:
  EpochGuard() {
    EpochThread& thread = t_epoch;
    if (thread.depth++ != 0) return;
    if (thread.line == nullptr) TakeEpochLine();
    thread.line->epoch.store(g_epoch.load(std::memory_order_acquire), std::memory_order_release);
    // Partner: the fence of `RetireEpoch`. Either the reclaimer sees this line, or we see what was
    // unlinked.
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  ~EpochGuard() {
    EpochThread& thread = t_epoch;
    if (--thread.depth == 0) thread.line->epoch.store(0, std::memory_order_release);
  }
  EpochGuard(const EpochGuard&) = delete;
  EpochGuard& operator=(const EpochGuard&) = delete;
};

// The tag of what the calling thread has unlinked until now.
uint64_t RetireEpoch();

// Begins a new epoch and says the oldest that a guard may still be in.
uint64_t OldestActiveEpoch();

}  // namespace kvatlas::atlas

#endif  // KVATLAS_INDEXER_INDEX_ATLAS_EPOCH_H_
