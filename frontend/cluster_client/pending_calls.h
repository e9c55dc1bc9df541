// Counts what was begun and has not ended, to be waited for before the things that it uses are
// destroyed.
//
// The count of a call ends after everything that holds its channel is gone: gRPC 1.51 joins its
// callback threads where the last channel of a process ends, so that must not happen in one of
// them.
//
// *Threads*: any.

#ifndef KVATLAS_FRONTEND_CLUSTER_CLIENT_PENDING_CALLS_H_
#define KVATLAS_FRONTEND_CLUSTER_CLIENT_PENDING_CALLS_H_

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

class PendingCalls {
 public:
  void Begin() {
    MutexLock lock(&mutex_);
    ++count_;
  }
  void End() {
    MutexLock lock(&mutex_);
    if (--count_ == 0) none_.SignalAll();
  }
  void WaitForNone() {
    MutexLock lock(&mutex_);
    while (count_ > 0) none_.Wait(&mutex_);
  }

 private:
  Mutex mutex_;
  CondVar none_;
  uint64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_CLUSTER_CLIENT_PENDING_CALLS_H_
