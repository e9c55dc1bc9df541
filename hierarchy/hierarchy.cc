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

// What waits ahead of a request at the cell's average worker. A cell that says nothing is taken for idle.
double LoadPerWorker(const std::optional<Load>& load) {
  if (!load.has_value()) return 0;
  const double sum = static_cast<double>(load->waiting_prefill_blocks) + load->running_requests +
                     load->waiting_requests;
  return sum / std::max<uint32_t>(load->workers, 1);
}

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

FoundCell Hierarchy::ToFoundCell(const HolderOverlap& overlap, uint32_t blocks) const {
  return {.cell = overlap.holder,
          .blocks_at_least = schedule_.BlocksCovered(overlap.blocks),
          .blocks_below = std::min(schedule_.PositionOf(overlap.blocks), blocks) + 1,
          .trust = overlap.trust,
          .age = overlap.age,
          .load = overlap.load};
}

absl::StatusOr<FoundCells> Hierarchy::FindCells(const FindCellsQuery& query) const {
  if (absl::Status bad = CheckQuery(query); !bad.ok()) return bad;
  absl::StatusOr<OverlapAnswer> answer =
      registry_.FindOverlaps(query.domain, {.blocks = query.waypoints}, /*all_holders=*/true);
  if (!answer.ok()) return answer.status();
  const std::vector<HolderOverlap>& holders = answer->holders;
  std::vector<size_t> speakers = Speakers(holders);
  const auto better = [&](size_t a, size_t b) {
    const HolderOverlap& x = holders[a];
    const HolderOverlap& y = holders[b];
    if (x.blocks != y.blocks) return x.blocks > y.blocks;
    const double x_load = LoadPerWorker(x.load);
    const double y_load = LoadPerWorker(y.load);
    return x_load != y_load ? x_load < y_load : x.holder->id.name < y.holder->id.name;
  };
  const size_t kept =
      query.best == 0 ? speakers.size() : std::min<size_t>(query.best, speakers.size());
  std::partial_sort(speakers.begin(), speakers.begin() + static_cast<ptrdiff_t>(kept),
                    speakers.end(), better);
  FoundCells found{.block_size = answer->block_size, .cells = {}};
  found.cells.reserve(kept);
  for (size_t i = 0; i < kept; ++i)
    found.cells.push_back(ToFoundCell(holders[speakers[i]], query.blocks));
  return found;
}

}  // namespace kvatlas
