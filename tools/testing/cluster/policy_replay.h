// How long do requests wait under a policy? A trace through models of engines, in one process: no
// sockets, no hierarchy, the policy sees every worker's true contents and load.
//
//   trace, arrivals stretched to the load ─▶ Fleet::Best ─▶ EngineModel ─▶ time to first token, hits
//
// *Truth*: policies are those of the frontend (`frontend/router/policy/policy.h`) and run on the
// same requests at the same times;
// what differs is their choices, and what follows from these. A run depends on its options alone.
// Policies know what was and what is, never what comes: expected output is not told.
// *Threads*: none. *Cost*: about a second for the conversation trace and 32 workers.

#ifndef KVATLAS_TOOLS_TESTING_CLUSTER_POLICY_REPLAY_H_
#define KVATLAS_TOOLS_TESTING_CLUSTER_POLICY_REPLAY_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/testing/cluster/fleet.h"
#include "tools/trace/trace.h"

namespace kvatlas {

struct PolicyRun {
  std::string policy;
  uint64_t requests = 0;
  uint64_t too_long = 0;
  uint64_t prompt_blocks = 0;
  uint64_t cached_blocks = 0;
  double ttft_mean_ms = 0;
  double ttft_p50_ms = 0;
  double ttft_p90_ms = 0;
  double ttft_p99_ms = 0;
};

struct PolicyReplayOptions {
  FleetOptions fleet;  // its policy, weights and seed are the run's
  uint32_t split = 8;
  // The blocks of a request of the trace; nothing: its hash ids, each split in `split`.
  std::function<std::vector<SequenceHash>(size_t request)> blocks_of = {};
  double load = 0;  // 0: arrivals as they are, times `stretch`
  double stretch = 1;
  // True: stop early.
  std::function<bool()> stop = [] { return false; };
};

PolicyRun ReplayPolicy(const std::vector<TraceRequest>& trace, const PolicyReplayOptions& options);

// The `stretch` of arrivals at which prefilling every prompt without any cache keeps all engines
// busy to the fraction `load`; 1 when there is no time to stretch, or no load.
double StretchForLoad(const std::vector<TraceRequest>& trace, uint64_t engines,
                      double prefill_tokens_per_s, double load);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_CLUSTER_POLICY_REPLAY_H_
