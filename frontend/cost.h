// Which of these workers makes this request wait least? The cost of a choice, in blocks of prefill, and the
// choice itself.
//
//   prefill   prompt blocks that the worker does not hold
//   queue     prefill waiting ahead of it there: reported by the worker, and sent there but not yet reported
//   decode    requests there, each slowing every step a little
//   distance  from the asker to the worker's cell
//
// *Place*: the frontend's last step; a benchmark that wants the best choice with perfect knowledge calls the same
// functions with the engines' true contents.
// *Truth*: pure and deterministic. The same candidates, in any order, with the same weights, seed and prompt lead to
// the same choice in every process.
// *Cost*: constant per candidate, plus a sort of the best few.
//
// Example:
//   std::vector<CostCandidate> candidates = {{.worker = {"w0"}, .input = {.prompt_blocks = 8, .overlap_blocks = 4}}};
//   std::vector<RankedCandidate> best = RankCandidates(candidates, {}, PromptKey(sequence), 1);
//   const CostCandidate& chosen = candidates[best[0].candidate];

#ifndef KVATLAS_FRONTEND_COST_H_
#define KVATLAS_FRONTEND_COST_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "indexer/base/event.h"
#include "indexer/base/ids.h"

namespace kvatlas {

// What one unit of each term weighs, in blocks of prefill.
struct CostWeights {
  double prefill = 1;  // a block to prefill
  double queue = 1;    // a block of prefill waiting ahead
  double decode =
      1;  // a request there; modest, so that hits dominate and equal workers still balance
  double distance = 1;  // a unit of distance
  // 0: always the cheapest. T > 0: a worker that costs T more is chosen 1/e times as often.
  double temperature = 0;
  // Of tie-breaks and of the temperature's draw.
  uint64_t seed = 0;
};

// What is known of one candidate.
struct CostInput {
  uint32_t prompt_blocks = 0;
  uint32_t overlap_blocks = 0;    // at most `prompt_blocks` count
  std::optional<Load> load = {};  // as reported; nothing known counts as idle
  uint64_t in_flight_blocks =
      0;  // to prefill of requests sent there that its load does not show yet
  uint32_t in_flight_requests = 0;
  double distance = 0;
};

struct Cost {
  double prefill = 0;
  double queue = 0;
  double decode = 0;
  double distance = 0;

  double total() const { return prefill + queue + decode + distance; }
};

Cost CostOf(const CostInput& input, const CostWeights& weights);

struct CostCandidate {
  std::string cell;
  HolderId worker = {};
  CostInput input;
};

struct RankedCandidate {
  size_t candidate = 0;  // its place in the list that was ranked
  Cost cost;
};

// What tells one prompt's tie-breaks from another's: its last block, 0 for a prompt without blocks.
uint64_t PromptKey(std::span<const SequenceHash> sequence);

// The `best` candidates (all, when there are fewer): cheapest first; equals in an order drawn from seed, prompt and
// name; then by cell and name. With a temperature, in the order of the draw.
std::vector<RankedCandidate> RankCandidates(std::span<const CostCandidate> candidates,
                                            const CostWeights& weights, uint64_t prompt_key,
                                            size_t best);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_COST_H_
