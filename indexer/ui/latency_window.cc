#include "indexer/ui/latency_window.h"

#include <algorithm>
#include <bit>

#include "indexer/ui/series.h"

namespace kvatlas {

// Below 8 µs each value has a bucket; above, each octave has 8 of equal width, so a bucket is at
// most an eighth of its values wide.
size_t LatencyWindow::BucketOf(uint64_t microseconds) {
  if (microseconds < kPerOctave) return static_cast<size_t>(microseconds);
  const auto octave = static_cast<size_t>(std::bit_width(microseconds)) - 4;  // 0: 8 to 15
  const size_t within = (microseconds >> octave) - kPerOctave;
  return std::min(kBuckets - 1, (octave + 1) * kPerOctave + within);
}

// The inverse of BucketOf: the middle of the values that share a bucket.
double LatencyWindow::MiddleOf(size_t bucket) {
  if (bucket < kPerOctave) return static_cast<double>(bucket);
  const size_t octave = bucket / kPerOctave - 1;
  const double from = static_cast<double>((bucket % kPerOctave + kPerOctave) << octave);
  return from + static_cast<double>((uint64_t{1} << octave) - 1) / 2;
}

void LatencyWindow::Observe(uint64_t microseconds) {
  counts_[BucketOf(microseconds)].fetch_add(1, std::memory_order_relaxed);
}

// 1. Counts since the last take, by difference to the totals of then; observers go on meanwhile. 2.
//    Adds up the windows that are looked back on. 3. For each share, the bucket in which that part
//    of the observations is reached.
std::vector<double> LatencyWindow::Take(std::initializer_list<double> shares) {
  Counts& latest = windows_.emplace_back();
  for (size_t i = 0; i < kBuckets; ++i) {
    const uint64_t now = counts_[i].load(std::memory_order_relaxed);
    latest[i] = now - taken_[i];
    taken_[i] = now;
  }
  if (windows_.size() > takes_) windows_.pop_front();
  Counts since = {};
  uint64_t all = 0;
  for (const Counts& window : windows_) {
    for (size_t i = 0; i < kBuckets; ++i) {
      since[i] += window[i];
      all += window[i];
    }
  }
  std::vector<double> found(shares.size(), NoValue());
  if (all == 0) return found;
  for (size_t s = 0; s < shares.size(); ++s) {
    const auto wanted = static_cast<uint64_t>(*(shares.begin() + s) * static_cast<double>(all));
    uint64_t below = 0;
    size_t bucket = 0;
    while (bucket + 1 < kBuckets && below + since[bucket] <= wanted) below += since[bucket++];
    while (bucket > 0 && since[bucket] == 0) --bucket;  // a share of 1
    found[s] = MiddleOf(bucket) / 1000;
  }
  return found;
}

}  // namespace kvatlas
