// soak: a cluster under churn and kills for as long as one likes. Ends with 1 when anything grew or
// was wrong.

#include <chrono>
#include <cstdio>
#include <string>

#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/process/flags.h"
#include "tests/soak.h"
#include "tools/testing/cluster/report.h"
#include "tools/trace/trace.h"

int main(int argc, char** argv) {
  using namespace kvatlas;
  SoakOptions options;
  options.run_for = std::chrono::hours(1);
  options.warm_up = std::chrono::minutes(5);
  options.sample_every = std::chrono::seconds(10);
  options.requests_a_kill = 4000;
  options.cluster.cells = 2;
  options.cluster.workers = 4;
  options.cluster.capacity = 2048;
  std::string trace = "tools/traces/mooncake_conversation.jsonl";
  FlagSet flags("soak", "Runs a cluster under churn and kills, and watches that nothing grows.");
  flags.Add("run_for", &options.run_for, "how long", std::chrono::seconds(1));
  flags.Add("warm_up", &options.warm_up, "after which levels may not grow");
  flags.Add("trace", &trace, "JSON lines in Mooncake's format, again and again");
  flags.Add("seed", &options.seed, "of who is killed when");
  flags.Add("cells", &options.cluster.cells, "leaves", 1u, 64u);
  flags.Add("workers", &options.cluster.workers, "mock engines per leaf", 1u, 64u);
  flags.Add("capacity", &options.cluster.capacity, "blocks of each engine", uint64_t{1});
  flags.Add("binaries", &options.cluster.binaries, "bazel-bin; found by itself when empty");
  flags.ParseOrExit(argc, argv);
  absl::StatusOr<std::vector<TraceRequest>> read = ReadTrace(trace);
  if (!read.ok()) {
    std::fprintf(stderr, "soak: %s\n", std::string(read.status().message()).c_str());
    return 2;
  }
  options.trace = *std::move(read);
  options.cluster.block_size = kTokensPerHashId / options.split;
  options.progress = [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); };
  const absl::StatusOr<SoakReport> report = RunSoak(options);
  if (!report.ok()) {
    std::fprintf(stderr, "soak: %s\n", report.status().ToString().c_str());
    return 1;
  }
  std::printf("%s%s", ToTable(report->replay).c_str(), ToTable(*report).c_str());
  return report->violations.empty() ? 0 : 1;
}
