// The cost of events without an index: stored and removed blocks of 16 tokens through
// `EngineWorker::Apply` into a writer that does nothing, in a steady state of evictions, while
// names grow and while they go, in one worker or in turns in many; memory a name, as counted and as
// the system sees it; the longest call.
//
//   bazel run -c opt //indexer/kv_events:engine_worker_benchmark

#include <benchmark/benchmark.h>
#include <malloc.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <fstream>
#include <memory>
#include <vector>

#include "indexer/kv_events/engine_worker.h"

namespace kvatlas {
namespace {

class NoWriter : public HoldingsWriter {
 public:
  Applied Apply(std::span<const Event> events) override {
    benchmark::DoNotOptimize(events.data());
    return {.events = events.size(), .changed = UINT64_MAX, .status = {}};
  }
  void SetTrust(Trust) override {}
};

absl::StatusOr<std::shared_ptr<HoldingsWriter>> MakeWriter(uint32_t) {
  return std::make_shared<NoWriter>();
}

EngineWorker MakeWorker() { return EngineWorker({.block_size = 16}, MakeWriter); }

uint64_t NameOf(uint64_t block) { return (block + 1) * 0x9e3779b97f4a7c15; }

// Batches of one event with `blocks` blocks each; chains of 512 blocks.
class Events {
 public:
  explicit Events(size_t blocks) : blocks_(blocks), hashes_(blocks), tokens_(blocks * 16) {
    batch_.events.resize(1);
  }

  const EngineBatch& Store(uint64_t first) {
    EngineEvent& event = Named(EngineEvent::Kind::kStored, first);
    event.tokens = tokens_;
    event.block_size = 16;
    event.parent.reset();
    if (first % 512 != 0) event.parent = EngineBlockHash{.value = NameOf(first - 1), .bytes = {}};
    for (size_t i = 0; i < tokens_.size(); i += 16) tokens_[i] = static_cast<TokenId>(first + i);
    return batch_;
  }
  const EngineBatch& Remove(uint64_t first) {
    Named(EngineEvent::Kind::kRemoved, first).tokens = {};
    return batch_;
  }

 private:
  EngineEvent& Named(EngineEvent::Kind kind, uint64_t first) {
    EngineEvent& event = batch_.events[0];
    event.kind = kind;
    event.medium = "GPU";
    event.group = 0;
    for (size_t i = 0; i < blocks_; ++i) hashes_[i].value = NameOf(first + i);
    event.hashes = hashes_;
    return event;
  }

  const size_t blocks_;
  std::vector<EngineBlockHash> hashes_;
  std::vector<TokenId> tokens_;
  EngineBatch batch_;
};

// Memory of this process in use.
double ResidentBytes() {
  malloc_trim(0);
  std::ifstream statm("/proc/self/statm");
  double pages = 0;
  statm >> pages >> pages;
  return pages * static_cast<double>(sysconf(_SC_PAGESIZE));
}

double ThreadTime_us() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

void CountBytes(benchmark::State& state, const EngineWorker& worker) {
  const EngineRankStats stats = worker.Stats().ranks[0];
  state.counters["bytes_per_name"] =
      static_cast<double>(stats.alias_bytes) / static_cast<double>(stats.aliases);
}

// `held` blocks are held by each of `workers`; each turn stores some and removes the oldest ones of
// the next worker.
void BM_StoreAndRemove(benchmark::State& state) {
  const size_t blocks = static_cast<size_t>(state.range(0));
  const uint64_t held = static_cast<uint64_t>(state.range(1)) / blocks * blocks;
  std::deque<EngineWorker> workers;
  Events events(blocks);
  for (int64_t i = 0; i < state.range(2); ++i) {
    workers.emplace_back(EngineWorkerOptions{.block_size = 16}, MakeWriter);
    for (uint64_t first = 0; first < held; first += blocks)
      workers.back().Apply(0, events.Store(first), Time(0));
  }
  uint64_t next = held;
  size_t turn = 0;
  for (auto _ : state) {
    workers[turn].Apply(0, events.Store(next), Time(0));
    workers[turn].Apply(0, events.Remove(next - held), Time(0));
    if (++turn < workers.size()) continue;
    turn = 0;
    next += blocks;
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * blocks));
  CountBytes(state, workers[0]);
}
BENCHMARK(BM_StoreAndRemove)
    ->ArgNames({"blocks", "held", "workers"})
    ->ArgsProduct({{1, 32}, {60000, 500000, 4000000}, {1}})
    ->ArgsProduct({{1, 32}, {60000}, {64}});

void BM_Store(benchmark::State& state) {
  const size_t blocks = static_cast<size_t>(state.range(0));
  const uint64_t held = static_cast<uint64_t>(state.range(1)) / blocks * blocks;
  for (auto _ : state) {
    state.PauseTiming();
    const double before = ResidentBytes();
    EngineWorker worker = MakeWorker();
    Events events(blocks);
    state.ResumeTiming();
    for (uint64_t next = 0; next < held; next += blocks)
      worker.Apply(0, events.Store(next), Time(0));
    state.PauseTiming();
    CountBytes(state, worker);
    state.counters["resident_per_name"] = (ResidentBytes() - before) / static_cast<double>(held);
    state.ResumeTiming();
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * held));
}
BENCHMARK(BM_Store)
    ->ArgNames({"blocks", "held"})
    ->ArgsProduct({{1, 32}, {60000, 500000, 4000000}})
    ->Unit(benchmark::kMillisecond);

// In another order than they came.
void BM_RemoveAll(benchmark::State& state) {
  constexpr size_t kBlocks = 32;
  const uint64_t runs = static_cast<uint64_t>(state.range(0)) / kBlocks;
  for (auto _ : state) {
    state.PauseTiming();
    EngineWorker worker = MakeWorker();
    Events events(kBlocks);
    for (uint64_t run = 0; run < runs; ++run) worker.Apply(0, events.Store(run * kBlocks), Time(0));
    state.ResumeTiming();
    for (uint64_t run = 0; run < runs; ++run)
      worker.Apply(0, events.Remove((run * 7919 % runs) * kBlocks), Time(0));
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * runs * kBlocks));
}
BENCHMARK(BM_RemoveAll)
    ->ArgName("held")
    ->Arg(60000)
    ->Arg(500000)
    ->Arg(4000000)
    ->Unit(benchmark::kMillisecond);

// The longest of all calls with one block, by the thread's time, from nothing to `held` blocks.
void BM_LongestStore(benchmark::State& state) {
  for (auto _ : state) {
    EngineWorker worker = MakeWorker();
    Events events(1);
    double longest_us = 0;
    for (uint64_t next = 0; next < static_cast<uint64_t>(state.range(0)); ++next) {
      const EngineBatch& batch = events.Store(next);
      const double before = ThreadTime_us();
      worker.Apply(0, batch, Time(0));
      longest_us = std::max(longest_us, ThreadTime_us() - before);
    }
    state.counters["longest_us"] = longest_us;
  }
}
BENCHMARK(BM_LongestStore)
    ->ArgName("held")
    ->Arg(60000)
    ->Arg(500000)
    ->Arg(4000000)
    ->Unit(benchmark::kMillisecond);

// vLLM evicts block by block: a batch of single removals and one store.
void BM_SingleRemovals(benchmark::State& state) {
  constexpr uint64_t kHeld = 1 << 18;
  constexpr size_t kBlocks = 32;
  EngineWorker worker = MakeWorker();
  Events events(kBlocks);
  uint64_t next = 0;
  for (; next < kHeld; next += kBlocks) worker.Apply(0, events.Store(next), Time(0));
  std::vector<EngineBlockHash> names(kBlocks);
  for (auto _ : state) {
    EngineBatch batch = events.Store(next);
    for (size_t i = 0; i < kBlocks; ++i) {
      names[i].value = NameOf(next - kHeld + i);
      EngineEvent& event = batch.events.emplace_back();
      event.kind = EngineEvent::Kind::kRemoved;
      event.medium = "GPU";
      event.hashes = std::span(&names[i], 1);
    }
    worker.Apply(0, batch, Time(0));
    next += kBlocks;
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * kBlocks));
}
BENCHMARK(BM_SingleRemovals);

}  // namespace
}  // namespace kvatlas

BENCHMARK_MAIN();
