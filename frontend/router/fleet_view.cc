// Reading the model's memory into a `FleetView`, and writing a leaf's answer into it. Both hold the
// model's lock for copies and look-ups alone; candidates, standings and costs are computed outside
// of it.

#include "frontend/router/fleet_view.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <utility>

namespace kvatlas {
namespace {

// Turns cost a look-up per worker; only policies that ask every cell, and choices by load alone,
// look at them.
bool WantsTurns(const RouteRequest& request, const CandidateCell& cell) {
  return cell.remembered || !request.policy->bounded_by_coverage();
}

// The configured engines as workers of the cell "": nothing is known of them but their address and,
// if the options say so, the load that the engines report themselves.
void AddEngines(const RouteRequest& request, FleetView* view) {
  if (request.engines->empty()) return;
  auto answer = std::make_shared<WorkersAnswer>();
  const auto& load_of = request.options().engine_load;
  for (const auto& [name, url] : *request.engines) {
    WorkerFound& found = answer->workers.emplace_back();
    found.worker = {.name = name, .rank = 0, .replica = ""};
    if (load_of != nullptr) found.load = load_of(found.worker);
  }
  view->remembered.push_back(MakeCandidateCell(request, /*of_cell=*/nullptr,
                                               {.cell = "",
                                                .fallback = Fallback::kLoadOnly,
                                                .remembered = true,
                                                .seen = view->at,
                                                .answer = std::move(answer)}));
}

// Counts the cell's roles from the labels, whether or not this request may use the workers: the
// memory is for all requests.
CellRoles RolesIn(const CandidateCell& cell, const std::string& address) {
  CellRoles roles{.cell = cell.cell, .address = address, .distance = cell.distance};
  for (size_t i = 0; i < cell.traits.size(); ++i) {
    const Role role = cell.traits[i].role;
    roles.alone = roles.alone || role == Role::kBoth;
    roles.prefills = roles.prefills || role == Role::kPrefill;
    if (role != Role::kDecode) continue;
    ++roles.decoders;
    const std::optional<Load>& load = cell.answer->workers[i].load;
    if (load.has_value())
      roles.decoder_requests += uint64_t{load->running_requests} + load->waiting_requests;
  }
  return roles;
}

// Shows the answer to the choices in flight at the cell. With several readings each worker is
// compared by the sequence of its own, since positions and hashes of another one mean nothing to
// it.
void ShowChoices(const RouteRequest& request, const CandidateCell& cell, Time at,
                 FleetMemory* memory) {
  if (request.readings == nullptr) {
    memory->ShownBy(cell.cell, *cell.answer, request.prompt->sequence(), at);
    return;
  }
  for (size_t reading = 0; reading < request.readings_count(); ++reading) {
    WorkersAnswer of_reading;
    for (size_t i = 0; i < cell.traits.size(); ++i)
      if (cell.traits[i].reading == reading) of_reading.workers.push_back(cell.answer->workers[i]);
    memory->ShownBy(cell.cell, of_reading, request.PromptOf(reading).sequence(), at);
  }
}

}  // namespace

// A place without a worker's name was shown by its leaf since: then the leaf's answer counts.
SentTo SiblingOf(const RouteRequest& request, const FleetMemory& memory) {
  if (!request.options().siblings_together) return {};
  const SentTo sent = request.LastSent(memory);
  const bool counts =
      sent.at + request.options().sibling_ttl > request.Now() && !sent.worker.name.empty();
  return counts ? sent : SentTo();
}

FleetView BeginView(const RouteRequest& request) {
  return {.at = request.Now(), .suspects = request.fleet->suspects.Get()};
}

// The engines of the options are a last resort, when no leaf ever answered for the domain.
void AddRemembered(const RouteRequest& request, bool engines, FleetView* view) {
  std::vector<KnownAnswer> answers;
  const std::shared_ptr<ModelFleet> model = request.Model();
  {
    MutexLock lock(&model->mutex);
    answers = model->memory.Answers(request.domain());
  }
  for (KnownAnswer& known : answers) {
    view->remembered.push_back(
        MakeCandidateCell(request, known.labels.get(),
                          {.cell = std::move(known.cell),
                           .distance = request.DistanceOf(known.labels.get()),
                           .fallback = Fallback::kLoadOnly,
                           .remembered = true,
                           .seen = known.seen,
                           .answer = std::move(known.answer)}));
  }
  if (answers.empty() && engines) AddEngines(request, view);
  view->with_memory = true;
}

// Fills all of the view that changes with the memory; called again with the same view, it starts
// afresh.
void LookAt(const RouteRequest& request, const ModelFleet& model,
            const std::vector<CandidateCellPtr>& cells, FleetView* view) {
  const auto look =
      [&](const std::vector<CandidateCellPtr>& at, std::vector<std::vector<WorkerNow>>* now)
          ABSL_EXCLUSIVE_LOCKS_REQUIRED(model.mutex) {
            now->clear();
            for (const CandidateCellPtr& cell : at)
              now->push_back(model.memory.Now(request.domain(), cell->cell, cell->answer->workers,
                                              WantsTurns(request, *cell)));
          };
  view->sibling = SiblingOf(request, model.memory);
  view->session_told = false;
  view->pending_depths.clear();
  for (const CandidateCellPtr& cell : cells) {
    for (size_t i = 0; i < cell->traits.size(); ++i) {
      const uint32_t depth = PendingOf(request, *cell, i);
      view->session_told = view->session_told || cell->answer->workers[i].pending.session;
      // Blocks on their way to a worker that may not be chosen attract no request.
      if (depth == 0 || !cell->traits[i].allowed) continue;
      view->pending_depths.resize(request.readings_count());
      uint32_t& deepest = view->pending_depths[cell->traits[i].reading];
      deepest = std::max(deepest, depth);
    }
  }
  look(cells, &view->cells);
  look(view->remembered, &view->remembered_now);
}

// One answer of a leaf, in two holds of the lock:
//   1. The cell's labels are read, and the candidate is made without the lock: a filter per worker.
//   2. Under the lock the memory learns: choices that the answer shows, the sibling if its blocks
//      have come, workers, roles, and whether the cell kept its promise. Then the view is read, so
//      that it includes all of this.
//   3. Standing and best cost are computed from the view, without the lock.
// The order in 2 matters: a choice that this answer shows must not count as in flight beside the
// load that counts it.
Answered Learn(const RouteRequest& request, CandidateCell cell, const std::string& address,
               uint32_t promised) {
  const std::shared_ptr<ModelFleet> model = request.KnownModel();
  const Domain& domain = request.domain();
  std::shared_ptr<const Labels> of_cell;
  {
    MutexLock lock(&model->mutex);
    if (const KnownCell* known = model->memory.FindCell(domain, cell.cell)) of_cell = known->labels;
  }
  Answered answered;
  answered.cell = MakeCandidateCell(request, of_cell.get(), std::move(cell));
  const WorkersAnswer& answer = *answered.cell->answer;
  const std::string& name = answered.cell->cell;
  const uint32_t held = DeepestOf(answer).held;
  FleetView view = BeginView(request);
  {
    MutexLock lock(&model->mutex);
    ShowChoices(request, *answered.cell, view.at, &model->memory);
    const SentTo sibling = SiblingOf(request, model->memory);
    const PreparedPrompt& prompt = request.PromptOf(sibling.reading);
    const uint32_t sent = std::min(request.options().schedule->BlocksCovered(sibling.waypoints),
                                   prompt.reusable_blocks());
    const bool shown =
        sibling.cell == name && !sibling.cell.empty() &&
        std::any_of(answer.workers.begin(), answer.workers.end(), [&](const WorkerFound& found) {
          return found.worker == sibling.worker && found.blocks >= sent;
        });
    if (shown) {
      model->memory.SentIsShown(
          domain, std::span<const SequenceHash>(prompt.waypoints()).first(sibling.waypoints),
          sibling.worker);
    }
    model->memory.SawWorkers(domain, name, answered.cell->answer, view.at);
    model->memory.SawRoles(domain, RolesIn(*answered.cell, address), view.at);
    model->memory.Promised(domain, name, std::min(promised, request.prompt->reusable_blocks()),
                           held, view.at);
    LookAt(request, *model, {answered.cell}, &view);
  }
  answered.standing = StandingOf(request, view, *answered.cell, view.cells[0]);
  answered.best_cost = BestCostOf(request, view, *answered.cell, view.cells[0]);
  return answered;
}

}  // namespace kvatlas
