// `ChooseAndCount` is optimistic: it ranks outside of the model's lock and counts only if the
// figures it went by have not changed. `Count` is the only place where a choice enters the model's
// memory.

#include "frontend/router/commit.h"

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "frontend/router/fleet_view.h"

namespace kvatlas {
namespace {

// Compares the chosen worker alone, with the figures it was ranked by. A choice counted meanwhile
// makes other workers dearer, so the chosen one would win again. A release makes another one
// cheaper; going by the older figures is then no worse than having chosen a moment earlier.
bool IsAsSeen(const FleetMemory& memory, const ChosenWorker& chosen) {
  const InFlight now = memory.choices().To(chosen.cell->cell, chosen.id());
  return now.blocks == chosen.input.in_flight_blocks &&
         now.requests == chosen.input.in_flight_requests &&
         (chosen.input.turn == 0 ||
          memory.TurnOf(chosen.cell->cell, chosen.id()) == chosen.input.turn);
}

// The figures of the chosen workers and the prompt's latest sibling are as they were ranked by.
bool StillHolds(const RouteRequest& request, const FleetMemory& memory, const FleetView& view,
                const Choice& choice) {
  if (!IsAsSeen(memory, *choice.worker)) return false;
  if (choice.decoder.has_value() && !IsAsSeen(memory, *choice.decoder)) return false;
  const SentTo sibling = SiblingOf(request, memory);
  return sibling.cell == view.sibling.cell && sibling.worker == view.sibling.worker &&
         sibling.waypoints == view.sibling.waypoints;
}

// Counts the choice, under the lock under which `StillHolds` was true:
//   1. In flight, until a report, the worker's events or its load show it (`in_flight.h`).
//      `missing_block` is the first block that the worker lacks: once its leaf shows it there, the
//      choice is seen to have arrived.
//   2. The worker's turn and what it is about to store; the turn is the number of the route.
//   3. The prompt's waypoints as sent there, so that siblings follow. Waypoints that the worker's
//      own overlap covers count as shown at once: for these the leaf's answer is better than the
//      memory.
uint64_t Count(const RouteRequest& request, const Choice& choice, ModelFleet* model)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(model->mutex) {
  const ChosenWorker& worker = *choice.worker;
  const PreparedPrompt& prompt = request.PromptOf(worker.reading());
  const uint32_t blocks = request.BlocksOf(worker.reading());
  const Time now = request.Now();
  NewChoice counted = {.cell = worker.cell->cell,
                       .worker = worker.id(),
                       .blocks = blocks - std::min(worker.input.overlap_blocks, blocks),
                       .missing_position = choice.overlap_blocks,
                       .load = worker.cell->answer->workers[worker.worker].load,
                       .end_follows = request.input->end_follows};
  if (choice.overlap_blocks < prompt.blocks())
    counted.missing_block = prompt.sequence()[choice.overlap_blocks];
  if (choice.decoder.has_value())
    counted.decode = CellWorker(choice.decoder->cell->cell, choice.decoder->id());
  FleetState& fleet = *request.fleet;
  const uint64_t id = fleet.NewDecision(*model);
  // `counted` is moved from below.
  const uint64_t stored = counted.blocks;
  model->memory.choices().Choose(id, std::move(counted), now);
  model->memory.TookTurn(request.domain(), worker.cell->cell, worker.id(), ++fleet.counts.routes,
                         stored);
  ++fleet.counts.by_fallback[static_cast<int>(choice.fallback)];
  fleet.counts.prompt_blocks += prompt.blocks();
  fleet.counts.chosen_blocks += choice.overlap_blocks;
  fleet.counts.best_blocks += choice.best_blocks;
  if (model->place == 0) return id;  // nothing was heard of the model: there will be no siblings
  const std::vector<SequenceHash>& waypoints = prompt.waypoints();
  model->memory.Sent(request.domain(), waypoints, worker.cell->cell, worker.id(), now);
  size_t shown = 0;
  while (shown < waypoints.size() && request.options().schedule->BlocksCovered(
                                         static_cast<uint32_t>(shown) + 1) <= choice.overlap_blocks)
    ++shown;
  model->memory.SentIsShown(request.domain(), std::span<const SequenceHash>(waypoints).first(shown),
                            worker.id());
  return id;
}

// A choice that may be counted; under `only_good` neither a suspect nor a remembered worker.
bool MayCount(const Choice& choice, const CommitOptions& options) {
  if (choice.verdict != Verdict::kChosen) return false;
  return !options.only_good || (choice.stands_well() && choice.fallback != Fallback::kLoadOnly);
}

}  // namespace

// The tries without the lock, then one under it, so that it ends however many routes compete.
// Reading the memory for `kNeedsMemory` takes one of the tries; the view keeps it. `Choice` points
// into `cells` and `remembered`: the caller owns the first, the result the second.
Committed ChooseAndCount(const RouteRequest& request, const std::vector<CandidateCellPtr>& cells,
                         const CommitOptions& options) {
  const std::shared_ptr<ModelFleet> model = request.Model();
  FleetView view = BeginView(request);
  Committed result;
  for (int attempt = 0; attempt < kTriesWithoutLock; ++attempt) {
    {
      MutexLock lock(&model->mutex);
      // Choices that are too old are dropped before they are looked at; once a route is enough.
      if (attempt == 0)
        request.fleet->counts.expired_choices += model->memory.choices().Expire(view.at);
      LookAt(request, *model, cells, &view);
    }
    result.choice = Choose(request, cells, view);
    if (result.choice.verdict == Verdict::kNeedsMemory) {
      AddRemembered(request, options.engines, &view);
      continue;
    }
    if (!MayCount(result.choice, options)) break;
    MutexLock lock(&model->mutex);
    if (!StillHolds(request, model->memory, view, result.choice)) continue;
    result.decision_id = Count(request, result.choice, model.get());
    break;
  }
  const bool undecided = result.choice.verdict == Verdict::kNeedsMemory ||
                         (MayCount(result.choice, options) && result.decision_id == 0);
  if (undecided) {
    if (!view.with_memory) AddRemembered(request, options.engines, &view);
    MutexLock lock(&model->mutex);
    LookAt(request, *model, cells, &view);
    result.choice = Choose(request, cells, view);
    if (MayCount(result.choice, options))
      result.decision_id = Count(request, result.choice, model.get());
  }
  // Chosen, but not good enough for `only_good`.
  if (result.decision_id == 0 && result.choice.verdict == Verdict::kChosen)
    result.choice.verdict = Verdict::kNone;
  result.remembered = std::move(view.remembered);
  return result;
}

}  // namespace kvatlas
