#include "tests/long_kill.h"

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "tools/testing/cluster/replay.h"

namespace kvatlas {
namespace {

// More than a trace has: every round is about prompts of its own.
constexpr uint64_t kRoundStride = uint64_t{1} << 32;
constexpr double kRequestEveryMs = 100;
constexpr uint32_t kAckMs = 1000;

struct Victim {
  std::string name;
  size_t kill = 0;     // before this request
  size_t restart = 0;  // likewise, after the kill
  uint64_t errors_max = 0;
};

// The kinds of processes in the order of their rounds.
std::vector<std::string> KindsOf(const KillOptions& options) {
  std::vector<std::string> kinds = {"leaf", "hierarchy", "frontend", "worker"};
  if (options.cluster.redis) kinds.push_back("redis");
  return kinds;
}

Victim VictimOf(uint64_t round, const std::vector<std::string>& kinds, const KillOptions& options) {
  const size_t third = options.requests_a_kill / 3;
  const std::string& kind = kinds[round % kinds.size()];
  const uint64_t turn = round / kinds.size();
  const std::string cell = std::to_string(turn % options.cluster.cells);
  if (kind == "leaf") return {"leaf-" + cell, third, 2 * third};
  if (kind == "frontend") return {kind, third, third, 1};
  if (kind == "worker") {
    const uint64_t worker = turn / options.cluster.cells % options.cluster.workers;
    return {"worker-" + cell + "-" + std::to_string(worker), third, third, 1};
  }
  return {kind, third, 2 * third};
}

std::vector<TraceRequest> RequestsOf(uint64_t round, const KillOptions& options) {
  std::vector<TraceRequest> requests;
  const uint64_t first = round * options.requests_a_kill;
  for (uint64_t i = first; i < first + options.requests_a_kill; ++i) {
    TraceRequest request = options.trace[i % options.trace.size()];
    request.timestamp_ms = static_cast<double>(i) * kRequestEveryMs;
    for (uint64_t& id : request.hash_ids) id += i / options.trace.size() * kRoundStride;
    requests.push_back(std::move(request));
  }
  return requests;
}

// Empty: clean.
std::string RunRound(uint64_t round, const Victim& victim, const KillOptions& options,
                     Cluster* cluster) {
  absl::Status status;
  ReplayOptions replay;
  replay.split = options.split;
  replay.compare = false;
  replay.ack_timeout_ms = kAckMs;
  replay.faults = [&](size_t request) {
    if (request == victim.kill) status.Update(cluster->Kill(victim.name));
    if (request == victim.restart) status.Update(cluster->Restart(victim.name));
  };
  replay.stop = [&] { return !status.ok(); };
  const absl::StatusOr<ReplayReport> report = Replay(*cluster, RequestsOf(round, options), replay);
  if (!status.ok()) return victim.name + ": " + status.ToString();
  if (!report.ok()) return victim.name + ": " + report.status().ToString();
  if (report->errors > victim.errors_max)
    return victim.name + ": " + std::to_string(report->errors) +
           " requests failed: " + (report->notes.empty() ? "" : report->notes.back());
  if (!report->at_rest.has_value() || report->at_rest->checked == 0)
    return victim.name + ": nothing was compared at rest";
  const AtRest& rest = *report->at_rest;
  if (rest.over + rest.under + rest.not_exact == 0) return "";
  return victim.name + ": at rest " + std::to_string(rest.over) + " answers were too much, " +
         std::to_string(rest.under) + " too little, " + std::to_string(rest.not_exact) +
         " not exact, of " + std::to_string(rest.checked);
}

}  // namespace

absl::StatusOr<KillReport> RunKills(const KillOptions& options) {
  if (options.trace.empty() || options.requests_a_kill < 3)
    return absl::InvalidArgumentError("no trace, or fewer than 3 requests a kill");
  const std::vector<std::string> kinds = KindsOf(options);
  KillReport report;
  report.kinds = kinds.size();
  std::unique_ptr<Cluster> cluster;
  for (uint64_t round = kinds.size() * options.first;
       round < kinds.size() * options.kills && !options.enough(); ++round) {
    if (cluster == nullptr) {
      absl::StatusOr<std::unique_ptr<Cluster>> started = Cluster::Start(options.cluster);
      if (!started.ok()) return started.status();
      cluster = *std::move(started);
    }
    const Victim victim = VictimOf(round, kinds, options);
    const std::string violation = RunRound(round, victim, options, cluster.get());
    ++report.kills;
    if (!violation.empty()) {
      report.violations.push_back("kill " + std::to_string(round) + ", " + violation +
                                  "; logs in " + cluster->logs());
      options.progress(report.violations.back());
      cluster->KeepLogs();
      cluster.reset();
    }
    if ((round + 1) % kinds.size() == 0)
      options.progress(std::to_string((round + 1) / kinds.size()) + " of " +
                       std::to_string(options.kills) + " kills of each kind, " +
                       std::to_string(report.violations.size()) + " not clean");
  }
  return report;
}

}  // namespace kvatlas
