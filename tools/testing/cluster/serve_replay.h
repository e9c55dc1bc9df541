// How does `kvatlas serve` do on a trace? The same driver's questions as in `replay.h`, asked as a
// client asks: every request goes to its proxy, prompts are token ids, and engines are known by
// OpenAI's calls and their events alone.
//
//   for each request
//     1. POST /v1/completions to the proxy       worker and promise from the answer's headers, the truth from `cached_tokens`
//     2. the leaf in the process has heard of it: the worker has all blocks of the prompt there
//   at the end promises for prompts of the trace are compared with the engines' contents
//
// *Truth*: a block's tokens are made from its hash (`mock_tokens.h`), so that prompts overlap as in
// the trace. Engines serve one request at a time to its end, since a client's clock is the real
// one: arrivals and queues of the trace do not count, and there is no simulated time to a first
// token. Mirrors of the engines in this process say what a perfect choice would have got.
// *Threads*: none.

#ifndef KVATLAS_TOOLS_TESTING_CLUSTER_SERVE_REPLAY_H_
#define KVATLAS_TOOLS_TESTING_CLUSTER_SERVE_REPLAY_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tools/testing/cluster/cluster.h"
#include "tools/testing/cluster/replay.h"
#include "tools/testing/cluster/report.h"
#include "tools/trace/trace.h"

namespace kvatlas {

// Of the options those that are of requests, prompts, checks and progress. REQUIRES: a cluster with
// `ClusterOptions::serve`.
absl::StatusOr<ReplayReport> ReplayThroughServe(const Cluster& cluster,
                                                const std::vector<TraceRequest>& trace,
                                                const ReplayOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_CLUSTER_SERVE_REPLAY_H_
