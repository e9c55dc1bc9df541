// Does a cluster that runs for long stay as it was? A real trace again and again, every round with
// prompts of its own, while leaves and hierarchy are killed and come back; memory, threads and file
// descriptors of every process are watched.
//
// *Truth*: the level of a process is taken once `warm_up` has passed; at the end, at rest and with
// everybody up, memory may be `memory_growth_max` above it (and `memory_slack_bytes`, which is for
// short runs), descriptors may not be more, nor threads but for `threads_slack`. Answers are
// compared with the engines' contents at the end.
// *Threads*: none of its own.
//
// Example:
//   absl::StatusOr<SoakReport> report = RunSoak({.seconds = std::chrono::hours(1), .trace =
//   trace});

#ifndef KVATLAS_TESTS_SOAK_H_
#define KVATLAS_TESTS_SOAK_H_

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "tools/testing/cluster/cluster.h"
#include "tools/testing/cluster/report.h"
#include "tools/trace/trace.h"

namespace kvatlas {

// What a process has now.
struct ProcessLevel {
  uint64_t memory_bytes = 0;  // resident, its own (without files that are mapped)
  uint64_t threads = 0;
  uint64_t descriptors = 0;
};

// NOT_FOUND: no such process.
absl::StatusOr<ProcessLevel> LevelOf(pid_t pid);

struct SoakOptions {
  Duration run_for = std::chrono::seconds(30);
  Duration warm_up = std::chrono::seconds(10);
  Duration sample_every = std::chrono::seconds(1);
  std::vector<TraceRequest> trace;
  uint32_t split = 8;
  ClusterOptions cluster;
  uint64_t seed = 1;             // of who is killed when
  size_t requests_a_kill = 400;  // 0: no kills
  double memory_growth_max = 0.10;
  uint64_t memory_slack_bytes = 1 << 20;
  // gRPC starts a thread when all of its are busy and ends it some time later; every restart that
  // leaves one behind is seen all the same.
  uint64_t threads_slack = 2;
  std::function<void(const std::string& line)> progress = [](const std::string&) {};
};

struct SoakReport {
  ReplayReport replay;
  std::map<std::string, ProcessLevel> level;   // after the warm-up
  std::map<std::string, ProcessLevel> at_end;  // of the same
  std::vector<std::string> violations;         // a sentence each; empty is good
};

// An error: the cluster could not be run, or was not at rest in time.
absl::StatusOr<SoakReport> RunSoak(const SoakOptions& options);

std::string ToTable(const SoakReport& report);

}  // namespace kvatlas

#endif  // KVATLAS_TESTS_SOAK_H_
