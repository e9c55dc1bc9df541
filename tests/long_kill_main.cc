// long_kill: kill -9 of every kind of process under load, a thousand times each. Ends with 1 when
// one was not clean; what it prints last says where to go on with --first.

#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/process/flags.h"
#include "tests/long_kill.h"
#include "tools/trace/trace.h"

int main(int argc, char** argv) {
  using namespace kvatlas;
  KillOptions options;
  options.kills = 1000;
  options.cluster.cells = 2;
  options.cluster.workers = 2;
  options.cluster.capacity = 2048;
  std::string trace = "tools/traces/mooncake_conversation.jsonl";
  Duration run_for = std::chrono::hours(24);
  FlagSet flags("long_kill", "Kills processes under load, and compares every answer afterwards.");
  flags.Add("kills", &options.kills, "of each kind of process", uint64_t{1});
  flags.Add("first", &options.first, "so many of each kind are left out, as done before");
  flags.Add("run_for", &run_for, "no further kill after so long", std::chrono::seconds(1));
  flags.Add("requests_a_kill", &options.requests_a_kill, "requests of a round", size_t{3});
  flags.Add("redis", &options.cluster.redis,
            "engines' streams go through a redis-server, which is killed as well");
  flags.Add("trace", &trace, "JSON lines in Mooncake's format, again and again");
  flags.Add("binaries", &options.cluster.binaries, "bazel-bin; found by itself when empty");
  flags.ParseOrExit(argc, argv);
  absl::StatusOr<std::vector<TraceRequest>> read = ReadTrace(trace);
  if (!read.ok()) {
    std::fprintf(stderr, "long_kill: %s\n", std::string(read.status().message()).c_str());
    return 2;
  }
  options.trace = *std::move(read);
  options.cluster.block_size = kTokensPerHashId / options.split;
  options.progress = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  const Time until = Clock::Real().Now() + run_for;
  options.enough = [until] { return Clock::Real().Now() >= until; };
  const absl::StatusOr<KillReport> report = RunKills(options);
  if (!report.ok()) {
    std::fprintf(stderr, "long_kill: %s\n", report.status().ToString().c_str());
    return 1;
  }
  std::printf("%llu kills, %zu not clean; the next: --first=%llu\n",
              static_cast<unsigned long long>(report->kills), report->violations.size(),
              static_cast<unsigned long long>(options.first + report->kills / report->kinds));
  return report->violations.empty() ? 0 : 1;
}
