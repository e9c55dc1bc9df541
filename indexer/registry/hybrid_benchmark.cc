// The cost of side classes to a query: overlaps of a prompt of 100 blocks over so many workers,
// which hold prefixes of it of so many different lengths, through `HolderRegistry::FindOverlaps`:
// plain workers, and the same with a sliding window of so many tokens all of whose blocks are held.
// Both domains are in one process and are asked in turn; `ratio` is of their times. `plain_ratio`:
// plain workers, by a query that looks for side classes and by one that does not (`held_only`).
//
//   bazel run -c opt //indexer/registry:hybrid_benchmark

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "indexer/base/cache_class.h"
#include "indexer/base/event.h"
#include "indexer/registry/holder_handle.h"
#include "indexer/registry/holder_registry.h"

namespace kvatlas {
namespace {

constexpr uint32_t kBlockSize = 64;
constexpr size_t kBlocks = 100;

std::vector<SequenceHash> Prompt() {
  std::vector<SequenceHash> prompt;
  for (uint64_t i = 1; i <= kBlocks; ++i) prompt.push_back(SequenceHash{i * 0x9e3779b97f4a7c15});
  return prompt;
}

class Fleet {
 public:
  Fleet(size_t workers, size_t lengths, uint32_t window_tokens) : prompt_(Prompt()) {
    const CacheClass window = {
        .kind = CacheKind::kWindow, .block_size = kBlockSize, .window_tokens = window_tokens - 1};
    for (size_t i = 0; i < workers; ++i) {
      const size_t held = (i % lengths + 1) * kBlocks / lengths;
      const std::vector<SequenceHash> blocks(prompt_.begin(),
                                             prompt_.begin() + static_cast<ptrdiff_t>(held));
      for (const Domain& domain : {plain_, hybrid_}) {
        std::unique_ptr<HolderHandle> holder = *registry_.AddLocal(
            domain, kBlockSize,
            {.id = {"w" + std::to_string(i), 0, ""}, .address = "", .labels = {}});
        if (!holder->Apply(Stored{.blocks = blocks}).ok()) std::abort();
        if (domain == hybrid_) {
          holder->SetLayout({.main = {.block_size = kBlockSize}, .sides = {window}});
          Stored sides{.blocks = {}, .side = 1};
          for (const SequenceHash block : blocks)
            sides.blocks.push_back(SideName(SideTag(window), block));
          if (!holder->Apply(sides).ok()) std::abort();
        }
        holders_.push_back(std::move(holder));
      }
    }
  }

  const Domain& plain() const { return plain_; }
  const Domain& hybrid() const { return hybrid_; }

  // Nanoseconds of so many queries.
  double Ask(const Domain& domain, int queries, bool held_only = false) const {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < queries; ++i) {
      auto answer = registry_.FindOverlaps(domain, {.blocks = prompt_}, false, false, held_only);
      benchmark::DoNotOptimize(answer);
      if (!answer.ok() || answer->holders.size() * 2 != holders_.size()) std::abort();
    }
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start)
        .count();
  }

 private:
  const Domain plain_{"plain", ""}, hybrid_{"hybrid", ""};
  const std::vector<SequenceHash> prompt_;
  HolderRegistry registry_{HolderRegistryOptions()};
  std::vector<std::unique_ptr<HolderHandle>> holders_;
};

void BM_PlainAndWindow(benchmark::State& state) {
  const Fleet fleet(static_cast<size_t>(state.range(0)), static_cast<size_t>(state.range(1)),
                    static_cast<uint32_t>(state.range(2)));
  constexpr int kQueries = 64;
  double plain = 0, plain_held = 0, hybrid = 0;
  int64_t queries = 0;
  for (auto unused : state) {
    plain_held += fleet.Ask(fleet.plain(), kQueries, /*held_only=*/true);
    plain += fleet.Ask(fleet.plain(), kQueries);
    hybrid += fleet.Ask(fleet.hybrid(), kQueries);
    queries += kQueries;
  }
  state.counters["plain_us"] = plain / 1000 / static_cast<double>(queries);
  state.counters["window_us"] = hybrid / 1000 / static_cast<double>(queries);
  state.counters["ratio"] = hybrid / plain;
  state.counters["plain_ratio"] = plain / plain_held;
}
BENCHMARK(BM_PlainAndWindow)
    ->ArgNames({"workers", "lengths", "window"})
    ->ArgsProduct({{8, 128, 1024}, {4, 100}, {128, 1024}})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvatlas

BENCHMARK_MAIN();
