// What does one cell know, and what does it tell? Its engines' contents as its leaf knows them, and
// its stream upward.
//
//   engine steps ─▶ HolderRegistry (workers) ─▶ Coverage ─▶ CoverageReporter ─▶ SimulatedLink ─▶ hierarchy
//                        │                                       ▲ ticks as a leaf's timer would
//                        └── the leaf's answer                   │
//
// *Truth*: the leaf is exact: it gets its engines' events at once, so that what is measured is the
// hierarchy's. Bytes to the leaf are those of the batches that a publisher would send: one for
// every step that had events or another load, and its digests.
// *Threads*: one.

#ifndef KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_CELL_H_
#define KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_CELL_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "frontend/router/lookup_clients.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/waypoints.h"
#include "indexer/coverage/coverage_reporter.h"
#include "indexer/registry/domain_observer.h"
#include "indexer/registry/holder_handle.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/stream/link.h"
#include "tools/bench/hierarchy_bench_net.h"

namespace kvatlas {

struct BenchCellOptions {
  uint32_t number = 0;  // "cell-3", whose workers are "worker-3-0" …
  uint32_t workers = 8;
  Domain domain;
  uint32_t block_size = 64;
  const WaypointSchedule* schedule = nullptr;
  CoverageOptions coverage;
  SenderOptions sender = CoverageReporterOptions().sender;
  NetworkOptions network;
  Duration report_every = std::chrono::milliseconds(20);  // a leaf's timer
  Duration load_every = CoverageReporterOptions().load_every;
  double load_step = CoverageReporterOptions().load_step;
  Duration load_refresh = CoverageReporterOptions().load_refresh;
  uint64_t seed = 0;
};

// How long after a cell covers a waypoint is it covered above? Told of both ends; milliseconds.
class StalenessProbe {
 public:
  void Below(SequenceHash waypoint, bool gained, Time now);
  void Above(SequenceHash waypoint, bool gained, Time now, std::vector<double>* ms);

 private:
  struct Seen {
    uint32_t holders = 0;
    bool above = false;
    Time since{0};
  };
  void ForgetIfGone(SequenceHash waypoint);
  absl::flat_hash_map<SequenceHash, Seen> seen_;
};

struct CellTraffic {
  uint64_t leaf_updates = 0;  // blocks stored and removed
  uint64_t leaf_bytes = 0;
  uint64_t leaf_load_bytes = 0;  // of these, for load alone
  uint64_t updates = 0;          // waypoints announced and withdrawn
  uint64_t bytes = 0;
  uint64_t held = 0;     // waypoints announced now
  uint64_t covered = 0;  // that it covers now
  uint64_t snapshots = 0;
};

class BenchCell : private DomainObserver {
 public:
  // The pointers outlive it. `delivering` as in `SimulatedLink`.
  BenchCell(const BenchCellOptions& options, Simulation* simulation, StreamAcceptor* hierarchy,
            NetworkStats* network, std::function<void()> delivering);
  ~BenchCell() override;

  // What a worker's engine just did, and its load since.
  void OnStep(uint32_t worker, std::vector<Event> events, const Load& load);

  // The leaf's answer: every worker.
  WorkersAnswer FindOverlaps(std::span<const SequenceHash> sequence) const;

  CellTraffic Traffic() const;
  // Nothing is left to tell, or on its way.
  bool AtRest() const;
  StalenessProbe& probe() { return probe_; }
  const std::string& name() const { return name_; }

 private:
  void OnChanged(HolderIndex holder, const ChangeLog::Part& changes, const Stored* stored) override;
  void OnLoad(HolderIndex holder, const std::optional<Load>& load) override;

  CoverageReporterOptions ReporterOptions(StreamAcceptor* hierarchy, NetworkStats* network,
                                          std::function<void()> delivering);
  HolderRegistryOptions RegistryOptions();
  void CountDigests(uint32_t worker);
  // A tick of the timer is due at its next beat.
  void Wake();
  void WakeAt(Time when);
  void Tick();

  const BenchCellOptions options_;
  const std::string name_;
  Simulation& simulation_;
  StalenessProbe probe_;
  CoverageReporter reporter_;
  Coverage* const coverage_;
  HolderRegistry registry_;
  std::vector<std::unique_ptr<HolderHandle>> workers_;
  std::vector<Load> loads_;
  std::vector<BatchNumber> batches_;
  std::vector<Digest> digests_;
  std::vector<Time> digest_due_;
  CellTraffic traffic_;
  Time beat_;        // some moment at which the timer ticks
  Time wake_at_{0};  // the next tick; 0: none
  Time load_refresh_at_{0};
  bool load_changed_ = false;  // since the last tick
  const std::shared_ptr<BenchCell*> self_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_CELL_H_
