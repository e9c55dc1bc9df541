// Does a process that is killed under load come back to exact answers, every time? Rounds of a
// trace on one cluster; in each a process is killed with -9 and started again while requests go on,
// and at its end, at rest, every answer is compared with what the engines hold.
//
//   round 0 ·· kill leaf-0 ··· restart ·· rest, compare │ round 1 ·· kill hierarchy ··· restart ·· rest, compare │ …
//
// *Truth*: a kill is clean when no request of its round failed, something was compared, and no
// answer was too much, too little or not exact. The kinds, leaf, hierarchy and frontend, take
// turns; a frontend is started again at once, since without one no request has an answer, and one
// request may find its connection broken. After a round that was not clean the cluster is a new
// one; the logs of the old one stay.
// *Threads*: none of its own.
//
// Example:
//   absl::StatusOr<KillReport> report = RunKills({.kills = 1000, .trace = trace});

#ifndef KVATLAS_TESTS_LONG_KILL_H_
#define KVATLAS_TESTS_LONG_KILL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/testing/cluster/cluster.h"
#include "tools/trace/trace.h"

namespace kvatlas {

struct KillOptions {
  uint64_t kills = 20;  // of each kind
  uint64_t first = 0;   // to go on where another run stopped: so many of each kind are left out
  std::vector<TraceRequest> trace;
  size_t requests_a_kill = 30;
  uint32_t split = 8;
  ClusterOptions cluster;
  std::function<void(const std::string& line)> progress = [](const std::string&) {};
  std::function<bool()> enough = [] { return false; };  // asked after each round
};

struct KillReport {
  uint64_t kills = 0;  // of all kinds
  uint64_t kinds = 0;
  std::vector<std::string> violations;  // a sentence for each that was not clean
};

// An error: no cluster could be started.
absl::StatusOr<KillReport> RunKills(const KillOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_TESTS_LONG_KILL_H_
