// Waits in a test for a condition that other threads or processes bring about: looks again every
// few milliseconds, and gives its processor away meanwhile.
//
// *Truth*: false when the condition did not come true in time; a last look is taken after the
// deadline.
// *Threads*: the caller's; the condition takes the locks that it needs.
//
// Example:
//   ASSERT_TRUE(Await([&] { return leaf.Answers(); }, std::chrono::seconds(30))) << "no answer: "
//   << leaf.log();

#ifndef KVATLAS_INDEXER_BASE_AWAIT_H_
#define KVATLAS_INDEXER_BASE_AWAIT_H_

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "indexer/base/clock.h"

namespace kvatlas {

template <typename Condition>
bool Await(Condition condition, Duration deadline) {
  constexpr Duration kLookEvery = std::chrono::milliseconds(5);
  std::mutex mutex;
  std::condition_variable never;
  const Time until = Clock::Real().Now() + deadline;
  while (!condition()) {
    if (Clock::Real().Now() >= until) return condition();
    std::unique_lock<std::mutex> lock(mutex);
    never.wait_for(lock, kLookEvery);
  }
  return true;
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_AWAIT_H_
