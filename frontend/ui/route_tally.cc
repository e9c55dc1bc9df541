// Counters that only rise; `Take` looks at them at intervals and compares with what they were
// `kTallyWindow` takes ago.

#include "frontend/ui/route_tally.h"

#include <algorithm>

#include "frontend/router/receipt.h"
#include "indexer/ui/series.h"

namespace kvatlas {
namespace {

// `NoValue` leaves a gap in the chart: no route is not a share of 0.
double Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? NoValue() : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

// Runs in the route's thread. The figures are taken from the result.
void RouteTally::OnDecided(const Decided& decided) {
  const Receipt& receipt = decided.result.receipt;
  uint32_t best = decided.result.overlap_blocks;
  for (const ReceiptCandidate& candidate : receipt.candidates)
    best = std::max(best, candidate.overlap_blocks);
  prompt_.fetch_add(receipt.blocks, std::memory_order_relaxed);
  chosen_.fetch_add(decided.result.overlap_blocks, std::memory_order_relaxed);
  best_.fetch_add(best, std::memory_order_relaxed);
  latency_.Observe(receipt.total_us);
  if (next_ != nullptr) next_->OnDecided(decided);
}

void RouteTally::OnReported(uint64_t decision_id, const RouteReport& report, Time at) {
  if (next_ != nullptr) next_->OnReported(decision_id, report, at);
}

RouteTally::Figures RouteTally::Take() {
  const Blocks now{.prompt = prompt_.load(std::memory_order_relaxed),
                   .chosen = chosen_.load(std::memory_order_relaxed),
                   .best = best_.load(std::memory_order_relaxed)};
  if (taken_.empty()) taken_.emplace_back();
  const Blocks& then = taken_.front();
  Figures figures;
  figures.hit_chosen = Share(now.chosen - then.chosen, now.prompt - then.prompt);
  figures.hit_best = Share(now.best - then.best, now.prompt - then.prompt);
  taken_.push_back(now);
  if (taken_.size() > kTallyWindow) taken_.pop_front();
  const std::vector<double> times = latency_.Take({0.5, 0.99});
  figures.p50_ms = times[0];
  figures.p99_ms = times[1];
  return figures;
}

}  // namespace kvatlas
