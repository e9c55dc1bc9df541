// The cache salts and adapters of prompts that engines have served. An engine has to announce the
// blocks that it caches of them under the same ones; if it does not, it is never found to have
// anything (`EngineFleetOptions::served`).
//
//   Frontend ── OnDecided ──▶ waits for its report ── OnReported, finished ──▶ Take
//
// *Truth*: prompts of tokens that an engine of the own cell finished without an error, as routes
// were asked for them. One prompt in `kEvery` for each worker and namespace.
// *Threads*: any. *Cost*: a short lock a route and a report.
// *Bounds*: `kWaitingMax` routes that were not reported on, the oldest is forgotten; `kServedMax`
// prompts that were not taken.
// *Lifetime*: `next` outlives it.

#ifndef KVATLAS_FRONTEND_SERVE_SERVED_NAMESPACES_H_
#define KVATLAS_FRONTEND_SERVE_SERVED_NAMESPACES_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "frontend/router/route_observer.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

struct ServedNamespace {
  std::string worker;
  std::string lora_name;
  std::string cache_salt;
  uint32_t prompt_tokens = 0;
  Time at{0};  // when it was finished
};

class ServedNamespaces : public RouteObserver {
 public:
  static constexpr size_t kWaitingMax = 8192;
  static constexpr size_t kServedMax = 1024;
  static constexpr Duration kEvery = std::chrono::milliseconds(250);

  // `next` hears of everything too; may be null.
  ServedNamespaces(std::string cell, RouteObserver* next) : cell_(std::move(cell)), next_(next) {}

  void OnDecided(const Decided& decided) override;
  void OnReported(uint64_t decision_id, const RouteReport& report, Time at) override;

  // The prompts that were finished by `until`, each once.
  std::vector<ServedNamespace> Take(Time until);

 private:
  using Key = std::tuple<std::string, std::string, std::string>;  // worker, adapter, salt

  const std::string cell_;
  RouteObserver* const next_;
  Mutex mutex_;
  absl::flat_hash_map<uint64_t, ServedNamespace> waiting_ ABSL_GUARDED_BY(mutex_);
  std::deque<uint64_t> by_age_ ABSL_GUARDED_BY(mutex_);  // of those, and of some that are gone
  std::deque<ServedNamespace> served_ ABSL_GUARDED_BY(mutex_);  // by time
  std::map<Key, Time> latest_ ABSL_GUARDED_BY(mutex_);          // of those
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_SERVE_SERVED_NAMESPACES_H_
