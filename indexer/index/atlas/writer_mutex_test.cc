// A thread that waits gets its turn while another one works in steps.

#include "indexer/index/atlas/writer_mutex.h"
#include "indexer/base/await.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace kvatlas::atlas {
namespace {

TEST(WriterMutexTest, WhoWaitsGoesFirstBetweenTwoSteps) {
  WriterMutex mutex;
  std::atomic<bool> waits{false};
  std::atomic<bool> had_its_turn{false};
  mutex.Lock();
  std::thread other([&] {
    waits.store(true);
    WriterLock lock(&mutex);
    had_its_turn.store(true);
  });
  EXPECT_TRUE(Await([&] { return waits.load(); }, std::chrono::seconds(60)));
  // It waits, or is about to: it goes in between two of very many steps, each taken as soon as it
  // may be.
  uint64_t steps = 0;
  for (; !had_its_turn.load() && steps < 10'000'000; ++steps) {
    mutex.Unlock();
    mutex.Yield();
    mutex.Lock();
  }
  EXPECT_LT(steps, 10'000'000u);
  mutex.Unlock();
  other.join();
}

TEST(WriterMutexTest, ExcludesAndCountsNothingTwice) {
  WriterMutex mutex;
  uint64_t count = 0;
  const auto add = [&] {
    for (int i = 0; i < 20'000; ++i) {
      WriterLock lock(&mutex);
      ++count;
    }
  };
  std::thread threads[3];
  for (std::thread& each : threads) each = std::thread(add);
  for (std::thread& each : threads) each.join();
  EXPECT_EQ(count, 60'000u);
}

}  // namespace
}  // namespace kvatlas::atlas
