// What does a route cost in the frontend itself, and do routes on several threads wait for one
// another? A leaf of 128 workers that answers at once, in the same process; prompts of 2,000 token
// ids, hashed for each route; every choice is reported.
//
//   bazel run -c opt //frontend/router:frontend_benchmark

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/router/frontend.h"
#include "frontend/router/lookup_clients.h"
#include "indexer/base/clock.h"

namespace kvatlas {
namespace {

constexpr size_t kWorkers = 128;
constexpr size_t kTokens = 2000;
constexpr size_t kPrompts = 64;

// One cell whose workers hold different parts of every prompt.
class NearFleet : public CellFinder, public OverlapFinder {
 public:
  NearFleet() {
    for (size_t i = 0; i < kWorkers; ++i)
      answer_.workers.push_back({.worker = {"worker-" + std::to_string(i), 0, ""},
                                 .blocks = static_cast<uint32_t>(i % 100),
                                 .load = Load{.running_requests = static_cast<uint32_t>(i % 7)}});
  }
  void FindCells(const std::string&, const CellQuestion&, Duration,
                 CellFinder::Callback callback) override {
    callback(CellsAnswer{.cells = {{.cell = "a", .address = "a:1", .blocks_below = 1000}}});
  }
  void FindOverlaps(const std::string&, const OverlapQuestion&, Duration,
                    OverlapFinder::Callback callback) override {
    callback(answer_);
  }

 private:
  WorkersAnswer answer_;
};

std::vector<TokenId> Prompt(size_t which) {
  std::vector<TokenId> tokens(kTokens);
  auto state = static_cast<uint32_t>(which);
  for (TokenId& token : tokens) token = (state = state * 1664525 + 1013904223) >> 12;
  return tokens;
}

void Routes(benchmark::State& state) {
  static NearFleet& fleet = *new NearFleet();
  static Frontend& frontend = *[] {
    FrontendOptions options;
    options.hierarchies = {"h"};
    return new Frontend(std::move(options), &fleet, &fleet, &Clock::Real());
  }();
  std::vector<double> took_us;
  size_t next = static_cast<size_t>(state.thread_index()) * 7;
  for (auto _ : state) {
    RouteInput input = {.domain = {"m", ""}, .tokens = Prompt(next++ % kPrompts)};
    const auto begin = std::chrono::steady_clock::now();
    const absl::StatusOr<RouteResult> route = frontend.Route(std::move(input));
    took_us.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
    if (!route.ok()) return state.SkipWithError("a route failed");
    frontend.Report(route->decision_id, {.finished = true});
  }
  std::sort(took_us.begin(), took_us.end());
  using benchmark::Counter;
  const auto of_threads = [](double value) { return Counter(value, Counter::kAvgThreads); };
  state.counters["p50_us"] = of_threads(took_us[took_us.size() / 2]);
  state.counters["p99_us"] = of_threads(took_us[took_us.size() * 99 / 100]);
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(Routes)->Threads(1)->Threads(2)->Threads(4)->UseRealTime();

}  // namespace
}  // namespace kvatlas

BENCHMARK_MAIN();
