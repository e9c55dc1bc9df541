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
#include "indexer/index/field/actor.h"
#include "indexer/index/field/field_structures_test_util.h"
#include "indexer/index/index.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
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

TEST(ActorTest, AQuestionComesAfterTheEventsBeforeIt) {
  OneThread thread;
  Tested index("actor", {.executor = &thread});
  thread.Shut();
  Contents prompt;
  for (uint64_t i = 0; i < 200; ++i) {
    prompt.push_back(i + 1);
    index.Store(0, prompt, i);
  }
  thread.Open();
  EXPECT_THAT(index.Find(prompt), ElementsAre(Pair(0, 200)));
  EXPECT_EQ(ShapeOf(*index, "queued_events_max"), 200u);
}

TEST(ActorTest, WhatTheStructureRefusesLaterIsCounted) {
  OneThread thread;
  Tested index("actor", {.executor = &thread});
  EXPECT_TRUE(index.TryStore(0, {1, 2, 3}, 2).ok());
  EXPECT_TRUE(index.TryStore(77, {1}).ok());
  EXPECT_EQ(ShapeOf(*index, "failed_events"), 2u);
  EXPECT_EQ(index->Stats().refused_blocks, 1u);
}

TEST(ActorTest, WhereChangesAreAskedForTheAnswerIsWaitedFor) {
  OneThread thread;
  Tested index("actor", {.executor = &thread});
  ChangeLog changes;
  index.Store(0, {1});
  EXPECT_TRUE(index->Apply(HolderIndex{0}, StoredFrom({1, 2}, 1), &changes).ok());
  EXPECT_EQ(changes.blocks(), 1u);
  EXPECT_EQ(index->Apply(HolderIndex{77}, Cleared{}, &changes).code(), absl::StatusCode::kNotFound);
}

TEST(ActorTest, WritersWaitForRoomAndLoseNothing) {
  OneThread thread;
  Tested index("actor", {.executor = &thread});
  const size_t events = 2 * kActorEventsMax;
  thread.Shut();
  std::thread writer([&] {
    for (uint64_t i = 0; i < events; ++i) index.Store(1, {i + 1});
  });
  thread.Open();
  writer.join();
  EXPECT_EQ(index->Stats().holdings, events);
  EXPECT_LE(ShapeOf(*index, "queued_events_max"), kActorEventsMax);
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
        EXPECT_TRUE(index->Apply(holder, StoredFrom(prompt, block), nullptr).ok());
        EXPECT_EQ(Find(*index, prompt)[Raw(holder)], block + 1);
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
  ChangeLog changes;
  {
    Tested index("actor", {.executor = &thread});
    for (uint64_t i = 0; i < 50; ++i) index.Store(0, {i + 1});
    index->Apply(HolderIndex{0}, Cleared{}, &changes).IgnoreError();
    for (uint64_t i = 0; i < 50; ++i) index.Store(0, {i + 1});
  }
  EXPECT_EQ(changes.blocks(), 50u);
}

}  // namespace
}  // namespace kvatlas
