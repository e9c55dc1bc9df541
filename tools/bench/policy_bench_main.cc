// policy_bench: every policy on the same traces at the same loads, side by side, in one process.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/router/policy/policy.h"
#include "indexer/process/flags.h"
#include "tools/bench/hierarchy_bench_workload.h"
#include "tools/testing/cluster/policy_replay.h"
#include "tools/trace/trace.h"

namespace kvatlas {
namespace {

constexpr uint64_t kMadeRequests = 12000;

struct MainOptions {
  std::string trace = "tools/traces/mooncake_conversation.jsonl";
  std::string workloads = "trace,sessions,agents,documents,short";
  std::string policies = "kvatlas,dynamo,lmetric,prefix,session,least_load,round_robin";
  std::string loads = "0.3,0.6,0.95";
  uint64_t requests = 0;
  uint32_t seeds = 5;
  std::string json;
  bool markdown = false;
  PolicyReplayOptions replay;
};

std::vector<std::string> Split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream in(list);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

void Declare(FlagSet* flags, MainOptions* main) {
  PolicyReplayOptions& replay = main->replay;
  replay.fleet.cells = 4;
  replay.fleet.workers = 8;
  CostWeights& weights = replay.fleet.weights;
  flags->Add("trace", &main->trace,
             "what the workload `trace` is, of a format that tools/trace reads");
  flags->Add("workloads", &main->workloads, "trace, sessions, agents, documents, short");
  flags->Add("policies", &main->policies, "to put side by side");
  flags->Add("loads", &main->loads, "each 0 (arrivals as they are) or above");
  flags->Add("requests", &main->requests, "only the first so many; 0: all (12,000 of a made one)");
  flags->Add("seeds", &main->seeds, "of tie-breaks, and of made traces: 1, 2, …", 1u, 1000u);
  flags->Add("cells", &replay.fleet.cells, "cells", 1u, 1024u);
  flags->Add("workers", &replay.fleet.workers, "workers of a cell", 1u, 1024u);
  flags->Add("capacity", &replay.fleet.engine.capacity_blocks, "blocks of an engine", uint64_t{1});
  flags->Add("split", &replay.split, "blocks for every hash id", 1u, kTokensPerHashId);
  flags->Add("prefill_weight", &weights.prefill, "of kvatlas: a block to prefill", 0.0, 1e6);
  flags->Add("queue_weight", &weights.queue, "a block waiting ahead", 0.0, 1e6);
  flags->Add("decode_weight", &weights.decode, "a request there", 0.0, 1e6);
  flags->Add("session_weight", &weights.session, "leaving the worker of the session", 0.0, 1e6);
  flags->Add("crowding_weight", &weights.crowding,
             "a block to store, where a pool more than the average was lately stored", 0.0, 1e6);
  flags->Add("memory_weight", &weights.memory, "a block that the pool lacks", 0.0, 1e6);
  flags->Add("decode_slowdown", &replay.fleet.engine.decode_slowdown,
             "of the engines: by so much of itself every running request slows prefill", 0.0, 10.0);
  flags->Add("markdown", &main->markdown, "rows of a Markdown table, for `tools/figures`");
  flags->Add("json", &main->json, "where a JSON line per run goes; - for standard output");
}

absl::StatusOr<std::vector<TraceRequest>> TraceOf(const MainOptions& main, const std::string& name,
                                                  uint64_t seed) {
  if (name == "trace") return ReadTrace(main.trace, main.requests);
  // The rate is that of the load.
  return MakeWorkload(name, main.requests == 0 ? kMadeRequests : main.requests, /*per_s=*/4, seed);
}

std::string ToJson(const std::string& workload, double load, uint64_t seed, const PolicyRun& run) {
  return nlohmann::ordered_json{{"workload", workload},
                                {"load", load},
                                {"seed", seed},
                                {"policy", run.policy},
                                {"requests", run.requests},
                                {"too_long", run.too_long},
                                {"prompt_blocks", run.prompt_blocks},
                                {"cached_blocks", run.cached_blocks},
                                {"ttft_ms",
                                 {{"mean", run.ttft_mean_ms},
                                  {"p50", run.ttft_p50_ms},
                                  {"p90", run.ttft_p90_ms},
                                  {"p99", run.ttft_p99_ms}}}}
      .dump();
}

PolicyRun MeanOf(const std::vector<PolicyRun>& runs) {
  PolicyRun mean;
  const auto n = static_cast<double>(runs.size());
  for (const PolicyRun& run : runs) {
    mean.prompt_blocks += run.prompt_blocks;
    mean.cached_blocks += run.cached_blocks;
    mean.ttft_mean_ms += run.ttft_mean_ms / n;
    mean.ttft_p50_ms += run.ttft_p50_ms / n;
    mean.ttft_p90_ms += run.ttft_p90_ms / n;
    mean.ttft_p99_ms += run.ttft_p99_ms / n;
  }
  return mean;
}

double HitPercent(const PolicyRun& run) {
  return 100.0 * double(run.cached_blocks) / double(std::max<uint64_t>(run.prompt_blocks, 1));
}

// 1234567 is "1,234,567".
std::string Grouped(double value) {
  std::string digits = std::to_string(std::llround(value));
  for (size_t at = digits.size(); at > 3;) digits.insert(at -= 3, ",");
  return digits;
}

// Two digits that count, three decimals at the most.
std::string RatioText(double ratio) {
  char text[32];
  std::snprintf(text, sizeof(text), ratio >= 0.1 ? "%.2f" : "%.3f", ratio);
  return text;
}

void PrintMarkdownHead() {
  std::printf(
      "| workload, load | policy | mean | p50 | p90 | p99 | hit blocks | ours: mean | ours: p90 |\n"
      "|---|---|---|---|---|---|---|---|---|\n");
}

// `place` stands in the first policy's row alone, which has no ratios.
void PrintMarkdownRow(const std::string& place, const std::string& policy, const PolicyRun& mean,
                      const Paired& paired) {
  const auto ratio = [](double all, double worst) {
    return RatioText(all) + " (" + RatioText(worst) + ")";
  };
  std::printf("| %s | %s | %s | %s | %s | %s | %.1f %% | %s | %s |\n", place.c_str(),
              policy.c_str(), Grouped(mean.ttft_mean_ms).c_str(), Grouped(mean.ttft_p50_ms).c_str(),
              Grouped(mean.ttft_p90_ms).c_str(), Grouped(mean.ttft_p99_ms).c_str(),
              HitPercent(mean), place.empty() ? ratio(paired.mean, paired.mean_worst).c_str() : "",
              place.empty() ? ratio(paired.p90, paired.p90_worst).c_str() : "");
  std::fflush(stdout);
}

// Means over the seeds; and the first policy's mean and p90 over each other's, with the worst
// seed's behind it.
void PrintRow(std::FILE* out, const std::string& policy, const std::vector<PolicyRun>& runs,
              const std::vector<PolicyRun>& first) {
  const PolicyRun mean = MeanOf(runs);
  const Paired paired = Compare(first, runs);
  std::fprintf(out, "  %-12s %11.0f %9.0f %9.0f %9.0f %8.2f %%   %5.3f (%5.3f)  %5.3f (%5.3f)\n",
               policy.c_str(), mean.ttft_mean_ms, mean.ttft_p50_ms, mean.ttft_p90_ms,
               mean.ttft_p99_ms, HitPercent(mean), paired.mean, paired.mean_worst, paired.p90,
               paired.p90_worst);
  std::fflush(out);
}

std::string LoadText(double load) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", load);
  return text;
}

// "mooncake_conversation.jsonl" is "mooncake_conversation".
std::string TraceName(const std::string& path) {
  return std::filesystem::path(path).stem().string();
}

absl::Status RunWorkload(const MainOptions& main, const std::string& workload, double load,
                         std::FILE* people, std::ostream* json) {
  if (!main.markdown)
    std::fprintf(people, "\n%s, load %g: ttft_ms%11s%10s%10s%10s%11s   %s's mean, p90 of this\n",
                 workload.c_str(), load, "mean", "p50", "p90", "p99", "hit blocks",
                 Split(main.policies).front().c_str());
  std::vector<std::vector<TraceRequest>> traces;
  for (uint64_t seed = 1; seed <= main.seeds; ++seed) {
    absl::StatusOr<std::vector<TraceRequest>> trace = TraceOf(main, workload, seed);
    if (!trace.ok()) return trace.status();
    traces.push_back(*std::move(trace));
  }
  std::vector<PolicyRun> first;
  for (const std::string& policy : Split(main.policies)) {
    std::vector<PolicyRun> runs;
    for (uint64_t seed = 1; seed <= main.seeds; ++seed) {
      PolicyReplayOptions options = main.replay;
      options.fleet.policy = policy;
      options.fleet.weights.seed = seed;
      options.load = load;
      runs.push_back(ReplayPolicy(traces[seed - 1], options));
      if (json != nullptr) *json << ToJson(workload, load, seed, runs.back()) << "\n";
    }
    if (first.empty()) first = runs;
    if (main.markdown) {
      const std::string named = workload == "trace" ? TraceName(main.trace) : workload;
      const std::string place =
          policy == Split(main.policies).front() ? named + ", " + LoadText(load) : "";
      PrintMarkdownRow(place, policy, MeanOf(runs), Compare(first, runs));
    } else {
      PrintRow(people, policy, runs, first);
    }
  }
  return absl::OkStatus();
}

absl::Status RunAll(MainOptions& main) {
  for (const std::string& policy : Split(main.policies)) {
    if (auto made = MakePolicy(policy, {}); !made.ok()) return made.status();
  }
  main.replay.fleet.engine.block_size = kTokensPerHashId / main.replay.split;
  std::ofstream file;
  if (!main.json.empty() && main.json != "-") file.open(main.json);
  std::ostream* json = main.json.empty() ? nullptr : main.json == "-" ? &std::cout : &file;
  if (main.markdown) PrintMarkdownHead();
  for (const std::string& workload : Split(main.workloads)) {
    for (const std::string& text : Split(main.loads)) {
      char* end = nullptr;
      const double load = std::strtod(text.c_str(), &end);
      if (end == text.c_str() || *end != '\0' || !(load >= 0 && load < 100))
        return absl::InvalidArgumentError("--loads: \"" + text + "\" is no load");
      const absl::Status done =
          RunWorkload(main, workload, load, main.json == "-" ? stderr : stdout, json);
      if (!done.ok()) return done;
    }
  }
  if (json != nullptr && !json->flush())
    return absl::UnavailableError(main.json + ": cannot be written");
  return absl::OkStatus();
}

}  // namespace
}  // namespace kvatlas

int main(int argc, char** argv) {
  using namespace kvatlas;
  MainOptions main;
  FlagSet flags("policy_bench", "Puts policies side by side on the same traces.");
  Declare(&flags, &main);
  flags.ParseOrExit(argc, argv);
  if (kTokensPerHashId % main.replay.split != 0) {
    std::fprintf(stderr, "policy_bench: --split=%u: must divide %u\n", main.replay.split,
                 kTokensPerHashId);
    return 2;
  }
  if (absl::Status status = RunAll(main); !status.ok()) {
    std::fprintf(stderr, "policy_bench: %s\n", std::string(status.message()).c_str());
    return 1;
  }
  return 0;
}
