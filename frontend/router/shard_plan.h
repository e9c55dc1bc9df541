// Which shards of a split level are asked about this prompt, about which of its waypoints, and what
// do their answers say together?
//
//   waypoints of the prompt     0   1   2   3   4   5   6        `shallow` = 1, at most two shards
//   shard a, asked first        ●               ●       ●        it has the deepest one
//   shard b, asked too          ●           ●       ●            it has the deepest that a has not
//   shard c                     ●   ●   ●
//   what is seen together       ●           ●   ●   ●   ●
//
// *Truth*: bounds are by the waypoints that were asked about, as by a coarser schedule: at least
// the last one of them up to which none is missing, less than the first one missing. With as many
// shards asked as there are, they are those of a level that is not split. A shard that does not
// answer makes them coarser, never wrong.
// *Threads*: pure. *Cost*: a hash per deep waypoint and shard; a table look-up per cell answered.

#ifndef KVATLAS_FRONTEND_ROUTER_SHARD_PLAN_H_
#define KVATLAS_FRONTEND_ROUTER_SHARD_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "frontend/router/lookup_clients.h"
#include "indexer/base/ids.h"
#include "indexer/base/shard_map.h"
#include "indexer/base/waypoints.h"

namespace kvatlas {

// The question to one shard.
struct ShardQuestion {
  size_t shard = 0;  // its place in the map
  std::vector<SequenceHash> waypoints;
  std::vector<Position> positions;  // of `waypoints`; empty: all waypoints of the schedule
};

// The most promising shard first. One question for a level that is not split, or a prompt with
// shallow waypoints only; `key` spreads the latter. REQUIRES: the map is not empty, `shards_max` at
// least 1.
std::vector<ShardQuestion> PlanShards(const ShardMap& map, const WaypointSchedule& schedule,
                                      std::span<const SequenceHash> waypoints, uint64_t key,
                                      size_t shards_max);

// About the shallow waypoints only: any shard can answer.
ShardQuestion ShallowQuestion(const ShardMap& map, const WaypointSchedule& schedule,
                              std::span<const SequenceHash> waypoints, size_t shard);

struct ShardAnswer {
  const ShardQuestion* question = nullptr;
  CellsAnswer answer;
};

// Cell by cell; of a prompt with so many blocks. Deepest first, then by name. Address, load and
// labels are those of the freshest answer; trust is the worst, age the largest. REQUIRES: the
// questions' positions are set, or there is one answer.
CellsAnswer MergeAnswers(std::vector<ShardAnswer> answers);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_SHARD_PLAN_H_
