// An observer hears of every route that ended in a worker, and of every report.
//
// *Threads*: any, side by side; never with a lock of the frontend held. The route waits while an
// observer runs.
// *Lifetime*: outlives the frontend and its routes.

#ifndef KVATLAS_FRONTEND_ROUTER_ROUTE_OBSERVER_H_
#define KVATLAS_FRONTEND_ROUTER_ROUTE_OBSERVER_H_

#include <cstdint>

#include "frontend/router/frontend.h"
#include "frontend/router/prepared_prompt.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"

namespace kvatlas {

// Valid during the call, but for what is shared.
struct Decided {
  const RouteInput& input;     // without tokens and hashes: these are `prompt`
  const RouteResult& result;   // without `routed`
  PreparedPrompt::Ptr prompt;  // never null
  const HashContract& contract;
  Time at{0};
};

class RouteObserver {
 public:
  virtual ~RouteObserver() = default;
  // Before the caller has the result, so before any report on it.
  virtual void OnDecided(const Decided& decided) = 0;
  virtual void OnReported(uint64_t decision_id, const RouteReport& report, Time at) = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_ROUTE_OBSERVER_H_
