// Which workers of these cells hold how much of the prompt? Leaves asked in parallel, until none
// that is late could still win.
//
//   leaf a  ├─────▶ Learn ─▶ a candidate, its best cost
//   leaf b  ├───────────────── late: it could still be cheaper than a? waited for : the wave is closed
//
// Replicas of a leaf are asked as `FirstAnswer` does; a leaf that was asked ahead is not asked
// again.
// *Truth*: what answers after the wave is closed is still learnt by the model's memory.
// *Threads*: `done` is called once, in the thread of the answer that closes the wave; maybe before
// the call returns.

#ifndef KVATLAS_FRONTEND_ROUTER_LEAF_WAVE_H_
#define KVATLAS_FRONTEND_ROUTER_LEAF_WAVE_H_

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "frontend/router/candidates.h"
#include "frontend/router/route_request.h"
#include "frontend/router/speculative_lookup.h"
#include "frontend/router/target.h"

namespace kvatlas {

struct AskedLeaf {
  Target target;          // `asked` is complete, as for the receipt
  bool answered = false;  // or failed; not: it was not waited for
  std::optional<Answered> found = {};
  absl::Status failure = {};  // when nothing was found
};

struct LeafWaveOptions {
  Fallback fallback = Fallback::kNone;  // of the source that named the leaves
  Duration budget{0};
  std::shared_ptr<SpeculativeLookup> ahead = {};  // null: none was
};

void AskLeaves(const RequestPtr& request, std::vector<Target> leaves,
               const LeafWaveOptions& options, std::function<void(std::vector<AskedLeaf>)> done);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_LEAF_WAVE_H_
