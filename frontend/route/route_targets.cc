// Of one route: who is worth asking, and in what order?

#include <algorithm>
#include <chrono>
#include <limits>
#include <tuple>
#include <utility>

#include "frontend/route/route_task.h"

namespace kvatlas {
namespace {

// So long a cell where everybody only decodes comes last among those that are to prefill; then it is asked again.
constexpr Duration kOnlyDecodesFor = std::chrono::seconds(10);

}  // namespace

double RouteTask::DistanceOf(const std::map<std::string, std::string>& labels) const {
  const std::string& zone = shared_->options.zone;
  const auto of_cell = labels.find("zone");
  if (zone.empty() || of_cell == labels.end() || of_cell->second == zone) return 0;
  return shared_->options.zone_distance;
}

uint32_t RouteTask::ExpectedBlocks(const Target& target, uint32_t reported,
                                   const SentTo& sent) const {
  if (sent.cell.empty()) return reported;
  const std::string& name = target.asked.cell;
  const bool sent_there =
      target.is_node ? shared_->nodes.IsAbove(input_.domain, name, sent.cell) : name == sent.cell;
  if (!sent_there) return reported;
  return std::max(reported, shared_->options.schedule->BlocksCovered(sent.waypoints));
}

// As the average worker of the cell would cost; the cell's figures are sums.
double RouteTask::ExpectedCost(const std::string& cell, const std::optional<Load>& load,
                               uint32_t overlap, double distance) const {
  const double workers = load.has_value() ? std::max<uint32_t>(load->workers, 1) : 1;
  const InFlight in_flight = shared_->memory.choices().To(cell);
  const Cost sum = policy_->CostOf({.prompt_blocks = receipt_.blocks,
                                    .overlap_blocks = std::min(overlap, ReusableMax()),
                                    .load = load,
                                    .in_flight_blocks = in_flight.blocks,
                                    .in_flight_requests = in_flight.requests,
                                    .distance = distance,
                                    .expected_output_tokens = input_.expected_output_tokens});
  return sum.total() - (sum.queue + sum.decode) * (1 - 1 / workers);
}

double RouteTask::BestCost(uint32_t blocks_below, double distance) const {
  if (!policy_->bounded_by_coverage()) return -std::numeric_limits<double>::infinity();
  return policy_
      ->CostOf({.prompt_blocks = receipt_.blocks,
                .overlap_blocks = std::min(blocks_below == 0 ? 0 : blocks_below - 1, ReusableMax()),
                .distance = distance})
      .total();
}

// Its leaf said so lately; what it covers is of no use to who prefills.
bool RouteTask::OnlyDecodes(const CellFound& cell) const {
  if (cell.is_node || !policy_->bounded_by_coverage()) return false;
  const CellRoles* roles = shared_->memory.RolesOf(input_.domain, cell.cell);
  return roles != nullptr && roles->only_decodes() && roles->seen + kOnlyDecodesFor > Now();
}

RouteTask::Target RouteTask::ToTarget(const CellFound& cell, const SentTo& sent) const {
  Target target{.asked = {.cell = cell.cell,
                          .address = cell.address,
                          .blocks_at_least = cell.blocks_at_least,
                          .blocks_below = cell.blocks_below,
                          .age_ms = cell.age_ms},
                .other_addresses = cell.other_addresses,
                .is_node = cell.is_node,
                .distance = DistanceOf(cell.labels)};
  target.expected_blocks = shared_->memory.Believed(
      input_.domain, cell.cell, ExpectedBlocks(target, cell.blocks_at_least, sent), Now());
  target.cost = ExpectedCost(cell.cell, cell.load, target.expected_blocks, target.distance);
  // An upper bound that is none bounds nothing.
  const uint32_t below = cell.blocks_below > cell.blocks_at_least ? cell.blocks_below : UINT32_MAX;
  target.best_cost = BestCost(std::max(below, target.expected_blocks + 1), target.distance);
  if (OnlyDecodes(cell)) {
    target.expected_blocks = 0;
    target.cost = target.best_cost = std::numeric_limits<double>::max();
  }
  return target;
}

std::vector<RouteTask::Target> RouteTask::ToTargets(const std::vector<CellFound>& cells) const {
  std::vector<Target> targets;
  targets.reserve(cells.size());
  MutexLock lock(&shared_->mutex);
  const SentTo sent = shared_->memory.LastSentTo(input_.domain, waypoints_, Now());
  for (const CellFound& cell : cells)
    if (!cell.address.empty()) targets.push_back(ToTarget(cell, sent));
  return targets;
}

// Cheapest first, but the deepest cell is always among the first K, and the session's, if K allows: its average load says
// little about the one worker that has the prefix.
void RouteTask::Rank(std::vector<Target>* targets) const {
  std::stable_sort(targets->begin(), targets->end(), [](const Target& a, const Target& b) {
    return std::tie(a.cost, a.asked.cell) < std::tie(b.cost, b.asked.cell);
  });
  const auto asked = static_cast<ptrdiff_t>(std::max<uint32_t>(AtOnce(), 1));
  if (session_.has_value() && asked > 1) {
    const auto of_session =
        std::find_if(targets->begin(), targets->end(),
                     [&](const Target& target) { return target.asked.cell == session_->first; });
    if (of_session != targets->end() && of_session - targets->begin() >= asked)
      std::rotate(targets->begin() + asked - 2, of_session, of_session + 1);
  }
  const auto deepest = std::max_element(
      targets->begin(), targets->end(),
      [](const Target& a, const Target& b) { return a.expected_blocks < b.expected_blocks; });
  if (asked > 1 && deepest - targets->begin() >= asked)
    std::rotate(targets->begin() + asked - 1, deepest, deepest + 1);
}

std::vector<RouteTask::Target> RouteTask::KnownNodeTargets() const {
  std::vector<CellFound> nodes;
  {
    MutexLock lock(&shared_->mutex);
    for (KnownNode& known : shared_->nodes.Nodes(input_.domain)) {
      known.node.blocks_at_least = 0;
      known.node.blocks_below = receipt_.blocks + 1;
      known.node.age_ms = MillisecondsSince(known.seen);
      nodes.push_back(std::move(known.node));
    }
  }
  std::vector<Target> targets = ToTargets(nodes);
  std::stable_sort(targets.begin(), targets.end(),
                   [](const Target& a, const Target& b) { return a.cost < b.cost; });
  return targets;
}

std::vector<RouteTask::Target> RouteTask::KnownCellTargets() const {
  std::vector<Target> targets;
  MutexLock lock(&shared_->mutex);
  const SentTo sent = shared_->memory.LastSentTo(input_.domain, waypoints_, Now());
  for (const KnownCell& known : shared_->memory.Cells(input_.domain)) {
    if (known.address.empty()) continue;
    targets.push_back(ToTarget({.cell = known.cell,
                                .address = known.address,
                                .blocks_below = receipt_.blocks + 1,
                                .age_ms = MillisecondsSince(known.seen),
                                .load = known.load,
                                .labels = known.labels},
                               sent));
  }
  std::stable_sort(targets.begin(), targets.end(),
                   [](const Target& a, const Target& b) { return a.cost < b.cost; });
  return targets;
}

std::vector<RouteTask::Target> RouteTask::ConfiguredTargets() const {
  std::vector<Target> targets;
  for (const ConfiguredLeaf& leaf : shared_->Leaves()) {
    Target target;
    target.asked = {
        .cell = leaf.cell, .address = leaf.address, .blocks_below = receipt_.blocks + 1};
    targets.push_back(std::move(target));
  }
  return targets;
}

uint32_t RouteTask::AtOnce() const {
  const FrontendOptions& options = shared_->options;
  if (!policy_->bounded_by_coverage()) return std::max<uint32_t>(options.asked_max, 1);
  return std::max<uint32_t>(rung_ == Fallback::kNone
                                ? options.ask_cells
                                : std::max(options.ask_cells_blind, options.ask_cells),
                            1);
}

uint32_t RouteTask::UsefulLeavesMax() const {
  return coverage_overstates_ ? AtOnce() + shared_->options.ask_cells_blind : AtOnce();
}

double RouteTask::ToBeat() const {
  double cheapest = std::numeric_limits<double>::infinity();
  MutexLock lock(&shared_->mutex);
  for (const Answered& answered : answered_)
    cheapest = std::min(cheapest, BestCostOf(*answered.answer, answered.cell, answered.distance));
  return cheapest;
}

// The next targets that nobody asked in this route, as far as they can win over what was found and over the first of them; empty
// when the rung has no more or enough were asked.
std::vector<RouteTask::Target> RouteTask::TakeTargets() {
  const FrontendOptions& options = shared_->options;
  const bool known = rung_ == Fallback::kNone;
  size_t room = answered_.empty() ? AtOnce()
                                  : UsefulLeavesMax() - std::min(UsefulLeavesMax(), useful_leaves_);
  room = std::min<size_t>(room, options.asked_max - leaves_asked_);
  double to_beat = ToBeat();
  std::vector<Target> taken, left;
  for (Target& target : targets_) {
    if (taken.size() == room || (known && target.best_cost >= to_beat)) {
      left.push_back(std::move(target));
    } else if (asked_addresses_.insert(target.asked.address).second) {
      to_beat = std::min(to_beat, target.cost);
      taken.push_back(std::move(target));
    }
  }
  targets_ = std::move(left);
  return taken;
}

}  // namespace kvatlas
