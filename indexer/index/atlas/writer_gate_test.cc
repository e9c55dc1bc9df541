// Is whoever is alone alone, and is nothing lost between those who lock and those who need not?

#include "indexer/index/atlas/writer_gate.h"

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "indexer/index/atlas/pause.h"
#include "indexer/index/atlas/spin_lock.h"

namespace kvatlas::atlas {
namespace {

// A writer that counts as atlas writes: under a lock, or alone.
class Writers {
 public:
  void Stay(uint32_t who, bool brief) {
    gate_.Announce(who);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    gate_.Enter(who, brief);
    inside_.fetch_add(1);
    const bool alone = gate_.alone();
    if (alone) {
      was_alone_.fetch_add(1, std::memory_order_relaxed);
      if (!brief) wrong_.fetch_add(1);
      if (inside_.load() != 1) wrong_.fetch_add(1);
      ++count_;
    } else {
      SpinLockHolder lock(&lock_);
      ++count_;
    }
    Pause();
    if (alone && inside_.load() != 1) wrong_.fetch_add(1);
    if (alone != gate_.alone()) wrong_.fetch_add(1);
    inside_.fetch_sub(1);
    gate_.Leave(who, brief);
  }

  uint64_t count() const { return count_; }
  int wrong() const { return wrong_.load(); }
  uint64_t was_alone() const { return was_alone_.load(); }

 private:
  WriterGate gate_;
  SpinLock lock_;
  uint64_t count_ = 0;  // under `lock_`, or alone
  std::atomic<int> inside_{0};
  std::atomic<int> wrong_{0};
  std::atomic<uint64_t> was_alone_{0};
};

TEST(WriterGateTest, WhoComesAgainAndAgainIsAlone) {
  Writers writers;
  for (int i = 0; i < 1000; ++i) writers.Stay(1, /*brief=*/true);
  EXPECT_GT(writers.was_alone(), 800u);
  EXPECT_EQ(writers.wrong(), 0);
}

TEST(WriterGateTest, ALongStayIsNeverAloneAndCostsItOnlyForAMoment) {
  Writers writers;
  for (int i = 0; i < 1000; ++i) writers.Stay(1, /*brief=*/i % 10 != 9);
  EXPECT_GT(writers.was_alone(), 500u);
  EXPECT_EQ(writers.wrong(), 0);
}

TEST(WriterGateTest, AnotherOneEndsIt) {
  Writers writers;
  for (int i = 0; i < 1000; ++i) writers.Stay(1, /*brief=*/true);
  const uint64_t before = writers.was_alone();
  writers.Stay(2, /*brief=*/true);
  writers.Stay(1, /*brief=*/true);
  EXPECT_EQ(writers.was_alone(), before);
  for (int i = 0; i < 1000; ++i) writers.Stay(1, /*brief=*/true);
  EXPECT_GT(writers.was_alone(), before + 800);
}

// `first`: of their numbers; the last ones share a count.
void RunThreads(uint32_t first, int threads, int stays) {
  Writers writers;
  std::vector<std::thread> running;
  for (int i = 0; i < threads; ++i) {
    running.emplace_back([&, i] {
      const uint32_t who = first + static_cast<uint32_t>(i);
      uint64_t random = 0x9E3779B97F4A7C15u * (who + 1);
      for (int stay = 0; stay < stays; ++stay) {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        writers.Stay(who, random % 16 != 0);
        // So that another one comes again and again.
        if (random % 512 == 1) std::this_thread::yield();
      }
    });
  }
  for (std::thread& thread : running) thread.join();
  EXPECT_EQ(writers.wrong(), 0);
  EXPECT_EQ(writers.count(), static_cast<uint64_t>(threads) * static_cast<uint64_t>(stays));
}

TEST(WriterGateTest, NothingIsLostBetweenTwo) { RunThreads(1, 2, 50000); }
TEST(WriterGateTest, NothingIsLostBetweenMany) { RunThreads(1, 8, 10000); }
TEST(WriterGateTest, NothingIsLostBetweenThoseWhoShareACount) { RunThreads(1000, 4, 20000); }
TEST(WriterGateTest, NothingIsLostBetweenThoseWhoShareACountAndThoseWhoDoNot) {
  RunThreads(22, 4, 20000);
}

}  // namespace
}  // namespace kvatlas::atlas
