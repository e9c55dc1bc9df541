// run_cluster: a whole kvatlas on this machine, a trace through it, and what came of it. tools/run
// calls it.

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "frontend/router/policy/policy.h"
#include "frontend/router/prepared_prompt.h"
#include "indexer/base/clock.h"
#include "indexer/base/waypoints.h"
#include "indexer/process/flags.h"
#include "indexer/process/service_main.h"
#include "tools/testing/cluster/chaos.h"
#include "tools/testing/cluster/cluster.h"
#include "tools/testing/cluster/policy_replay.h"
#include "tools/testing/cluster/replay.h"
#include "tools/testing/cluster/report.h"
#include "tools/testing/cluster/serve_replay.h"
#include "tools/testing/cluster/trace_chats.h"
#include "tools/testing/mock_engine/hybrid.h"
#include "tools/trace/trace.h"

namespace kvatlas {
namespace {

// At rest means within so long of the end, whatever was killed.
constexpr Duration kRestAfterChaos = std::chrono::seconds(30);
// A request waits so long for an acknowledgement of a leaf that may be down.
constexpr uint32_t kAckInChaosMs = 1000;

struct RunFlags {
  std::string trace = "tools/traces/mooncake_conversation.jsonl";
  int64_t requests = -1;
  uint32_t split = 8;
  double load = 0;
  double rate = 0;
  uint64_t seed = 0;
  int64_t chaos = -1;
  std::string policy = "kvatlas";
  std::string transport = "grpc";
  std::string json;
  bool keep = false;
  bool text = false;
  std::string models = "bytes=frontend/prompt/text/testdata/bytes";
  std::string answer = "reusable";
  ClusterOptions cluster;
};

void Declare(FlagSet& flags, RunFlags* run) {
  flags.Add(
      "trace", &run->trace,
      "JSON lines of Mooncake, Bailian or aiperf, or CSV of BurstGPT or Azure, in gzip or not");
  flags.Add("requests", &run->requests, "so many of the trace; -1: all; 0: only start the cluster",
            -1);
  flags.Add("cells", &run->cluster.cells, "leaves", 0u, 1024u);
  flags.Add("workers", &run->cluster.workers, "mock engines per leaf", 1u, 1024u);
  flags.Add("capacity", &run->cluster.capacity, "blocks in each engine's pool", uint64_t{1});
  flags.Add("split", &run->split, "blocks per hash id; divides 512", 1u, kTokensPerHashId);
  flags.AddChoice("policy", &run->policy, "who chooses the worker", PolicyNames());
  flags.Add("load", &run->load,
            "stretch arrivals so that prefill without any cache would keep engines busy to this "
            "fraction; 0: as they "
            "are",
            0.0, 100.0);
  flags.Add("rate", &run->rate,
            "run freely at so many times the trace's pace; 0: each request in turn", 0.0, 1e6);
  flags.Add("schedule", &run->cluster.schedule,
            "waypoints that leaves report, for all processes; empty: the standard ones");
  flags.AddChoice("transport", &run->transport, "between engines and leaves", {"grpc", "redis"});
  flags.Add("secure", &run->cluster.secure,
            "a throw-away CA: all connections by TLS, every process with an identity and a policy");
  flags.Add("seed", &run->seed, "of tie-breaks");
  flags.Add("chaos", &run->chaos,
            "kill and restart leaves, hierarchy (and Redis) in turn, as this seed says; -1: none",
            -1);
  flags.Add("hybrid", &run->cluster.hybrid,
            "side class of the engines' model: window:TOKENS (sliding window) or mamba:TOKENS (a "
            "state each so many tokens of "
            "prefill); empty: full attention alone");
  flags.AddChoice("answer", &run->answer,
                  "with --hybrid: what leaves promise, and so what routes go by: blocks that can "
                  "be reused, or those that the "
                  "main class holds",
                  {"reusable", "held"});
  flags.Add("serve", &run->cluster.serve,
            "kvatlas serve in front of all engines, asked as a client asks, with events over "
            "ZeroMQ; in the place of hierarchy, leaves and frontend");
  flags.Add("text", &run->text, "ask by made-up chats, through a real tokenizer");
  flags.Add("models", &run->models,
            "with --text: NAME=PATH of a tokenizer, a folder or a file; the first of several");
  flags.Add("json", &run->json,
            "also write the figures as a line of JSON there; - is standard output");
  flags.Add("keep", &run->keep, "leave the cluster up afterwards, until Ctrl-C");
  flags.Add("binaries", &run->cluster.binaries,
            "bazel-bin with the other binaries; found by itself when empty");
}

// One line that is written over on a terminal, and now and then otherwise.
class Progress {
 public:
  explicit Progress(size_t total) : total_(total), start_(Clock::Real().Now()), next_(start_) {}

  void Done(size_t requests) {
    const Time now = Clock::Real().Now();
    if (now < next_ && requests != total_) return;
    next_ = now + (terminal_ ? std::chrono::milliseconds(200) : std::chrono::milliseconds(5000));
    const double seconds = std::chrono::duration<double>(now - start_).count();
    std::fprintf(stderr, "%s%zu of %zu requests, %.0f/s%s", terminal_ ? "\r\033[K" : "", requests,
                 total_, seconds > 0 ? static_cast<double>(requests) / seconds : 0.0,
                 terminal_ ? "" : "\n");
    if (terminal_ && requests == total_) std::fprintf(stderr, "\n");
  }

 private:
  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  const size_t total_;
  const Time start_;
  Time next_;
};

absl::Status WriteJson(const std::string& path, const std::string& line) {
  if (path.empty()) return absl::OkStatus();
  if (path == "-") {
    std::cout << line << std::endl;
    return absl::OkStatus();
  }
  std::ofstream out(path);
  out << line << "\n";
  out.flush();
  return out ? absl::OkStatus() : absl::UnavailableError(path + ": cannot be written");
}

// For who has started a cluster and wants to see an answer.
std::string HowToAsk(const Cluster& cluster, bool text) {
  if (cluster.options().serve) {
    return "Ask it:  curl -si " + cluster.address("serve", "listen") +
           "/v1/completions -d '{\"model\": \"" + cluster.options().model +
           "\", \"prompt\": [1, 2, 3]}'\n";
  }
  const std::string url = cluster.address("frontend", "http") + "/route";
  const std::string model = "{\"model\": \"" + cluster.options().model + "\", ";
  return text ? "Ask it:  curl -s " + url + "/chat -d '" + model +
                    "\"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}'\n"
              : "Ask it:  curl -s " + url + " -d '" + model + "\"tokens\": [1, 2, 3]}'\n";
}

int Exit(const absl::Status& status) {
  std::fprintf(stderr, "run_cluster: %s\n", std::string(status.message()).c_str());
  return 1;
}

// Who is killed in turn.
std::vector<std::vector<std::string>> ChaosTurns(const Cluster& cluster) {
  std::vector<std::string> leaves;
  for (uint32_t cell = 0; cell < cluster.options().cells; ++cell)
    leaves.push_back(cluster.LeafName(cell));
  std::vector<std::vector<std::string>> turns = {leaves, {"hierarchy"}};
  if (cluster.options().redis) turns.push_back({"redis"});
  return turns;
}

Chaos MakeChaos(const RunFlags& run, size_t requests, Cluster* cluster) {
  ChaosOptions options;
  options.seed = static_cast<uint64_t>(run.chaos);
  options.requests = requests;
  if (run.chaos >= 0) options.turns = ChaosTurns(*cluster);
  return Chaos(MakeChaosPlan(options), [cluster](const ChaosStep& step) {
    return step.kill ? cluster->Kill(step.process) : cluster->Restart(step.process);
  });
}

absl::Status ReplayTrace(ServiceMain& service, const RunFlags& run, Cluster& cluster,
                         const std::vector<TraceRequest>& trace, const TraceChats* chats,
                         std::FILE* people) {
  ReplayOptions options;
  options.chats = chats;
  options.split = run.split;
  options.policy = run.policy;
  options.rate = run.rate;
  options.seed = run.seed;
  options.answer = run.answer;
  if (run.load > 0) {
    options.stretch =
        StretchForLoad(trace, cluster.workers(), cluster.options().prefill_tokens_per_s, run.load);
  }
  Progress progress(trace.size());
  options.before = [&progress](size_t request) { progress.Done(request); };
  Chaos chaos = MakeChaos(run, trace.size(), &cluster);
  if (run.chaos >= 0) {
    options.faults = [&chaos](size_t request) { chaos.Before(request); };
    options.rest_timeout = kRestAfterChaos;
    options.ack_timeout_ms = kAckInChaosMs;
  }
  options.stop = [&service, &chaos] { return service.stopping() || !chaos.status().ok(); };
  absl::StatusOr<ReplayReport> report = run.cluster.serve
                                            ? ReplayThroughServe(cluster, trace, options)
                                            : Replay(cluster, trace, options);
  if (!chaos.status().ok()) return chaos.status();
  if (!report.ok()) return report.status();
  if (run.chaos >= 0) report->chaos = chaos.done();
  progress.Done(trace.size());
  std::fputs(ToTable(*report).c_str(), people);
  std::fflush(people);
  return WriteJson(run.json, ToJson(*report));
}

absl::StatusOr<TraceChats> MakeChats(ServiceMain& service, const RunFlags& run,
                                     std::vector<TraceRequest>* trace) {
  std::fprintf(stderr, "tokenizing %zu chats\n", trace->size());
  TraceChatsOptions options;
  options.models = run.models;
  options.block_size = run.cluster.block_size;
  options.stop = [&service] { return service.stopping(); };
  return TraceChats::Make(options, trace);
}

// What a client of `kvatlas serve` cannot ask for; empty: nothing of it is asked for.
std::string NotWithServe(const RunFlags& run) {
  if (run.text) return "--text";
  if (run.chaos >= 0) return "--chaos";
  if (run.rate > 0) return "--rate";
  if (run.load > 0) return "--load";
  if (run.transport != "grpc") return "--transport";
  if (run.cluster.secure) return "--secure";
  if (!run.cluster.hybrid.empty()) return "--hybrid";
  return run.cluster.schedule.empty() ? "" : "--schedule";
}

int Run(ServiceMain& service, RunFlags& run) {
  // With --json - the standard output is for scripts.
  std::FILE* people = run.json == "-" ? stderr : stdout;
  std::vector<TraceRequest> trace;
  if (run.requests != 0) {
    const size_t requests_max = run.requests < 0 ? 0 : static_cast<size_t>(run.requests);
    absl::StatusOr<std::vector<TraceRequest>> read = ReadTrace(run.trace, requests_max);
    if (!read.ok()) return Exit(read.status());
    trace = *std::move(read);
    if (const std::string note = TraceNote(trace); !note.empty())
      std::fprintf(stderr, "%s: %s\n", run.trace.c_str(), note.c_str());
    for (size_t i = 0; i < trace.size(); ++i) {
      const size_t blocks =
          trace[i].hash_ids.size() * trace[i].id_tokens * run.split / kTokensPerHashId;
      if (blocks <= kRouteBlocksMax) continue;
      return Exit(absl::InvalidArgumentError(absl::StrCat(
          run.trace, ": request ", i + 1, " has ", blocks, " blocks at --split=", run.split,
          "; at most ", kRouteBlocksMax, " are routed")));
    }
  }
  if (run.cluster.cells == 0) {
    return Exit(absl::InvalidArgumentError(
        "--cells=0: no worker could take a request; expected at least 1"));
  }
  run.cluster.redis = run.transport == "redis";
  run.cluster.block_size = kTokensPerHashId / run.split;
  // Mock engines announce a prompt's blocks as they admit it, and their time is not the frontend's:
  // nothing is ever only expected to be where it was sent.
  run.cluster.frontend_args = {"--seed=" + std::to_string(run.seed), "--policy=" + run.policy,
                               "--sibling_ttl=0s"};
  run.cluster.serve_args = {"--policy=" + run.policy};
  if (run.answer != "reusable") run.cluster.leaf_args = {"--answer=" + run.answer};
  std::optional<TraceChats> chats;
  if (run.text) {
    absl::StatusOr<TraceChats> made = MakeChats(service, run, &trace);
    if (!made.ok()) return Exit(made.status());
    chats = *std::move(made);
    run.cluster.model = chats->model();
    run.cluster.frontend_args.push_back("--models=" + run.models);
  }
  if (run.cluster.serve) {
    std::fprintf(stderr, "starting kvatlas serve and %u mock engines\n",
                 run.cluster.cells * run.cluster.workers);
  } else {
    std::fprintf(stderr, "starting %s1 hierarchy, %u leaves, 1 frontend, %u mock engines\n",
                 run.cluster.redis ? "1 redis-server, " : "", run.cluster.cells,
                 run.cluster.cells * run.cluster.workers);
  }
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(run.cluster);
  if (!cluster.ok()) return Exit(cluster.status());
  if (!trace.empty()) {
    if (absl::Status status = ReplayTrace(service, run, **cluster, trace,
                                          chats.has_value() ? &*chats : nullptr, people);
        !status.ok()) {
      (*cluster)->KeepLogs();
      std::fprintf(stderr, "run_cluster: logs are in %s\n", (*cluster)->logs().c_str());
      return Exit(status);
    }
  }
  if (run.keep || trace.empty()) {
    std::fprintf(people, "\nThe cluster is up; logs are in %s\n%s%sCtrl-C stops it.\n",
                 (*cluster)->logs().c_str(), (*cluster)->Describe().c_str(),
                 HowToAsk(**cluster, run.text).c_str());
    std::fflush(people);
    service.WaitForSignal();
  }
  return 0;
}

}  // namespace
}  // namespace kvatlas

int main(int argc, char** argv) {
  using namespace kvatlas;
  ServiceMain service("run_cluster",
                      "Starts a whole kvatlas on this machine and replays a trace through it.");
  RunFlags run;
  Declare(service.flags(), &run);
  service.Start(argc, argv);
  if (kTokensPerHashId % run.split != 0) {
    std::fprintf(stderr, "run_cluster: --split=%u: must divide %u\n", run.split, kTokensPerHashId);
    return 2;
  }
  if (const absl::Status bad = ParseHybrid(run.cluster.hybrid).status(); !bad.ok()) {
    std::fprintf(stderr, "run_cluster: --hybrid: %s\n", std::string(bad.message()).c_str());
    return 2;
  }
  if (const std::string other = run.cluster.serve ? NotWithServe(run) : ""; !other.empty()) {
    std::fprintf(stderr, "run_cluster: --serve and %s: give one of both\n", other.c_str());
    return 2;
  }
  if (!run.cluster.schedule.empty()) {
    const absl::Status bad = WaypointSchedule::Parse(run.cluster.schedule).status();
    if (!bad.ok()) {
      std::fprintf(stderr, "run_cluster: --schedule: %s\n", std::string(bad.message()).c_str());
      return 2;
    }
  }
  return Run(service, run);
}
