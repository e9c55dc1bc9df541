// hierarchy_bench: many cells, a hierarchy and a frontend in one process, over a simulated network.

#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/service/flags.h"
#include "indexer/service/log.h"
#include "tools/bench/hierarchy_bench.h"
#include "tools/bench/hierarchy_bench_report.h"
#include "tools/trace/trace.h"

namespace kvatlas {
namespace {

struct MainOptions {
  HierarchyBenchOptions bench;
  std::string trace, json;
  uint64_t requests = 0;
  uint32_t seeds = 1;
  bool baselines = true;
};

void Declare(FlagSet* flags, MainOptions* main) {
  HierarchyBenchOptions& bench = main->bench;
  flags->Add("trace", &main->trace, "trace in Mooncake's format");
  flags->Add("requests", &main->requests, "only the first so many; 0: all");
  flags->Add("cells", &bench.cells, "cells", 1u, 4096u);
  flags->Add("workers", &bench.workers, "workers of a cell", 1u, 1024u);
  flags->Add("capacity", &bench.capacity, "blocks of an engine", uint64_t{1});
  flags->Add("split", &bench.split, "blocks for every hash id", 1u, kTokensPerHashId);
  flags->Add("schedule", &bench.schedule, "which positions are waypoints");
  flags->Add("ask", &bench.ask, "K: cells asked", 1u, 64u);
  flags->Add("delay_ms", &bench.delay_ms, "from a cell to the hierarchy, one way", 0.0, 600000.0);
  flags->Add("loss", &bench.loss, "of messages on that way, both directions", 0.0, 0.9);
  flags->Add("partition_every_s", &bench.partition_every_s,
             "mean time between two partitions of a cell; 0: never", 0.0, 1e6);
  flags->Add("partition_for_s", &bench.partition_for_s, "how long one is", 0.0, 1e6);
  flags->Add("budget", &bench.budget, "waypoints a cell may have announced; 0: no limit");
  flags->Add("withdraw_delay_ms", &bench.withdraw_delay_ms, "before what is lost is withdrawn", 0.0,
             600000.0);
  flags->Add("report_every_ms", &bench.report_every_ms, "a leaf's timer", 1.0, 60000.0);
  flags->Add("best_every", &bench.best_every,
             "of so many requests one is compared with the best in the same state", 1u, 1u << 20);
  flags->Add("seed", &bench.seed, "of everything random");
  flags->Add("seeds", &main->seeds, "runs, with seeds from --seed on", 1u, 1000u);
  flags->Add("baselines", &main->baselines, "also exact_global, one_cell and random");
  flags->Add("json", &main->json, "where a JSON line per run goes; - for standard output");
}

int Fail(const std::string& why) {
  std::fprintf(stderr, "hierarchy_bench: %s\n", why.c_str());
  return 2;
}

int WriteJson(const std::string& path, const std::vector<HierarchyBenchResult>& results) {
  if (path.empty()) return 0;
  std::ofstream file;
  if (path != "-") file.open(path);
  std::ostream& out = path == "-" ? std::cout : file;
  for (const HierarchyBenchResult& result : results) out << ToJson(result) << "\n";
  out.flush();
  return out.good() ? 0 : Fail("cannot write " + path);
}

int Main(int argc, char** argv) {
  MainOptions main;
  FlagSet flags("hierarchy_bench", "How good is a sparse upper level? Many cells, one hierarchy.");
  Declare(&flags, &main);
  flags.ParseOrExit(argc, argv);
  ConfigureLog({.component = "hierarchy_bench", .level_min = LogLevel::kError});
  if (main.trace.empty()) return Fail("--trace is missing");
  const absl::StatusOr<std::vector<TraceRequest>> trace = ReadTrace(main.trace, main.requests);
  if (!trace.ok()) return Fail(std::string(trace.status().message()));

  std::vector<HierarchyBenchResult> results;
  for (uint32_t i = 0; i < main.seeds; ++i) {
    HierarchyBenchOptions options = main.bench;
    options.seed += i;
    absl::StatusOr<HierarchyBenchResult> result = RunHierarchyBench(*trace, options);
    if (!result.ok()) return Fail(std::string(result.status().message()));
    result->workload = main.trace.substr(main.trace.rfind('/') + 1);
    if (main.baselines) {
      const HitRates rates = RunBaselines(*trace, options);
      result->hit_rate.exact_global = rates.exact_global;
      result->hit_rate.one_cell = rates.one_cell;
      result->hit_rate.random = rates.random;
    }
    results.push_back(*std::move(result));
  }
  std::fputs(ToTable(results).c_str(), main.json == "-" ? stderr : stdout);
  return WriteJson(main.json, results);
}

}  // namespace
}  // namespace kvatlas

int main(int argc, char** argv) { return kvatlas::Main(argc, argv); }
