#include "indexer/leaf/readiness.h"

#include <utility>

namespace kvatlas {

ReadinessGate::ReadinessGate(uint32_t workers_min, std::function<uint64_t()> workers)
    : workers_min_(workers_min), workers_(std::move(workers)) {}

void ReadinessGate::Recovering(std::string what) {
  MutexLock lock(&mutex_);
  recovering_ = std::move(what);
}

void ReadinessGate::Recovered() {
  MutexLock lock(&mutex_);
  recovering_.clear();
}

Readiness ReadinessGate::Get() {
  {
    MutexLock lock(&mutex_);
    if (ready_) return {.ready = true, .reason = ""};
    if (!recovering_.empty()) return {.ready = false, .reason = recovering_};
  }
  const uint64_t workers = workers_min_ == 0 ? 0 : workers_();
  if (workers < workers_min_) {
    return {.ready = false,
            .reason = std::to_string(workers) + " of " + std::to_string(workers_min_) + " workers"};
  }
  MutexLock lock(&mutex_);
  ready_ = true;
  return {.ready = true, .reason = ""};
}

}  // namespace kvatlas
