#include "tests/soak.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "tools/testing/cluster/chaos.h"
#include "tools/testing/cluster/replay.h"

namespace kvatlas {
namespace {

// More rounds than anybody runs; a trace of them is made a round at a time, since they would not
// fit.
constexpr uint64_t kRoundStride = uint64_t{1} << 40;
constexpr Duration kRestAfterChaos = std::chrono::seconds(30);
constexpr uint32_t kAckInChaosMs = 1000;
constexpr size_t kRequestsPerSecondMax = 800;

uint64_t FieldOf(const std::string& status, const std::string& field) {
  const size_t at = status.find("\n" + field + ":");
  if (at == std::string::npos) return 0;
  std::istringstream text(status.substr(at + field.size() + 2));
  uint64_t value = 0;
  text >> value;
  return value;
}

// The trace again and again: later, and about other things.
std::vector<TraceRequest> Rounds(const std::vector<TraceRequest>& trace, size_t requests) {
  std::vector<TraceRequest> rounds;
  rounds.reserve(requests);
  const double round_ms = trace.back().timestamp_ms + 1000;
  for (size_t i = 0; i < requests; ++i) {
    TraceRequest request = trace[i % trace.size()];
    const auto round = static_cast<uint64_t>(i / trace.size());
    request.timestamp_ms += static_cast<double>(round) * round_ms;
    for (uint64_t& id : request.hash_ids) id += round * kRoundStride;
    rounds.push_back(std::move(request));
  }
  return rounds;
}

class Soak {
 public:
  Soak(const SoakOptions& options, Cluster* cluster, size_t requests)
      : options_(options),
        cluster_(cluster),
        chaos_(MakeChaosPlan(PlanOf(options, *cluster, requests)),
               [cluster](const ChaosStep& step) {
                 return step.kill ? cluster->Kill(step.process) : cluster->Restart(step.process);
               }),
        start_(Clock::Real().Now()),
        next_sample_(start_) {}

  void Before(size_t request) {
    // Near the end no process is killed any more, so that all are up long enough to be compared.
    if (Passed() < options_.run_for - options_.run_for / 10) {
      chaos_.Before(request);
    } else if (!finished_) {
      finished_ = true;
      chaos_.Finish();
    }
    if (Clock::Real().Now() >= next_sample_) Sample(request);
  }

  bool Enough() const { return Passed() >= options_.run_for; }
  const absl::Status& status() const { return chaos_.status(); }
  const std::vector<ChaosStep>& done() const { return chaos_.done(); }
  const std::map<std::string, ProcessLevel>& level() const { return level_; }

 private:
  static ChaosOptions PlanOf(const SoakOptions& options, const Cluster& cluster, size_t requests) {
    ChaosOptions plan;
    plan.seed = options.seed;
    plan.requests = requests;
    plan.every = options.requests_a_kill;
    if (options.requests_a_kill == 0) return plan;
    std::vector<std::string> leaves;
    for (uint32_t cell = 0; cell < options.cluster.cells; ++cell)
      leaves.push_back(cluster.LeafName(cell));
    plan.turns = {leaves, {"hierarchy"}};
    return plan;
  }

  Duration Passed() const { return Clock::Real().Now() - start_; }

  // The highest of the first minutes is the level: a process that was just started has not had its
  // share yet.
  void Sample(size_t request) {
    next_sample_ = Clock::Real().Now() + options_.sample_every;
    uint64_t memory = 0;
    for (const auto& [name, pid] : cluster_->Running()) {
      const absl::StatusOr<ProcessLevel> now = LevelOf(pid);
      if (!now.ok()) continue;
      memory += now->memory_bytes;
      if (Passed() > options_.warm_up) continue;
      ProcessLevel& level = level_[name];
      level.memory_bytes = std::max(level.memory_bytes, now->memory_bytes);
      level.threads = std::max(level.threads, now->threads);
      level.descriptors = std::max(level.descriptors, now->descriptors);
    }
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(Passed()).count();
    options_.progress(std::to_string(seconds) + " s, " + std::to_string(request) + " requests, " +
                      std::to_string(chaos_.done().size() / 2) + " kills, " +
                      std::to_string(memory >> 20) + " MiB");
  }

  const SoakOptions& options_;
  Cluster* const cluster_;
  Chaos chaos_;
  const Time start_;
  Time next_sample_;
  bool finished_ = false;
  std::map<std::string, ProcessLevel> level_;
};

void Judge(const SoakOptions& options, const std::string& name, const ProcessLevel& level,
           const ProcessLevel& end, std::vector<std::string>* violations) {
  const auto most = static_cast<uint64_t>(static_cast<double>(level.memory_bytes) *
                                          (1 + options.memory_growth_max)) +
                    options.memory_slack_bytes;
  const auto say = [&](const std::string& what, uint64_t was, uint64_t is) {
    violations->push_back(name + ": " + what + " went from " + std::to_string(was) + " to " +
                          std::to_string(is));
  };
  if (end.memory_bytes > most) say("bytes of memory", level.memory_bytes, end.memory_bytes);
  if (end.threads > level.threads + options.threads_slack)
    say("threads", level.threads, end.threads);
  if (end.descriptors > level.descriptors) say("descriptors", level.descriptors, end.descriptors);
}

void JudgeReplay(const ReplayReport& replay, std::vector<std::string>* violations) {
  if (replay.errors > 0) violations->push_back(std::to_string(replay.errors) + " requests failed");
  if (!replay.at_rest.has_value() || replay.at_rest->checked == 0) {
    violations->push_back("nothing was checked at rest");
    return;
  }
  const AtRest& rest = *replay.at_rest;
  if (rest.over + rest.under + rest.not_exact > 0) {
    violations->push_back("at rest " + std::to_string(rest.over) + " answers were too much, " +
                          std::to_string(rest.under) + " too little, " +
                          std::to_string(rest.not_exact) + " not exact");
  }
}

}  // namespace

absl::StatusOr<ProcessLevel> LevelOf(pid_t pid) {
  const std::string proc = "/proc/" + std::to_string(pid);
  std::ifstream in(proc + "/status");
  std::stringstream text;
  text << in.rdbuf();
  ProcessLevel level;
  level.memory_bytes = FieldOf(text.str(), "RssAnon") << 10;
  level.threads = FieldOf(text.str(), "Threads");
  std::error_code gone;
  const std::filesystem::directory_iterator descriptors(proc + "/fd", gone);
  if (gone || level.threads == 0) return absl::NotFoundError(proc + ": no such process");
  level.descriptors = static_cast<uint64_t>(
      std::distance(begin(descriptors), std::filesystem::directory_iterator()));
  return level;
}

absl::StatusOr<SoakReport> RunSoak(const SoakOptions& options) {
  if (options.trace.empty()) return absl::InvalidArgumentError("the trace is empty");
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options.cluster);
  if (!cluster.ok()) return cluster.status();
  const auto seconds = static_cast<size_t>(
      std::chrono::duration_cast<std::chrono::seconds>(options.run_for).count() + 1);
  const std::vector<TraceRequest> trace = Rounds(options.trace, seconds * kRequestsPerSecondMax);
  Soak soak(options, cluster->get(), trace.size());
  ReplayOptions replay;
  replay.split = options.split;
  replay.compare = false;
  replay.rest_timeout = kRestAfterChaos;
  replay.ack_timeout_ms = kAckInChaosMs;
  replay.faults = [&soak](size_t request) { soak.Before(request); };
  replay.enough = [&soak] { return soak.Enough(); };
  replay.stop = [&soak] { return !soak.status().ok(); };
  absl::StatusOr<ReplayReport> replayed = Replay(**cluster, trace, replay);
  if (!soak.status().ok() || !replayed.ok()) {
    (*cluster)->KeepLogs();
    return soak.status().ok() ? replayed.status() : soak.status();
  }
  SoakReport report;
  report.replay = *std::move(replayed);
  report.replay.chaos = soak.done();
  report.level = soak.level();
  for (const auto& [name, pid] : (*cluster)->Running()) {
    absl::StatusOr<ProcessLevel> level = LevelOf(pid);
    if (level.ok()) report.at_end[name] = *level;
  }
  JudgeReplay(report.replay, &report.violations);
  for (const auto& [name, level] : report.level) {
    const auto end = report.at_end.find(name);
    if (end == report.at_end.end()) {
      report.violations.push_back(name + " is not there any more");
    } else {
      Judge(options, name, level, end->second, &report.violations);
    }
  }
  if (!report.violations.empty()) (*cluster)->KeepLogs();
  return report;
}

std::string ToTable(const SoakReport& report) {
  std::string text;
  char line[160];
  std::snprintf(line, sizeof(line), "%-14s %10s %10s %9s %9s %7s %7s\n", "process", "KiB then",
                "KiB now", "threads", "now", "files", "now");
  text += line;
  for (const auto& [name, then] : report.level) {
    const auto now = report.at_end.find(name);
    if (now == report.at_end.end()) continue;
    std::snprintf(line, sizeof(line), "%-14s %10llu %10llu %9llu %9llu %7llu %7llu\n", name.c_str(),
                  static_cast<unsigned long long>(then.memory_bytes >> 10),
                  static_cast<unsigned long long>(now->second.memory_bytes >> 10),
                  static_cast<unsigned long long>(then.threads),
                  static_cast<unsigned long long>(now->second.threads),
                  static_cast<unsigned long long>(then.descriptors),
                  static_cast<unsigned long long>(now->second.descriptors));
    text += line;
  }
  for (const std::string& violation : report.violations) text += "violation: " + violation + "\n";
  return text;
}

}  // namespace kvatlas
