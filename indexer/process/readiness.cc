// The gate opens once and stays open: `ready_` is never reset. Recovery calls Recovering, perhaps
// Lost, and then Recovered; probes call Get.

#include "indexer/process/readiness.h"

#include <utility>

#include "indexer/telemetry/log.h"

namespace kvatlas {

void ReadinessGate::Recovering(std::string what) {
  MutexLock lock(&mutex_);
  recovering_ = std::move(what);
}

void ReadinessGate::Lost(std::string what) {
  MutexLock lock(&mutex_);
  lost_ = std::move(what);
}

void ReadinessGate::Recovered() {
  MutexLock lock(&mutex_);
  recovering_.clear();
  recovered_at_ = options_.clock->Now();
}

// Checked in this order, and the first failure is the reason:
// 1. Recovery is done.
// 2. If knowledge was lost: `ready_after` has passed, since unknown workers may still come.
// 3. `workers_min` workers are there, however long it takes.
// 4. All of them are caught up with, or `ready_after` has passed.
// The callbacks run without the mutex, as they take locks of the leaf.
Readiness ReadinessGate::Get() {
  bool late;
  {
    MutexLock lock(&mutex_);
    if (ready_) return {.ready = true, .reason = ""};
    if (!recovering_.empty()) return {.ready = false, .reason = recovering_};
    late = Late();
    if (!lost_.empty() && !late) return {.ready = false, .reason = lost_};
  }
  const uint64_t workers = options_.workers_min == 0 ? 0 : options_.workers();
  if (workers < options_.workers_min) {
    return {.ready = false,
            .reason = std::to_string(workers) + " of " + std::to_string(options_.workers_min) +
                      " workers"};
  }
  const uint64_t unsettled = options_.unsettled();
  std::string reason = std::to_string(unsettled) + " workers are not caught up with";
  if (unsettled > 0 && !late) return {.ready = false, .reason = std::move(reason)};
  MutexLock lock(&mutex_);
  if (!std::exchange(ready_, true) && unsettled > 0)
    Log(LogLevel::kWarning, "ready after --ready_after", {{"reason", reason}});
  return {.ready = true, .reason = ""};
}

// True when ready. Before that, once recovered: after `ready_after`, or at once if the leaf neither
// waits for a number of workers nor lost what it knew.
bool ReadinessGate::MayReport() {
  if (Get().ready) return true;
  MutexLock lock(&mutex_);
  return recovering_.empty() && ((options_.workers_min == 0 && lost_.empty()) || Late());
}

bool ReadinessGate::Late() const {
  return options_.clock->Now() - recovered_at_ >= options_.ready_after;
}

}  // namespace kvatlas
