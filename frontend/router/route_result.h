// The result of a route for its caller: the worker, where its engine is, and the receipt.
//
// *Threads*: pure, but for the look at which engines are given.

#ifndef KVATLAS_FRONTEND_ROUTER_ROUTE_RESULT_H_
#define KVATLAS_FRONTEND_ROUTER_ROUTE_RESULT_H_

#include "frontend/router/commit.h"
#include "frontend/router/frontend.h"
#include "frontend/router/receipt.h"
#include "frontend/router/route_request.h"

namespace kvatlas {

// `receipt`: of those that were asked. REQUIRES: a worker is chosen.
RouteResult ResultOf(const RouteRequest& request, Committed committed, Receipt receipt);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_ROUTE_RESULT_H_
