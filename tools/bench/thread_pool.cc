#include "tools/bench/thread_pool.h"

#include <utility>

namespace kvatlas {

ThreadPool::ThreadPool(uint32_t threads) {
  for (uint32_t i = 0; i < threads; ++i) queues_.push_back(std::make_unique<Queue>());
  for (const std::unique_ptr<Queue>& queue : queues_) threads_.emplace_back(Work, queue.get());
}

ThreadPool::~ThreadPool() {
  for (const std::unique_ptr<Queue>& queue : queues_) {
    MutexLock lock(&queue->mutex);
    queue->stopping = true;
    queue->changed.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::Schedule(uint32_t lane, std::function<void()> task) {
  Queue& queue = *queues_[lane % queues_.size()];
  MutexLock lock(&queue.mutex);
  queue.tasks.push_back(std::move(task));
  queue.changed.SignalAll();
}

void ThreadPool::Drain() {
  for (const std::unique_ptr<Queue>& queue : queues_) {
    MutexLock lock(&queue->mutex);
    while (queue->running || !queue->tasks.empty()) queue->changed.Wait(&queue->mutex);
  }
}

void ThreadPool::Work(Queue* queue) {
  std::deque<std::function<void()>> tasks;
  while (true) {
    {
      MutexLock lock(&queue->mutex);
      queue->running = false;
      if (queue->tasks.empty()) queue->changed.SignalAll();
      while (queue->tasks.empty() && !queue->stopping) queue->changed.Wait(&queue->mutex);
      if (queue->tasks.empty()) return;
      queue->running = true;
      tasks.swap(queue->tasks);
    }
    for (const std::function<void()>& task : tasks) task();
    tasks.clear();
  }
}

}  // namespace kvatlas
