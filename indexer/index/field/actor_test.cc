// The actor: questions behind events, refusals that come later, and a queue that is full.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <tuple>
#include <utility>

#include "indexer/base/mutex.h"
#include "indexer/index/field/field.h"
#include "indexer/index/index_test_util.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// ---- actor ----

// One thread; a gate holds it up.
class OneThread : public Executor {
 public:
  OneThread() : thread_([this] { Run(); }) {}
  ~OneThread() override {
    Open();
    Schedule(0, nullptr);
    thread_.join();
  }

  void Schedule(uint32_t lane, std::function<void()> task) override {
    EXPECT_EQ(lane, 0u);
    MutexLock lock(&mutex_);
    tasks_.push_back(std::move(task));
    changed_.SignalAll();
  }
  void Shut() {
    MutexLock lock(&mutex_);
    open_ = false;
  }
  void Open() {
    MutexLock lock(&mutex_);
    open_ = true;
    changed_.SignalAll();
  }

 private:
  void Run() {
    while (std::function<void()> task = Next()) task();
  }
  std::function<void()> Next() {
    MutexLock lock(&mutex_);
    while (!open_ || tasks_.empty()) changed_.Wait(&mutex_);
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }

  Mutex mutex_;
  CondVar changed_;
  bool open_ ABSL_GUARDED_BY(mutex_) = true;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// Where changes are not asked for, an event is only queued.
void Queue(Tested* index, uint32_t holder, const Contents& contents, size_t from = 0) {
  EXPECT_TRUE((*index)->Apply(HolderIndex{holder}, StoredOf(contents, from), nullptr).ok());
}

TEST(ActorTest, AQuestionComesAfterTheEventsBeforeIt) {
  OneThread thread;
  Tested index("actor", {.executor = &thread}, 2);
  thread.Shut();
  Contents prompt;
  for (uint64_t i = 0; i < 200; ++i) {
    prompt.push_back(i + 1);
    Queue(&index, 0, prompt, i);
  }
  thread.Open();
  EXPECT_EQ(index.Find(prompt), (Scores{{0, 200}}));
  EXPECT_EQ(index.Shape("queued_events_max"), 200u);
}

TEST(ActorTest, WhatTheStructureRefusesLaterIsCounted) {
  OneThread thread;
  Tested index("actor", {.executor = &thread}, 2);
  Queue(&index, 0, {1, 2, 3}, 2);
  Queue(&index, 77, {1});
  EXPECT_EQ(index.Shape("failed_events"), 2u);
  EXPECT_EQ(index->Stats().refused_blocks, 1u);
}

TEST(ActorTest, WhereChangesAreAskedForTheAnswerIsWaitedFor) {
  OneThread thread;
  Tested index("actor", {.executor = &thread}, 2);
  Queue(&index, 0, {1});
  EXPECT_TRUE(index.Apply(HolderIndex{0}, StoredOf({1, 2}, 1)).ok());
  EXPECT_EQ(index.changes().size(), 1u);
  EXPECT_EQ(index.Apply(HolderIndex{77}, Cleared{}).code(), absl::StatusCode::kNotFound);
}

TEST(ActorTest, WritersWaitForRoomAndLoseNothing) {
  OneThread thread;
  Tested index("actor", {.executor = &thread}, 2);
  const size_t events = 2 * kActorEventsMax;
  thread.Shut();
  std::thread writer([&] {
    for (uint64_t i = 0; i < events; ++i) Queue(&index, 1, {i + 1});
  });
  thread.Open();
  writer.join();
  EXPECT_EQ(index->Stats().holdings, events);
  EXPECT_LE(index.Shape("queued_events_max"), kActorEventsMax);
}

TEST(ActorTest, ManyThreadsTalkToOneThatSharesNothing) {
  OneThread thread;
  // Each call runs on the lane, so the structure inside is never in two calls at once.
  std::unique_ptr<Index> index =
      MakeActorIndex("actor_exact", *MakeIndex("nested_map_exact", {}), &thread);
  constexpr uint32_t kThreads = 4;
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i) {
    const HolderIndex holder = *index->AddHolder();
    threads.emplace_back([&index, holder] {
      Contents prompt;
      for (uint64_t block = 0; block < 100; ++block) {
        prompt.push_back(block);
        EXPECT_TRUE(index->Apply(holder, StoredOf(prompt, block), nullptr).ok());
        const std::vector<SequenceHash> chain = Chain(prompt);
        std::vector<Overlap> overlaps;
        index->FindOverlaps({.blocks = chain}, &overlaps);
        EXPECT_EQ(ToScores(overlaps)[Raw(holder)], block + 1);
      }
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(index->Stats().holdings, 100u * kThreads);
  EXPECT_EQ(index->Stats().blocks, 100u);
  EXPECT_EQ(index->Name(), "actor_exact");
}

TEST(ActorTest, EventsInTheQueueAreAppliedBeforeItEnds) {
  OneThread thread;
  ChangeLog told;
  {
    Tested index("actor", {.executor = &thread}, 2);
    for (uint64_t i = 0; i < 50; ++i) Queue(&index, 0, {i + 1});
    index->Apply(HolderIndex{0}, Cleared{}, &told).IgnoreError();
    for (uint64_t i = 0; i < 50; ++i) Queue(&index, 0, {i + 1});
  }
  EXPECT_EQ(told.blocks(), 50u);
}

}  // namespace
}  // namespace kvatlas
