// Which of these candidates takes the prompt? A pure function: the cells that answered, what is
// known beside their answers, and out comes the ranked choice with its terms of cost.
//
//   which are chosen among                                                               reported as
//   1. workers that stand well, of cells that have such                                  the rung on which these answered
//   2. none has room, and none of 1. could be taken: suspects that have room              the rung of theirs
//      none is left: kOverloaded
//   3. no cell has a worker that stands well: suspects, if all that is remembered is suspected too
//                                             else workers that are remembered, by their loads      load_only
//
// A worker that only prefills is paired with the best one that decodes, of any cell that answered,
// or else is remembered; its share of the cost is `transfer`.
// *Threads*: pure. *Cost*: a cost per worker, and a sort of the best `kReceiptCandidatesMax`.

#ifndef KVATLAS_FRONTEND_ROUTER_CHOOSE_H_
#define KVATLAS_FRONTEND_ROUTER_CHOOSE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "frontend/router/candidates.h"
#include "frontend/router/cost.h"
#include "frontend/router/receipt.h"
#include "frontend/router/route_request.h"

namespace kvatlas {

// A worker of a candidate cell, or of a remembered one of the view. Valid as long as these.
struct ChosenWorker {
  const CandidateCell* cell = nullptr;
  size_t worker = 0;
  Standing standing = Standing::kUnavailable;
  CostInput input = {};

  const HolderId& id() const { return cell->answer->workers[worker].worker; }
  size_t reading() const { return cell->traits[worker].reading; }
};

enum class Verdict {
  kChosen,
  kNone,        // no worker may be chosen
  kOverloaded,  // all that may be are over their thresholds
  kNeedsMemory  // a view with memory is needed for an answer
};

struct Choice {
  Verdict verdict = Verdict::kNone;
  Fallback fallback = Fallback::kNone;
  std::optional<ChosenWorker> worker = {};  // that prefills
  uint32_t overlap_blocks = 0;              // promised of it
  uint32_t best_blocks = 0;  // of the worker, overloaded ones too, that may be promised the most
  std::optional<ChosenWorker> decoder = {};
  std::vector<ReceiptCandidate> ranked = {};  // best first
  uint32_t considered = 0;
  uint32_t not_allowed = 0;
  uint32_t draining = 0;  // of these
  uint32_t overloaded = 0;
  uint32_t overloaded_decoders = 0;
  uint64_t least_excess = UINT64_MAX;

  // Neither is suspected, or failed to take this request.
  bool stands_well() const {
    return worker.has_value() && worker->standing == Standing::kGood &&
           (!decoder.has_value() || decoder->standing == Standing::kGood);
  }
};

// REQUIRES: `view` is of these cells.
Choice Choose(const RouteRequest& request, const std::vector<CandidateCellPtr>& cells,
              const FleetView& view);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_CHOOSE_H_
