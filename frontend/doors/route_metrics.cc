#include "frontend/doors/route_metrics.h"

#include <cstdint>
#include <string>
#include <vector>

namespace kvatlas {
namespace {

double Seconds(uint64_t microseconds) { return static_cast<double>(microseconds) * 1e-6; }

// Counters only go up: by what is new since the last time.
void Raise(Counter* counter, uint64_t to) {
  const double more = static_cast<double>(to) - counter->Value();
  if (more > 0) counter->Increment(more);
}

}  // namespace

void ExportRouteTotals(Frontend* frontend, Metrics* metrics) {
  std::vector<Counter> routes;
  for (int fallback = 0; fallback < kFallbacks; ++fallback) {
    routes.push_back(metrics->AddCounter(
        "kvatlas_frontend_routes_total", "Routes by how far the answer had to fall.",
        {{"fallback", std::string(ToString(static_cast<Fallback>(fallback)))}}));
  }
  Counter failed = metrics->AddCounter("kvatlas_frontend_routes_failed_total",
                                       "Routes that ended without a worker.");
  metrics->OnScrape([frontend, routes, failed]() mutable {
    const FrontendStats stats = frontend->stats();
    for (int fallback = 0; fallback < kFallbacks; ++fallback)
      Raise(&routes[static_cast<size_t>(fallback)], stats.by_fallback[fallback]);
    Raise(&failed, stats.failed);
  });
}

RouteMetrics::RouteMetrics(Metrics* metrics)
    : promises_(metrics->AddCounter("kvatlas_frontend_promises_total",
                                    "Routes whose first asked cell was said to have something.")),
      wrong_cells_(metrics->AddCounter("kvatlas_frontend_wrong_cells_total",
                                       "Of these, those whose first asked cell had less.")),
      route_seconds_(
          metrics->AddHistogram("kvatlas_frontend_route_seconds", "From question to choice.")),
      find_cells_seconds_(metrics->AddHistogram("kvatlas_frontend_find_cells_seconds",
                                                "Waiting for hierarchies, per route.")),
      find_overlaps_seconds_(metrics->AddHistogram("kvatlas_frontend_find_overlaps_seconds",
                                                   "Waiting for leaves, per route.")) {}

void RouteMetrics::Observe(const RouteResult& route) {
  route_seconds_.Observe(Seconds(route.receipt.total_us));
  find_cells_seconds_.Observe(Seconds(route.receipt.find_cells_us));
  find_overlaps_seconds_.Observe(Seconds(route.receipt.find_overlaps_us));
  const std::vector<CellAsked>& asked = route.receipt.cells;
  if (asked.empty() || asked[0].blocks_at_least == 0 || !asked[0].error.empty()) return;
  promises_.Increment();
  if (asked[0].best_blocks < asked[0].blocks_at_least) wrong_cells_.Increment();
}

}  // namespace kvatlas
