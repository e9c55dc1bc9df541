// The cost of a block from the decoded batch to the index: `EngineWorker` over a rank's holder in a
// real registry with atlas behind it; blocks of 16 tokens, an event each, as engines announce them
// while they decode and evict.
//
//   bazel run //indexer/engine_directory:rank_holders_benchmark
//
// Counted is what is stored, and in BM_Churn what is stored and removed: a block each. *Batches*:
// events of one message.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "indexer/engine_directory/rank_holders.h"
#include "indexer/kv_events/engine_event.h"
#include "indexer/kv_events/engine_worker.h"
#include "indexer/registry/holder_registry.h"

namespace kvatlas {
namespace {

constexpr uint64_t kChain = 512;  // blocks of a sequence
constexpr uint64_t kHeld = 1 << 16;

uint64_t NameOf(uint64_t block) { return (block + 1) * 0x9e3779b97f4a7c15; }

class Engine {
 public:
  explicit Engine(size_t events)
      : hashes_(events),
        tokens_(events * 16),
        holders_(&registry_, {"m", ""}, 16, "w0", /*hidden=*/false, {}),
        worker_({.name = "w0", .block_size = 16},
                [this](uint32_t rank) { return holders_.HolderOf(rank); }) {}

  void Store(uint64_t block) {
    const size_t at = batch_.events.size();
    EngineEvent& event = Add(EngineEvent::Kind::kStored, block);
    const std::span<TokenId> tokens = std::span(tokens_).subspan(at * 16, 16);
    tokens[0] = static_cast<TokenId>(block);
    event.tokens = tokens;
    event.block_size = 16;
    if (block % kChain != 0)
      event.parent = EngineBlockHash{.value = NameOf(block - 1), .bytes = {}};
  }
  void Remove(uint64_t block) { Add(EngineEvent::Kind::kRemoved, block); }
  // As long as there is room for more, false.
  bool Full() const { return batch_.events.size() == hashes_.size(); }
  void Apply() {
    worker_.Apply(0, batch_, Time(0));
    batch_.events.clear();
  }

 private:
  EngineEvent& Add(EngineEvent::Kind kind, uint64_t block) {
    const size_t at = batch_.events.size();
    EngineEvent& event = batch_.events.emplace_back();
    event.kind = kind;
    event.medium = "GPU";
    event.group = 0;
    hashes_[at] = {.value = NameOf(block), .bytes = {}};
    event.hashes = std::span(hashes_).subspan(at, 1);
    return event;
  }

  std::vector<EngineBlockHash> hashes_;
  std::vector<TokenId> tokens_;
  EngineBatch batch_;
  HolderRegistry registry_{HolderRegistryOptions()};
  RankHolders holders_;
  EngineWorker worker_;
};

void BM_Cold(benchmark::State& state) {
  for (auto _ : state) {
    state.PauseTiming();
    auto engine = std::make_unique<Engine>(static_cast<size_t>(state.range(0)));
    state.ResumeTiming();
    for (uint64_t block = 0; block < kHeld; ++block) {
      engine->Store(block);
      if (engine->Full()) engine->Apply();
    }
    state.PauseTiming();
    engine.reset();
    state.ResumeTiming();
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * kHeld));
}
BENCHMARK(BM_Cold)->ArgName("events")->Arg(1)->Arg(8)->Arg(64)->Unit(benchmark::kMillisecond);

// A block comes, the tail of the oldest sequence goes, and so on.
void BM_Churn(benchmark::State& state) {
  Engine engine(static_cast<size_t>(state.range(0)));
  for (uint64_t block = 0; block < kHeld; ++block) {
    engine.Store(block);
    if (engine.Full()) engine.Apply();
  }
  uint64_t next = kHeld;
  for (auto _ : state) {
    while (!engine.Full()) {
      engine.Store(next);
      const uint64_t oldest = (next - kHeld) / kChain * kChain;
      engine.Remove(oldest + kChain - 1 - next % kChain);
      ++next;
    }
    engine.Apply();
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_Churn)->ArgName("events")->Arg(2)->Arg(8)->Arg(64);

// Evictions come in an event each, before one store of as many blocks.
void BM_Evictions(benchmark::State& state) {
  Engine engine(static_cast<size_t>(state.range(0)));
  for (uint64_t block = 0; block < kHeld; ++block) {
    engine.Store(block);
    if (engine.Full()) engine.Apply();
  }
  uint64_t next = kHeld;
  const uint64_t each = static_cast<uint64_t>(state.range(0)) / 2;
  for (auto _ : state) {
    for (uint64_t i = 0; i < each; ++i) {
      const uint64_t oldest = (next + i - kHeld) / kChain * kChain;
      engine.Remove(oldest + kChain - 1 - (next + i) % kChain);
    }
    for (uint64_t i = 0; i < each; ++i) engine.Store(next + i);
    next += each;
    engine.Apply();
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_Evictions)->ArgName("events")->Arg(8)->Arg(64);

}  // namespace
}  // namespace kvatlas

BENCHMARK_MAIN();
