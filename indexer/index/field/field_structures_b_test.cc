// What do concurrent_radix, positional and host_bitmap get wrong, and what do they and their exact twins get
// right? Each inexactness of the originals is a test by name. Random calls beside the reference:
// field_structures_b_random_test.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/index/field/host_bitmap.h"
#include "indexer/index/field/positional.h"
#include "indexer/index/index.h"

namespace kvatlas {
namespace {

using ::testing::UnorderedElementsAre;

// Contents of consecutive blocks.
using Contents = std::vector<uint64_t>;

constexpr std::string_view kAll[] = {"concurrent_radix",    "positional",  "positional_binary",
                                     "positional_verified", "host_bitmap", "host_bitmap_exact"};
constexpr std::string_view kExactBehindHoles[] = {"concurrent_radix", "positional_verified",
                                                  "host_bitmap_exact"};

std::string Named(const ::testing::TestParamInfo<std::string_view>& info) {
  return std::string(info.param);
}

std::vector<LocalHash> Locals(const Contents& contents) {
  std::vector<LocalHash> locals;
  for (uint64_t content : contents) locals.push_back(LocalHash{content});
  return locals;
}

Contents Count(uint64_t from, size_t blocks) {
  Contents contents(blocks);
  for (size_t i = 0; i < blocks; ++i) contents[i] = from + i;
  return contents;
}

// Blocks [from, to) of the sequence with these contents.
Stored StoredOf(const Contents& contents, size_t from, size_t to, bool with_locals = true) {
  const std::vector<LocalHash> locals = Locals(contents);
  const std::vector<SequenceHash> chain = SequenceHashes(locals);
  Stored stored;
  stored.position = static_cast<Position>(from);
  stored.parent = from == 0 ? kNoParent : chain[from - 1];
  stored.blocks.assign(chain.begin() + from, chain.begin() + to);
  if (with_locals) stored.local_hashes.assign(locals.begin() + from, locals.begin() + to);
  return stored;
}

class Structure {
 public:
  explicit Structure(std::string_view name, const IndexOptions& options = {})
      : index_(*MakeIndex(name, options)) {}
  ~Structure() { EXPECT_TRUE(index_->Check().ok()) << index_->Check(); }

  Index& operator*() const { return *index_; }
  Index* operator->() const { return index_.get(); }

  HolderIndex Add(const Contents& contents = {}) {
    const HolderIndex holder = *index_->AddHolder();
    if (!contents.empty()) Store(holder, contents);
    return holder;
  }
  void Store(HolderIndex holder, const Contents& contents, size_t from = 0, size_t to = SIZE_MAX) {
    const Stored stored = StoredOf(contents, from, std::min(to, contents.size()));
    EXPECT_TRUE(index_->Apply(holder, stored, nullptr).ok());
  }
  void Remove(HolderIndex holder, const Contents& contents, const std::vector<size_t>& positions) {
    const std::vector<SequenceHash> chain = SequenceHashes(Locals(contents));
    Removed removed;
    for (size_t position : positions) removed.blocks.push_back(chain[position]);
    EXPECT_TRUE(index_->Apply(holder, removed, nullptr).ok());
  }
  std::vector<Overlap> Ask(const Contents& contents, TierMask tiers = TierMask::All()) const {
    const std::vector<LocalHash> locals = Locals(contents);
    const std::vector<SequenceHash> chain = SequenceHashes(locals);
    std::vector<Overlap> overlaps;
    index_->FindOverlaps({.blocks = chain, .tiers = tiers, .local_hashes = locals}, &overlaps);
    return overlaps;
  }
  uint32_t Depth(HolderIndex holder, const Contents& contents) const {
    for (const Overlap& overlap : Ask(contents)) {
      if (overlap.holder == holder) return overlap.blocks;
    }
    return 0;
  }
  uint64_t Shape(std::string_view name) const {
    for (const auto& [each, value] : index_->Stats().shape) {
      if (each == name) return value;
    }
    ADD_FAILURE() << "no figure " << name;
    return 0;
  }

 private:
  std::unique_ptr<Index> index_;
};

// ---- What the originals get wrong ----

TEST(PositionalTest, OverCountsAHoleThatItJumpsOver) {
  const Contents prompt = Count(1, 100);
  for (std::string_view name : {"positional", "positional_binary"}) {
    Structure index(name);
    const HolderIndex holder = index.Add(prompt);
    index.Remove(holder, prompt, {5});
    EXPECT_EQ(index.Depth(holder, prompt), 100u) << name;
  }
  Structure verified("positional_verified");
  const HolderIndex holder = verified.Add(prompt);
  verified.Remove(holder, prompt, {5});
  EXPECT_EQ(verified.Depth(holder, prompt), 5u);
}

TEST(PositionalTest, CountsInsteadOfComparingSoThatAnotherHolderStandsIn) {
  const Contents prompt = Count(1, 64);
  for (std::string_view name : {"positional", "positional_binary"}) {
    Structure index(name);
    const HolderIndex head = index.Add(), tail = index.Add();
    index.Store(head, prompt, 0, 11);
    index.Store(tail, prompt, 20);
    EXPECT_THAT(index.Ask(prompt), UnorderedElementsAre(Overlap{head, 64})) << name;
  }
  Structure verified("positional_verified");
  const HolderIndex head = verified.Add(), tail = verified.Add();
  verified.Store(head, prompt, 0, 11);
  verified.Store(tail, prompt, 20);
  EXPECT_THAT(verified.Ask(prompt), UnorderedElementsAre(Overlap{head, 11}));
}

TEST(PositionalTest, ScanAndBisectionDifferWithHoles) {
  const Contents prompt = Count(1, 64);
  Structure linear("positional"), binary("positional_binary");
  for (Structure* index : {&linear, &binary}) {
    const HolderIndex holder = index->Add(prompt);
    index->Remove(holder, prompt, {5, kPositionalJump});
  }
  EXPECT_EQ(linear.Depth(HolderIndex{0}, prompt), 5u);
  EXPECT_EQ(binary.Depth(HolderIndex{0}, prompt), kPositionalJump);
}

TEST(PositionalTest, FindsNothingStoredWithContentWhenAskedWithoutIt) {
  for (std::string_view name : {"positional_verified", "concurrent_radix"}) {
    Structure index(name);
    const Contents prompt = {11, 12, 13};
    index.Add(prompt);
    std::vector<SequenceHash> chain = SequenceHashes(Locals(prompt));
    std::vector<Overlap> overlaps;
    index->FindOverlaps({.blocks = chain}, &overlaps);
    // A first block has the same hash under both names.
    EXPECT_THAT(overlaps, UnorderedElementsAre(Overlap{HolderIndex{0}, 1})) << name;
  }
}

TEST(HostBitmapTest, OverCountsAHoleThatBisectionDoesNotMeet) {
  const Contents prompt = Count(1, 100);
  Structure index("host_bitmap"), exact("host_bitmap_exact");
  for (Structure* each : {&index, &exact}) {
    const HolderIndex holder = each->Add(prompt);
    each->Remove(holder, prompt, {5});
  }
  EXPECT_EQ(index.Depth(HolderIndex{0}, prompt), 100u);
  EXPECT_EQ(exact.Depth(HolderIndex{0}, prompt), 5u);
}

TEST(HostBitmapTest, HasNoRoomForAHolderMoreThan256) {
  for (std::string_view name : {"host_bitmap", "host_bitmap_exact"}) {
    EXPECT_EQ(FindIndexKind(name)->holders_max, 256u);
    Structure index(name);
    for (uint32_t i = 0; i < kHostBitmapHolders; ++i) EXPECT_EQ(Raw(index.Add({1, 2})), i);
    EXPECT_EQ(index->AddHolder().status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(index.Ask({1, 2}).size(), kHostBitmapHolders);
    index->RemoveHolder(HolderIndex{77});
    EXPECT_EQ(Raw(*index->AddHolder()), 77u);
    EXPECT_EQ(index.Ask({1, 2}).size(), kHostBitmapHolders - 1);
  }
}

TEST(ConcurrentRadixTest, DropsAStoreWhoseParentIsNotHeld) {
  const Contents prompt = Count(1, 4);
  Structure index("concurrent_radix");
  const HolderIndex holder = index.Add();
  index.Store(holder, prompt, 0, 3);
  index.Remove(holder, prompt, {2});
  index.Store(holder, prompt, 3);     // Its parent is the hole.
  index.Store(holder, prompt, 2, 3);  // Now 4 blocks are held; the last was dropped.
  EXPECT_EQ(index.Depth(holder, prompt), 3u);
  EXPECT_EQ(index.Shape("blocks_without_parent"), 1u);
}

TEST(ConcurrentRadixTest, KeepsTheFirstOfTwoNamesForOneContent) {
  Structure index("concurrent_radix");
  const HolderIndex first = index.Add(), second = index.Add();
  const auto store = [&](HolderIndex holder, std::vector<uint64_t> names) {
    Stored stored{.blocks = {}, .local_hashes = Locals({1, 2, 3})};
    for (uint64_t name : names) stored.blocks.push_back(SequenceHash{name});
    EXPECT_TRUE(index->Apply(holder, stored, nullptr).ok());
  };
  store(first, {1, 102, 103});
  store(second, {1, 202, 203});
  const std::vector<LocalHash> locals = Locals({1, 2, 3});
  const std::vector<SequenceHash> names = {SequenceHash{1}, SequenceHash{102}, SequenceHash{103}};
  std::vector<Overlap> overlaps;
  index->FindOverlaps({.blocks = names, .local_hashes = locals}, &overlaps);
  EXPECT_THAT(overlaps, UnorderedElementsAre(Overlap{first, 3}, Overlap{second, 1}));
  EXPECT_EQ(index.Shape("blocks_renamed"), 2u);
}

// ---- What they get right ----

class AllTest : public ::testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(Structures, AllTest, ::testing::ValuesIn(kAll), Named);

TEST_P(AllTest, JumpsOfAnyLengthAndDivergencesAnywhereAreExactWithoutHoles) {
  for (size_t blocks : {1, 2, 31, 32, 33, 63, 64, 65, 96, 97, 128}) {
    const Contents prompt = Count(1, blocks);
    Structure index(GetParam());
    const HolderIndex holder = index.Add(prompt);
    EXPECT_EQ(index.Depth(holder, prompt), blocks);
    for (size_t at = 0; at < blocks; ++at) {
      Contents other = prompt;
      other[at] = 9999;
      ASSERT_EQ(index.Depth(holder, other), at) << "of " << blocks;
    }
    EXPECT_EQ(index.Depth(holder, Count(1, blocks + 40)), blocks);
  }
}

TEST_P(AllTest, StaggeredHoldersAreEachExact) {
  Structure index(GetParam());
  std::vector<Overlap> expected;
  for (size_t blocks : {100, 10, 64, 20, 35, 100, 1, 33}) {
    expected.push_back({index.Add(Count(1, blocks)), static_cast<uint32_t>(blocks)});
  }
  EXPECT_THAT(index.Ask(Count(1, 100)), ::testing::UnorderedElementsAreArray(expected));
}

TEST_P(AllTest, SequencesThatPartAndMeetAgainAreNotMixedUp) {
  Structure index(GetParam());
  const HolderIndex a = index.Add({1, 2, 3, 4}), b = index.Add({1, 9, 3, 4});
  EXPECT_THAT(index.Ask({1, 2, 3, 4}), UnorderedElementsAre(Overlap{a, 4}, Overlap{b, 1}));
  EXPECT_THAT(index.Ask({1, 9, 3, 4}), UnorderedElementsAre(Overlap{a, 1}, Overlap{b, 4}));
  // Also when one of two sequences at a place goes.
  index.Remove(a, {1, 2, 3, 4}, {3, 2, 1});
  EXPECT_THAT(index.Ask({1, 9, 3, 4}), UnorderedElementsAre(Overlap{a, 1}, Overlap{b, 4}));
  EXPECT_THAT(index.Ask({1, 2, 3, 4}), UnorderedElementsAre(Overlap{a, 1}, Overlap{b, 1}));
}

TEST_P(AllTest, InterleavedTiersAddUpAndAreToldApart) {
  Structure index(GetParam());
  const Contents prompt = {1, 2, 3, 4};
  const HolderIndex holder = index.Add();
  for (size_t i = 0; i < 4; ++i) {
    Stored stored = StoredOf(prompt, i, i + 1);
    stored.tier = i == 2 ? Tier::kHost : Tier::kDevice;
    ASSERT_TRUE(index->Apply(holder, stored, nullptr).ok());
  }
  EXPECT_EQ(index.Depth(holder, prompt), 4u);
  EXPECT_THAT(index.Ask(prompt, Tier::kHost), UnorderedElementsAre());
  EXPECT_EQ(index->HoldingsOf(holder).size(), 4u);
  // Of one tier these have holes, which some are allowed to miss.
  const IndexKind& kind = *FindIndexKind(GetParam());
  if (kind.exact || GetParam() == "concurrent_radix") {
    EXPECT_THAT(index.Ask(prompt, Tier::kDevice), UnorderedElementsAre(Overlap{holder, 2}));
  }
  // Nothing of the other tiers goes with one.
  ASSERT_TRUE(index->Apply(holder, Cleared{.tiers = Tier::kDevice}, nullptr).ok());
  EXPECT_EQ(index->HoldingsOf(holder).size(), 1u);
  EXPECT_EQ(index->DigestOf(holder).tiers[0], Digest::OfTier());
  EXPECT_EQ(index->DigestOf(holder).tiers[1].blocks, 1u);
}

TEST_P(AllTest, ADeadHolderIsMaskedAtOnceAndSweptInBoundedSteps) {
  Structure index(GetParam());
  const Contents prompt = Count(1, 1000);
  const HolderIndex dead = index.Add(prompt), other = index.Add();
  index.Store(other, prompt, 0, 300);
  index->SetMasked(dead, true);
  EXPECT_THAT(index.Ask(prompt), UnorderedElementsAre(Overlap{other, 300}));
  EXPECT_EQ(index->Stats().blocks, 1000u);
  size_t steps = 1;
  for (size_t left = 1000; index->Sweep(dead, 64, nullptr); ++steps) {
    const size_t now = index->HoldingsOf(dead).size();
    ASSERT_EQ(now, left - 64);
    left = now;
  }
  EXPECT_EQ(steps, 16u);
  EXPECT_EQ(index->Stats().blocks, 300u);
  index->RemoveHolder(dead);
  EXPECT_EQ(Raw(*index->AddHolder()), Raw(dead));
  EXPECT_THAT(index.Ask(prompt), UnorderedElementsAre(Overlap{other, 300}));
}

TEST_P(AllTest, MemoryGoesBackWhenBlocksDo) {
  Structure index(GetParam());
  const HolderIndex holder = index.Add();
  const uint64_t empty = index->Stats().bytes;
  for (uint64_t i = 0; i < 200; ++i) index.Store(holder, Count(i * 1000, 100));
  const uint64_t full = index->Stats().bytes;
  EXPECT_GT(full - empty, 20'000u * 40);
  ASSERT_TRUE(index->Apply(holder, Cleared{}, nullptr).ok());
  EXPECT_LT(index->Stats().bytes - empty, (full - empty) / 20);
  EXPECT_EQ(index->Stats().blocks, 0u);
}

TEST_P(AllTest, ASequenceOf100000BlocksIsStoredAskedAndTakenApart) {
  Structure index(GetParam());
  const Contents prompt = Count(1, 100'000);
  const HolderIndex holder = index.Add(prompt), other = index.Add(prompt);
  EXPECT_EQ(index.Depth(holder, prompt), prompt.size());
  // From the first block on: what is left hangs below nothing.
  std::vector<size_t> head(50'000);
  for (size_t i = 0; i < head.size(); ++i) head[i] = i;
  index.Remove(other, prompt, head);
  EXPECT_EQ(index.Depth(other, prompt), 0u);
  index->RemoveHolder(holder);
  EXPECT_EQ(index->Stats().blocks, 50'000u);
  index->RemoveHolder(other);
  EXPECT_EQ(index->Stats().blocks, 0u);
  // And once more, to be taken apart by the destructor.
  index.Add(prompt);
}

TEST_P(AllTest, BlocksBeyondTheBoundAreRefusedAndKnownOnesAreNot) {
  Structure index(GetParam(), {.blocks_max = 5});
  const HolderIndex a = index.Add(Count(1, 3)), b = index.Add();
  EXPECT_EQ(index->Apply(b, StoredOf(Count(1, 10), 0, 10), nullptr).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(index->Stats().refused_blocks, 5u);
  EXPECT_EQ(index->Stats().blocks, 5u);
  EXPECT_THAT(index.Ask(Count(1, 10)), UnorderedElementsAre(Overlap{a, 3}, Overlap{b, 5}));
  index.Store(a, Count(1, 5));
  index.Remove(b, Count(1, 5), {4});
  index.Remove(a, Count(1, 5), {4});
  EXPECT_TRUE(index->Apply(b, StoredOf({77}, 0, 1), nullptr).ok());
}

class ExactBehindHolesTest : public ::testing::TestWithParam<std::string_view> {};
INSTANTIATE_TEST_SUITE_P(Structures, ExactBehindHolesTest, ::testing::ValuesIn(kExactBehindHoles),
                         Named);

TEST_P(ExactBehindHolesTest, WhatLiesBehindAHoleCountsAgainWhenItIsFilled) {
  const Contents prompt = Count(1, 5);
  Structure index(GetParam());
  const HolderIndex holder = index.Add(prompt);
  index.Remove(holder, prompt, {2});
  EXPECT_EQ(index.Depth(holder, prompt), 2u);
  index.Store(holder, prompt, 2, 3);
  EXPECT_EQ(index.Depth(holder, prompt), 5u);
}

TEST_P(ExactBehindHolesTest, SetsOfEqualSizeAreStillIntersected) {
  Structure index(GetParam());
  const HolderIndex a = index.Add({1, 2, 3, 4}), b = index.Add({1, 2});
  index.Remove(a, {1, 2}, {1});
  EXPECT_THAT(index.Ask({1, 2, 3, 4}), UnorderedElementsAre(Overlap{a, 1}, Overlap{b, 2}));
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
  // Returns when everything scheduled before has run.
  void Drain() {
    std::atomic<size_t> left{queues_.size()};
    for (uint32_t i = 0; i < queues_.size(); ++i) {
      Schedule(i, [&left] {
        if (left.fetch_sub(1) == 1) left.notify_one();
      });
    }
    for (size_t now = left; now != 0; now = left) left.wait(now);
  }

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

;

TEST(ConcurrentRadixTest, OverlapsAreOfEventsWhoseTasksHaveRun) {
  ManualExecutor executor;
  Structure index("concurrent_radix", {.executor = &executor});
  const HolderIndex holder = index.Add({1, 2, 3});
  index.Store(holder, {1, 2, 3, 4});
  EXPECT_EQ(index.Depth(holder, {1, 2, 3, 4}), 0u);
  EXPECT_TRUE(executor.RunOne());
  EXPECT_EQ(index.Depth(holder, {1, 2, 3, 4}), 3u);
  EXPECT_TRUE(executor.RunOne());
  EXPECT_EQ(index.Depth(holder, {1, 2, 3, 4}), 4u);
  EXPECT_FALSE(executor.RunOne());
}

TEST(ConcurrentRadixTest, ContentsAreOfAllEventsAppliedBefore) {
  PoolExecutor executor(2);
  Structure index("concurrent_radix", {.executor = &executor});
  const HolderIndex holder = index.Add();
  for (size_t i = 0; i < 50; ++i) {
    index.Store(holder, Count(1, 50), i, i + 1);
    ASSERT_EQ(index->DigestOf(holder).tiers[0].blocks, i + 1);
    ASSERT_EQ(index->HoldingsOf(holder).size(), i + 1);
  }
  index.Remove(holder, Count(1, 50), {49});
  EXPECT_EQ(index->Stats().blocks, 49u);
  index.Store(holder, {77});
  index->RemoveHolder(holder);
  EXPECT_EQ(index->Stats().blocks, 0u);
  EXPECT_EQ(Raw(*index->AddHolder()), Raw(holder));
}

TEST(ConcurrentRadixTest, ChangesAreThereWhenApplyReturns) {
  ChangeLog changes;
  PoolExecutor executor(2);
  Structure index("concurrent_radix", {.blocks_max = 4, .executor = &executor});
  const HolderIndex holder = index.Add();
  EXPECT_TRUE(index->Apply(holder, StoredOf({1, 2, 3}, 0, 3), &changes).ok());
  EXPECT_EQ(changes.blocks(), 3u);
  EXPECT_EQ(index->Apply(holder, StoredOf({1, 2, 3, 4, 5}, 0, 5), &changes).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(changes.blocks(), 4u);
}

TEST(ConcurrentRadixTest, TheDestructorWaitsForWhatWasScheduled) {
  PoolExecutor executor(2);
  std::unique_ptr<Index> index = *MakeIndex("concurrent_radix", {.executor = &executor});
  for (uint64_t i = 0; i < 50; ++i) {
    const HolderIndex holder = *index->AddHolder();
    EXPECT_TRUE(index->Apply(holder, StoredOf(Count(i, 20), 0, 20), nullptr).ok());
  }
  index.reset();
  EXPECT_EQ(executor.begun(), 50u);
}

// ---- Threads ----

struct ThreadedCase {
  std::string_view name;
  size_t pool_threads = 0;
};

// gtest's own printer would print padding.
void PrintTo(const ThreadedCase& threaded, std::ostream* out) { *out << threaded.name; }

class ThreadedTest : public ::testing::TestWithParam<ThreadedCase> {
 protected:
  ThreadedTest()
      : pool_(GetParam().pool_threads == 0
                  ? nullptr
                  : std::make_unique<PoolExecutor>(GetParam().pool_threads)),
        index_(*MakeIndex(GetParam().name, {.executor = pool_.get()})) {}

  // Every writer has a holder of its own; two readers ask until all of them are done, and hand what they get
  // to `check`.
  void Run(const std::vector<std::function<void(int round)>>& writers, const Contents& prompt,
           const std::function<void(const std::vector<Overlap>&)>& check) {
    const std::vector<LocalHash> locals = Locals(prompt);
    const std::vector<SequenceHash> chain = SequenceHashes(locals);
    std::atomic<size_t> running{writers.size()};
    std::vector<std::thread> threads;
    for (const auto& writer : writers) {
      threads.emplace_back([&] {
        for (int round = 0; round < kRounds; ++round) writer(round);
        running.fetch_sub(1);
      });
    }
    for (int reader = 0; reader < 2; ++reader) {
      threads.emplace_back([&] {
        std::vector<Overlap> overlaps;
        do {
          overlaps.clear();
          index_->FindOverlaps({.blocks = chain, .local_hashes = locals}, &overlaps);
          check(overlaps);
        } while (running.load() != 0);
      });
    }
    for (std::thread& thread : threads) thread.join();
    Drain();
    EXPECT_TRUE(index_->Check().ok()) << index_->Check();
  }

  void Drain() {
    if (pool_ != nullptr) pool_->Drain();
  }
  void Apply(HolderIndex holder, const Event& event) {
    EXPECT_TRUE(index_->Apply(holder, event, nullptr).ok());
  }
  static Removed RemovedOf(const Contents& contents, const std::vector<size_t>& positions) {
    const std::vector<SequenceHash> chain = SequenceHashes(Locals(contents));
    Removed removed;
    for (size_t position : positions) removed.blocks.push_back(chain[position]);
    return removed;
  }

  static constexpr int kRounds = 400;

  const std::unique_ptr<PoolExecutor> pool_;
  const std::unique_ptr<Index> index_;
};

INSTANTIATE_TEST_SUITE_P(
    Structures, ThreadedTest,
    ::testing::Values(ThreadedCase{"concurrent_radix", 0}, ThreadedCase{"concurrent_radix", 2},
                      ThreadedCase{"host_bitmap_exact", 0}, ThreadedCase{"positional_verified", 0}),
    [](const ::testing::TestParamInfo<ThreadedCase>& info) {
      return std::string(info.param.name) + (info.param.pool_threads == 0 ? "" : "_pool");
    });

// The window's blocks are never together with what it left behind, so nobody is deeper than it is wide.
TEST_P(ThreadedTest, ASlidingWindowIsNeverDeeperThanItIsWide) {
  constexpr size_t kWide = 3;
  const Contents prompt = Count(1, 24);
  const HolderIndex still = *index_->AddHolder(), a = *index_->AddHolder(),
                    b = *index_->AddHolder();
  Apply(still, StoredOf(prompt, 0, 20));
  Drain();
  const auto slide = [&](HolderIndex holder) {
    Apply(holder, StoredOf(prompt, 0, kWide));
    for (size_t i = kWide; i < prompt.size(); ++i) {
      Apply(holder, RemovedOf(prompt, {i - kWide}));
      Apply(holder, StoredOf(prompt, i, i + 1));
    }
    Apply(holder, Cleared{});
  };
  Run({[&](int) { slide(a); }, [&](int) { slide(b); }}, prompt,
      [&](const std::vector<Overlap>& overlaps) {
        bool found = false;
        for (const Overlap& each : overlaps) {
          if (each.holder == still) {
            found = true;
            ASSERT_EQ(each.blocks, 20u);
          } else {
            ASSERT_LE(each.blocks, kWide);
          }
        }
        ASSERT_TRUE(found);
      });
}

// Branches grow below one another's blocks and are taken apart, so that nodes and places come and go while
// others are on their way to them.
TEST_P(ThreadedTest, WhatIsLeftAfterAllIsWhatTheReferenceHas) {
  const std::unique_ptr<Index> reference = *MakeIndex("reference", {});
  constexpr uint32_t kWriters = 3;
  std::vector<std::vector<Event>> events(kWriters);
  for (uint32_t writer = 0; writer < kWriters; ++writer) {
    ASSERT_EQ(*index_->AddHolder(), *reference->AddHolder());
    std::mt19937_64 random(writer);
    for (int round = 0; round < kRounds; ++round) {
      Contents path = {random() % 2, random() % 2, random() % 2, random() % 2, random() % 2};
      path.resize(1 + random() % path.size());
      Event event = StoredOf(path, 0, path.size());
      if (random() % 2 == 0) event = RemovedOf(path, {random() % path.size(), path.size() - 1});
      if (random() % 50 == 0) event = Cleared{};
      EXPECT_TRUE(reference->Apply(HolderIndex{writer}, event, nullptr).ok());
      events[writer].push_back(std::move(event));
    }
  }
  std::vector<std::function<void(int)>> writers;
  for (uint32_t writer = 0; writer < kWriters; ++writer) {
    writers.push_back([&, writer](int round) {
      Apply(HolderIndex{writer}, events[writer][round]);
      if (round % 37 == 0) index_->SetMasked(HolderIndex{writer}, round % 2 == 0);
    });
  }
  Run(writers, {0, 1, 0, 1, 0}, [&](const std::vector<Overlap>& overlaps) {
    ASSERT_LE(overlaps.size(), kWriters);
    for (const Overlap& each : overlaps) ASSERT_LE(each.blocks, 5u);
  });
  for (uint32_t writer = 0; writer < kWriters; ++writer) {
    EXPECT_EQ(index_->DigestOf(HolderIndex{writer}), reference->DigestOf(HolderIndex{writer}));
  }
}

// Holders come and go while others write and ask; a number that changes hands inherits nothing.
TEST_P(ThreadedTest, HoldersComeAndGoBesideWritersAndReaders) {
  const Contents prompt = Count(1, 40);
  const HolderIndex still = *index_->AddHolder();
  Apply(still, StoredOf(prompt, 0, 40));
  Drain();
  const auto come_and_go = [&](int) {
    const HolderIndex holder = *index_->AddHolder();
    Apply(holder, StoredOf(prompt, 0, 10));
    index_->SetMasked(holder, true);
    index_->Sweep(holder, 4, nullptr);
    index_->RemoveHolder(holder);
  };
  Run({come_and_go, come_and_go}, prompt, [&](const std::vector<Overlap>& overlaps) {
    EXPECT_EQ(std::count(overlaps.begin(), overlaps.end(), Overlap{still, 40}), 1);
    for (const Overlap& each : overlaps) {
      if (each.holder == still) continue;
      ASSERT_LE(each.blocks, 10u);
    }
  });
  EXPECT_EQ(index_->Stats().holdings, 40u);
  EXPECT_EQ(index_->Stats().blocks, 40u);
}

// The bisecting one is right beside writers too, as long as nobody has holes: prefixes grow and shrink.
TEST(HostBitmapTest, PrefixesThatGrowAndShrinkAreNeverDeeperThanTheyWere) {
  const std::unique_ptr<Index> index = *MakeIndex("host_bitmap", {});
  const std::vector<SequenceHash> chain = SequenceHashes(Locals(Count(1, 64)));
  const HolderIndex still = *index->AddHolder();
  EXPECT_TRUE(index->Apply(still, Stored{.blocks = chain}, nullptr).ok());
  std::vector<HolderIndex> holders = {*index->AddHolder(), *index->AddHolder()};
  std::atomic<size_t> running{holders.size()};
  std::vector<std::thread> threads;
  for (HolderIndex holder : holders) {
    threads.emplace_back([&, holder] {
      for (int round = 0; round < 300; ++round) {
        EXPECT_TRUE(
            index->Apply(holder, Stored{.blocks = {chain.begin(), chain.begin() + 40}}, nullptr)
                .ok());
        for (size_t i = 40; i-- > 0;) {
          EXPECT_TRUE(index->Apply(holder, Removed{.blocks = {chain[i]}}, nullptr).ok());
        }
      }
      running.fetch_sub(1);
    });
  }
  threads.emplace_back([&] {
    while (running.load() != 0) {
      std::vector<Overlap> overlaps;
      index->FindOverlaps({.blocks = chain}, &overlaps);
      ASSERT_EQ(std::count(overlaps.begin(), overlaps.end(), Overlap{still, 64}), 1);
      for (const Overlap& each : overlaps) {
        if (each.holder == still) continue;
        ASSERT_LE(each.blocks, 40u);
      }
    }
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(index->Check().ok()) << index->Check();
}

}  // namespace
}  // namespace kvatlas
