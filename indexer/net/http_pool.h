// A few threads and a bounded queue, for handlers that may take long.
//
// *Threads*: any.

#ifndef KVATLAS_INDEXER_NET_HTTP_POOL_H_
#define KVATLAS_INDEXER_NET_HTTP_POOL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

class HttpPool {
 public:
  explicit HttpPool(size_t queue_max) : queue_max_(queue_max) {}
  ~HttpPool() { Stop(); }

  // Once.
  void Start(uint32_t threads) {
    for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
  }

  // False: the queue is full, unless it is a job that was begun and is now `continued`; or the pool
  // stops. Of a job that waits when the pool stops `dropped` is called, if there is one, by `Stop`.
  bool Submit(std::function<void()> job, bool continued = false,
              std::function<void()> dropped = nullptr) {
    MutexLock lock(&mutex_);
    if (stopping_ || (queue_.size() >= queue_max_ && !continued)) return false;
    queue_.push_back({.run = std::move(job), .dropped = std::move(dropped)});
    wake_.Signal();
    return true;
  }

  bool stopping() {
    MutexLock lock(&mutex_);
    return stopping_;
  }

  // Finishes the jobs that run. Jobs that wait are kept and never run, and their `dropped` is
  // called. Not from a job; one caller at a time.
  void Stop() {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      wake_.SignalAll();
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    std::vector<std::function<void()>> dropped;
    {
      MutexLock lock(&mutex_);
      for (Job& job : queue_) {
        if (job.dropped != nullptr) dropped.push_back(std::exchange(job.dropped, nullptr));
      }
    }
    for (const std::function<void()>& tell : dropped) tell();
  }

  // Destroys the jobs that waited. REQUIRES: stopped.
  void Forget() {
    std::deque<Job> forgotten;
    MutexLock lock(&mutex_);
    forgotten.swap(queue_);
  }

 private:
  struct Job {
    std::function<void()> run;
    std::function<void()> dropped;
  };

  void Run() {
    while (true) {
      Job job;
      {
        MutexLock lock(&mutex_);
        while (!stopping_ && queue_.empty()) wake_.Wait(&mutex_);
        if (stopping_) return;
        job = std::move(queue_.front());
        queue_.pop_front();
      }
      job.run();
    }
  }

  const size_t queue_max_;
  Mutex mutex_;
  CondVar wake_;
  std::deque<Job> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // used by `Start` and `Stop` alone
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_HTTP_POOL_H_
