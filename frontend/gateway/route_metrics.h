// Routes in /metrics: their number as the frontend itself counts, and the times of the routes of
// one interface.
//
// *Threads*: any. *Lifetime*: frontend and metrics outlive it.

#ifndef KVATLAS_FRONTEND_GATEWAY_ROUTE_METRICS_H_
#define KVATLAS_FRONTEND_GATEWAY_ROUTE_METRICS_H_

#include "frontend/router/frontend.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {

// `kvatlas_frontend_routes_total{fallback=…}`, `…_routes_failed_total` and
// `…_routes_rejected_total`, at each scrape: the figures of `/status`; and of the prompts of these
// routes `…_prompt_blocks_total`, `…_chosen_blocks_total` and `…_best_blocks_total`: chosen /
// prompt is the predicted hit ratio, best - chosen the locality that choices gave up for load,
// distance or a policy. Once per frontend.
void ExportRouteTotals(Frontend* frontend, Metrics* metrics);

// `kvatlas_frontend_cell_promises_total`, `…_broken_total` and `kvatlas_frontend_cell_believed` of
// the 64 cells that broke most of what the hierarchy promised of them. Once per frontend.
void ExportPromises(Frontend* frontend, Metrics* metrics);

// Times and promises of observed routes. Several objects of one `Metrics` share the same series.
class RouteMetrics {
 public:
  explicit RouteMetrics(Metrics* metrics);
  void Observe(const RouteResult& route);

 private:
  Counter promises_;
  Counter wrong_cells_;
  Histogram route_seconds_;
  Histogram find_cells_seconds_;
  Histogram find_overlaps_seconds_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_ROUTE_METRICS_H_
