// concurrent_radix: what it drops, and its executor. Its answers: //indexer/index:conformance_test.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <functional>
#include <random>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"
#include "indexer/index/index_test_util.h"

namespace kvatlas {
namespace {

TEST(ConcurrentRadixTest, CountsTheStoresThatItDrops) {
  const Contents prompt = Count(1, 4);
  Tested index("concurrent_radix", {}, 1);
  const HolderIndex holder{0};
  index.Store(holder, prompt, 0, 3);
  index.Remove(holder, prompt, {2});
  index.Store(holder, prompt, 3);     // Its parent is the hole.
  index.Store(holder, prompt, 2, 3);  // Now 4 blocks would be held; the last was dropped.
  EXPECT_EQ(index.Find(prompt), (Scores{{0, 3}}));
  EXPECT_EQ(index.Shape("blocks_without_parent"), 1u);
}

TEST(ConcurrentRadixTest, KeepsTheFirstOfTwoNamesForOneContent) {
  Tested index("concurrent_radix", {}, 2);
  Stored first = StoredOf({1, 2, 3}), second = first;
  first.blocks = {SequenceHash{1}, SequenceHash{102}, SequenceHash{103}};
  second.blocks = {SequenceHash{1}, SequenceHash{202}, SequenceHash{203}};
  index.Do(HolderIndex{0}, first);
  index.Do(HolderIndex{1}, second);
  std::vector<Overlap> overlaps;
  index->FindOverlaps({.blocks = first.blocks, .local_hashes = first.local_hashes}, &overlaps);
  EXPECT_EQ(ToScores(overlaps), (Scores{{0, 3}, {1, 1}}));
  EXPECT_EQ(index.Shape("blocks_renamed"), 2u);
}

// ---- The executor ----

// Runs what was scheduled when told.
class ManualExecutor : public Executor {
 public:
  void Schedule(uint32_t lane, std::function<void()> task) override {
    tasks_.emplace_back(lane, std::move(task));
  }
  bool RunOne() {
    if (tasks_.empty()) return false;
    const std::function<void()> task = std::move(tasks_.front().second);
    tasks_.pop_front();
    task();
    return true;
  }

 private:
  std::deque<std::pair<uint32_t, std::function<void()>>> tasks_;
};

// A thread for every few lanes, as the original has it.
class PoolExecutor : public Executor {
 public:
  explicit PoolExecutor(size_t threads) : queues_(threads) {
    for (Queue& queue : queues_) queue.thread = std::thread([&queue] { Run(&queue); });
  }
  ~PoolExecutor() override {
    for (Queue& queue : queues_) Push(&queue, nullptr);
    for (Queue& queue : queues_) queue.thread.join();
  }
  void Schedule(uint32_t lane, std::function<void()> task) override {
    Push(&queues_[lane % queues_.size()], [this, task = std::move(task)] {
      begun_.fetch_add(1);
      task();
    });
  }
  // Tasks that were begun.
  uint64_t begun() const { return begun_; }

 private:
  struct Queue {
    Mutex mutex;
    CondVar pushed;
    std::deque<std::function<void()>> tasks ABSL_GUARDED_BY(mutex);
    std::thread thread;
  };

  static void Push(Queue* queue, std::function<void()> task) {
    MutexLock lock(&queue->mutex);
    queue->tasks.push_back(std::move(task));
    queue->pushed.Signal();
  }
  static std::function<void()> Pop(Queue* queue) {
    MutexLock lock(&queue->mutex);
    while (queue->tasks.empty()) queue->pushed.Wait(&queue->mutex);
    std::function<void()> task = std::move(queue->tasks.front());
    queue->tasks.pop_front();
    return task;
  }
  static void Run(Queue* queue) {
    while (const std::function<void()> task = Pop(queue)) task();
  }

  std::atomic<uint64_t> begun_{0};
  std::vector<Queue> queues_;
};

// Where changes are not asked for, a store is a task; `Tested` would wait for it.
void Schedule(Tested* index, const Contents& contents, size_t from = 0, size_t to = SIZE_MAX,
              HolderIndex holder = HolderIndex{0}) {
  EXPECT_TRUE((*index)->Apply(holder, StoredOf(contents, from, to), nullptr).ok());
}

TEST(ConcurrentRadixTest, OverlapsAreOfEventsWhoseTasksHaveRun) {
  ManualExecutor executor;
  Tested index("concurrent_radix", {.executor = &executor}, 1);
  Schedule(&index, {1, 2, 3});
  Schedule(&index, {1, 2, 3, 4});
  EXPECT_EQ(index.Find({1, 2, 3, 4}), Scores());
  EXPECT_TRUE(executor.RunOne());
  EXPECT_EQ(index.Find({1, 2, 3, 4}), (Scores{{0, 3}}));
  EXPECT_TRUE(executor.RunOne());
  EXPECT_EQ(index.Find({1, 2, 3, 4}), (Scores{{0, 4}}));
  EXPECT_FALSE(executor.RunOne());
}

TEST(ConcurrentRadixTest, ContentsAreOfAllEventsAppliedBefore) {
  PoolExecutor executor(2);
  Tested index("concurrent_radix", {.executor = &executor}, 1);
  const HolderIndex holder{0};
  for (size_t i = 0; i < 50; ++i) {
    Schedule(&index, Count(1, 50), i, i + 1);
    ASSERT_EQ(index->DigestOf(holder).tiers[0].blocks, i + 1);
    ASSERT_EQ(index.Holdings(holder), i + 1);
  }
  EXPECT_TRUE(index->Apply(holder, RemovedOf(Count(1, 50), {49}), nullptr).ok());
  EXPECT_EQ(index->Stats().blocks, 49u);
  Schedule(&index, {77});
  index->RemoveHolder(holder);
  EXPECT_EQ(index->Stats().blocks, 0u);
  EXPECT_EQ(index.Add(), holder);
}

TEST(ConcurrentRadixTest, ChangesAreThereWhenApplyReturns) {
  PoolExecutor executor(2);
  Tested index("concurrent_radix", {.blocks_max = 4, .executor = &executor}, 1);
  index.Store(HolderIndex{0}, {1, 2, 3});
  EXPECT_EQ(index.changes().size(), 3u);
  EXPECT_EQ(index.Apply(HolderIndex{0}, StoredOf({1, 2, 3, 4, 5})).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(index.changes().size(), 4u);
}

TEST(ConcurrentRadixTest, TheDestructorWaitsForWhatWasScheduled) {
  PoolExecutor executor(2);
  std::unique_ptr<Index> index = *MakeIndex("concurrent_radix", {.executor = &executor});
  for (uint64_t i = 0; i < 50; ++i) {
    const HolderIndex holder = *index->AddHolder();
    EXPECT_TRUE(index->Apply(holder, StoredOf(Count(i, 20)), nullptr).ok());
  }
  index.reset();
  EXPECT_EQ(executor.begun(), 50u);
}

// Branches grow below one another's blocks and are taken apart, so that nodes come and go while
// others are on their way to them: with a pool, and with writers that work themselves.
TEST(ConcurrentRadixTest, WhatIsLeftAfterAllIsWhatTheReferenceHas) {
  for (size_t pool_threads : {0, 2}) {
    const auto pool = pool_threads == 0 ? nullptr : std::make_unique<PoolExecutor>(pool_threads);
    constexpr uint32_t kWriters = 3;
    Tested index("concurrent_radix", {.executor = pool.get()}, kWriters);
    Tested reference("reference", {}, kWriters);
    std::atomic<uint32_t> running{kWriters};
    std::vector<std::thread> threads;
    for (uint32_t writer = 0; writer < kWriters; ++writer) {
      std::vector<Event> events;
      std::mt19937_64 random(writer);
      for (int round = 0; round < 400; ++round) {
        Contents path = {random() % 2, random() % 2, random() % 2, random() % 2, random() % 2};
        path.resize(1 + random() % path.size());
        Event event = StoredOf(path);
        if (random() % 2 == 0) event = RemovedOf(path, {random() % path.size(), path.size() - 1});
        if (random() % 50 == 0) event = Cleared{};
        reference.Do(HolderIndex{writer}, event);
        events.push_back(std::move(event));
      }
      threads.emplace_back([&index, &running, writer, events = std::move(events)] {
        for (size_t round = 0; round < events.size(); ++round) {
          EXPECT_TRUE(index->Apply(HolderIndex{writer}, events[round], nullptr).ok());
          if (round % 37 == 0) index->SetMasked(HolderIndex{writer}, round % 2 == 0);
        }
        running.fetch_sub(1);
      });
    }
    while (running.load() != 0) {
      const Scores scores = index.Find({0, 1, 0, 1, 0});
      ASSERT_LE(scores.size(), kWriters);
      for (const auto& [holder, depth] : scores) ASSERT_LE(depth, 5u);
    }
    for (std::thread& thread : threads) thread.join();
    for (uint32_t writer = 0; writer < kWriters; ++writer) {
      EXPECT_EQ(index->DigestOf(HolderIndex{writer}), reference->DigestOf(HolderIndex{writer}));
    }
  }
}

}  // namespace
}  // namespace kvatlas
