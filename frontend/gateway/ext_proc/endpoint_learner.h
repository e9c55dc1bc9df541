// Learns endpoints from the labels that come with leaves' answers.
//
// *Place*: between the frontend and the finder that asks the leaves. *Truth*: every worker of every
// leaf that answered, not only the chosen ones, as far as it is in the picker's pool; with a pool,
// `endpoints` hears which these are, also where they say no url. A worker that
// a leaf's next answer about the same domain no longer names is forgotten; where other leaves'
// answers name it, it is learnt again from the next of these. *Threads*: any. *Cost*: a short lock
// per answer; labels equal to those of the answer before are not read again. Where endpoints are
// configured and the pool asks for no label, workers without labels are compared with those of the
// answer before. *Bounds*: the last
// answers of `kAnswersKeptMax` pairs of leaf and domain; beyond, all are dropped and kept anew.
// *Lifetime*: `endpoints` outlives the calls of the finder, and so does the finder itself; the
// learner need not.
//
// Example:
//   EndpointLearner learner(&overlap_finder, &endpoints);
//   Frontend frontend(options, &cell_finder, &learner, &Clock::Real(), &timer);

#ifndef KVATLAS_FRONTEND_GATEWAY_EXT_PROC_ENDPOINT_LEARNER_H_
#define KVATLAS_FRONTEND_GATEWAY_EXT_PROC_ENDPOINT_LEARNER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "frontend/gateway/ext_proc/endpoints.h"
#include "frontend/gateway/ext_proc/picker_pool.h"
#include "frontend/router/lookup_clients.h"

namespace kvatlas {

inline constexpr size_t kAnswersKeptMax = 4096;

class EndpointLearner : public OverlapFinderInFront {
 public:
  EndpointLearner(OverlapFinder* finder, Endpoints* endpoints, PickerPool pool = {});

  // The cell of a leaf's address; nothing: not known yet. For pools by cell; before the first
  // question.
  void SetCellOf(std::function<std::optional<std::string>(const std::string& address)> cell_of);

  void FindOverlaps(const std::string& leaf_address, const OverlapQuestion& question,
                    Duration deadline, Callback callback) override;

 private:
  struct Kept;

  const std::shared_ptr<Kept> kept_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_EXT_PROC_ENDPOINT_LEARNER_H_
