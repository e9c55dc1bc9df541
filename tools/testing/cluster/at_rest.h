// Does a quiet cluster tell the truth? Waits for rest, then compares every leaf's answers with what
// the engines really have. Of hybrid models that is what an engine could reuse, evaluated here from
// its blocks of both classes.
//
// *Truth*: at rest is defined in two steps: every publisher's last batch is acknowledged by its
// leaf, and every leaf's stream of coverage says that it is at rest.
// *Threads*: none.

#ifndef KVATLAS_TOOLS_TESTING_CLUSTER_AT_REST_H_
#define KVATLAS_TOOLS_TESTING_CLUSTER_AT_REST_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/ids.h"
#include "tools/testing/cluster/client.h"
#include "tools/testing/cluster/cluster.h"
#include "tools/testing/cluster/report.h"

namespace kvatlas {

// REQUIRES: no engine has anything left to do. DEADLINE_EXCEEDED names what was not at rest in
// time.
absl::Status WaitAtRest(const Cluster& cluster, ClusterClient& client, Duration timeout);

// Blocks of a trace's prompts, by their place in it.
using BlocksOf = std::function<std::vector<SequenceHash>(size_t request)>;

// At least `pairs_min` pairs of worker and prompt, prompts drawn evenly from the trace's `requests`
// (at least 100 of them), as far as the trace has so many. REQUIRES: at rest.
absl::StatusOr<AtRest> CheckAtRest(const Cluster& cluster, ClusterClient& client, size_t requests,
                                   const BlocksOf& blocks_of, uint64_t pairs_min);

// Adds what the leaves counted since they were started: events, updates and bytes of both levels.
absl::Status AddLeafFigures(const Cluster& cluster, ClusterClient& client, ReplayReport* report);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_CLUSTER_AT_REST_H_
