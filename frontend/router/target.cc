// Two things: a cell as a `Target` with its expected and its best possible cost (`TargetOf`), and
// the sources of cells behind the hierarchy. `TargetsOf` reads the memory for all cells in one hold
// of the lock, then costs them without it.

#include "frontend/router/target.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <tuple>
#include <utility>

#include "indexer/base/durations.h"

namespace kvatlas {
namespace {

// A cell where all workers only decode comes last among those that are to prefill for so long after
// its leaf said so; then it is asked again, since roles change.
constexpr Duration kOnlyDecodesFor = std::chrono::seconds(10);

// This frontend's own knowledge of a cell, beside what the hierarchy says of it.
struct CellKnown {
  InFlight in_flight;
  uint32_t expected_blocks = 0;
  bool only_decodes = false;
};

// Its leaf said so lately; a decoder's blocks are of no use for a prefill.
bool OnlyDecodes(const RouteRequest& request, const FleetMemory& memory, const CellFound& cell) {
  if (cell.is_node || !request.policy->bounded_by_coverage()) return false;
  const CellRoles* roles = memory.RolesOf(request.domain(), cell.cell);
  return roles != nullptr && roles->only_decodes() && roles->seen + kOnlyDecodesFor > request.Now();
}

// The coverage to expect: the reported one, or more where this frontend or others have sent the
// prompt's beginning to the cell (or below the node) and no report shows it yet; then what past
// promises of the cell let one believe of it.
CellKnown KnownOf(const RouteRequest& request, const ModelFleet& model, const SentTo& sent,
                  const CellFound& cell) ABSL_EXCLUSIVE_LOCKS_REQUIRED(model.mutex) {
  uint32_t reported = cell.blocks_at_least;
  if (request.options().siblings_together) reported = std::max(reported, cell.pending_blocks);
  const bool sent_there =
      !sent.cell.empty() &&
      (cell.is_node ? model.nodes.IsAbove(request.domain(), cell.cell, sent.cell)
                    : cell.cell == sent.cell);
  if (sent_there)
    reported = std::max(reported, request.options().schedule->BlocksCovered(sent.waypoints));
  return {.in_flight = model.memory.choices().To(cell.cell),
          .expected_blocks =
              model.memory.Believed(request.domain(), cell.cell, reported, request.Now()),
          .only_decodes = OnlyDecodes(request, model.memory, cell)};
}

// The cost at the cell's average worker. A cell's figures are sums over its workers; queue and
// decode are the terms that grow linearly with them, so these two are divided by the number of
// workers.
double ExpectedCost(const RouteRequest& request, const CellFound& cell, const CellKnown& known,
                    double distance) {
  const double workers = cell.load.has_value() ? std::max<uint32_t>(cell.load->workers, 1) : 1;
  const Cost sum = request.policy->CostOf(
      {.prompt_blocks = request.prompt->blocks(),
       .overlap_blocks = std::min(known.expected_blocks, request.prompt->reusable_blocks()),
       .load = cell.load,
       .in_flight_blocks = known.in_flight.blocks,
       .in_flight_requests = known.in_flight.requests,
       .distance = distance,
       .expected_output_tokens = request.input->expected_output_tokens});
  return sum.total() - (sum.queue + sum.decode) * (1 - 1 / workers);
}

// A lower bound of what any worker of the cell can cost: the upper bound of its coverage, on an
// idle worker, for the shortest reading. The search leaves out cells by it, so it must never be too
// high. Minus infinity under a policy whose costs coverage does not bound.
double BestCost(const RouteRequest& request, uint32_t blocks_below, double distance) {
  if (!request.policy->bounded_by_coverage()) return -std::numeric_limits<double>::infinity();
  const uint32_t blocks = blocks_below == 0 ? 0 : blocks_below - 1;
  return request.policy
      ->CostOf({.prompt_blocks = request.Shortest().blocks(),
                .overlap_blocks = std::min(blocks, request.Shortest().reusable_blocks()),
                .distance = distance})
      .total();
}

// A cell of decoders alone gets the highest cost, so that it is taken only when nothing else is
// left.
Target TargetOf(const RouteRequest& request, const CellFound& cell, const CellKnown& known) {
  Target target{.asked = {.cell = cell.cell,
                          .address = cell.address,
                          .blocks_at_least = cell.blocks_at_least,
                          .blocks_below = cell.blocks_below,
                          .age_ms = cell.age_ms},
                .other_addresses = cell.other_addresses,
                .is_node = cell.is_node,
                .distance = request.DistanceOf(&cell.labels)};
  if (known.only_decodes) {
    target.cost = target.best_cost = std::numeric_limits<double>::max();
    return target;
  }
  target.expected_blocks = known.expected_blocks;
  target.cost = ExpectedCost(request, cell, known, target.distance);
  // An upper bound that is not above the lower one is missing or wrong: it bounds nothing. Blocks
  // that were lately sent there raise the bound too, since the report is older.
  const uint32_t below = cell.blocks_below > cell.blocks_at_least ? cell.blocks_below : UINT32_MAX;
  target.best_cost =
      BestCost(request, std::max(below, target.expected_blocks + 1), target.distance);
  return target;
}

std::vector<Target> CheapestFirst(std::vector<Target> targets) {
  std::stable_sort(targets.begin(), targets.end(),
                   [](const Target& a, const Target& b) { return a.cost < b.cost; });
  return targets;
}

// ---- Sources ----

// Nodes below the top, for when the top is away. Their old bounds are for another prompt:
// `blocks_below` is past the end.
std::vector<Target> RememberedNodes(const RouteRequest& request) {
  std::vector<CellFound> cells;
  const std::shared_ptr<ModelFleet> model = request.Model();
  {
    MutexLock lock(&model->mutex);
    for (KnownNode& known : model->nodes.Nodes(request.domain())) {
      known.node.blocks_at_least = 0;
      known.node.blocks_below = request.prompt->blocks() + 1;
      known.node.age_ms = Milliseconds(request.Now() - known.seen);
      cells.push_back(std::move(known.node));
    }
  }
  return CheapestFirst(TargetsOf(request, cells));
}

// Leaves that a hierarchy named before, by their last loads.
std::vector<Target> RememberedCells(const RouteRequest& request) {
  std::vector<CellFound> cells;
  const std::shared_ptr<ModelFleet> model = request.Model();
  {
    MutexLock lock(&model->mutex);
    for (KnownCell& known : model->memory.Cells(request.domain())) {
      cells.push_back({.cell = std::move(known.cell),
                       .address = std::move(known.address),
                       .blocks_below = request.prompt->blocks() + 1,
                       .age_ms = Milliseconds(request.Now() - known.seen),
                       .load = known.load});
      if (known.labels != nullptr) cells.back().labels = *known.labels;
    }
  }
  return CheapestFirst(TargetsOf(request, cells));
}

// All cost 0 and keep the order of the configuration.
std::vector<Target> ConfiguredLeaves(const RouteRequest& request) {
  std::vector<Target> targets;
  for (const ConfiguredLeaf& leaf : *request.fleet->leaves.Get()) {
    targets.push_back({.asked = {.cell = leaf.cell,
                                 .address = leaf.address,
                                 .blocks_below = request.prompt->blocks() + 1}});
  }
  return targets;
}

}  // namespace

std::vector<std::string> Target::Addresses() const {
  std::vector<std::string> addresses = {asked.address};
  addresses.insert(addresses.end(), other_addresses.begin(), other_addresses.end());
  return addresses;
}

std::vector<Target> TargetsOf(const RouteRequest& request, const std::vector<CellFound>& cells) {
  std::vector<CellKnown> known;
  known.reserve(cells.size());
  const std::shared_ptr<ModelFleet> model = request.Model();
  {
    MutexLock lock(&model->mutex);
    const SentTo sent = request.LastSent(model->memory);
    for (const CellFound& cell : cells) known.push_back(KnownOf(request, *model, sent, cell));
  }
  std::vector<Target> targets;
  targets.reserve(cells.size());
  for (size_t i = 0; i < cells.size(); ++i)
    if (!cells[i].address.empty()) targets.push_back(TargetOf(request, cells[i], known[i]));
  return targets;
}

// Sorts by cost; then moves up to two cells into the first `at_once` places, behind the cheapest:
// the session's cell to the last place but one, the deepest to the last. So with `at_once` 2 the
// session's cell may become the first. With 1 only cost counts.
void RankTargets(const RouteRequest& request, size_t at_once, std::vector<Target>* targets) {
  std::stable_sort(targets->begin(), targets->end(), [](const Target& a, const Target& b) {
    return std::tie(a.cost, a.asked.cell) < std::tie(b.cost, b.asked.cell);
  });
  const auto first = static_cast<ptrdiff_t>(std::max<size_t>(at_once, 1));
  if (first == 1) return;
  if (request.session.has_value()) {
    const auto of_session = std::find_if(
        targets->begin(), targets->end(),
        [&](const Target& target) { return target.asked.cell == request.session->first; });
    if (of_session != targets->end() && of_session - targets->begin() >= first)
      std::rotate(targets->begin() + first - 2, of_session, of_session + 1);
  }
  const auto deepest = std::max_element(
      targets->begin(), targets->end(),
      [](const Target& a, const Target& b) { return a.expected_blocks < b.expected_blocks; });
  if (deepest - targets->begin() >= first)
    std::rotate(targets->begin() + first - 1, deepest, deepest + 1);
}

// Nodes first: they can still say what their cells cover.
std::span<const CellSource> SourcesAfterHierarchy() {
  static constexpr CellSource kSources[] = {{Fallback::kLastGoodCells, RememberedNodes},
                                            {Fallback::kLastGoodCells, RememberedCells},
                                            {Fallback::kOwnCell, ConfiguredLeaves}};
  return kSources;
}

// A fleet of one cell lacks nothing when its leaves answer.
std::span<const CellSource> SourcesWithoutHierarchy() {
  static constexpr CellSource kSources[] = {{Fallback::kNone, ConfiguredLeaves},
                                            {Fallback::kLastGoodCells, RememberedNodes},
                                            {Fallback::kLastGoodCells, RememberedCells}};
  return kSources;
}

}  // namespace kvatlas
