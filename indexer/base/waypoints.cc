// A schedule is a short list of early positions and then one stride for ever. Ends of strides are
// counted from position 0: `first_` is the first of them behind the early ones, `skipped_` the
// number of those before it, and `shift_` moves ends that are not at multiples of the stride
// (Over).

#include "indexer/base/waypoints.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace kvatlas {

namespace {

absl::Status Bad(absl::string_view name, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("schedule '", name.substr(0, 256), "': ", why));
}

// A number of 1 to `kWaypointPositionMax`; 0: another text.
uint32_t Count(absl::string_view text) {
  uint32_t count = 0;
  if (text.empty() || text.size() > 6) return 0;
  for (char c : text)
    if (c < '0' || c > '9') return 0;
  return absl::SimpleAtoi(text, &count) && count <= kWaypointPositionMax ? count : 0;
}

// The positions that a part other than the last names, from `from` on; empty: it is no such part.
// Stops one beyond the bound, which Parse then refuses.
std::vector<Position> PositionsOf(absl::string_view part, Position from) {
  std::vector<Position> positions;
  if (absl::ConsumePrefix(&part, "early:")) {
    for (absl::string_view text : absl::StrSplit(part, ',')) {
      const uint32_t position = text == "0" ? 0 : Count(text);
      if (position == 0 && text != "0") return {};
      positions.push_back(position);
    }
  } else if (absl::ConsumePrefix(&part, "dense:")) {
    const uint32_t count = Count(part);
    for (Position p = from; p < count && positions.size() <= kEarlyWaypointsMax; ++p)
      positions.push_back(p);
  } else if (absl::ConsumePrefix(&part, "powers:")) {
    const uint32_t last = Count(part);
    for (uint32_t blocks = 1; blocks <= last; blocks *= 2)
      if (blocks > from) positions.push_back(blocks - 1);
  } else if (absl::ConsumePrefix(&part, "every:")) {
    const std::pair<absl::string_view, absl::string_view> words = absl::StrSplit(part, "to");
    const uint32_t stride = Count(words.first), end = Count(words.second);
    if (stride == 0) return {};
    for (Position p = from + stride - 1 - from % stride;
         p < end && positions.size() <= kEarlyWaypointsMax; p += stride)
      positions.push_back(p);
  }
  return positions;
}

}  // namespace

WaypointSchedule::WaypointSchedule(std::vector<Position> early, uint32_t stride, Position first)
    : early_(std::move(early)),
      stride_(stride),
      first_(first),
      skipped_(first / stride),
      shift_(stride - 1 - first % stride) {}

// The first end of a stride behind the early ones.
WaypointSchedule::WaypointSchedule(std::vector<Position> early, uint32_t stride)
    : WaypointSchedule(early, stride,
                       (early.empty() ? 0 : (early.back() + 1) / stride * stride) + stride - 1) {}

// The result is in a normal form, so that equal schedules have equal names: early positions at the
// end that the strides would produce anyway are dropped.
absl::StatusOr<WaypointSchedule> WaypointSchedule::Parse(absl::string_view name) {
  std::vector<absl::string_view> parts = absl::StrSplit(name, ';');
  absl::string_view last = parts.back();
  parts.pop_back();
  const uint32_t stride = absl::ConsumePrefix(&last, "every:") ? Count(last) : 0;
  if (stride == 0) return Bad(name, "does not end in every:N");
  std::vector<Position> early;
  for (absl::string_view part : parts) {
    const std::vector<Position> more = PositionsOf(part, early.empty() ? 0 : early.back() + 1);
    if (more.empty()) return Bad(name, absl::StrCat("'", part, "' names no position"));
    for (Position position : more) {
      if (!early.empty() && position <= early.back()) return Bad(name, "positions do not grow");
      early.push_back(position);
    }
    if (early.size() > kEarlyWaypointsMax) return Bad(name, "too many early positions");
  }
  // Early positions that the strides would produce anyway are dropped.
  while (!early.empty() && early.back() % stride == stride - 1 &&
         (early.size() == 1 ? early.back() < stride
                            : early.back() - early[early.size() - 2] <= stride)) {
    early.pop_back();
  }
  return WaypointSchedule(std::move(early), stride);
}

const WaypointSchedule& WaypointSchedule::Standard() {
  static const auto& schedule = *new WaypointSchedule({7, 15, 47, 143}, 256);
  return schedule;
}

bool WaypointSchedule::IsWaypoint(Position position) const {
  if (position >= first_) return (position - first_) % stride_ == 0;
  return std::binary_search(early_.begin(), early_.end(), position);
}

// Early ones below `blocks`, and ends of strides below it less those that lie before `first_`.
uint32_t WaypointSchedule::WaypointsIn(uint32_t blocks) const {
  const auto early = std::lower_bound(early_.begin(), early_.end(), blocks) - early_.begin();
  return static_cast<uint32_t>(early) + std::max((blocks + shift_) / stride_, skipped_) - skipped_;
}

Position WaypointSchedule::PositionOf(uint32_t ordinal) const {
  if (ordinal < early_.size()) return early_[ordinal];
  return first_ + (ordinal - static_cast<uint32_t>(early_.size())) * stride_;
}

std::vector<SequenceHash> WaypointSchedule::Select(std::span<const SequenceHash> sequence) const {
  const uint32_t count = WaypointsIn(static_cast<uint32_t>(sequence.size()));
  std::vector<SequenceHash> selected(count);
  for (uint32_t i = 0; i < count; ++i) selected[i] = sequence[PositionOf(i)];
  return selected;
}

// 1. One by one up to where both have only strides: each position must be one of `below`, and its
//    ordinal there becomes an early position. 2. The first end of a stride must be one too. 3. From
//    there on it suffices that the stride is a multiple of that of `below`.
absl::StatusOr<WaypointSchedule> WaypointSchedule::Over(const WaypointSchedule& below) const {
  const auto lacks = [&](Position position) {
    return absl::InvalidArgumentError(absl::StrCat("schedule '", below.Name(), "' lacks position ",
                                                   position, " of '", Name(), "'"));
  };
  std::vector<Position> early;
  uint32_t ordinal = 0;
  // One by one up to where both go on in strides.
  for (Position position = PositionOf(0); position < std::max(first_, below.first_);
       position = PositionOf(++ordinal)) {
    if (!below.IsWaypoint(position)) return lacks(position);
    early.push_back(below.WaypointsIn(position));
  }
  const Position first = PositionOf(ordinal);
  if (!below.IsWaypoint(first)) return lacks(first);
  if (stride_ % below.stride_ != 0) return lacks(first + stride_);
  return WaypointSchedule(std::move(early), stride_ / below.stride_, below.WaypointsIn(first));
}

std::string WaypointSchedule::Name() const {
  std::string name;
  for (Position position : early_)
    name += (name.empty() ? "early:" : ",") + std::to_string(position);
  return name + (name.empty() ? "every:" : ";every:") + std::to_string(stride_);
}

}  // namespace kvatlas
