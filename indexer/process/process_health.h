// The answers of a process to probes: whether it lives, and whether it should get work. All HTTP
// servers of the process answer alike.
//
//   GET /livez     200, or 503 when a listener of this process takes no connections: restart it. Loading, restoring and draining
//                  processes live.
//   GET /ready     200 {"ready":true}, or 503 {"ready":false,"reason":"…"}: send it nothing now
//   GET /healthz   for probes of earlier releases: 200 while it lives and serves, whatever its gate says, else 503
//
// *Place*: the process sets it, an `AdminHttp` dials the listeners (`SetDeaf`) and answers, and so
// do other servers by `AddRoutes`.
// *Truth*: kStopping is final: whatever is set later changes nothing.
// *Threads*: any. *Lifetime*: outlives the servers it was added to.

#ifndef KVATLAS_INDEXER_PROCESS_PROCESS_HEALTH_H_
#define KVATLAS_INDEXER_PROCESS_PROCESS_HEALTH_H_

#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"
#include "indexer/net/http_server.h"
#include "indexer/telemetry/health.h"

namespace kvatlas {

class ProcessHealth {
 public:
  ProcessHealth() = default;
  ProcessHealth(const ProcessHealth&) = delete;
  ProcessHealth& operator=(const ProcessHealth&) = delete;

  // `reason` is in the answer while the process is not ready.
  void Set(Health health, std::string reason = "");
  // A condition besides kServing. It is asked at every probe, so it must be quick. Before a server
  // starts.
  void SetGate(std::function<Readiness()> gate);
  // Sets which listener takes no connections, and why; empty: all take them.
  void SetDeaf(std::string reason);

  Health health() const;
  // Empty: it lives.
  std::string deaf() const;
  Readiness readiness() const;

  // The paths above, where `server` has not started.
  void AddRoutes(HttpServer* server) const;

 private:
  void AnswerLive(HttpResponse* response) const;
  void AnswerReady(HttpResponse* response) const;
  void AnswerBoth(HttpResponse* response) const;

  std::function<Readiness()> gate_;  // immutable once a server has started
  mutable Mutex mutex_;
  Health health_ ABSL_GUARDED_BY(mutex_) = Health::kLoading;
  std::string reason_ ABSL_GUARDED_BY(mutex_) = "loading";
  std::string deaf_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_PROCESS_PROCESS_HEALTH_H_
