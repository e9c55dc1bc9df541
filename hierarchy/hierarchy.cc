// Questions for cells: a query is read into the node's own terms (`Question`), asked of the
// registry, where a holder is a replica of a cell and a block is a waypoint, and the replicas'
// answers become cells with bounds in blocks.
// Two ways lead to an answer: `HolderRegistry::FindBest`, whose cost does not grow with the number
// of cells but which knows no replicas, and the full walk with `ByCell`.

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
  registry.contract_id = options.contract.Id();
  registry.schedule = options.schedule->Name();
  registry.pending.stride = 1;  // a block is a waypoint here
  return registry;
}

// Whether replica `a` speaks for the cell rather than `b`: exact before degraded, then the one
// heard last, then by name. A total order, so all nodes that see the same choose the same.
bool Fresher(const HolderOverlap& a, const HolderOverlap& b) {
  const auto key = [](const HolderOverlap& o) {
    return std::tuple(o.trust != Trust::kExact, o.age, std::tie(o.holder->id.replica));
  };
  return key(a) < key(b);
}

// The replicas of one cell, as indices into the answer's holders: the freshest (`speaker`), and the
// others in no order.
struct Replicas {
  size_t speaker;
  std::vector<size_t> others;
};

// Groups holders by the name of their cell. Keys point into the holders' infos, which the answer
// keeps. The order of cells is that of their first replica.
std::vector<Replicas> ByCell(const std::vector<HolderOverlap>& holders) {
  absl::flat_hash_map<absl::string_view, size_t> by_cell;
  by_cell.reserve(holders.size());
  std::vector<Replicas> cells;
  cells.reserve(holders.size());
  for (size_t i = 0; i < holders.size(); ++i) {
    const auto [at, is_new] = by_cell.try_emplace(holders[i].holder->id.name, cells.size());
    if (is_new) {
      cells.push_back({.speaker = i, .others = {}});
      continue;
    }
    Replicas& replicas = cells[at->second];
    replicas.others.push_back(i);
    if (Fresher(holders[i], holders[replicas.speaker]))
      std::swap(replicas.speaker, replicas.others.back());
  }
  return cells;
}

// Addresses of the replicas that do not speak, the freshest first, at most `kOtherAddressesMax`: a
// frontend asks them when the speaker's leaf does not answer.
std::vector<std::string> AddressesOf(const std::vector<HolderOverlap>& holders,
                                     std::vector<size_t> replicas) {
  std::sort(replicas.begin(), replicas.end(),
            [&](size_t a, size_t b) { return Fresher(holders[a], holders[b]); });
  std::vector<std::string> addresses;
  for (size_t replica : replicas) {
    const std::string& address = holders[replica].holder->address;
    if (!address.empty() && addresses.size() < kOtherAddressesMax) addresses.push_back(address);
  }
  return addresses;
}

// Whether the holder is a lower node and not a leaf.
bool IsNode(const HolderInfo& info) {
  return std::any_of(info.labels.begin(), info.labels.end(), [](const auto& label) {
    return label.first == kKindLabel && label.second == kKindNode;
  });
}

// The order of an answer: deepest first, then least loaded per worker, then by name. `ahead` is the
// load, given apart as it is computed once per holder.
bool Before(const HolderOverlap& a, double ahead_a, const HolderOverlap& b, double ahead_b) {
  if (a.blocks != b.blocks) return a.blocks > b.blocks;
  return ahead_a != ahead_b ? ahead_a < ahead_b : a.holder->id.name < b.holder->id.name;
}

// A cell that may be answered: its speaker and the other replicas. Small, since these are sorted
// and not the overlaps, which are large.
struct Candidate {
  double ahead;
  const HolderOverlap* overlap;
  const std::vector<size_t>* others;

  bool operator<(const Candidate& other) const {
    return Before(*overlap, ahead, *other.overlap, other.ahead);
  }
};

}  // namespace

// A query in the terms of this node: hashes at the node's waypoints alone, and how to get from the
// place of a waypoint to blocks of the prompt.
struct Hierarchy::Question {
  const WaypointSchedule* schedule = nullptr;
  std::span<const SequenceHash> asked;
  std::span<const Position> positions;  // of `asked`; empty: all of the schedule's
  uint32_t blocks = 0;
  std::optional<std::vector<SequenceHash>> selected = {};  // where more was asked than we have

  std::span<const SequenceHash> waypoints() const { return selected ? *selected : asked; }

  // Blocks before the waypoint at this place in the question; behind the last one, all blocks of
  // the prompt. So a cell that covers n waypoints has at least `BlocksBefore(n - 1) + 1` blocks and
  // fewer than `BlocksBefore(n) + 1`.
  uint32_t BlocksBefore(size_t waypoint) const {
    if (waypoint >= waypoints().size()) return blocks;
    return positions.empty() ? schedule->PositionOf(static_cast<uint32_t>(waypoint))
                             : positions[waypoint];
  }
};

const WaypointSchedule& OrdinalSchedule() {
  static const auto& schedule = *new WaypointSchedule({}, 1);
  return schedule;
}

Hierarchy::Hierarchy(HierarchyOptions options)
    : node_(options.node),
      schedule_(*options.schedule),
      schedule_name_(schedule_.Name()),
      contract_id_(options.contract.Id()),
      registry_(RegistryOptions(options)) {}

absl::Status Hierarchy::OtherSchedule(const FindCellsQuery& query, const std::string& why) const {
  return absl::FailedPreconditionError("schedule '" + query.schedule.substr(0, 256) +
                                       "' is not ours, '" + schedule_name_ + "'" + why);
}

// A query of the whole prompt, or, at a split level, of some positions. For the latter the hashes
// are asked as they are; each position must be one of our waypoints, within the prompt, and they
// must grow, since the registry takes them for the leading waypoints of a sequence. A position that
// is no waypoint here under another schedule than ours is FAILED_PRECONDITION; under ours
// INVALID_ARGUMENT.
absl::StatusOr<Hierarchy::Question> Hierarchy::Read(const FindCellsQuery& query) const {
  if (query.domain.model.empty()) return absl::InvalidArgumentError("domain.model is empty");
  if (query.blocks > kFindCellsBlocksMax) {
    return absl::ResourceExhaustedError("a question has at most " +
                                        std::to_string(kFindCellsBlocksMax) + " blocks");
  }
  if (query.positions.empty()) return ReadWhole(query);
  if (query.positions.size() != query.waypoints.size()) {
    return absl::InvalidArgumentError(std::to_string(query.positions.size()) + " positions for " +
                                      std::to_string(query.waypoints.size()) + " waypoints");
  }
  for (size_t i = 0; i < query.positions.size(); ++i) {
    const Position position = query.positions[i];
    const bool waypoint = schedule_.IsWaypoint(position);
    if (!waypoint && query.schedule != schedule_name_) {
      return OtherSchedule(query, ", and has no waypoint at position " + std::to_string(position));
    }
    if (!waypoint || position >= query.blocks || (i > 0 && position <= query.positions[i - 1])) {
      return absl::InvalidArgumentError("position " + std::to_string(position) +
                                        " is no waypoint of '" + schedule_name_ +
                                        "', or not behind the one before, or not in the prompt");
    }
  }
  return Question{.schedule = &schedule_,
                  .asked = query.waypoints,
                  .positions = query.positions,
                  .blocks = query.blocks};
}

// A query with the hashes at all waypoints of the asker's schedule. The asker's own name of a
// schedule equals ours in most cases; otherwise ours must be a part of it (`Over`), and our
// waypoints are selected from its.
absl::StatusOr<Hierarchy::Question> Hierarchy::ReadWhole(const FindCellsQuery& query) const {
  const auto count_fits = [&](const WaypointSchedule& schedule) {
    const uint32_t expected = schedule.WaypointsIn(query.blocks);
    if (query.waypoints.size() == expected) return absl::OkStatus();
    return absl::InvalidArgumentError(std::to_string(query.blocks) + " blocks have " +
                                      std::to_string(expected) + " waypoints, not " +
                                      std::to_string(query.waypoints.size()));
  };
  Question question{
      .schedule = &schedule_, .asked = query.waypoints, .positions = {}, .blocks = query.blocks};
  if (query.schedule == schedule_name_) {
    absl::Status fits = count_fits(schedule_);
    return fits.ok() ? absl::StatusOr<Question>(std::move(question)) : fits;
  }
  const absl::StatusOr<WaypointSchedule> theirs = WaypointSchedule::Parse(query.schedule);
  if (!theirs.ok()) return OtherSchedule(query, "");
  const absl::StatusOr<WaypointSchedule> ours = schedule_.Over(*theirs);
  if (!ours.ok()) return OtherSchedule(query, ", and lacks some of its waypoints");
  if (absl::Status fits = count_fits(*theirs); !fits.ok()) return fits;
  question.selected = ours->Select(query.waypoints);
  return question;
}

// Appends one cell. It is filled in its place: copying what was just written is slow, and
// `emplace_back()` would write zeros first; inserting a copy of a constant is faster.
// The cell covers `overlap.blocks` waypoints of the question. Without any it has at least 0 blocks.
void Hierarchy::AddCell(const HolderOverlap& overlap, const Question& question,
                        FoundCells* found) const {
  static const FoundCell kEmpty;
  FoundCell& cell = *found->cells.insert(found->cells.end(), kEmpty);
  cell.cell = overlap.holder;
  cell.blocks_at_least = overlap.blocks == 0 ? 0 : question.BlocksBefore(overlap.blocks - 1) + 1;
  cell.blocks_below = question.BlocksBefore(overlap.blocks) + 1;
  if (overlap.pending.depth > overlap.blocks)
    cell.pending_blocks = question.BlocksBefore(overlap.pending.depth - 1) + 1;
  cell.trust = overlap.trust;
  cell.age = overlap.age;
  cell.load = overlap.load;
  cell.is_node = IsNode(*overlap.holder);
}

// The answer of `FindBest`, as cells. `FindBest` orders by loads as of the last tick, and the loads
// in the answer are those of now: they are sorted again only where that differs.
FoundCells Hierarchy::ToFoundCells(OverlapAnswer* best, const Question& question) const {
  std::vector<HolderOverlap>& holders = best->holders;
  double before = 0;
  bool in_order = true;
  for (size_t i = 0; i < holders.size() && in_order; ++i) {
    const double ahead = QueuedPrefillBlocksPerWorker(holders[i].load);
    in_order = i == 0 || !Before(holders[i], ahead, holders[i - 1], before);
    before = ahead;
  }
  if (!in_order) {
    std::sort(holders.begin(), holders.end(), [](const HolderOverlap& a, const HolderOverlap& b) {
      return Before(a, QueuedPrefillBlocksPerWorker(a.load), b,
                    QueuedPrefillBlocksPerWorker(b.load));
    });
  }
  FoundCells found{.block_size = best->block_size, .cells = {}, .keeps = std::move(best->keeps)};
  found.cells.reserve(holders.size());
  for (const HolderOverlap& holder : holders) AddCell(holder, question, &found);
  return found;
}

// 1. `Read` the query. 2. For the best few, try `FindBest`: it answers where the domain has no
//    replicas and many more cells than are wanted.
// 3. Otherwise `FindOverlaps` of all holders, those that cover nothing included, since a cold
//    prompt needs a cell too.
// 4. `AddPending`: prompts that this frontend and others said they have sent.
// 5. `ByCell`; then the best candidates are selected (linear in the cells) and only those sorted
//    and filled in.
absl::StatusOr<FoundCells> Hierarchy::FindCells(const FindCellsQuery& query) const {
  const absl::StatusOr<Question> question = Read(query);
  if (!question.ok()) return question.status();
  const std::span<const SequenceHash> waypoints = question->waypoints();
  if (query.best > 0) {
    std::optional<OverlapAnswer> best =
        registry_.FindBest(query.domain, {.blocks = waypoints}, query.best);
    if (best.has_value()) {
      if (query.frontend != 0)
        registry_.AddPending(query.domain, waypoints, query.frontend, /*session=*/0, &*best);
      return ToFoundCells(&*best, *question);
    }
  }
  absl::StatusOr<OverlapAnswer> answer =
      registry_.FindOverlaps(query.domain, {.blocks = waypoints}, /*all_holders=*/true);
  if (!answer.ok()) return answer.status();
  if (query.frontend != 0)
    registry_.AddPending(query.domain, waypoints, query.frontend, /*session=*/0, &*answer);
  const std::vector<Replicas> cells = ByCell(answer->holders);
  // A frontend tells one replica of what it sends; it counts for the cell, whichever replica
  // speaks.
  for (const Replicas& cell : cells) {
    uint32_t& depth = answer->holders[cell.speaker].pending.depth;
    for (size_t other : cell.others) depth = std::max(depth, answer->holders[other].pending.depth);
  }
  std::vector<Candidate> candidates;
  candidates.reserve(cells.size());
  for (const Replicas& cell : cells) {
    const HolderOverlap& holder = answer->holders[cell.speaker];
    candidates.push_back({QueuedPrefillBlocksPerWorker(holder.load), &holder, &cell.others});
  }
  if (query.best > 0 && query.best < candidates.size()) {
    std::nth_element(candidates.begin(), candidates.begin() + query.best, candidates.end());
    candidates.resize(query.best);
  }
  std::sort(candidates.begin(), candidates.end());
  FoundCells found{
      .block_size = answer->block_size, .cells = {}, .keeps = std::move(answer->keeps)};
  found.cells.reserve(candidates.size());
  for (const Candidate& candidate : candidates) {
    AddCell(*candidate.overlap, *question, &found);
    if (!candidate.others->empty())
      found.cells.back().other_addresses = AddressesOf(answer->holders, *candidate.others);
  }
  return found;
}

}  // namespace kvatlas
