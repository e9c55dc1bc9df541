// Why this worker? The record of one route: the peers that were asked, their answers, the cost of
// each candidate, and the reasons for a fallback.

#ifndef KVATLAS_FRONTEND_ROUTER_RECEIPT_H_
#define KVATLAS_FRONTEND_ROUTER_RECEIPT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/router/cost.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"

namespace kvatlas {

// How far down the path the answer had to fall; the numbers are those of the wire.
enum class Fallback {
  kNone = 0,
  kLastGoodCells = 1,  // the hierarchy did not help
  kOwnCell = 2,        // nor did remembered cells: the configured leaves were asked
  // By load alone, among remembered workers or those of --engines: no leaf answered, or none had a
  // worker that may be trusted.
  kLoadOnly = 3,
};

inline constexpr int kFallbacks = 4;

inline std::string_view ToString(Fallback fallback) {
  constexpr std::string_view kNames[kFallbacks] = {"none", "last_good_cells", "own_cell",
                                                   "load_only"};
  return kNames[static_cast<int>(fallback)];
}

struct CellAsked {
  std::string cell;
  std::string address;
  uint32_t blocks_at_least = 0;
  uint32_t blocks_below = 0;
  uint32_t age_ms = 0;
  std::string error = {};    // empty when it answered in time
  uint32_t best_blocks = 0;  // deepest overlap it answered, of a node the deepest lower bound
  uint64_t us = 0;
};

struct ReceiptCandidate {
  HolderId worker = {};
  std::string cell;
  uint32_t overlap_blocks = 0;
  Trust trust = Trust::kExact;
  uint32_t age_ms = 0;
  Cost cost = {};
  FetchedBlocks fetched = {};  // of the overlap
  uint32_t store_blocks = 0;   // of the overlap, from a store that workers share
  // Leading blocks that it has or is about to have, by what frontends told its leaf, where these
  // are more; never promised.
  uint32_t pending_blocks = 0;
  bool prefill_only = false;  // it needs another worker that decodes
  std::string reading = {};   // as its engine reads the prompt; empty: not said
};

inline constexpr size_t kReceiptCandidatesMax = 16;

struct Receipt {
  Fallback fallback = Fallback::kNone;
  std::string reason;        // of the fallback, empty without one
  uint32_t blocks = 0;       // as the chosen worker's engine reads the prompt
  std::string reading = {};  // its name (`RouteInput::reading`); empty: not said
  std::vector<CellAsked> cells;
  std::vector<CellAsked> nodes;  // asked on the way from the top of the hierarchy down to the cells
  std::vector<ReceiptCandidate> candidates;  // best first, at most `kReceiptCandidatesMax`
  uint32_t candidates_considered = 0;
  std::string policy;        // that chose
  uint32_t not_allowed = 0;  // workers that the request, or they themselves, left out
  uint32_t overloaded = 0;   // workers over their thresholds
  uint64_t queued_us = 0;    // waited for one below them
  uint64_t find_cells_us = 0;
  uint64_t find_overlaps_us = 0;
  uint64_t total_us = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_RECEIPT_H_
