// Which cells hold this prompt, and how deep? The coverage that many cells report, kept under
// leases.
//
//   leaf ══ stream of waypoints ══▶ HolderRegistry ──▶ FindCells: cell, at least, below, age, load, address
//           (holder = cell@replica, position = ordinal of the waypoint)
//
//   waypoint        0         1               2                 a cell that covers two waypoints has at least
//   blocks   |······●·········●···············●······▶          `BlocksCovered(2)` blocks and fewer than the end of
//                             ╰ at least      ╰ below           the third
//
// *Place*: fed by leaves or by lower nodes, asked by frontends. Replicas of a node each hear every
// leaf; there is nothing to agree on. A node can report upward, under a schedule that is a part of
// its own; a level can be split over shards (`shard_map.h`), each of which is a node as any other.
// *Truth*: bounds are of what was reported: a leaf's hole, delayed withdrawal or budget make them
// differ from what it holds; its own answer is what counts. The freshest live replica of a cell
// speaks for it: exact before degraded, then the one heard last, then by name. A cell whose lease
// ran out is in no answer from that moment. A question about some waypoints only is answered with
// bounds by those: at least the last covered one, less than the first that is not.
// *Threads*: any. The owner calls `registry().Tick` every 200 ms or so.
// *Cost*: one query of the index, then a constant per live cell; for the best of many cells without
// replicas (four times as many or more), a constant for each of the best.
// *Bounds*: a question of at most `kFindCellsBlocksMax` blocks; cells and domains by
// `HierarchyOptions::registry`.
//
// Example:
//   Hierarchy hierarchy({.node = "region-1"});
//   absl::StatusOr<FoundCells> found = hierarchy.FindCells(
//       {.domain = {"llama-70b"}, .waypoints = hashes, .blocks = 190, .schedule =
//       hierarchy.schedule_name()});

#ifndef KVATLAS_HIERARCHY_HIERARCHY_H_
#define KVATLAS_HIERARCHY_HIERARCHY_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/base/waypoints.h"
#include "indexer/registry/holder_registry.h"

namespace kvatlas {

inline constexpr uint32_t kFindCellsBlocksMax = 65536;  // as at a leaf

// The label by which a node tells the one above that it is no leaf; not told on to those who ask.
inline constexpr char kKindLabel[] = "kvatlas.kind";
inline constexpr char kKindNode[] = "node";

inline constexpr size_t kOtherAddressesMax = 7;

// The schedule under which a node passes coverage on to its parents: cells report ordinals of
// waypoints, and every one goes on.
const WaypointSchedule& OrdinalSchedule();

struct HierarchyOptions {
  std::string node = "hierarchy";
  const WaypointSchedule* schedule = &WaypointSchedule::Standard();
  HashContract contract = {};  // of the leaves: reports under another are refused
  // Contract and schedule are filled in from the above.
  HolderRegistryOptions registry;
};

struct FindCellsQuery {
  Domain domain;
  // The prompt's sequence hashes at all its waypoints, or at `positions`.
  std::span<const SequenceHash> waypoints;
  uint32_t blocks = 0;   // full blocks of the prompt
  std::string schedule;  // the asker's: the node's, or one that has all of its waypoints
  uint32_t best = 0;     // only the best so many; 0 means all
  // At a split level the positions that this shard has: some of the node's schedule, growing.
  std::span<const Position> positions = {};
  // The asking frontend, by the number under which it tells what it sends to cells
  // (`HolderRegistry::Tell`); 0: what is pending is not wanted.
  uint64_t frontend = 0;
};

struct FoundCell {
  const HolderInfo* cell =
      nullptr;  // of the replica that speaks; never null, and as long there as the answer
  uint32_t blocks_at_least = 0;
  uint32_t blocks_below = 0;
  // Leading blocks that it covers or, by what frontends told, is about to cover, where these are
  // more; of the best of many cells only those that are among the best without it.
  uint32_t pending_blocks = 0;
  Trust trust = Trust::kExact;
  Duration age{0};
  std::optional<Load> load;
  bool is_node = false;                      // it names cells; else workers
  std::vector<std::string> other_addresses;  // of its other live replicas, the freshest first
};

struct FoundCells {
  uint32_t block_size = 0;
  std::vector<FoundCell> cells;  // deepest first, then least loaded per worker, then by name
  std::vector<std::shared_ptr<const void>> keeps;  // what `cell`s point into
};

class Hierarchy {
 public:
  explicit Hierarchy(HierarchyOptions options);

  // All live cells of the domain, also those that cover nothing. INVALID_ARGUMENT: no model, not as
  // many waypoints as so many blocks have, or positions that do not grow or are no waypoints here.
  // RESOURCE_EXHAUSTED: too many blocks. FAILED_PRECONDITION: a schedule that lacks waypoints of
  // this node's. NOT_FOUND: the domain was never announced.
  absl::StatusOr<FoundCells> FindCells(const FindCellsQuery& query) const;

  // Takes the streams; answers what is known of domains and holders.
  HolderRegistry& registry() { return registry_; }
  const HolderRegistry& registry() const { return registry_; }

  const std::string& node() const { return node_; }
  const std::string& schedule_name() const { return schedule_name_; }
  const std::string& contract_id() const { return contract_id_; }

 private:
  struct Question;

  absl::Status OtherSchedule(const FindCellsQuery& query, const std::string& why) const;
  absl::StatusOr<Question> Read(const FindCellsQuery& query) const;
  absl::StatusOr<Question> ReadWhole(const FindCellsQuery& query) const;
  FoundCells ToFoundCells(OverlapAnswer* best, const Question& question) const;
  void AddCell(const HolderOverlap& overlap, const Question& question, FoundCells* found) const;

  const std::string node_;
  const WaypointSchedule& schedule_;
  const std::string schedule_name_;
  const std::string contract_id_;
  HolderRegistry registry_;
};

}  // namespace kvatlas

#endif  // KVATLAS_HIERARCHY_HIERARCHY_H_
