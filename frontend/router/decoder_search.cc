// The two entry points, and one helper for each kind of cell that they take: `TakeDecodeCells` for
// cells known to decode, `TakeCellsThatMayDecode` for cells (and nodes) of which it is not known.
// Roles come from leaves' answers (`FleetMemory::SawRoles`). The model's lock is held while the
// memory is read; targets are taken outside of it.

#include "frontend/router/decoder_search.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "frontend/router/first_answer.h"

namespace kvatlas {
namespace {

// So long a cell that answered is not asked for decoders again when it had none, and the load of
// its decoders is believed.
constexpr Duration kRolesFresh = std::chrono::seconds(1);
// So often cells are asked, beside those that are known to decode, of which it was not heard for so
// long; so many at once.
constexpr Duration kExploreEvery = std::chrono::seconds(1);
constexpr Duration kRolesKnown = std::chrono::seconds(10);
constexpr size_t kExploredAtOnce = 2;

// The expected wait in a cell, by what is known of the cell alone: distance, and requests per
// decoder.
double CellDecodeCost(double requests, double workers, double distance,
                      const CostWeights& weights) {
  return weights.distance * distance + weights.decode * requests / std::max(workers, 1.0);
}

// At most `cells_max` cells that are known to decode and were not asked in this try, the cheapest
// first. A cell that the search does not hold is asked at the address where it last answered, with
// no bound on its coverage.
std::vector<Target> TakeDecodeCells(const RouteRequest& request, size_t cells_max,
                                    CellSearch* search) {
  std::vector<std::tuple<double, std::string, CellRoles>> cells;
  const std::shared_ptr<ModelFleet> model = request.Model();
  {
    MutexLock lock(&model->mutex);
    for (CellRoles& roles : model->memory.DecodeCells(request.domain())) {
      // Older news says nothing any more; without this, a cell that once was busy would never be
      // asked again.
      const bool fresh = roles.seen + kRolesFresh > request.Now();
      const double requests = (fresh ? static_cast<double>(roles.decoder_requests) : 0) +
                              model->memory.choices().To(roles.cell).requests;
      const double cost =
          CellDecodeCost(requests, roles.decoders, roles.distance, request.policy->weights());
      std::string name = roles.cell;
      cells.emplace_back(cost, std::move(name), std::move(roles));
    }
  }
  std::sort(cells.begin(), cells.end(), [](const auto& a, const auto& b) {
    return std::tie(std::get<0>(a), std::get<1>(a)) < std::tie(std::get<0>(b), std::get<1>(b));
  });
  std::vector<Target> taken;
  for (const auto& [cost, name, roles] : cells) {
    if (taken.size() == cells_max) break;
    std::optional<Target> target =
        search->TakeCell(name, {.asked = {.cell = name,
                                          .address = roles.address,
                                          .blocks_below = request.prompt->blocks() + 1},
                                .distance = roles.distance});
    if (!target.has_value()) continue;
    // The wave waits for this leaf until some decoder has answered (`LeafWave::IsWorthWaiting`).
    target->for_decoders = true;
    taken.push_back(*std::move(target));
  }
  return taken;
}

// At most `cells_max` targets of the search whose leaves did not answer within `fresh`, cells whose
// label says "decode" first, then by cost. Nodes (if `nodes`) are taken only when there is no such
// cell, so that the levels below are looked through only when the cells at hand have none; cells
// and nodes are never mixed.
std::vector<Target> TakeCellsThatMayDecode(const RouteRequest& request, size_t cells_max,
                                           Duration fresh, bool nodes, CellSearch* search) {
  struct Ranked {
    bool is_node = false;
    bool says_so = false;  // the cell's own label
    double cost = 0;
    const Target* target = nullptr;
  };
  std::vector<Ranked> ranked;
  const std::shared_ptr<ModelFleet> model = request.Model();
  {
    MutexLock lock(&model->mutex);
    for (const Target& target : search->targets()) {
      const std::string& cell = target.asked.cell;
      if ((target.is_node && !nodes) || search->WasAsked(target)) continue;
      const std::optional<Time> answered = model->memory.Answered(request.domain(), cell);
      if (!target.is_node && answered.has_value() && *answered + fresh > request.Now()) continue;
      const KnownCell* known = model->memory.FindCell(request.domain(), cell);
      double requests = model->memory.choices().To(cell).requests;
      double workers = 1;
      if (known != nullptr && known->load.has_value()) {
        requests +=
            static_cast<double>(known->load->running_requests) + known->load->waiting_requests;
        workers = known->load->workers;
      }
      ranked.push_back(
          {.is_node = target.is_node,
           .says_so = known != nullptr && RoleOf(nullptr, known->labels.get()) == Role::kDecode,
           .cost = CellDecodeCost(requests, workers, target.distance, request.policy->weights()),
           .target = &target});
    }
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) {
    return std::tuple(a.is_node, !a.says_so, a.cost) < std::tuple(b.is_node, !b.says_so, b.cost);
  });
  // `ranked` points into the search's targets, which `TakeCell` changes: so the chosen ones are
  // copied first.
  std::vector<Target> chosen;
  for (const Ranked& rank : ranked) {
    if (chosen.size() == cells_max || rank.is_node != ranked.front().is_node) break;
    chosen.push_back(*rank.target);
  }
  std::vector<Target> taken;
  for (Target& target : chosen) {
    const std::string cell = target.asked.cell;
    std::optional<Target> of_search = search->TakeCell(cell, std::move(target));
    if (!of_search.has_value()) continue;
    of_search->for_decoders = !of_search->is_node;
    taken.push_back(*std::move(of_search));
  }
  return taken;
}

}  // namespace

// Called for every wave of leaves. Does nothing unless some cell of the wave is known to have
// workers that only prefill, and none is known to have a decoder; so fleets without roles pay for a
// look-up per leaf at most.
void AddDecoders(const RouteRequest& request, const Answers& answers, CellSearch* search,
                 std::vector<Target>* leaves) {
  if (answers.has_decoder() || leaves->size() >= search->room()) return;
  bool prefill = false, explore = false;
  const std::shared_ptr<ModelFleet> model = request.Model();
  {
    MutexLock lock(&model->mutex);
    for (const Target& leaf : *leaves) {
      const CellRoles* roles = model->memory.RolesOf(request.domain(), leaf.asked.cell);
      if (roles != nullptr && roles->decoders > 0) return;
      prefill = prefill || (roles != nullptr && roles->prefills);
    }
  }
  if (!prefill) return;
  const size_t room = search->room() - leaves->size();
  std::vector<Target> decode = TakeDecodeCells(request, 1, search);
  // Roles change, and cells come: without this, the first cell that decodes would decode for ever.
  if (!decode.empty() && room > decode.size()) {
    MutexLock lock(&model->mutex);
    explore = model->memory.IsDue(request.domain(), FleetMemory::Errand::kExploreCells,
                                  kExploreEvery, request.Now());
  }
  if (explore) {
    for (Target& target :
         TakeCellsThatMayDecode(request, std::min(room - decode.size(), kExploredAtOnce),
                                kRolesKnown, /*nodes=*/false, search))
      leaves->push_back(std::move(target));
  }
  for (Target& target : decode) leaves->push_back(std::move(target));
}

// Called after the search by cost, when a prefiller was found and no decoder. With a worker that
// does both in hand only cells that are known to decode are worth a wave.
std::vector<Target> TakeForDecoders(const RouteRequest& request, const Answers& answers,
                                    CellSearch* search) {
  const FrontendOptions& options = request.options();
  if (search->room() == 0 || Share(request.Left(), kWaveShare) < kHopMin) return {};
  std::vector<Target> taken = TakeDecodeCells(
      request, std::min<size_t>(search->room(), std::max(options.ask_cells, 1u)), search);
  if (!taken.empty() || answers.any_alone()) return taken;
  return TakeCellsThatMayDecode(
      request,
      std::min<size_t>(search->room(), std::max({options.ask_cells_blind, options.ask_cells, 1u})),
      kRolesFresh, /*nodes=*/true, search);
}

}  // namespace kvatlas
