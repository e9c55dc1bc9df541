#include "tools/bench/bench_sink.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "indexer/base/waypoints.h"

namespace kvatlas {

BenchSink::BenchSink(SinkKind kind, Index* index, const Clock* clock, Callback callback)
    : kind_(kind), index_(index), callback_(std::move(callback)) {
  if (kind != SinkKind::kCoverage) return;
  coverage_ = std::make_unique<Coverage>(&WaypointSchedule::Standard(), CoverageOptions{}, clock);
}

absl::Status BenchSink::Apply(HolderIndex holder, const Event& event) {
  if (kind_ == SinkKind::kNone) return index_->Apply(holder, event, nullptr);
  changes_.Clear();
  absl::Status status = index_->Apply(holder, event, &changes_);
  held_blocks_ += static_cast<uint64_t>(changes_.held_delta());
  changed_blocks_ += changes_.blocks();
  if (kind_ == SinkKind::kDigest) {
    digest_ = index_->DigestOf(holder);
    return status;
  }
  if (!changes_.empty()) coverage_->OnChanged(holder, changes_, std::get_if<Stored>(&event));
  const uint64_t blocks = std::max<uint64_t>(1, BlockCount(event));
  if (blocks < until_take_) {
    until_take_ -= blocks;
  } else {
    until_take_ = kBlocksPerTake;
    Take();
  }
  return status;
}

void BenchSink::Take() {
  const std::vector<Event> due = coverage_->Take(kWaypointsPerTake);
  if (callback_ != nullptr && !due.empty()) callback_(due);
}

}  // namespace kvatlas
