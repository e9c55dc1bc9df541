// How often does a worker keep what the index promises of it? Sums that forget: what was counted
// `half_life` ago counts half.
//
// *Threads*: none; the owner serialises.

#ifndef KVATLAS_FRONTEND_ACCURACY_WORKER_TALLY_H_
#define KVATLAS_FRONTEND_ACCURACY_WORKER_TALLY_H_

#include <chrono>
#include <cmath>
#include <cstdint>

#include "indexer/base/clock.h"

namespace kvatlas {

struct TallyFigures {
  double requests = 0;  // that reported what was cached
  double exact = 0;     // within a block
  double less = 0;      // served a block or more less than predicted
  double more = 0;
  double predicted_tokens = 0;
  double served_tokens = 0;
  double lengths = 0;  // requests whose length both sides know
  double lengths_differ = 0;
  double without_figures = 0;  // finished without cached_tokens
  double errors = 0;
};

class WorkerTally {
 public:
  explicit WorkerTally(Duration half_life) : half_life_(half_life) {}

  // Fades what has been counted to `now`, then `count` adds to it.
  template <typename Count>
  void Add(Time now, const Count& count) {
    figures_ = At(now);
    as_of_ = now;
    count(figures_);
  }
  TallyFigures At(Time now) const {
    const double halves =
        std::chrono::duration<double>(now - as_of_) / std::chrono::duration<double>(half_life_);
    const double worth = std::exp2(-std::fmax(halves, 0));
    TallyFigures figures = figures_;
    for (double TallyFigures::* figure :
         {&TallyFigures::requests, &TallyFigures::exact, &TallyFigures::less, &TallyFigures::more,
          &TallyFigures::predicted_tokens, &TallyFigures::served_tokens, &TallyFigures::lengths,
          &TallyFigures::lengths_differ, &TallyFigures::without_figures, &TallyFigures::errors}) {
      figures.*figure *= worth;
    }
    return figures;
  }

 private:
  const Duration half_life_;
  TallyFigures figures_;
  Time as_of_{0};
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ACCURACY_WORKER_TALLY_H_
