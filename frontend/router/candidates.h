// Which workers can a route choose among? Cells as their leaves answered, gathered while leaves are
// asked, and immutable.
//
//   leaf's answer ─▶ CandidateCell      the workers, what each may do, on which rung of the fallbacks it was asked
//                 ─▶ CellStanding       what they are good for now: with what is in flight, and who is suspected
//
// *Truth*: a cell is its leaf's answer to this prompt, as it was; a standing is of the moment.
// *Threads*: values; pure functions.
// *Cost*: a role and a filter per worker once; a threshold and a cost per worker and standing.

#ifndef KVATLAS_FRONTEND_ROUTER_CANDIDATES_H_
#define KVATLAS_FRONTEND_ROUTER_CANDIDATES_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "frontend/router/cost.h"
#include "frontend/router/fleet_memory.h"
#include "frontend/router/lookup_clients.h"
#include "frontend/router/outlier_ejection.h"
#include "frontend/router/policy/worker_fit.h"
#include "frontend/router/receipt.h"
#include "frontend/router/route_request.h"
#include "indexer/base/clock.h"

namespace kvatlas {

struct CandidateCell {
  struct Traits {
    Role role = Role::kBoth;
    bool allowed = true;  // by the request, and by itself
    bool draining = false;
    size_t reading = 0;  // `RouteRequest::PromptOf`
  };

  std::string cell;
  double distance = 0;
  Fallback fallback = Fallback::kNone;
  // Nothing was answered for this prompt: workers as they were last seen, or configured engines.
  bool remembered = false;
  Time seen{0};
  std::shared_ptr<const WorkersAnswer> answer;
  // The addresses of the leaf that answered, first, and of its replicas: these hear of a choice.
  // Null: no leaf does.
  std::shared_ptr<const std::vector<std::string>> leaves = nullptr;
  std::vector<Traits> traits = {};  // of the answer's workers

  bool has(Role role) const;
};

using CandidateCellPtr = std::shared_ptr<const CandidateCell>;

// `cell` with its traits. `of_cell`: the cell's labels; null: none.
CandidateCellPtr MakeCandidateCell(const RouteRequest& request, const Labels* of_cell,
                                   CandidateCell cell);

// Best first: a worker that stands worse is chosen only when no other one is left.
enum class Standing { kGood, kSuspect, kTried, kUnavailable };

// The frontend's own knowledge beside the leaves' answers, at one moment.
struct FleetView {
  Time at{0};
  std::shared_ptr<const OutlierEjection> suspects;
  SentTo sibling =
      {};  // the latest request with this prompt's head, as long as it is not shown; no cell: none
  // Some candidate's leaf says that the session's last request went there: it may have come through
  // another frontend.
  bool session_told = false;
  // By reading: the most leading blocks that some candidate has on their way, by what its leaf was
  // told. Empty: none has.
  std::vector<uint32_t> pending_depths = {};
  // In the order of the candidate cells; empty: nothing is in flight to any of its workers.
  std::vector<std::vector<WorkerNow>> cells = {};
  // When they are asked for: workers of the domain as last seen, or else the configured engines.
  bool with_memory = false;
  std::vector<CandidateCellPtr> remembered = {};
  std::vector<std::vector<WorkerNow>> remembered_now = {};
};

// How a cell stands: for each role the best standing among its workers that may be chosen and are
// below their thresholds, and counts of the other workers.
struct CellStanding {
  Standing alone = Standing::kUnavailable;  // prefills and decodes
  Standing prefills = Standing::kUnavailable;
  Standing decodes = Standing::kUnavailable;
  uint32_t not_allowed = 0;
  uint32_t draining = 0;               // of these
  uint32_t overloaded = 0;             // that prefill
  uint32_t overloaded_decoders = 0;    // that only decode
  uint64_t least_excess = UINT64_MAX;  // blocks that the least overloaded one is over

  Standing best() const { return std::min(alone, prefills); }
};

Standing StandingOf(const RouteRequest& request, const FleetView& view, const std::string& cell,
                    const HolderId& worker);
CellStanding StandingOf(const RouteRequest& request, const FleetView& view,
                        const CandidateCell& cell, const std::vector<WorkerNow>& now);

// The figures that the worker is chosen by.
CostInput CostInputOf(const RouteRequest& request, const FleetView& view, const CandidateCell& cell,
                      size_t worker, const WorkerNow& now);
// Leading blocks that are on their way to it, beyond what may be promised of it; 0: none, or
// requests with one prefix are not kept together.
uint32_t PendingOf(const RouteRequest& request, const CandidateCell& cell, size_t worker);
// Requests that were sent there and that its load does not show: by this frontend, and by all
// others.
InFlight AllInFlight(const CandidateCell& cell, size_t worker, const WorkerNow& now);
// Blocks that may be promised of it. A silent worker's blocks may be gone, so it counts for its
// load alone.
uint32_t OverlapOf(const RouteRequest& request, const CandidateCell& cell, size_t worker);
// The least cost of a worker that stands well and prefills; infinity: there is none.
double BestCostOf(const RouteRequest& request, const FleetView& view, const CandidateCell& cell,
                  const std::vector<WorkerNow>& now);

inline const WorkerNow& NowOf(const std::vector<WorkerNow>& cell, size_t worker) {
  static constexpr WorkerNow kNothing;
  return cell.empty() ? kNothing : cell[worker];
}

// One leaf's answer, with what was known when it came.
struct Answered {
  CandidateCellPtr cell;
  CellStanding standing = {};
  double best_cost = std::numeric_limits<double>::infinity();
};

// The answers of one try, in the order in which they came.
class Answers {
 public:
  void Add(Answered answered);

  const std::vector<CandidateCellPtr>& cells() const { return cells_; }
  bool any_good() const { return good_ > 0; }
  uint32_t good() const { return good_; }  // cells with a worker that stands well
  double cheapest() const { return cheapest_; }
  uint32_t overloaded() const { return overloaded_; }
  bool any_alone() const { return alone_; }
  // A worker that only prefills could be chosen, and none that answered decodes.
  bool lacks_decoder() const { return prefills_ && !decodes_; }
  bool has_decoder() const { return decodes_; }
  // The main class of some worker holds more of the prompt than its leaf's best worker can reuse.
  bool coverage_overstates() const { return coverage_overstates_; }

 private:
  std::vector<CandidateCellPtr> cells_;
  uint32_t good_ = 0;
  double cheapest_ = std::numeric_limits<double>::infinity();
  uint32_t overloaded_ = 0;
  bool alone_ = false, prefills_ = false, decodes_ = false;
  bool coverage_overstates_ = false;
};

// The longest prefix that a worker of the answer can reuse, and that the main class of one holds.
struct DeepestBlocks {
  uint32_t reusable = 0;
  uint32_t held = 0;
};
DeepestBlocks DeepestOf(const WorkersAnswer& answer);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_CANDIDATES_H_
