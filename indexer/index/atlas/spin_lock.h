// How do writers of one small thing wait for each other? A lock of one byte, for sections of some tens of
// nanoseconds.
//
// *Threads*: spins, then yields: a holder that is preempted costs a waiter its time slice, never more. Readers
// of atlas never take one.
// *Bounds*: no fairness; sections must not block.

#ifndef KVATLAS_INDEXER_INDEX_ATLAS_SPIN_LOCK_H_
#define KVATLAS_INDEXER_INDEX_ATLAS_SPIN_LOCK_H_

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "absl/base/thread_annotations.h"

namespace kvatlas::atlas {

// One round of waiting; `round` counts from 0.
inline void SpinWait(int round) {
  if (round < 100) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
  } else {
    sched_yield();
  }
}

class ABSL_LOCKABLE SpinLock {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() {
    for (int round = 0; !TryLock(); ++round) SpinWait(round);
  }
  bool TryLock() ABSL_EXCLUSIVE_TRYLOCK_FUNCTION(true) {
    return locked_.load(std::memory_order_relaxed) == 0 &&
           locked_.exchange(1, std::memory_order_acquire) == 0;
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() { locked_.store(0, std::memory_order_release); }

 private:
  std::atomic<uint8_t> locked_{0};
};

class ABSL_SCOPED_LOCKABLE SpinLockHolder {
 public:
  explicit SpinLockHolder(SpinLock* lock) ABSL_EXCLUSIVE_LOCK_FUNCTION(lock) : lock_(lock) {
    lock_->Lock();
  }
  ~SpinLockHolder() ABSL_UNLOCK_FUNCTION() { lock_->Unlock(); }
  SpinLockHolder(const SpinLockHolder&) = delete;
  SpinLockHolder& operator=(const SpinLockHolder&) = delete;

 private:
  SpinLock* const lock_;
};

}  // namespace kvatlas::atlas

#endif  // KVATLAS_INDEXER_INDEX_ATLAS_SPIN_LOCK_H_
