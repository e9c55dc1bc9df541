#include "frontend/route/route_result.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace kvatlas {
namespace {

std::string UrlOf(const RouteRequest& request, const ChosenWorker& worker) {
  return UrlOf(worker.cell->answer->LabelsOf(worker.id()), *request.engines, worker.id());
}

// Whether its leaf names another rank of the same worker.
bool OfSeveralRanks(const ChosenWorker& worker) {
  const HolderId& chosen = worker.id();
  if (chosen.rank != 0) return true;
  const std::vector<WorkerFound>& found = worker.cell->answer->workers;
  return std::any_of(found.begin(), found.end(), [&](const WorkerFound& other) {
    return other.worker.rank != 0 && other.worker.name == chosen.name;
  });
}

}  // namespace

RouteResult ResultOf(const RouteRequest& request, Committed committed, Receipt receipt) {
  const Choice& choice = committed.choice;
  RouteResult result{.decision_id = committed.decision_id,
                     .worker = choice.worker->id(),
                     .cell = choice.worker->cell->cell,
                     .overlap_blocks = choice.overlap_blocks,
                     .url = UrlOf(request, *choice.worker),
                     .reading = choice.worker->reading(),
                     .of_several_ranks = OfSeveralRanks(
                         choice.decoder.has_value() ? *choice.decoder : *choice.worker),
                     .receipt = std::move(receipt)};
  if (choice.decoder.has_value()) {
    result.decode = DecodeChoice{.worker = choice.decoder->id(),
                                 .cell = choice.decoder->cell->cell,
                                 .overlap_blocks = choice.decoder->input.overlap_blocks,
                                 .url = UrlOf(request, *choice.decoder)};
  }
  Receipt& of_choice = result.receipt;
  of_choice.fallback = choice.fallback;
  of_choice.blocks = request.PromptOf(result.reading).blocks();
  of_choice.reading = request.NameOf(result.reading);
  if (of_choice.fallback == Fallback::kNone)
    of_choice.reason.clear();  // a leaf that failed is in its own row
  of_choice.candidates = std::move(committed.choice.ranked);
  of_choice.candidates_considered = choice.considered;
  of_choice.not_allowed = choice.not_allowed;
  of_choice.overloaded = choice.overloaded;
  of_choice.policy = request.policy->Name();
  return result;
}

}  // namespace kvatlas
