// Which peers does the frontend ask, and what do they answer? The two questions it sends to other
// processes, as small interfaces, so that its logic is tested without any.
//
// *Threads*: called from any. A callback is called exactly once, from any thread, possibly before
// the call returns.
// *Truth*: an answer that is later than its deadline is DEADLINE_EXCEEDED, never delivered late as
// an answer.

#ifndef KVATLAS_FRONTEND_ROUTER_LOOKUP_CLIENTS_H_
#define KVATLAS_FRONTEND_ROUTER_LOOKUP_CLIENTS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "frontend/router/cost.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/base/routed.h"
#include "indexer/base/waypoints.h"
#include "indexer/telemetry/tracing/trace_context.h"

namespace kvatlas {

// Which cells cover this prompt?
struct CellQuestion {
  const Domain* domain = nullptr;
  std::span<const SequenceHash> waypoints;  // the prompt's, valid during the call
  uint32_t blocks = 0;
  uint32_t best = 0;  // only the best so many; 0 means all
  const WaypointSchedule* schedule = &WaypointSchedule::Standard();  // of `waypoints`
  std::span<const Position> positions = {};  // of `waypoints`; empty: all of the schedule's
  TraceContext trace = {};
  uint64_t frontend = 0;  // as of `OverlapQuestion`
};

struct CellFound {
  std::string cell;
  std::string address;  // of its leaf, or of the node that it is; empty when it gave none
  uint32_t blocks_at_least = 0;
  uint32_t blocks_below = 0;
  Trust trust = Trust::kExact;
  uint32_t age_ms = 0;
  std::optional<Load> load = {};  // sums over its workers
  std::map<std::string, std::string> labels = {};
  bool is_node = false;                           // a hierarchy node: it names cells, not workers
  std::vector<std::string> other_addresses = {};  // of its other replicas, the freshest first
  // Leading blocks that it covers or, by what frontends told the node, is about to cover, where
  // these are more; a hint.
  uint32_t pending_blocks = 0;
};

struct CellsAnswer {
  std::vector<CellFound> cells;
  uint32_t block_size = 0;  // 0: not said
};

class CellFinder {
 public:
  using Callback = std::function<void(absl::StatusOr<CellsAnswer>)>;
  virtual ~CellFinder() = default;
  virtual void FindCells(const std::string& hierarchy_address, const CellQuestion& question,
                         Duration deadline, Callback callback) = 0;

  // As of `OverlapFinder`: `routed.worker` is the cell, `routed.blocks` are waypoints.
  virtual void TellCell(const std::string& /*hierarchy_address*/, const Domain& /*domain*/,
                        uint64_t /*frontend*/, const Routed& /*routed*/) {}
  virtual void EndCell(const std::string& /*hierarchy_address*/, const Domain& /*domain*/,
                       uint64_t /*frontend*/, const RouteOver& /*over*/) {}
};

// Which workers of a cell hold how much of this prompt? All of them are wanted, also those without
// overlap.
struct OverlapQuestion {
  const Domain* domain = nullptr;
  // Valid during the call; empty for a prompt without a full block, when only loads are asked for.
  std::span<const SequenceHash> sequence;
  TraceContext trace = {};
  uint64_t session = 0;  // of the prompt, as `Routed` has it
  // The number of the frontend that asks, as in `OverlapFinder::Tell`; 0: pending requests are not
  // wanted.
  uint64_t frontend = 0;
};

struct WorkerFound {
  HolderId worker = {};
  uint32_t blocks = 0;
  Trust trust = Trust::kExact;
  uint32_t age_ms = 0;
  std::optional<Load> load = {};
  FetchedBlocks fetched = {};  // of `blocks`
  // For hybrid models the prefix that the main class holds, which coverage reports; more than
  // `blocks` when another class ended the prefix. 0: not said.
  uint32_t held = 0;
  uint32_t stored =
      0;  // of `blocks`, in a store that it shares with other workers; among `fetched.remote`
  // Requests on their way there, as frontends told the leaf: the depth of all frontends, the other
  // figures of other frontends alone.
  Pending pending = {};

  // Blocks that it can load from such a store count as its own, at the cost of fetching and with
  // the trust of the store.
  void AddLoadable(uint32_t loadable, Trust sure) {
    if (loadable <= blocks) return;
    stored = loadable - blocks;
    fetched.remote += stored;
    blocks = loadable;
    trust = sure;
  }
};

// Labels that workers give themselves, such as {"url", "http://10.0.0.7:8000"}: where the engine
// takes requests.
using Labels = std::map<std::string, std::string>;
using LabelsByWorker = absl::flat_hash_map<HolderId, Labels>;
inline constexpr char kUrlLabel[] = "url";
// The lowest data-parallel rank behind that url, which counts its ranks from it: vLLM's hybrid and
// external load balancing.
inline constexpr char kFirstRankLabel[] = "first_rank";

struct WorkersAnswer {
  std::vector<WorkerFound> workers;
  uint32_t block_size = 0;  // 0: not said
  // Labels of those of `workers` that have any; null: none has. Shared by the answers of a leaf
  // until a label changes.
  std::shared_ptr<const LabelsByWorker> labels = nullptr;

  const Labels* LabelsOf(const HolderId& worker) const {
    if (labels == nullptr) return nullptr;
    const auto found = labels->find(worker);
    return found == labels->end() ? nullptr : &found->second;
  }
};

class OverlapFinder {
 public:
  using Callback = std::function<void(absl::StatusOr<WorkersAnswer>)>;
  virtual ~OverlapFinder() = default;
  virtual void FindOverlaps(const std::string& leaf_address, const OverlapQuestion& question,
                            Duration deadline, Callback callback) = 0;

  // Tells the leaf that a prompt was sent to one of its workers, and that the request is over;
  // there is no answer, and it is told at once or never. Without an implementation nothing happens.
  virtual void Tell(const std::string& /*leaf_address*/, const Domain& /*domain*/,
                    uint64_t /*frontend*/, const Routed& /*routed*/) {}
  virtual void End(const std::string& /*leaf_address*/, const Domain& /*domain*/,
                   uint64_t /*frontend*/, const RouteOver& /*over*/) {}
};

// A finder in front of another one, to which it passes on all that is told.
class OverlapFinderInFront : public OverlapFinder {
 public:
  void Tell(const std::string& leaf_address, const Domain& domain, uint64_t frontend,
            const Routed& routed) override {
    next_->Tell(leaf_address, domain, frontend, routed);
  }
  void End(const std::string& leaf_address, const Domain& domain, uint64_t frontend,
           const RouteOver& over) override {
    next_->End(leaf_address, domain, frontend, over);
  }

 protected:
  explicit OverlapFinderInFront(OverlapFinder* next) : next_(next) {}
  OverlapFinder* next() const { return next_; }

 private:
  OverlapFinder* const next_;
};

// Calls back when time has passed, so that another peer can be asked before the first one is given
// up.
class Timer {
 public:
  virtual ~Timer() = default;
  // Calls `callback` once, from any thread, not before this returns.
  virtual void After(Duration delay, std::function<void()> callback) = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_LOOKUP_CLIENTS_H_
