// The cost of naming a prompt's blocks: local and sequence hashes of a prompt, at several lengths
// and block sizes.
//
//   bazel run -c opt //indexer/base:hash_benchmark

#include <benchmark/benchmark.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "indexer/base/hash.h"

namespace kvatlas {
namespace {

std::vector<TokenId> Prompt(size_t tokens) {
  std::vector<TokenId> prompt(tokens);
  uint32_t state = 1;
  for (TokenId& token : prompt) token = (state = state * 1664525 + 1013904223) >> 12;
  return prompt;
}

void HashPrompt(benchmark::State& state) {
  const std::vector<TokenId> prompt = Prompt(static_cast<size_t>(state.range(0)));
  const Blocking blocking{.block_size = static_cast<uint32_t>(state.range(1))};
  const uint64_t seed = BlockSeed({});
  for (auto _ : state) {
    const std::vector<SequenceHash> sequence = SequenceHashes(LocalHashes(prompt, blocking, seed));
    benchmark::DoNotOptimize(sequence.data());
  }
  const size_t blocks = FullBlocks(prompt.size(), blocking);
  state.SetItemsProcessed(static_cast<int64_t>(blocks) * state.iterations());
}
BENCHMARK(HashPrompt)
    ->ArgNames({"tokens", "block_size"})
    ->Args({2'000, 16})
    ->Args({100'000, 16})
    ->Args({100'000, 32})
    ->Args({100'000, 64})
    ->Args({1'000'000, 16})
    ->Unit(benchmark::kMicrosecond);

// The next turn of a conversation: only the blocks behind the last one.
void HashNextTurn(benchmark::State& state) {
  const std::vector<TokenId> turn = Prompt(2000);
  const uint64_t seed = BlockSeed({});
  for (auto _ : state) {
    const std::vector<SequenceHash> sequence =
        SequenceHashesAfter(SequenceHash{7}, LocalHashes(turn, {}, seed));
    benchmark::DoNotOptimize(sequence.data());
  }
}
BENCHMARK(HashNextTurn)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvatlas

BENCHMARK_MAIN();
