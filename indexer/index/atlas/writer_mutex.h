// The writer's lock of an atlas: a mutex that knows how many threads wait for it, so that a thread
// that works in steps lets them in between. An ordinary mutex is nearly always taken again by the
// thread that has just left it.
//
// *Threads*: any.
// *Cost*: a mutex; two counts more where it is taken already.
// *Bounds*: a waiting thread gets its turn within a few steps of others, unless the system does not
// run it.

#ifndef KVATLAS_INDEXER_INDEX_ATLAS_WRITER_MUTEX_H_
#define KVATLAS_INDEXER_INDEX_ATLAS_WRITER_MUTEX_H_

#include <sched.h>

#include <atomic>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"

namespace kvatlas::atlas {

class ABSL_LOCKABLE WriterMutex {
 public:
  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (!mutex_.TryLock()) {
      waiting_.fetch_add(1, std::memory_order_relaxed);
      mutex_.Lock();
      waiting_.fetch_sub(1, std::memory_order_relaxed);
    }
    turns_.store(turns_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  void Unlock() ABSL_UNLOCK_FUNCTION() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.Unlock(); }

  // Between two steps, unlocked: those that wait go first.
  void Yield() const {
    constexpr int kYieldsMax = 1000;
    const uint64_t turns = turns_.load(std::memory_order_relaxed);
    for (int i = 0; i < kYieldsMax && waiting_.load(std::memory_order_relaxed) != 0 &&
                    turns_.load(std::memory_order_relaxed) == turns;
         ++i)
      sched_yield();
  }

 private:
  Mutex mutex_;
  std::atomic<uint32_t> waiting_{0};
  std::atomic<uint64_t> turns_{0};
};

class ABSL_SCOPED_LOCKABLE WriterLock {
 public:
  explicit WriterLock(WriterMutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) : mutex_(mutex) {
    mutex_->Lock();
  }
  ~WriterLock() ABSL_UNLOCK_FUNCTION() { mutex_->Unlock(); }
  WriterLock(const WriterLock&) = delete;
  WriterLock& operator=(const WriterLock&) = delete;

 private:
  WriterMutex* const mutex_;
};

}  // namespace kvatlas::atlas

#endif  // KVATLAS_INDEXER_INDEX_ATLAS_WRITER_MUTEX_H_
