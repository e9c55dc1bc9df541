// Two kinds of figures: totals that the frontend counts, copied at each scrape, and times of the
// routes that one interface sees.

#include "frontend/gateway/route_metrics.h"

#include <cstdint>
#include <string>
#include <vector>

#include "indexer/telemetry/metric_families.h"
#include "indexer/telemetry/text_escape.h"

namespace kvatlas {
namespace {

double Seconds(uint64_t microseconds) { return static_cast<double>(microseconds) * 1e-6; }

// Cells whose promises are shown one by one, the worst first.
constexpr size_t kPromisesShown = 64;

// The series of one cell; also called without a cell to declare the families.
void AddPromises(const CellPromises& of, const std::string& label, MetricFamilies* to) {
  to->CountRenamed("kvatlas_frontend_cell_promises_total",
                   "Times a cell that broke a promise had promised something.", label,
                   static_cast<double>(of.promises));
  to->CountRenamed("kvatlas_frontend_cell_promises_broken_total",
                   "Of these, times its leaf had less.", label, static_cast<double>(of.broken));
  to->Gauge("kvatlas_frontend_cell_believed", "The share of its promises that is expected now.",
            label, of.believed);
}

}  // namespace

// As text at each scrape, since cells that broke a promise come and go and a counter could not be
// removed. Cells without a broken promise have no series.
void ExportPromises(Frontend* frontend, Metrics* metrics) {
  metrics->OnText([frontend](std::string* text) {
    MetricFamilies families;
    families.Declare([](MetricFamilies* to) { AddPromises({}, "", to); });
    for (const CellPromises& of : frontend->promises(kPromisesShown))
      if (of.broken > 0) AddPromises(of, MetricLabel("cell", of.cell), &families);
    families.AppendTo(text);
  });
}

// Counters are raised to the frontend's own totals, which only grow.
void ExportRouteTotals(Frontend* frontend, Metrics* metrics) {
  std::vector<Counter> routes;
  for (int fallback = 0; fallback < kFallbacks; ++fallback) {
    routes.push_back(metrics->AddCounter(
        "kvatlas_frontend_routes_total", "Routes by how far the answer had to fall.",
        {{"fallback", std::string(ToString(static_cast<Fallback>(fallback)))}}));
  }
  struct Total {
    Counter counter;
    uint64_t FrontendStats::* of;
  };
  const auto total = [metrics](const char* name, const char* help, uint64_t FrontendStats::* of) {
    return Total{metrics->AddCounter(name, help), of};
  };
  std::vector<Total> totals = {
      total("kvatlas_frontend_routes_failed_total", "Routes that ended without a worker.",
            &FrontendStats::failed),
      total("kvatlas_frontend_routes_rejected_total",
            "Of these, those refused because every worker was over its thresholds.",
            &FrontendStats::rejected),
      total("kvatlas_frontend_prompt_blocks_total", "Full blocks of the prompts that were routed.",
            &FrontendStats::prompt_blocks),
      total("kvatlas_frontend_chosen_blocks_total",
            "Of these, those that the chosen worker is predicted to reuse.",
            &FrontendStats::chosen_blocks),
      total(
          "kvatlas_frontend_best_blocks_total",
          "Of these, those that the worker with most of them would have reused, whatever its load.",
          &FrontendStats::best_blocks),
  };
  metrics->OnScrape([frontend, routes, totals]() mutable {
    const FrontendStats stats = frontend->stats();
    for (int fallback = 0; fallback < kFallbacks; ++fallback)
      routes[static_cast<size_t>(fallback)].RaiseTo(
          static_cast<double>(stats.by_fallback[fallback]));
    for (Total& one : totals) one.counter.RaiseTo(static_cast<double>(stats.*one.of));
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

// A cell promised at least `blocks_at_least` blocks by the hierarchy; its leaf answered
// `best_blocks`. Only the first asked cell is judged: it was asked for that promise.
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
