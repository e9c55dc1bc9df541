// The schedule of waypoints: the positions at which coverage is reported upward. A function of
// position alone, so that a leaf, the hierarchy and a frontend agree without talking.
//
//   blocks      1   8   16          48                              144 … 256 … 512
//   standard    .   ●    ●           ●                               ●     ●     ●   every 256th from there
//
// A waypoint stands at the last block of such a stretch. Sharing happens early, and what is lost by
// asking the second best cell is in proportion to depth; so distances triple.
//
// Any function of position that is regular in the end can be said so: a dense start, powers of two,
// strides that grow.
//
// *Truth*: waypoint number k covers a prompt up to and with the block at `PositionOf(k)`. A prompt
// shorter than the first waypoint has none and is cold to the upper level.
// *Format*: `Name()` is part of the stream's hello; two ends with different schedules refuse each
// other.
// *Bounds*: `kEarlyWaypointsMax` early ones, positions and strides below `kWaypointPositionMax`.

#ifndef KVATLAS_INDEXER_BASE_WAYPOINTS_H_
#define KVATLAS_INDEXER_BASE_WAYPOINTS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "indexer/base/ids.h"

namespace kvatlas {

inline constexpr size_t kEarlyWaypointsMax = 32;
inline constexpr Position kWaypointPositionMax = 1 << 16;

class WaypointSchedule {
 public:
  // `early`: strictly increasing positions; strides begin to count behind the last of them.
  //   REQUIRES: stride >= 1.
  WaypointSchedule(std::vector<Position> early, uint32_t stride);

  // From a name. Parts, separated by ';', each behind the one before; the last one is "every:N":
  //   early:P,P,…   these positions
  //   dense:N       every position below N
  //   powers:N      the last of the first 1, 2, 4 … N blocks
  //   every:NtoM    every Nth block below M
  // INVALID_ARGUMENT: not such a name, or beyond the bounds.
  static absl::StatusOr<WaypointSchedule> Parse(absl::string_view name);

  // The schedule that every kvatlas process uses by default.
  static const WaypointSchedule& Standard();

  bool IsWaypoint(Position position) const;

  // Number of waypoints among the first `blocks` positions.
  uint32_t WaypointsIn(uint32_t blocks) const;

  // Position of the waypoint with this ordinal (from 0).
  Position PositionOf(uint32_t ordinal) const;

  // Blocks covered when the first `waypoints` waypoints are: 0 for 0.
  uint32_t BlocksCovered(uint32_t waypoints) const {
    return waypoints == 0 ? 0 : PositionOf(waypoints - 1) + 1;
  }

  // The sequence hashes at waypoints, in order.
  std::vector<SequenceHash> Select(std::span<const SequenceHash> sequence) const;

  // This schedule for a level that counts in waypoints of `below` instead of in blocks: positions
  // are ordinals of `below`, and ordinals are those of this schedule. A level that reports fewer
  // waypoints than it receives does so under this.
  //
  //   below     ●  ●   ●     ●         ●                  ●        ordinals 0 1 2 3 4 5
  //   this         ●         ●                            ●        over `below`: positions 1, 3, 5
  //
  // INVALID_ARGUMENT: `below` lacks one of its positions. `Name` of what is returned is no
  // contract.
  absl::StatusOr<WaypointSchedule> Over(const WaypointSchedule& below) const;

  // "early:15;every:32": the same for equal schedules, and `Parse` reads it.
  std::string Name() const;

 private:
  WaypointSchedule(std::vector<Position> early, uint32_t stride, Position first);

  std::vector<Position> early_;
  uint32_t stride_;
  Position first_;    // the first that is not early; every `stride_`th from there
  uint32_t skipped_;  // ends of strides before it
  uint32_t shift_;    // ends of strides are at multiples of `stride_` less this
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_WAYPOINTS_H_
