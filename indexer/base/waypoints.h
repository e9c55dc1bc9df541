// At which positions is coverage reported upward? A schedule of waypoints: a function of position alone,
// so that a leaf, the hierarchy and a frontend agree without talking.
//
//   positions   0 1 2 … 7 …  15 …  31 …  63 …  95 …
//   standard    .       .          ●     ●     ●        every 32nd block, at the last block of each stride,
//               after the early ones named in `early`
//
// *Truth*: waypoint number k covers a prompt up to and with the block at `PositionOf(k)`. A prompt
// shorter than the first waypoint has none and is cold to the upper level.
// *Format*: `Name()` is part of the stream's hello; two ends with different schedules refuse each other.

#ifndef KVATLAS_INDEXER_BASE_WAYPOINTS_H_
#define KVATLAS_INDEXER_BASE_WAYPOINTS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "indexer/base/ids.h"

namespace kvatlas {

class WaypointSchedule {
 public:
  // `early`: strictly increasing positions below `stride - 1`. REQUIRES: stride >= 1.
  WaypointSchedule(std::vector<Position> early, uint32_t stride);

  // The schedule every kvatlas process uses unless told otherwise.
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

  // "early:15;every:32".
  std::string Name() const;

 private:
  std::vector<Position> early_;
  uint32_t stride_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_WAYPOINTS_H_
