// The worth of a cell's worker now: what may be promised of it (`OverlapOf`), how it stands
// (`StandingOf`), what it costs (`CostInputOf`). All are pure functions of the immutable cell and a
// `FleetView`; the cell's traits are computed once, when its leaf answers.

#include "frontend/router/candidates.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "frontend/router/fleet.h"

namespace kvatlas {
namespace {

const OverloadThresholds kNoThresholds = {};

// Remembered loads may be long over: no remembered worker is left out for its load.
const OverloadThresholds& ThresholdsOf(const RouteRequest& request, const CandidateCell& cell) {
  return cell.remembered ? kNoThresholds : *request.overload;
}

// Blocks of the prompt that its sibling's worker is about to have.
uint32_t BlocksOfSibling(const RouteRequest& request, const SentTo& sibling, size_t reading) {
  if (sibling.cell.empty()) return 0;
  return std::min(request.options().schedule->BlocksCovered(sibling.waypoints),
                  request.PromptOf(reading).reusable_blocks());
}

bool HasEngineRank(const WorkersAnswer& answer, const WorkerFound& found, uint32_t rank) {
  return EngineRankOf(found.worker, answer.LabelsOf(found.worker)) == rank;
}

// The rank that the request wants, as engines number them. Nothing: any rank, which also holds when
// no worker of the cell has the wanted one, so that a wrong header does not make a cell unusable.
std::optional<uint32_t> RankWanted(const RouteRequest& request, const WorkersAnswer& answer) {
  const std::optional<uint32_t>& rank = request.input->rank;
  if (!rank.has_value()) return std::nullopt;
  const bool there =
      std::any_of(answer.workers.begin(), answer.workers.end(),
                  [&](const WorkerFound& found) { return HasEngineRank(answer, found, *rank); });
  return there ? rank : std::nullopt;
}

// Requests that frontends told the leaf of; a remembered answer's are over by now.
const Pending& ToldOf(const CandidateCell& cell, size_t worker) {
  static constexpr Pending kNothing;
  return cell.remembered ? kNothing : cell.answer->workers[worker].pending;
}

}  // namespace

bool CandidateCell::has(Role role) const {
  return std::any_of(traits.begin(), traits.end(),
                     [&](const Traits& worker) { return worker.role == role && worker.allowed; });
}

// Reads role, permission and reading of each worker from its labels, then the cell is immutable. A
// worker that only prefills is allowed whatever its rank: the client's rank names the engine that
// serves the answer.
CandidateCellPtr MakeCandidateCell(const RouteRequest& request, const Labels* of_cell,
                                   CandidateCell cell) {
  const std::shared_ptr<const std::set<std::string>> draining = request.fleet->draining.Get();
  const WorkerFilter filter = {.tenant = request.domain().tenant,
                               .allowed_workers = request.input->allowed_workers,
                               .excluded_workers = request.input->excluded_workers,
                               .required_labels = &request.input->required_labels,
                               .draining = draining.get()};
  cell.traits.reserve(cell.answer->workers.size());
  const std::optional<uint32_t> rank = RankWanted(request, *cell.answer);
  for (const WorkerFound& found : cell.answer->workers) {
    const Labels* own = cell.answer->LabelsOf(found.worker);
    const Role role = RoleOf(own, of_cell);
    const bool of_rank =
        !rank.has_value() || HasEngineRank(*cell.answer, found, *rank) || role == Role::kPrefill;
    const bool allowed = of_rank && IsAllowed(filter, found.worker, own, of_cell);
    // Permitted by the request and yet not allowed: it drains. Known apart so that the error can
    // say "draining".
    const bool draining = of_rank && !allowed && IsPermitted(filter, found.worker, own, of_cell);
    cell.traits.push_back({.role = role,
                           .allowed = allowed,
                           .draining = draining,
                           .reading = request.ReadingOf(own, found.worker)});
  }
  return std::make_shared<const CandidateCell>(std::move(cell));
}

// ---- Standings ----

// `tried` is short, a worker per failed attempt of this request, and is searched linearly.
Standing StandingOf(const RouteRequest& request, const FleetView& view, const std::string& cell,
                    const HolderId& worker) {
  for (const CellWorker& tried : request.input->tried) {
    if (tried.first == cell && tried.second == worker) return Standing::kTried;
  }
  const bool suspect = !view.suspects->empty() && view.suspects->Contains({cell, worker}, view.at);
  return suspect ? Standing::kSuspect : Standing::kGood;
}

// For each role the best standing among the allowed workers below their thresholds; the other
// workers are counted by what keeps them out.
CellStanding StandingOf(const RouteRequest& request, const FleetView& view,
                        const CandidateCell& cell, const std::vector<WorkerNow>& now) {
  const OverloadThresholds& overload = ThresholdsOf(request, cell);
  CellStanding standing;
  for (size_t i = 0; i < cell.traits.size(); ++i) {
    const auto& [role, allowed, draining, reading] = cell.traits[i];
    if (!allowed) {
      ++standing.not_allowed;
      standing.draining += draining;
      continue;
    }
    const WorkerFound& found = cell.answer->workers[i];
    const InFlight in_flight = AllInFlight(cell, i, NowOf(now, i));
    if (IsOverloaded(overload, found.load, in_flight)) {
      ++(role == Role::kDecode ? standing.overloaded_decoders : standing.overloaded);
      standing.least_excess =
          std::min(standing.least_excess, QueueExcess(overload, found.load, in_flight));
      continue;
    }
    Standing& best = role == Role::kDecode    ? standing.decodes
                     : role == Role::kPrefill ? standing.prefills
                                              : standing.alone;
    // The look-up of suspects is skipped once the role has a good worker.
    if (best != Standing::kGood)
      best = std::min(best, StandingOf(request, view, cell.cell, found.worker));
  }
  return standing;
}

// ---- Costs ----

uint32_t OverlapOf(const RouteRequest& request, const CandidateCell& cell, size_t worker) {
  const WorkerFound& found = cell.answer->workers[worker];
  if (cell.remembered || found.trust == Trust::kStale) return 0;
  return std::min(found.blocks, request.PromptOf(cell.traits[worker].reading).reusable_blocks());
}

// The depth counts only where it exceeds the overlap; equal or less says nothing new.
uint32_t PendingOf(const RouteRequest& request, const CandidateCell& cell, size_t worker) {
  if (!request.options().siblings_together) return 0;
  const uint32_t depth = std::min(ToldOf(cell, worker).depth,
                                  request.PromptOf(cell.traits[worker].reading).reusable_blocks());
  return depth > OverlapOf(request, cell, worker) ? depth : 0;
}

InFlight AllInFlight(const CandidateCell& cell, size_t worker, const WorkerNow& now) {
  InFlight all = now.in_flight;
  const Pending& others = ToldOf(cell, worker);
  all.blocks += others.blocks;
  all.requests += others.requests;
  return all;
}

// Everything that the policy may look at, for one worker. Two sources of requests with the same
// beginning are combined: this frontend's own choices (`FleetView::sibling`), and what all
// frontends told the leaves (`PendingOf`, `pending_depths`). If such a request went to this worker,
// its blocks count as overlap, since they will be there before this request is computed. If it went
// to another one, computing it here is done twice: `duplicated_blocks`. The overlap in the result
// is for ranking alone; promises come from `OverlapOf`.
CostInput CostInputOf(const RouteRequest& request, const FleetView& view, const CandidateCell& cell,
                      size_t worker, const WorkerNow& now) {
  const WorkerFound& found = cell.answer->workers[worker];
  const Pending& others = ToldOf(cell, worker);
  const uint32_t overlap = OverlapOf(request, cell, worker);
  const size_t reading = cell.traits[worker].reading;
  CostInput input = {.prompt_blocks = request.BlocksOf(reading),
                     .overlap_blocks = overlap,
                     .fetched = cell.remembered ? FetchedBlocks() : found.fetched,
                     .load = LoadNow(found.load, now.in_flight),
                     .in_flight_blocks = now.in_flight.blocks,
                     .in_flight_requests = now.in_flight.requests,
                     .others_blocks = others.blocks,
                     .others_requests = others.requests,
                     .distance = cell.distance,
                     .expected_output_tokens = request.input->expected_output_tokens,
                     .crowding = now.crowding,
                     .turn = now.turn};
  // A leaf's word on the session is newer than this frontend's memory: the last request may have
  // come through another one.
  if (view.session_told) {
    input.leaves_session = !found.pending.session;
  } else if (request.session.has_value()) {
    input.leaves_session =
        request.session->first != cell.cell || request.session->second != found.worker;
  }
  const SentTo& sibling = view.sibling;
  const uint32_t sent = cell.remembered ? 0 : BlocksOfSibling(request, sibling, reading);
  const bool sent_here = sibling.cell == cell.cell && sibling.worker == found.worker;
  const uint32_t told = reading < view.pending_depths.size() ? view.pending_depths[reading] : 0;
  const uint32_t here = std::max(sent_here ? sent : 0, PendingOf(request, cell, worker));
  input.overlap_blocks = std::max(overlap, here);
  const uint32_t elsewhere = cell.remembered ? 0 : std::max(sent, told);
  if (elsewhere > input.overlap_blocks) input.duplicated_blocks = elsewhere - input.overlap_blocks;
  return input;
}

// The cheapest good prefiller: what other cells have to beat. O(workers) costs.
double BestCostOf(const RouteRequest& request, const FleetView& view, const CandidateCell& cell,
                  const std::vector<WorkerNow>& now) {
  double best = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < cell.traits.size(); ++i) {
    const auto& [role, allowed, draining, reading] = cell.traits[i];
    const WorkerFound& found = cell.answer->workers[i];
    const WorkerNow& worker = NowOf(now, i);
    if (!allowed || role == Role::kDecode ||
        IsOverloaded(ThresholdsOf(request, cell), found.load, AllInFlight(cell, i, worker)) ||
        StandingOf(request, view, cell.cell, found.worker) != Standing::kGood)
      continue;
    best =
        std::min(best, request.policy->CostOf(CostInputOf(request, view, cell, i, worker)).total());
  }
  return best;
}

DeepestBlocks DeepestOf(const WorkersAnswer& answer) {
  DeepestBlocks deepest;
  for (const WorkerFound& worker : answer.workers) {
    deepest.reusable = std::max(deepest.reusable, worker.blocks);
    deepest.held = std::max({deepest.held, worker.blocks, worker.held});
  }
  return deepest;
}

// Sums up as answers come, so that the questions of the search are O(1).
void Answers::Add(Answered answered) {
  const CellStanding& standing = answered.standing;
  good_ += standing.best() == Standing::kGood;
  if (standing.best() == Standing::kGood) cheapest_ = std::min(cheapest_, answered.best_cost);
  overloaded_ += standing.overloaded;
  alone_ = alone_ || standing.alone == Standing::kGood;
  prefills_ = prefills_ || standing.prefills == Standing::kGood;
  decodes_ = decodes_ || standing.decodes == Standing::kGood;
  const DeepestBlocks deepest = DeepestOf(*answered.cell->answer);
  coverage_overstates_ = coverage_overstates_ || deepest.held > deepest.reusable;
  cells_.push_back(std::move(answered.cell));
}

}  // namespace kvatlas
