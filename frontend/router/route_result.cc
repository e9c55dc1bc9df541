// From a counted choice to the caller's result: addresses, rank and receipt.

#include "frontend/router/route_result.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace kvatlas {
namespace {

std::string UrlOf(const RouteRequest& request, const ChosenWorker& worker) {
  return UrlOf(worker.cell->answer->LabelsOf(worker.id()), *request.engines, worker.id());
}

// The rank that the engine has to be told. That is so when another rank of the worker answers at
// the same url, or when the chosen rank is not 0 and no other one is known. Nothing otherwise: vLLM
// refuses a rank that a server does not manage (0.33 v1/engine/input_processor.py,
// `local_engines_only`).
std::optional<uint32_t> EngineRank(const RouteRequest& request, const ChosenWorker& worker) {
  const HolderId& chosen = worker.id();
  const WorkersAnswer& answer = *worker.cell->answer;
  const uint32_t rank = EngineRankOf(chosen, answer.LabelsOf(chosen));
  const std::string url = UrlOf(request, worker);
  bool others = false;
  for (const WorkerFound& other : answer.workers) {
    if (other.worker.name != chosen.name || other.worker.rank == chosen.rank) continue;
    others = true;
    if (UrlOf(answer.LabelsOf(other.worker), *request.engines, other.worker) == url) return rank;
  }
  return !others && rank != 0 ? std::optional(rank) : std::nullopt;
}

}  // namespace

// `choice` refers into `committed`, of which only `ranked` is moved out, at the end.
RouteResult ResultOf(const RouteRequest& request, Committed committed, Receipt receipt) {
  const Choice& choice = committed.choice;
  RouteResult result{.decision_id = committed.decision_id,
                     .worker = choice.worker->id(),
                     .cell = choice.worker->cell->cell,
                     .overlap_blocks = choice.overlap_blocks,
                     .url = UrlOf(request, *choice.worker),
                     .reading = choice.worker->reading(),
                     .engine_rank = EngineRank(
                         request, choice.decoder.has_value() ? *choice.decoder : *choice.worker),
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
