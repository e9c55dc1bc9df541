// What does a route take when frontend and leaf are one process? 2,000 token ids, 128 workers, each
// prompt held by one of them; beside it the same frontend and leaf over gRPC on loopback.
//
//   bazel run -c opt //frontend/serve/lookup_clients:in_process_route_benchmark
//
// *Truth*: one route after the other; p50 and p99 are of `Route` alone, the report of its choice is
// not in them. A route to another worker than the prompt's ends the run with an error.

#include <benchmark/benchmark.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/cluster_client/grpc_lookup_clients.h"
#include "frontend/router/frontend.h"
#include "frontend/serve/lookup_clients/in_process_lookup_clients.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/leaf/leaf_service.h"
#include "indexer/net/grpc_server.h"
#include "indexer/registry/holder_handle.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/telemetry/metrics.h"
#include "tools/bench/timing.h"

namespace kvatlas {
namespace {

constexpr char kOwn[] = "own";
constexpr uint32_t kBlockSize = 16;
constexpr size_t kTokens = 2000;
constexpr size_t kWorkers = 128;
constexpr size_t kPrompts = 512;
const Domain kDomain{"bench", ""};

struct Prompt {
  std::vector<TokenId> tokens;
  std::string worker;
};

std::string WorkerName(size_t worker) { return "worker-" + std::to_string(worker); }

// A leaf's registry, filled.
class Workers {
 public:
  Workers() : registry_(HolderRegistryOptions{}) {
    for (size_t i = 0; i < kWorkers; ++i) {
      auto holder = registry_.AddLocal(
          kDomain, kBlockSize,
          {.id = {WorkerName(i), 0, ""},
           .address = "",
           .labels = {{kUrlLabel, "http://10.0.0.1:" + std::to_string(8000 + i)}}});
      (*holder)->SetLoad({.running_requests = 4, .free_blocks = 10000});
      holders_.push_back(*std::move(holder));
    }
    uint32_t state = 7;
    for (size_t i = 0; i < kPrompts; ++i) {
      Prompt prompt{.tokens = std::vector<TokenId>(kTokens), .worker = WorkerName(i % kWorkers)};
      for (TokenId& token : prompt.tokens) token = (state = state * 1664525 + 1013904223) >> 12;
      const HashContract contract;
      const std::vector<LocalHash> locals =
          LocalHashes(prompt.tokens, {.block_size = kBlockSize}, BlockSeed({}, contract));
      (void)holders_[i % kWorkers]->Apply(Stored{.blocks = SequenceHashes(locals, contract)});
      prompts_.push_back(std::move(prompt));
    }
  }

  HolderRegistry& registry() { return registry_; }
  const std::vector<Prompt>& prompts() const { return prompts_; }

 private:
  HolderRegistry registry_;
  std::vector<std::unique_ptr<HolderHandle>> holders_;
  std::vector<Prompt> prompts_;
};

void Run(benchmark::State& state, const Workers& workers, const std::string& leaf,
         OverlapFinder* finder) {
  InProcessCellFinder no_cells(kOwn, nullptr, nullptr, &Clock::Real());
  Frontend frontend({.leaves = {{.cell = "cell", .address = leaf}},
                     .deadline = std::chrono::seconds(5),
                     .tell_leaves = state.range(0) != 0},
                    &no_cells, finder, &Clock::Real());
  Latencies latencies;
  size_t next = 0;
  for (auto _ : state) {
    const Prompt& prompt = workers.prompts()[next++ % kPrompts];
    RouteInput input{.domain = kDomain, .tokens = prompt.tokens};
    const uint64_t started = Ticks();
    const absl::StatusOr<RouteResult> route = frontend.Route(std::move(input));
    latencies.Add(Ticks() - started);
    if (!route.ok() || route->worker.name != prompt.worker) {
      state.SkipWithError(route.ok() ? "another worker" : "no route");
      break;
    }
    frontend.Report(route->decision_id, {.accepted = true, .finished = true});
  }
  const Percentiles ns = latencies.InNs();
  state.counters["p50_us"] = ns.p50 / 1000;
  state.counters["p99_us"] = ns.p99 / 1000;
}

void BM_RouteEmbedded(benchmark::State& state) {
  Workers workers;
  InProcessOverlapFinder finder(kOwn, &workers.registry(), nullptr, &Clock::Real());
  Run(state, workers, kOwn, &finder);
}
BENCHMARK(BM_RouteEmbedded)->ArgName("tell")->Arg(0)->Arg(1);

void BM_RouteGrpc(benchmark::State& state) {
  Workers workers;
  Metrics metrics;
  LeafService service({.cell = "cell", .replica = "", .contract = {}}, &workers.registry(), nullptr,
                      &metrics);
  GrpcServer server(GrpcServerOptions{.listen = {"127.0.0.1", 0}});
  server.Register(&service);
  if (!server.Start().ok()) return state.SkipWithError("no server");
  {
    GrpcOverlapFinder finder;
    Run(state, workers, server.address().ToString(), &finder);
  }
  service.Stop();
  server.Stop(Duration(0));
}
BENCHMARK(BM_RouteGrpc)->ArgName("tell")->Arg(0)->Arg(1);

}  // namespace
}  // namespace kvatlas

BENCHMARK_MAIN();
