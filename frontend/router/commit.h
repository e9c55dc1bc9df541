// Chooses a worker and counts the choice in flight as one step, of which only the ends hold a lock.
//
//   1. what is in flight to the candidates is copied           lock of the model
//   2. `Choose` ranks them by the copy
//   3. is it still so for the chosen ones? counted             lock of the model
//      another route was faster: 1 again, and after `kTriesWithoutLock` all three under the lock
//
// *Truth*: choices that other routes count between 1 and 3 make other candidates dearer, never
// cheaper; so a choice whose own figures did not change is the one that would be made at 3. The
// second of two siblings sees the first.
// *Threads*: any.

#ifndef KVATLAS_FRONTEND_ROUTER_COMMIT_H_
#define KVATLAS_FRONTEND_ROUTER_COMMIT_H_

#include <cstdint>
#include <vector>

#include "frontend/router/candidates.h"
#include "frontend/router/choose.h"
#include "frontend/router/route_request.h"

namespace kvatlas {

inline constexpr int kTriesWithoutLock = 4;

struct CommitOptions {
  bool only_good =
      false;  // kNone instead of a worker that does not stand well, or is remembered alone
  bool engines = false;  // when nothing is remembered, the engines of the options are chosen among
};

struct Committed {
  Choice choice;
  uint64_t decision_id = 0;                       // of `kChosen`
  std::vector<CandidateCellPtr> remembered = {};  // that `choice` may name
};

Committed ChooseAndCount(const RouteRequest& request, const std::vector<CandidateCellPtr>& cells,
                         const CommitOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_COMMIT_H_
