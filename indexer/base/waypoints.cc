#include "indexer/base/waypoints.h"

#include <algorithm>
#include <utility>

namespace kvatlas {

WaypointSchedule::WaypointSchedule(std::vector<Position> early, uint32_t stride)
    : early_(std::move(early)), stride_(stride) {}

const WaypointSchedule& WaypointSchedule::Standard() {
  static const auto& schedule = *new WaypointSchedule({7, 15}, 32);
  return schedule;
}

bool WaypointSchedule::IsWaypoint(Position position) const {
  return position % stride_ == stride_ - 1 ||
         std::binary_search(early_.begin(), early_.end(), position);
}

uint32_t WaypointSchedule::WaypointsIn(uint32_t blocks) const {
  const auto early = std::lower_bound(early_.begin(), early_.end(), blocks) - early_.begin();
  return static_cast<uint32_t>(early) + blocks / stride_;
}

Position WaypointSchedule::PositionOf(uint32_t ordinal) const {
  if (ordinal < early_.size()) return early_[ordinal];
  return (ordinal - static_cast<uint32_t>(early_.size()) + 1) * stride_ - 1;
}

std::vector<SequenceHash> WaypointSchedule::Select(std::span<const SequenceHash> sequence) const {
  const uint32_t count = WaypointsIn(static_cast<uint32_t>(sequence.size()));
  std::vector<SequenceHash> selected(count);
  for (uint32_t i = 0; i < count; ++i) selected[i] = sequence[PositionOf(i)];
  return selected;
}

std::string WaypointSchedule::Name() const {
  std::string name;
  for (Position position : early_)
    name += (name.empty() ? "early:" : ",") + std::to_string(position);
  return name + (name.empty() ? "every:" : ";every:") + std::to_string(stride_);
}

}  // namespace kvatlas
