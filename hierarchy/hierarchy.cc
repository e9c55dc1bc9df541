#include "hierarchy/hierarchy.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "indexer/base/hash.h"

namespace kvatlas {
namespace {

HolderRegistryOptions RegistryOptions(const HierarchyOptions& options) {
  HolderRegistryOptions registry = options.registry;
  registry.contract_id = HashContract().Id();
  registry.schedule = options.schedule->Name();
  return registry;
}

// Whether `a` speaks for the cell rather than `b`.
bool Fresher(const HolderOverlap& a, const HolderOverlap& b) {
  const auto key = [](const HolderOverlap& o) {
    return std::tuple(o.trust != Trust::kExact, o.age, std::tie(o.holder->id.replica));
  };
  return key(a) < key(b);
}

// One replica of each cell, as places in `holders`.
std::vector<size_t> Speakers(const std::vector<HolderOverlap>& holders) {
  absl::flat_hash_map<absl::string_view, size_t> by_cell;
  by_cell.reserve(holders.size());
  std::vector<size_t> speakers;
  speakers.reserve(holders.size());
  for (size_t i = 0; i < holders.size(); ++i) {
    const auto [at, is_new] = by_cell.try_emplace(holders[i].holder->id.name, speakers.size());
    if (is_new) {
      speakers.push_back(i);
    } else if (Fresher(holders[i], holders[speakers[at->second]])) {
      speakers[at->second] = i;
    }
  }
  return speakers;
}

// Deepest first, then least loaded per worker, then by name.
struct Candidate {
  uint32_t blocks;
  double ahead;
  HolderOverlap* overlap;
  bool operator<(const Candidate& other) const {
    if (blocks != other.blocks) return blocks > other.blocks;
    return ahead != other.ahead ? ahead < other.ahead
                                : overlap->holder->id.name < other.overlap->holder->id.name;
  }
};

}  // namespace

const WaypointSchedule& OrdinalSchedule() {
  static const auto& schedule = *new WaypointSchedule({}, 1);
  return schedule;
}

Hierarchy::Hierarchy(HierarchyOptions options)
    : node_(options.node),
      schedule_(*options.schedule),
      schedule_name_(schedule_.Name()),
      registry_(RegistryOptions(options)) {}

absl::Status Hierarchy::CheckQuery(const FindCellsQuery& query) const {
  if (query.domain.model.empty()) return absl::InvalidArgumentError("domain.model is empty");
  if (query.schedule != schedule_name_) {
    return absl::FailedPreconditionError("schedule '" + query.schedule.substr(0, 256) +
                                         "' is not ours, '" + schedule_name_ + "'");
  }
  if (query.blocks > kFindCellsBlocksMax) {
    return absl::ResourceExhaustedError("a question has at most " +
                                        std::to_string(kFindCellsBlocksMax) + " blocks");
  }
  const uint32_t expected = schedule_.WaypointsIn(query.blocks);
  if (query.waypoints.size() != expected) {
    return absl::InvalidArgumentError(std::to_string(query.blocks) + " blocks have " +
                                      std::to_string(expected) + " waypoints, not " +
                                      std::to_string(query.waypoints.size()));
  }
  return absl::OkStatus();
}

FoundCell Hierarchy::ToFoundCell(HolderOverlap&& overlap, uint32_t blocks) const {
  return {.cell = std::move(overlap.holder),
          .blocks_at_least = schedule_.BlocksCovered(overlap.blocks),
          .blocks_below = std::min(schedule_.PositionOf(overlap.blocks), blocks) + 1,
          .trust = overlap.trust,
          .age = overlap.age,
          .load = overlap.load};
}

template <typename Candidates>
FoundCells Hierarchy::ToFoundCells(const Candidates& candidates, uint32_t block_size,
                                   uint32_t blocks) const {
  FoundCells found{.block_size = block_size, .cells = {}};
  found.cells.reserve(candidates.size());
  for (const auto& candidate : candidates)
    found.cells.push_back(ToFoundCell(std::move(*candidate.overlap), blocks));
  return found;
}

absl::StatusOr<FoundCells> Hierarchy::FindCells(const FindCellsQuery& query) const {
  if (absl::Status bad = CheckQuery(query); !bad.ok()) return bad;
  if (query.best > 0) {
    std::optional<OverlapAnswer> best =
        registry_.FindBest(query.domain, {.blocks = query.waypoints}, query.best);
    if (best.has_value()) {
      std::vector<Candidate> candidates;
      candidates.reserve(best->holders.size());
      for (HolderOverlap& holder : best->holders)
        candidates.push_back({holder.blocks, AheadPerWorker(holder.load), &holder});
      // They are in order, unless loads changed since the last tick.
      if (!std::is_sorted(candidates.begin(), candidates.end()))
        std::sort(candidates.begin(), candidates.end());
      return ToFoundCells(candidates, best->block_size, query.blocks);
    }
  }
  absl::StatusOr<OverlapAnswer> answer =
      registry_.FindOverlaps(query.domain, {.blocks = query.waypoints}, /*all_holders=*/true);
  if (!answer.ok()) return answer.status();
  std::vector<Candidate> candidates;
  for (size_t speaker : Speakers(answer->holders)) {
    HolderOverlap& holder = answer->holders[speaker];
    candidates.push_back({holder.blocks, AheadPerWorker(holder.load), &holder});
  }
  if (query.best > 0 && query.best < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + query.best, candidates.end());
    candidates.resize(query.best);
  }
  std::sort(candidates.begin(), candidates.end());
  return ToFoundCells(candidates, answer->block_size, query.blocks);
}

}  // namespace kvatlas
