// The state that the routes of one frontend share: options, peers, and what was learnt of the
// fleet, in a memory for each model.
//
//   FleetState ── options, finders, clock, timer, policies      immutable
//              ── hierarchies, leaves, draining, suspects       snapshots: a reader takes a pointer, a writer puts a new one
//              ── sessions, routes that wait                    a lock each
//              ── ModelFleet, one a model                       a lock each: what was seen, what is in flight
//
// A memory is a model's, and not a tenant's, because tenants share engines: what one sends to a
// worker the others wait for.
// *Threads*: any. No lock is taken while another one is held, but for `models_mutex_`, inside of
// which a model's is.
// *Cost*: a route takes a model's lock five to seven times, for a look-up per worker at most;
// candidates are ranked outside.
// *Bounds*: `kModelFleetsMax` models that leaves or hierarchies have told of; the one that was used
// longest ago is forgotten, with what is in flight to it. All models of which nothing was heard
// share one memory.

#ifndef KVATLAS_FRONTEND_ROUTER_FLEET_H_
#define KVATLAS_FRONTEND_ROUTER_FLEET_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "frontend/router/fleet_memory.h"
#include "frontend/router/frontend.h"
#include "frontend/router/known_nodes.h"
#include "frontend/router/lookup_clients.h"
#include "frontend/router/outlier_ejection.h"
#include "frontend/router/policy/policy.h"
#include "frontend/router/policy/sessions.h"
#include "frontend/router/told_leaves.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/base/shard_map.h"

namespace kvatlas {

class Route;

// A decision's id has its model's place in its lowest byte.
inline constexpr size_t kModelFleetsMax = 256;

// A value that is read often and written rarely.
template <typename T>
class Snapshot {
 public:
  explicit Snapshot(T value) : value_(std::make_shared<const T>(std::move(value))) {}
  std::shared_ptr<const T> Get() const {
    MutexLock lock(&mutex_);
    return value_;
  }
  void Set(T value) {
    auto next = std::make_shared<const T>(std::move(value));
    MutexLock lock(&mutex_);
    value_.swap(next);
  }
  // `change` gets a copy to write to; other changes wait.
  template <typename Change>
  void Update(const Change& change) {
    MutexLock lock(&mutex_);
    auto next = std::make_shared<T>(*value_);
    change(next.get());
    value_ = std::move(next);
  }

 private:
  mutable Mutex mutex_;
  std::shared_ptr<const T> value_ ABSL_GUARDED_BY(mutex_);
};

struct ModelFleet {
  ModelFleet(const FleetMemoryOptions& options, size_t place_) : place(place_), memory(options) {}

  const size_t place;
  mutable Mutex mutex;
  FleetMemory memory ABSL_GUARDED_BY(mutex);
  ToldLeaves told ABSL_GUARDED_BY(mutex);
  KnownNodes nodes ABSL_GUARDED_BY(mutex);
};

// Where the worker's engine takes requests: its label `url`, or else what is given; empty: neither
// says.
std::string UrlOf(const Labels* labels, const std::map<std::string, std::string>& given,
                  const HolderId& worker);
// The number by which its engine knows it: of the ranks behind its url (`kFirstRankLabel`).
uint32_t EngineRankOf(const HolderId& worker, const Labels* labels);

class FleetState {
 public:
  FleetState(FrontendOptions o, CellFinder* cells, OverlapFinder* overlaps, const Clock* c,
             Timer* t);

  const FrontendOptions options;
  const uint64_t instance;  // drawn, not 0: leaves know by it whose telling is whose
  // The number by which this frontend asks leaves and nodes; 0: they hear of no choice, and pending
  // requests are not wanted.
  uint64_t Asker() const { return options.tell_leaves ? instance : 0; }
  CellFinder* const cell_finder;
  OverlapFinder* const overlap_finder;
  const Clock* const clock;
  Timer* const timer;

  Snapshot<ShardMap> hierarchies;
  Snapshot<std::vector<ConfiguredLeaf>> leaves;
  Snapshot<std::set<std::string>> draining;
  Snapshot<OutlierEjection> suspects;
  Snapshot<OverloadThresholds> overload;
  Snapshot<std::map<std::string, std::string>> engines;  // where workers' engines are, by name

  // As long as a route needs it, whatever weights are set meanwhile.
  std::shared_ptr<const Policy> PolicyOf(const std::string& model) const;
  void SetWeights(const CostWeights& weights,
                  const std::map<std::string, CostWeights>& model_weights);

  // A model's own memory, or the one that all models share of which nothing was heard.
  std::shared_ptr<ModelFleet> Model(const std::string& model);
  // Something was heard of it: it has a memory of its own from now on.
  std::shared_ptr<ModelFleet> KnownModel(const std::string& model);
  bool Knows(const std::string& model) const {
    ReaderLock lock(&models_mutex_);
    return places_by_model_.contains(model);
  }
  std::vector<std::shared_ptr<ModelFleet>> Models() const;
  // Leaves or hierarchies have told of some model.
  bool knows_models() const { return Models().size() > 1; }
  uint64_t NewDecision(const ModelFleet& model) {
    return next_decision_.fetch_add(kModelFleetsMax, std::memory_order_relaxed) + model.place;
  }
  // Null: forgotten.
  std::shared_ptr<ModelFleet> ModelOf(uint64_t decision_id) const;

  // Hashes what `input` has for a prompt, in blocks as the model's are known to be.
  absl::Status Prepare(RouteInput* input);

  // Where the session's last request went.
  std::optional<CellWorker> SessionOf(const RouteInput& input) const;
  void SessionWent(const RouteInput& input, const CellWorker& worker);
  size_t sessions() const;

  // The replica of each shard that answered last: it is asked first.
  std::string PreferredReplica(const std::string& shard) const;
  void Prefer(const std::string& shard, const std::string& replica);

  // Judges by a report which workers were reached: `worker` prefills, the client's request was sent
  // to `destination`.
  void JudgeReached(const CellWorker& worker, const CellWorker& destination,
                    const RouteReport& report);
  void Suspect(const CellWorker& worker);
  // `call` runs after a worker became a suspect. Null: nothing does.
  void OnSuspect(std::function<void()> call) {
    MutexLock lock(&on_suspect_mutex_);
    on_suspect_ = std::move(call);
  }

  // The leaves of a cell hear what was sent to one of its workers, and the top level of the
  // hierarchy its waypoints; and that it is over, where they heard of it. A top level that names
  // nodes knows no such cell, and takes nothing.
  void TellOfChoice(const Domain& domain, const std::string& cell,
                    const std::shared_ptr<const std::vector<std::string>>& leaves,
                    const Routed& routed, std::span<const SequenceHash> waypoints);
  void TellOver(const RouteOver& over);

  // A node does not take questions under this frontend's schedule: the route goes on without it, so
  // this is logged.
  void OnRefused(const std::string& node, const absl::Status& why);

  // ---- Routes that wait for a worker below its thresholds ----
  enum class Waits { kWaits, kFull, kStopped };
  Waits Wait(const std::shared_ptr<Route>& route);
  // False: it was ended by `Stop`.
  bool EndWait(const Route* route);
  std::vector<std::shared_ptr<Route>> Stop();
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }
  size_t waiting() const;

  // The counters of `FrontendStats`.
  struct Counts {
    std::atomic<uint64_t> routes{0};
    std::atomic<uint64_t> failed{0};
    std::atomic<uint64_t> by_fallback[kFallbacks] = {};
    std::atomic<uint64_t> expired_choices{0};
    std::atomic<uint64_t> asked_ahead{0};
    std::atomic<uint64_t> asked_ahead_used{0};
    std::atomic<uint64_t> prompt_blocks{0};
    std::atomic<uint64_t> chosen_blocks{0};
    std::atomic<uint64_t> best_blocks{0};
    std::atomic<uint64_t> refused_by_nodes{0};
    std::atomic<uint64_t> rejected{0};
  };
  Counts counts;

 private:
  struct Place {
    std::string model;
    std::shared_ptr<ModelFleet> fleet;
    mutable std::atomic<int64_t> used{0};
  };

  // By model, of those that have weights of their own; "": of all others.
  Snapshot<std::map<std::string, std::shared_ptr<const Policy>>> policies_;
  // Place 0 is of all models of which nothing was heard.
  mutable SharedMutex models_mutex_;
  absl::flat_hash_map<std::string, size_t> places_by_model_ ABSL_GUARDED_BY(models_mutex_);
  std::vector<std::unique_ptr<Place>> places_ ABSL_GUARDED_BY(models_mutex_);
  std::atomic<uint64_t> next_decision_;

  mutable Mutex sessions_mutex_;
  Sessions sessions_ ABSL_GUARDED_BY(sessions_mutex_);
  mutable Mutex preferred_mutex_;
  absl::flat_hash_map<std::string, std::string> preferred_ ABSL_GUARDED_BY(preferred_mutex_);
  Mutex on_suspect_mutex_;
  std::function<void()> on_suspect_ ABSL_GUARDED_BY(on_suspect_mutex_);

  mutable Mutex waiting_mutex_;
  std::map<const Route*, std::shared_ptr<Route>> waiting_ ABSL_GUARDED_BY(waiting_mutex_);
  std::atomic<bool> stopped_{false};
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_FLEET_H_
