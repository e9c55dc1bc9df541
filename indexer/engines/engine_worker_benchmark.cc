// What does the meaning of events cost without an index? Stored and removed blocks of 16 tokens through
// `EngineWorker::Apply` into a sink that does nothing, in a steady state of evictions and while names grow; memory a name.
//
//   bazel run -c opt //indexer/engines:engine_worker_benchmark

#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "indexer/engines/engine_worker.h"

namespace kvatlas {
namespace {

class NoSink : public RankSink {
 public:
  absl::Status Apply(const Event& event) override {
    benchmark::DoNotOptimize(&event);
    return absl::OkStatus();
  }
  void SetTrust(Trust) override {}
};

EngineWorker MakeWorker() {
  return EngineWorker({.block_size = 16},
                      [](uint32_t) -> absl::StatusOr<std::unique_ptr<RankSink>> {
                        return std::make_unique<NoSink>();
                      });
}

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

// `held` blocks are held; each turn stores some and removes the oldest.
void BM_StoreAndRemove(benchmark::State& state) {
  const size_t blocks = static_cast<size_t>(state.range(0));
  const uint64_t held = static_cast<uint64_t>(state.range(1));
  EngineWorker worker = MakeWorker();
  Events events(blocks);
  uint64_t next = 0;
  for (; next < held; next += blocks) worker.Apply(0, events.Store(next), Time(0));
  for (auto _ : state) {
    worker.Apply(0, events.Store(next), Time(0));
    worker.Apply(0, events.Remove(next - held), Time(0));
    next += blocks;
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * blocks));
  const EngineRankStats stats = worker.Stats().ranks[0];
  state.counters["bytes_per_name"] =
      static_cast<double>(stats.alias_bytes) / static_cast<double>(stats.aliases);
}
BENCHMARK(BM_StoreAndRemove)
    ->ArgNames({"blocks", "held"})
    ->ArgsProduct({{1, 32}, {1 << 14, 1 << 18, 1 << 20}});

void BM_Store(benchmark::State& state) {
  const size_t blocks = static_cast<size_t>(state.range(0));
  constexpr uint64_t kHeld = 1 << 19;
  double bytes = 0;
  for (auto _ : state) {
    EngineWorker worker = MakeWorker();
    Events events(blocks);
    for (uint64_t next = 0; next < kHeld; next += blocks)
      worker.Apply(0, events.Store(next), Time(0));
    const EngineRankStats stats = worker.Stats().ranks[0];
    bytes = static_cast<double>(stats.alias_bytes) / static_cast<double>(stats.aliases);
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * kHeld));
  state.counters["bytes_per_name"] = bytes;
}
BENCHMARK(BM_Store)->ArgName("blocks")->Arg(1)->Arg(32)->Unit(benchmark::kMillisecond);

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
