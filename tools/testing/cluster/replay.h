// How does a cluster do on a trace? The driver: requests come in the trace's order, simulated time
// passes in the engines, promises are compared with the truth.
//
//   for each request, at simulated time t:
//     1. engines that have something due by t advance to it          AdvanceDue
//     2. the frontend is asked for a worker, by hashes or by a chat  ServeOne, ChooseWorker
//     3. the request goes to that worker's engine                    SubmitTo
//     4. the frontend is told that it was taken, and how much was really cached
//
// By default each step waits until the leaf has acknowledged what it caused. With `rate` the trace
// runs freely at so many times its pace, requests overlap, and staleness is what it is.
//
// *Truth*: mirrors of the engines in this process, fed the same calls, say what a perfect choice
// over the same state would have got; an engine whose answer its mirror did not predict is counted
// and noted. `exact_global` and `round_robin` are runs of their own in this process.
// *Threads*: `Replay` starts some with `rate`, and has ended them when it returns.

#ifndef KVATLAS_TOOLS_TESTING_CLUSTER_REPLAY_H_
#define KVATLAS_TOOLS_TESTING_CLUSTER_REPLAY_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/router/policy/policy.h"
#include "indexer/base/clock.h"
#include "tools/testing/cluster/cluster.h"
#include "tools/testing/cluster/report.h"
#include "tools/testing/cluster/trace_chats.h"
#include "tools/trace/trace.h"

namespace kvatlas {

struct ReplayOptions {
  uint32_t split = 8;
  std::string policy = std::string(kDefaultPolicy);  // the frontend's
  // The frontend is asked by these, made of the same trace, and engines hold their blocks; null:
  // sequence hashes.
  const TraceChats* chats = nullptr;
  // Simulated time of an arrival is its timestamp times this.
  double stretch = 1;
  // 0: each request waits for the acknowledgements of those before it. R: real time, R times the
  // trace's pace.
  double rate = 0;
  std::string answer =
      "reusable";     // what leaves were told to promise: "reusable" or "held"; for the report
  uint64_t seed = 0;  // of the cost function's tie-breaks; the frontend's own must be the same
  uint32_t ack_timeout_ms = 10'000;
  uint64_t at_rest_pairs = 10'000;
  // Also the in-process runs of the other policies.
  bool compare = true;
  // Called before each request (from one thread when `rate` is 0): progress, and faults in tests.
  std::function<void(size_t request)> before;
  // Called before each request, or soon after it was begun when `rate` is not 0, by the thread that
  // called `Replay`, which alone may kill and start processes (`chaos.h`).
  std::function<void(size_t request)> faults;
  // Between the last request and rest; beyond, the replay fails.
  Duration rest_timeout = std::chrono::seconds(120);
  // True: begin no more requests, and finish as if the trace ended there.
  std::function<bool()> enough = [] { return false; };
  // True: stop early, with CANCELLED.
  std::function<bool()> stop = [] { return false; };
};

// Replays, waits for rest, checks. An error means that the run is worthless; requests that failed
// are counted.
absl::StatusOr<ReplayReport> Replay(const Cluster& cluster, const std::vector<TraceRequest>& trace,
                                    const ReplayOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_CLUSTER_REPLAY_H_
