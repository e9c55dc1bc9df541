// Who wants to know what was decided, and what became of it? Told of every route that ended in a worker, and of every
// report.
//
// *Threads*: any, side by side; never with a lock of the frontend held. What an observer does, the route waits for.
// *Lifetime*: outlives the frontend and its routes.

#ifndef KVATLAS_FRONTEND_ROUTE_ROUTE_OBSERVER_H_
#define KVATLAS_FRONTEND_ROUTE_ROUTE_OBSERVER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "frontend/route/frontend.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"

namespace kvatlas {

// Valid during the call, but for what is shared.
struct Decided {
  const RouteInput& input;
  const RouteResult& result;
  std::shared_ptr<const std::vector<SequenceHash>> sequence;  // what was asked for; never null
  uint32_t block_size = 0;                                    // it was hashed with
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

#endif  // KVATLAS_FRONTEND_ROUTE_ROUTE_OBSERVER_H_
