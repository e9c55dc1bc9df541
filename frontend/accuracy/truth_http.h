// The truth over HTTP and for Prometheus.
//
//   GET /decisions/ID            the receipt, what was reported, and both compared; 404 when unknown or forgotten
//   GET /decisions               {"decisions":["…"]}: the latest ids; ?max=N; ?detail=1: receipts in their place, at most 64
//   GET /diagnosis               for people, aligned; ?format=json for scripts; ?workers=N
//
// *Lifetime*: `truth` outlives server and metrics.

#ifndef KVATLAS_FRONTEND_ACCURACY_TRUTH_HTTP_H_
#define KVATLAS_FRONTEND_ACCURACY_TRUTH_HTTP_H_

#include <string>

#include "frontend/accuracy/truth.h"
#include "indexer/base/clock.h"
#include "indexer/process/admin_http.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {

// REQUIRES: `http` has not started.
void AddTruthHttp(Truth* truth, const Clock* clock, AdminHttp* http);

void AddTruthMetrics(const Truth* truth, Metrics* metrics);

// For the status of a frontend:
// {"findings":[{"cause":…,"worker":…,"confidence":…}],"reports":…,"exact":…,…}
std::string TruthStatusJson(const Truth& truth);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ACCURACY_TRUTH_HTTP_H_
