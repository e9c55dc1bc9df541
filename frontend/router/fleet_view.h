// Reads from the model's memory what it knows of candidates beside their leaves' answers, and
// writes into it what these answers tell. Stages that rank candidates reach the memory by these
// functions alone; each takes its lock for a look-up per worker.

#ifndef KVATLAS_FRONTEND_ROUTER_FLEET_VIEW_H_
#define KVATLAS_FRONTEND_ROUTER_FLEET_VIEW_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "frontend/router/candidates.h"
#include "frontend/router/route_request.h"

namespace kvatlas {

// The part of a view that needs no lock of the model's memory.
FleetView BeginView(const RouteRequest& request);
// Adds the domain's workers as they were last seen; when there are none, and `engines`, the engines
// of the options.
void AddRemembered(const RouteRequest& request, bool engines, FleetView* view);
// Fills in what is known now of these cells, and of the remembered ones of `view`.
void LookAt(const RouteRequest& request, const ModelFleet& model,
            const std::vector<CandidateCellPtr>& cells, FleetView* view)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(model.mutex);

// The latest request with this prompt's head, while it counts: its leaf has not shown it, and it is
// not too long ago.
SentTo SiblingOf(const RouteRequest& request, const FleetMemory& memory);

// Takes the answer of the leaf at `address` into the model's memory, and looks at the cell as a
// candidate. `promised`: blocks that the hierarchy said it had.
Answered Learn(const RouteRequest& request, CandidateCell cell, const std::string& address,
               uint32_t promised);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_FLEET_VIEW_H_
