// Percentiles of the latency of the last seconds' calls: a histogram that costs its writers one
// addition.
//
// *Truth*: a percentile is right within a twelfth of its value, for times between 1 µs and 17
// minutes; what is longer counts as that.
// *Threads*: `Observe` from any; `Take` from one.
// *Cost*: `Observe` is one relaxed addition. 2 KB, and as much for each take that is looked back
// on.

#ifndef KVATLAS_INDEXER_UI_LATENCY_WINDOW_H_
#define KVATLAS_INDEXER_UI_LATENCY_WINDOW_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <vector>

namespace kvatlas {

class LatencyWindow {
 public:
  // Looks back on so many takes.
  explicit LatencyWindow(size_t takes = 1) : takes_(takes) {}

  void Observe(uint64_t microseconds);

  // Milliseconds at each share (0.5, 0.99), of what was observed since the last `Take`, and between
  // the `takes - 1` before that;
  // `NoValue` without any.
  std::vector<double> Take(std::initializer_list<double> shares);

 private:
  static constexpr size_t kPerOctave = 8;
  static constexpr size_t kBuckets = 30 * kPerOctave;
  using Counts = std::array<uint64_t, kBuckets>;
  static size_t BucketOf(uint64_t microseconds);
  static double MiddleOf(size_t bucket);  // microseconds

  // Written by observers, read by `Take`: counts need no order among them.
  std::array<std::atomic<uint64_t>, kBuckets> counts_ = {};
  // The members below belong to the thread that calls `Take`.
  const size_t takes_;
  Counts taken_ = {};
  std::deque<Counts> windows_;  // the latest last
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_UI_LATENCY_WINDOW_H_
