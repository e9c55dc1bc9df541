// Which of these workers makes this request wait least? The cost of a choice, in blocks of prefill,
// and the choice itself.
//
//   prefill   prompt blocks that the worker holds in no tier
//   fetch     blocks it holds in a lower tier only: cheaper than computing them, dearer than having them
//   queue     prefill waiting ahead of it there: reported by the worker, and half of what was sent there, by this frontend and by
//             others, but not yet reported
//   decode    requests there, each slowing every step a little; more, for a request that will itself decode long
//   memory    blocks that its pool lacks: the request waits until others finish
//   distance  from the asker to the worker's cell
//   session   what leaving the session's worker must be worth
//   siblings  blocks that another worker was just sent, and that would be computed twice
//   crowding  what its blocks evict, where more was lately stored than elsewhere (`recently_stored.h`)
//   transfer  of a request that decodes elsewhere: what it waits for there, and on the way
//
// *Place*: the frontend's last step; a benchmark that wants the best choice with perfect knowledge
// calls the same functions with the engines' true contents.
// *Truth*: pure and deterministic. The same candidates, in any order, with the same weights, seed
// and prompt lead to the same choice in every process.
// *Cost*: constant per candidate, plus a sort of the best few.
//
// Example:
//   std::vector<CostCandidate> candidates = {{.worker = {"w0"}, .input = {.prompt_blocks = 8,
//   .overlap_blocks = 4}}};
//   std::vector<RankedCandidate> best = RankCandidates(candidates, {}, PromptKey(sequence), 1);
//   const CostCandidate& chosen = candidates[best[0].candidate];

#ifndef KVATLAS_FRONTEND_ROUTER_COST_H_
#define KVATLAS_FRONTEND_ROUTER_COST_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "indexer/base/event.h"
#include "indexer/base/ids.h"

namespace kvatlas {

// The weight of one unit of each term, in blocks of prefill. `policy/README.md` tells how the
// defaults were found.
struct CostWeights {
  // A block to prefill; above 1, since it also takes room and time from later requests.
  double prefill = 1.25;
  double fetch_host = 0.1;    // a block to fetch from the worker's host memory,
  double fetch_disk = 0.5;    // from its disk,
  double fetch_remote = 0.3;  // from another machine
  double queue = 1;           // a block of prefill waiting ahead
  // A request there; modest, so that hits dominate and equal workers still balance.
  double decode = 1.5;
  double memory = 4;      // a block that the pool lacks
  double distance = 1;    // a unit of distance
  double session = 8;     // leaving the session's worker
  double siblings = 0.5;  // a block that another worker is about to have
  double crowding = 1;    // a block to store, where a pool more than the average was lately stored
  double transfer =
      0.1;  // a block sent from the worker that prefills to one of its cell that decodes
  double transfer_far = 0.4;  // the same to another cell
  // 0: always the cheapest. T > 0: a worker that costs T more is chosen 1/e times as often.
  double temperature = 0;
  // The seed of tie-breaks and of the temperature's draw.
  uint64_t seed = 0;
};

// Blocks of a worker that are not in its device tier, by the nearest tier that they are in.
struct FetchedBlocks {
  uint32_t host = 0;
  uint32_t disk = 0;
  uint32_t remote = 0;

  friend bool operator==(const FetchedBlocks&, const FetchedBlocks&) = default;
};

// The figures of one candidate.
struct CostInput {
  uint32_t prompt_blocks = 0;
  // In any tier, or on their way by a request before this one; at most `prompt_blocks` count.
  uint32_t overlap_blocks = 0;
  FetchedBlocks fetched = {};     // of the overlap
  std::optional<Load> load = {};  // as reported; nothing known counts as idle
  uint64_t in_flight_blocks =
      0;  // to prefill of requests sent there that its load does not show yet
  uint32_t in_flight_requests = 0;
  // The same of other frontends, as its leaf says (`Pending`).
  uint64_t others_blocks = 0;
  uint32_t others_requests = 0;
  double distance = 0;
  uint32_t expected_output_tokens = 0;  // of the request; 0: not known
  bool leaves_session = false;          // another worker has the request's session
  uint32_t duplicated_blocks = 0;       // missing here, and lately sent to another worker
  double transfer = 0;                  // `DecodeElsewhereCost` of the worker that is to decode
  double crowding = 0;                  // `RecentlyStored::CrowdingAmong`
  uint64_t turn = 0;                    // of the latest request that was sent there; 0: none
};

// The part of the blocks in flight to a worker that still waits: a request that no report shows yet
// is anywhere between not begun and done. More sends requests away from caches whose engine has
// long finished; with a half, chats find 2 % more of their tokens there (`policy/README.md`).
// Engines that report their load are not affected.
inline constexpr double kInFlightWaiting = 0.5;

// Decode counts as it is for a request that is expected to make so many tokens: less for a shorter
// one, more for a longer one, by at most `kOutputFactorMax` either way.
inline constexpr double kTypicalOutputTokens = 256;
inline constexpr double kOutputFactorMax = 4;

struct Cost {
  double prefill = 0;
  double fetch = 0;
  double queue = 0;
  double decode = 0;
  double memory = 0;
  double distance = 0;
  double session = 0;
  double siblings = 0;
  double transfer = 0;
  double crowding = 0;

  double total() const {
    return prefill + fetch + queue + decode + memory + distance + session + siblings + transfer +
           crowding;
  }
};

Cost CostOf(const CostInput& input, const CostWeights& weights);

// The wait of a prefilled request at a worker that only decodes it: the blocks sent there, the
// requests there, the room that it lacks. `far`: it is in another cell than the worker that
// prefills.
double DecodeElsewhereCost(const CostInput& input, bool far, const CostWeights& weights);

struct CostCandidate {
  std::string cell;
  HolderId worker = {};
  CostInput input;
};

struct RankedCandidate {
  size_t candidate = 0;  // its place in the list that was ranked
  Cost cost;
};

// One candidate on its way into an order; for lists of other types than `CostCandidate`.
struct Scored {
  size_t candidate = 0;  // its place
  Cost cost;
  double key = 0;  // less is better; equals by `draw`
  uint64_t draw = 0;
};

// The same for a worker and a prompt in every process that has the seed.
uint64_t TieBreak(const std::string& cell, const HolderId& worker, uint64_t seed,
                  uint64_t prompt_key);
Scored Score(size_t candidate, const Cost& cost, uint64_t draw, const CostWeights& weights);
// Leaves the `best`, in order; `before` tells of two places which comes first when all else is
// equal.
void SortBest(size_t best, std::vector<Scored>* scored,
              const std::function<bool(size_t, size_t)>& before);

// The key that makes tie-breaks differ between prompts: the prompt's last block, 0 for a prompt
// without blocks.
uint64_t PromptKey(std::span<const SequenceHash> sequence);

// The `best` candidates (all, when there are fewer): cheapest first; equals in an order drawn from
// seed, prompt and name; then by cell and name. With a temperature, in the order of the draw.
std::vector<RankedCandidate> RankCandidates(std::span<const CostCandidate> candidates,
                                            const CostWeights& weights, uint64_t prompt_key,
                                            size_t best);

// The same by any cost; of the weights only temperature and seed count.
using CostFunction = std::function<Cost(const CostInput& input)>;
std::vector<RankedCandidate> RankCandidates(std::span<const CostCandidate> candidates,
                                            const CostFunction& cost_of, const CostWeights& weights,
                                            uint64_t prompt_key, size_t best);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_COST_H_
