// hierarchy_bench: many cells, a hierarchy and a frontend in one process, over a simulated network.

#include <cstdio>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/process/flags.h"
#include "indexer/telemetry/log.h"
#include "tools/bench/hierarchy_bench.h"
#include "tools/bench/hierarchy_bench_grpc.h"
#include "tools/bench/hierarchy_bench_report.h"
#include "tools/bench/hierarchy_bench_scale.h"
#include "tools/bench/hierarchy_bench_sweep.h"
#include "tools/bench/hierarchy_bench_workload.h"
#include "tools/trace/trace.h"

namespace kvatlas {
namespace {

constexpr uint64_t kMadeRequests = 12000;

struct MainOptions {
  HierarchyBenchOptions bench;
  std::string trace, workload, sweep, json, svg;
  double per_s = 4;
  uint64_t requests = 0;
  uint32_t seeds = 1;
  bool baselines = true;
  uint32_t synthetic_cells = 0;
  ScaleOptions scale;
  std::string node;
  GrpcScaleOptions grpc;
};

void Declare(FlagSet* flags, MainOptions* main) {
  HierarchyBenchOptions& bench = main->bench;
  flags->Add("trace", &main->trace, "a trace, of a format that tools/trace reads");
  std::vector<std::string> workloads = WorkloadNames();
  workloads.insert(workloads.begin(), "");
  flags->AddChoice("workload", &main->workload, "a made trace, instead of --trace", workloads);
  flags->Add("per_s", &main->per_s, "requests a second of a made trace", 0.001, 1e6);
  flags->Add("requests", &main->requests, "only the first so many; 0: all (12,000 of a made one)");
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
  flags->Add("liars", &bench.liars, "cells whose leaves have nothing of what they report", 0u,
             4096u);
  flags->Add("doubt_half_life_s", &bench.doubt_half_life_s,
             "of the frontend's doubt in cells that do not deliver; 0: it has none", 0.0, 1e6);
  flags->Add("withdraw_delay_ms", &bench.withdraw_delay_ms, "before what is lost is withdrawn", 0.0,
             600000.0);
  flags->Add("report_every_ms", &bench.report_every_ms, "a leaf's timer", 1.0, 60000.0);
  flags->Add("digest_every_s", &bench.digest_every_s, "digests of a cell's coverage", 0.1, 3600.0);
  flags->Add("load_every_ms", &bench.load_every_ms, "a cell's load, at most so often", 1.0,
             600000.0);
  flags->Add("load_step", &bench.load_step,
             "blocks ahead at the average worker that make a load matter", 0.0, 1e6);
  flags->Add("load_refresh_s", &bench.load_refresh_s, "when a load is told that matters less", 0.1,
             3600.0);
  flags->Add("best_every", &bench.best_every,
             "of so many requests one is compared with the best in the same state", 1u, 1u << 20);
  flags->Add("seed", &bench.seed, "of everything random");
  flags->Add("synthetic_cells", &main->synthetic_cells,
             "no trace: so many cells with a made coverage, for latency and memory", 0u, 65535u);
  flags->Add("synthetic_waypoints", &main->scale.waypoints, "each covers so many", 64u, 1u << 24);
  flags->Add("questions", &main->scale.questions, "asked of them", 10u, 1u << 24);
  flags->Add("cells_best", &main->scale.best, "cells wanted for each; 0: all");
  flags->Add("snapshot", &main->scale.snapshot_waypoints,
             "waypoints of a snapshot that another cell sends; 0: none");
  flags->Add("node", &main->node,
             "a kvatlas-hierarchy to start and to ask over gRPC, for --synthetic_cells");
  flags->Add("qps", &main->grpc.qps, "questions to it in a second", 1.0, 1e6);
  flags->Add("seconds", &main->grpc.seconds, "for so long", 0.1, 600.0);
  flags->Add("question_streams", &main->grpc.question_streams,
             "over a stream, as a frontend asks; false: a call each,");
  flags->Add("connections", &main->grpc.connections, "over so many connections", 1u, 1024u);
  flags->Add("seeds", &main->seeds, "runs, with seeds from --seed on", 1u, 1000u);
  flags->Add("baselines", &main->baselines, "also exact_global, one_cell and random");
  std::vector<std::string> sweeps = SweepNames();
  sweeps.insert(sweeps.begin(), "");
  flags->AddChoice("sweep", &main->sweep, "runs at several values of one thing, as a table",
                   sweeps);
  flags->Add("svg", &main->svg, "where the sweep's curves go");
  flags->Add("json", &main->json, "where a JSON line per run goes; - for standard output");
}

absl::StatusOr<std::vector<TraceRequest>> TraceOf(const MainOptions& main, uint64_t seed) {
  if (main.workload.empty()) return ReadTrace(main.trace, main.requests);
  return MakeWorkload(main.workload, main.requests == 0 ? kMadeRequests : main.requests, main.per_s,
                      seed);
}

std::string WorkloadOf(const MainOptions& main) {
  return main.workload.empty() ? main.trace.substr(main.trace.rfind('/') + 1) : main.workload;
}

// One run for every seed, appended.
absl::Status RunSeeds(const MainOptions& main, const HierarchyBenchOptions& base, bool baselines,
                      std::vector<HierarchyBenchResult>* results) {
  for (uint32_t i = 0; i < main.seeds; ++i) {
    HierarchyBenchOptions options = base;
    options.seed += i;
    const absl::StatusOr<std::vector<TraceRequest>> trace = TraceOf(main, options.seed);
    if (!trace.ok()) return trace.status();
    absl::StatusOr<HierarchyBenchResult> result = RunHierarchyBench(*trace, options);
    if (!result.ok()) return result.status();
    result->workload = WorkloadOf(main);
    if (baselines) {
      const HitRates rates = RunBaselines(*trace, options);
      result->hit_rate.exact_global = rates.exact_global;
      result->hit_rate.one_cell = rates.one_cell;
      result->hit_rate.random = rates.random;
    }
    results->push_back(*std::move(result));
  }
  return absl::OkStatus();
}

absl::Status Write(const std::string& path, const std::string& text) {
  if (path.empty()) return absl::OkStatus();
  std::ofstream file;
  if (path != "-") file.open(path);
  std::ostream& out = path == "-" ? std::cout : file;
  out << text;
  out.flush();
  return out.good() ? absl::OkStatus() : absl::UnavailableError("cannot write " + path);
}

absl::Status RunScale(const MainOptions& main, std::vector<HierarchyBenchResult>* results) {
  for (uint32_t i = 0; i < main.seeds; ++i) {
    ScaleOptions options = main.scale;
    options.cells = main.synthetic_cells;
    options.seed = main.bench.seed + i;
    GrpcScaleOptions grpc = main.grpc;
    grpc.scale = options;
    grpc.binary = main.node;
    absl::StatusOr<HierarchyBenchResult> result =
        main.node.empty() ? RunScaleBench(options) : RunGrpcScaleBench(grpc);
    if (!result.ok()) return result.status();
    results->push_back(*std::move(result));
  }
  return absl::OkStatus();
}

absl::Status RunAll(const MainOptions& main) {
  std::vector<HierarchyBenchResult> results;
  FILE* const people = main.json == "-" ? stderr : stdout;
  if (main.synthetic_cells == 0 && main.trace.empty() == main.workload.empty()) {
    return absl::InvalidArgumentError("--trace, --workload or --synthetic_cells, one of them");
  }
  if (main.synthetic_cells > 0) {
    if (absl::Status bad = RunScale(main, &results); !bad.ok()) return bad;
    std::fputs(ToTable(results).c_str(), people);
  } else if (main.sweep.empty()) {
    if (absl::Status bad = RunSeeds(main, main.bench, main.baselines, &results); !bad.ok())
      return bad;
    std::fputs(ToTable(results).c_str(), people);
  } else {
    const Sweep sweep = MakeSweep(main.sweep, main.bench);
    std::vector<std::string> labels;
    for (const SweepPoint& point : sweep.points) {
      labels.push_back(point.label);
      std::fprintf(stderr, "%s, %zu of %zu: %s\n", main.sweep.c_str(), labels.size(),
                   sweep.points.size(), point.label.c_str());
      if (absl::Status bad = RunSeeds(main, point.options, /*baselines=*/false, &results);
          !bad.ok())
        return bad;
    }
    std::fputs(ToFrontier(results, main.seeds, labels).c_str(), people);
    const std::string title = WorkloadOf(main) + ": " + std::to_string(main.bench.cells) +
                              " cells of " + std::to_string(main.bench.workers) + " workers";
    if (absl::Status bad = Write(main.svg, ToCurves(sweep, results, main.seeds, title)); !bad.ok())
      return bad;
  }
  std::string json;
  for (const HierarchyBenchResult& result : results) json += ToJson(result) + "\n";
  return Write(main.json, json);
}

int Main(int argc, char** argv) {
  MainOptions main;
  FlagSet flags("hierarchy_bench", "How good is a sparse upper level? Many cells, one hierarchy.");
  Declare(&flags, &main);
  flags.ParseOrExit(argc, argv);
  ConfigureLog({.component = "hierarchy_bench", .level_min = LogLevel::kError});
  const absl::Status status = RunAll(main);
  if (status.ok()) return 0;
  std::fprintf(stderr, "hierarchy_bench: %s\n", std::string(status.message()).c_str());
  return 2;
}

}  // namespace
}  // namespace kvatlas

int main(int argc, char** argv) { return kvatlas::Main(argc, argv); }
