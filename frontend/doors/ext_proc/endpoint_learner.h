// Hears of endpoints where they are said: in the labels that come with leaves' answers.
//
// *Place*: between the frontend and the finder that asks the leaves.
// *Truth*: every worker of every leaf that answered, not only those that were chosen. One that a leaf's next answer about the same
// domain no longer names is forgotten; where it is in other answers of leaves, it is learnt again from the next of these.
// *Threads*: any. *Cost*: a short lock per answer; labels that are those of the answer before are not read again.
// *Bounds*: what `kAnswersKeptMax` pairs of leaf and domain answered last; beyond, all are kept anew.
// *Lifetime*: `endpoints` outlives the calls of the finder, and so does the finder itself; the learner need not.
//
// Example:
//   EndpointLearner learner(&overlap_finder, &endpoints);
//   Frontend frontend(options, &cell_finder, &learner, &Clock::Real(), &timer);

#ifndef KVATLAS_FRONTEND_DOORS_EXT_PROC_ENDPOINT_LEARNER_H_
#define KVATLAS_FRONTEND_DOORS_EXT_PROC_ENDPOINT_LEARNER_H_

#include <cstddef>
#include <memory>
#include <string>

#include "frontend/doors/ext_proc/endpoints.h"
#include "frontend/route/finders.h"

namespace kvatlas {

inline constexpr size_t kAnswersKeptMax = 4096;

class EndpointLearner : public OverlapFinder {
 public:
  EndpointLearner(OverlapFinder* finder, Endpoints* endpoints);

  void FindOverlaps(const std::string& leaf_address, const OverlapQuestion& question,
                    Duration deadline, Callback callback) override;

 private:
  struct Kept;

  OverlapFinder* const finder_;
  const std::shared_ptr<Kept> kept_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_DOORS_EXT_PROC_ENDPOINT_LEARNER_H_
