// What does a block cost to store, to remove, to ask for? Each structure, one thread and several.
//
//   bazel run //indexer/index:flat_benchmark -- --benchmark_filter=flat

#include <benchmark/benchmark.h>

#include <random>
#include <string>

#include "indexer/base/hash.h"
#include "indexer/index/index.h"

namespace kvatlas {
namespace {

constexpr size_t kPrompt = 190;
constexpr size_t kRun = 64;
constexpr uint32_t kHolders = 127;

std::vector<SequenceHash> Sequence(uint64_t name, size_t length) {
  std::vector<LocalHash> locals;
  for (size_t i = 0; i < length; ++i) locals.push_back(LocalHash{name * 1000003 + i});
  return SequenceHashes(locals);
}

std::unique_ptr<Index> Make(const benchmark::State& state) {
  return *MakeIndex(WholeIndexNames()[static_cast<size_t>(state.range(0))], {});
}

// Runs of 64 blocks that nobody else has: stored until there are `blocks` of them, then removed.
void StoreOrRemove(benchmark::State& state, bool time_removal) {
  const size_t runs = static_cast<size_t>(state.range(1)) / kRun;
  const std::unique_ptr<Index> index = Make(state);
  const HolderIndex holder = *index->AddHolder();
  std::vector<Event> stores, removals;
  for (uint64_t i = 0; i < runs; ++i) {
    const std::vector<SequenceHash> blocks = Sequence(i, kRun);
    stores.push_back(
        Stored{.tier = Tier::kDevice, .position = 0, .parent = kNoParent, .blocks = blocks});
    removals.push_back(Removed{.tier = Tier::kDevice, .blocks = blocks});
  }
  const auto apply = [&](const std::vector<Event>& events) {
    for (const Event& event : events) index->Apply(holder, event, nullptr).IgnoreError();
  };
  for (auto unused : state) {
    if (time_removal) state.PauseTiming();
    apply(stores);
    if (time_removal) {
      state.ResumeTiming();
    } else {
      state.PauseTiming();
    }
    if (!time_removal) state.counters["bytes/block"] = double(index->Stats().bytes) / (runs * kRun);
    apply(removals);
    if (!time_removal) state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * runs * kRun);
}

void BM_StoreBlock(benchmark::State& state) { StoreOrRemove(state, false); }
void BM_RemoveBlock(benchmark::State& state) { StoreOrRemove(state, true); }

// A second holder stores blocks that are there already, then removes them.
void BM_StoreAndRemoveSharedBlock(benchmark::State& state) {
  const std::unique_ptr<Index> index = Make(state);
  const HolderIndex first = *index->AddHolder(), second = *index->AddHolder();
  const size_t runs = static_cast<size_t>(state.range(1)) / kRun;
  std::vector<std::vector<SequenceHash>> sequences;
  const auto store = [&](HolderIndex holder, const std::vector<SequenceHash>& blocks) {
    index
        ->Apply(holder,
                Stored{.tier = Tier::kDevice, .position = 0, .parent = kNoParent, .blocks = blocks},
                nullptr)
        .IgnoreError();
  };
  for (uint64_t i = 0; i < runs; ++i) {
    sequences.push_back(Sequence(i, kRun));
    store(first, sequences.back());
  }
  for (auto unused : state) {
    for (const auto& blocks : sequences) store(second, blocks);
    for (const auto& blocks : sequences) {
      index->Apply(second, Removed{.tier = Tier::kDevice, .blocks = blocks}, nullptr).IgnoreError();
    }
  }
  state.SetItemsProcessed(state.iterations() * 2 * runs * kRun);
}

// A prompt of 190 blocks, known to 127 holders of whom each has some head of it, among a million blocks
// of other prompts.
struct Queried {
  explicit Queried(benchmark::State& state, bool all_equal) : index(Make(state)) {
    std::mt19937 random(1);
    prompt = Sequence(1, kPrompt);
    for (uint32_t i = 0; i < kHolders; ++i) {
      const HolderIndex holder = *index->AddHolder();
      const size_t depth = all_equal ? kPrompt : 1 + random() % kPrompt;
      Store(holder, {prompt.begin(), prompt.begin() + depth});
      for (uint64_t other = 0; other < 40; ++other)
        Store(holder, Sequence(1000 * i + other + 2, 200));
    }
  }
  void Store(HolderIndex holder, std::vector<SequenceHash> blocks) {
    const Stored stored{
        .tier = Tier::kDevice, .position = 0, .parent = kNoParent, .blocks = blocks};
    index->Apply(holder, stored, nullptr).IgnoreError();
  }
  std::unique_ptr<Index> index;
  std::vector<SequenceHash> prompt;
};

void Find(benchmark::State& state, bool all_equal) {
  static Queried* queried = nullptr;
  if (state.thread_index() == 0) queried = new Queried(state, all_equal);
  std::vector<Overlap> overlaps;
  for (auto unused : state) {
    overlaps.clear();
    queried->index->FindOverlaps({.blocks = queried->prompt}, &overlaps);
    benchmark::DoNotOptimize(overlaps.data());
  }
  state.counters["overlaps"] =
      benchmark::Counter(double(overlaps.size()), benchmark::Counter::kAvgThreads);
  state.SetItemsProcessed(state.iterations());
  if (state.thread_index() == 0) delete queried;
}

void BM_FindHeadsOfManyLengths(benchmark::State& state) { Find(state, false); }
void BM_FindWholePromptEverywhere(benchmark::State& state) { Find(state, true); }

// {structure of `IndexNames()`, blocks}
BENCHMARK(BM_StoreBlock)->Args({0, 1 << 20})->Args({1, 1 << 16})->Unit(benchmark::kMillisecond);
BENCHMARK(BM_RemoveBlock)->Args({0, 1 << 20})->Args({1, 1 << 16})->Unit(benchmark::kMillisecond);
BENCHMARK(BM_StoreAndRemoveSharedBlock)->Args({0, 1 << 20})->Unit(benchmark::kMillisecond);
BENCHMARK(BM_FindHeadsOfManyLengths)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_FindWholePromptEverywhere)->Arg(0)->Arg(1)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_FindHeadsOfManyLengths)
    ->Arg(0)
    ->Threads(2)
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvatlas

BENCHMARK_MAIN();
