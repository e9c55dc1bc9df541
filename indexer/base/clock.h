// Time comes from a `Clock`, never from the machine directly, so that tests and simulations own
// time.

#ifndef KVATLAS_INDEXER_BASE_CLOCK_H_
#define KVATLAS_INDEXER_BASE_CLOCK_H_

#include <atomic>
#include <chrono>
#include <cstdint>

namespace kvatlas {

// Nanoseconds since an arbitrary start; never goes back.
using Time = std::chrono::nanoseconds;
using Duration = std::chrono::nanoseconds;

// *Threads*: `Now` may be called from any.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Time Now() const = 0;
  // Wall time in ns since the Unix epoch, which may jump: to judge other processes' epochs, never
  // for intervals.
  virtual uint64_t WallNs() const;

  // The machine's monotonic clock.
  static const Clock& Real();
};

// Time that moves only by `Advance`. Its wall time starts in 2096, so that epochs of real processes
// are in its past.
class ManualClock : public Clock {
 public:
  static constexpr uint64_t kWallStartNs = uint64_t{4'000'000'000} * 1'000'000'000;

  Time Now() const override { return Time(now_ns_.load(std::memory_order_relaxed)); }
  uint64_t WallNs() const override { return kWallStartNs + static_cast<uint64_t>(Now().count()); }
  void Advance(Duration by) { now_ns_.fetch_add(by.count(), std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> now_ns_{0};
};

// Wall time in ns since the Unix epoch: for epochs and log lines, never for intervals.
uint64_t WallTimeNs();

// A number that no other process has, for a stream's instance id.
uint64_t RandomInstanceId();

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_CLOCK_H_
