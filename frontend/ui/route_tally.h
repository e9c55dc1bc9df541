// How fast are routes, and how much of their prompts is cached where they go? Figures for the page,
// beside other observers.
//
// *Truth*: the best available is the deepest overlap among the candidates that a receipt keeps:
// leaves that were not asked may have more. Both figures are of the last `kTallyWindow` samples, so
// that a route now and then still draws a line.
// *Threads*: `OnDecided` and `OnReported` from any; `Take` from one. *Cost*: a route pays four
// relaxed additions and a look at its candidates.
// *Lifetime*: `next` outlives it.

#ifndef KVATLAS_FRONTEND_UI_ROUTE_TALLY_H_
#define KVATLAS_FRONTEND_UI_ROUTE_TALLY_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>

#include "frontend/router/route_observer.h"
#include "indexer/ui/latency_window.h"

namespace kvatlas {

inline constexpr size_t kTallyWindow = 15;

class RouteTally : public RouteObserver {
 public:
  // `next` hears of everything too; may be null.
  explicit RouteTally(RouteObserver* next) : next_(next) {}

  void OnDecided(const Decided& decided) override;
  void OnReported(uint64_t decision_id, const RouteReport& report, Time at) override;

  struct Figures {
    double
        hit_chosen;  // share of the prompts' blocks that the chosen worker has; `NoValue` without routes
    double hit_best;
    double p50_ms;
    double p99_ms;
  };
  Figures Take();

 private:
  struct Blocks {
    uint64_t prompt = 0, chosen = 0, best = 0;
  };

  RouteObserver* const next_;
  LatencyWindow latency_{kTallyWindow};
  std::atomic<uint64_t> prompt_{0};  // counts alone: in no order with anything
  std::atomic<uint64_t> chosen_{0};
  std::atomic<uint64_t> best_{0};
  std::deque<Blocks> taken_;  // of the thread that takes: so far, at each take of the window
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_UI_ROUTE_TALLY_H_
