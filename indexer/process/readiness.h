// The gate that decides when a leaf may be asked. It is ready once recovery is done, the stated
// number of workers is there, and these workers, and those that a checkpoint brought back, are
// caught up with or `ready_after` has passed. If what the leaf knew is lost, it waits for
// `ready_after` too. Once ready, it stays ready.
//
// *Threads*: any.

#ifndef KVATLAS_INDEXER_PROCESS_READINESS_H_
#define KVATLAS_INDEXER_PROCESS_READINESS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/telemetry/health.h"

namespace kvatlas {

struct ReadinessOptions {
  uint32_t workers_min = 0;           // to wait for, however long that takes
  std::function<uint64_t()> workers;  // how many there are now; asked until ready
  std::function<uint64_t()>
      unsettled;  // how many of them wait for a repair, or for their stream to go on; likewise
  Duration ready_after = std::chrono::seconds(30);  // since `Recovered`
  const Clock* clock = &Clock::Real();
};

class ReadinessGate {
 public:
  explicit ReadinessGate(ReadinessOptions options) : options_(std::move(options)) {}

  // Sets what recovery is doing; before `Recovered`.
  void Recovering(std::string what);
  // What the leaf knew cannot be read; `what` says why. Workers that it does not know may then
  // come. Before `Recovered`.
  void Lost(std::string what);
  void Recovered();

  Readiness Get();
  // Whether this leaf reports to parents: not while it recovers, nor while it waits for workers,
  // since among a cell's replicas the one heard last stands for the cell, and this one would report
  // that the cell holds nothing. After `ready_after` it reports in any case.
  bool MayReport();

 private:
  bool Late() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ReadinessOptions options_;
  Mutex mutex_;
  std::string recovering_ ABSL_GUARDED_BY(mutex_) = "starting";  // empty: done
  std::string lost_ ABSL_GUARDED_BY(mutex_);                     // empty: nothing
  Time recovered_at_ ABSL_GUARDED_BY(mutex_){0};
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_PROCESS_READINESS_H_
