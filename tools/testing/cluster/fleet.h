// What would a perfect choice have got? Models of all the engines of a cluster in this process, and
// the frontend's own policy over their true contents and loads.
//
// *Place*: one fleet mirrors the real engines, fed the same calls; others replay the trace under
// another policy.
// *Truth*: as in `frontend/router/policy/policy.h`; names and tie-breaks are those of the real
// cluster.
// *Threads*: none; the owner serialises.

#ifndef KVATLAS_TOOLS_TESTING_CLUSTER_FLEET_H_
#define KVATLAS_TOOLS_TESTING_CLUSTER_FLEET_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "frontend/router/cost.h"
#include "frontend/router/policy/policy.h"
#include "frontend/router/recently_stored.h"
#include "indexer/base/ids.h"
#include "tools/testing/mock_engine/engine_model.h"

namespace kvatlas {

// What the frontend does unless told otherwise, with the report's seed.
struct FleetOptions {
  uint32_t cells = 1;
  uint32_t workers = 1;  // per cell
  EngineOptions engine;
  CostWeights weights;
  std::string policy = std::string(kDefaultPolicy);  // REQUIRES: one of `PolicyNames`
};

class Fleet {
 public:
  explicit Fleet(const FleetOptions& options);

  struct Choice {
    uint32_t worker = 0;
    uint32_t overlap_blocks = 0;
  };

  // The cheapest worker of all cells, with what it would really reuse. `prompt_tokens` as in
  // `ReuseLimit`; 0: those of the blocks. `session_worker`: where the session's last request went.
  Choice Best(std::span<const SequenceHash> sequence, uint32_t prompt_tokens = 0,
              std::optional<uint32_t> session_worker = std::nullopt) const;

  // The worker was sent a request of which it is to store so many blocks: for policies by turns,
  // and for crowding. Workers that are told of none have all the same.
  void Sent(uint32_t worker, uint64_t blocks) {
    turns_[worker] = ++turn_;
    recently_stored_.Store(static_cast<double>(blocks), engines_.size(), &stored_[worker]);
  }

  // Every engine.
  void AdvanceTo(double time_ms, EngineStep* step);

  EngineModel& engine(uint32_t worker) { return engines_[worker]; }
  uint32_t workers() const { return static_cast<uint32_t>(engines_.size()); }

 private:
  const std::shared_ptr<const Policy> policy_;
  std::vector<EngineModel> engines_;
  std::vector<uint64_t> turns_;
  uint64_t turn_ = 0;
  std::vector<RecentlyStored::Sum> stored_;
  RecentlyStored recently_stored_;
  std::vector<CostCandidate> names_;
};

// "cell-1" and "worker-1-3".
std::string CellNameOf(uint32_t cell);
std::string WorkerNameOf(uint32_t cell, uint32_t number);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_CLUSTER_FLEET_H_
