// State that the requests of one proxy share: options, frontend and router, connections to engines,
// and counters.
//
// *Threads*: any, but for an `EngineConnections`, which is of the thread of its context.
// *Lifetime*: outlives the requests; `ClosePools` before the contexts of the server's threads go.

#ifndef KVATLAS_FRONTEND_GATEWAY_HTTP_PROXY_PARTS_H_
#define KVATLAS_FRONTEND_GATEWAY_HTTP_PROXY_PARTS_H_

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "frontend/engine_client/engine_connections.h"
#include "frontend/gateway/http/proxy.h"
#include "frontend/gateway/http/response_makers.h"
#include "frontend/gateway/route_metrics.h"
#include "frontend/gateway/tenancy.h"
#include "frontend/prompt/prompt_router.h"
#include "frontend/router/frontend.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {

inline constexpr int kFailuresInARow = 3;
// The proxies that a request has passed: one that is among them already goes round. More are a ring
// of which each was started again.
inline constexpr char kHopHeader[] = "x-kvatlas-hop";
inline constexpr size_t kHopsMax = 8;

class ProxyParts {
 public:
  ProxyParts(const ProxyOptions& options, Frontend* frontend, PromptRouter* router,
             Metrics* metrics);

  const ProxyOptions& options() const { return options_; }
  Frontend* frontend() const { return frontend_; }
  PromptRouter* router() const { return router_; }
  const Tenancy& tenancy() const { return tenancy_; }

  EngineConnections* PoolOf(boost::asio::io_context* io);
  void ClosePools();

  // For a request that any engine can take: another one each time, none of `tried`
  // (`EngineUrl::authority`), suspects only when there are no others.
  std::optional<KnownEngine> AnyEngine(const std::set<std::string>& tried);

  // After an answer of this engine. True: its latest `kFailuresInARow` were all 500, so that it may
  // be broken as a whole.
  bool FailsAgain(const std::string& engine, int status);

  // The engines that answers named, or else those that flags name; suspects last.
  std::vector<KnownEngine> Engines() const;

  // A list of models that is not too old; empty: none is kept for requests of this `authorization`.
  std::string KeptModels(const std::string& authorization) const;
  void KeepModels(const std::string& authorization, std::string list);

  struct Counters {
    Counter answered;
    Counter refused;
    Counter tried_again;
    Counter outside;
    Counter broken;
    Counter client_gone;
    Counter forwarded_tokens;
    Gauge under_way;
  };
  // The name of this process in `kHopHeader`; random, so that no other process has it.
  const std::string hop;
  Counters counters;
  RouteMetrics route_metrics;
  ResponseMakers responses;
  ResponseMakers stored;  // items of responses, and conversations
  std::atomic<int64_t> under_way{0};

 private:
  static Counters MakeCounters(Metrics* metrics);

  const ProxyOptions options_;
  Frontend* const frontend_;
  PromptRouter* const router_;
  const Tenancy tenancy_;
  std::atomic<size_t> turn_{0};
  Mutex failures_mutex_;
  // Consecutive answers with 500 by engine (HOST:PORT). An engine that is gone keeps its entry
  // until all are forgotten, beyond `kFailingMax`.
  absl::flat_hash_map<std::string, int> failures_ ABSL_GUARDED_BY(failures_mutex_);
  std::atomic<bool> any_failures_{false};
  struct Models {
    std::string authorization;
    std::string list;
    Time since{0};
  };
  mutable Mutex models_mutex_;
  Models models_ ABSL_GUARDED_BY(models_mutex_);
  Mutex pools_mutex_;
  std::map<boost::asio::io_context*, std::unique_ptr<EngineConnections>> pools_
      ABSL_GUARDED_BY(pools_mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_HTTP_PROXY_PARTS_H_
