// The statuses that a route ends with when it chose no worker.

#ifndef KVATLAS_FRONTEND_ROUTER_ROUTE_ERROR_H_
#define KVATLAS_FRONTEND_ROUTER_ROUTE_ERROR_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "frontend/router/choose.h"
#include "frontend/router/frontend.h"

namespace kvatlas {

// How the fleet answered one try.
struct FleetSaid {
  uint32_t unanswered = 0;  // questions that failed, but for "I know no such worker"
  bool some_answered = false;
  std::string reason = {};  // of what failed, with addresses: for the log

  void CountFailure(const absl::Status& why);
};

absl::Status StoppedError();  // UNAVAILABLE

// UNAVAILABLE with `RetryAfter`, unless all that were asked answered and know no worker: NOT_FOUND.
// Names no address; the log does.
absl::Status NoWorkerError(const Domain& domain, const Choice& choice, bool lacks_decoder,
                           const FleetSaid& said);

// RESOURCE_EXHAUSTED with `RetryAfter`: until the least overloaded worker has computed what is too
// much.
absl::Status OverloadedError(const Domain& domain, const Choice& choice,
                             const FrontendOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_ROUTE_ERROR_H_
