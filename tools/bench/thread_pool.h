// Who runs what a structure hands out? The executor of a benchmark: lanes over a fixed number of
// threads.
//
// *Threads*: any may call everything. A lane always runs on the same thread, so its tasks keep
// their order.
// *Lifetime*: the destructor runs what was scheduled, then joins.

#ifndef KVATLAS_TOOLS_BENCH_THREAD_POOL_H_
#define KVATLAS_TOOLS_BENCH_THREAD_POOL_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "indexer/base/mutex.h"
#include "indexer/index/index.h"

namespace kvatlas {

class ThreadPool : public Executor {
 public:
  // REQUIRES: `threads` > 0.
  explicit ThreadPool(uint32_t threads);
  ~ThreadPool() override;

  void Schedule(uint32_t lane, std::function<void()> task) override;

  // Returns when everything that was scheduled before the call has run.
  void Drain();

 private:
  struct Queue {
    Mutex mutex;
    CondVar changed;
    std::deque<std::function<void()>> tasks ABSL_GUARDED_BY(mutex);
    bool running ABSL_GUARDED_BY(mutex) = false;
    bool stopping ABSL_GUARDED_BY(mutex) = false;
  };

  static void Work(Queue* queue);

  std::vector<std::unique_ptr<Queue>> queues_;
  std::vector<std::thread> threads_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_THREAD_POOL_H_
