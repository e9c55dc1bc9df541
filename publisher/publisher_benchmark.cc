// What does one block cost the engine's thread? And what does it cost in all?
//
//   bazel run -c opt //publisher:publisher_benchmark

#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "indexer/base/hash.h"
#include "indexer/base/tier.h"
#include "publisher/publisher.h"

namespace kvatlas {
namespace {

constexpr uint32_t kBlockSize = 16;
constexpr size_t kBlocksHeld = 1 << 16;

std::unique_ptr<Publisher> MakePublisher(size_t queue_bytes_max) {
  return *Publisher::Create({.worker = "w",
                             .domain = {.model = "m", .tenant = ""},
                             .block_size = kBlockSize,
                             .queue_bytes_max = queue_bytes_max});
}

// Stores runs of `blocks` and removes them `kBlocksHeld` blocks later. Names and tokens never repeat.
class Engine {
 public:
  Engine(Publisher* publisher, size_t blocks)
      : publisher_(publisher), names_(blocks), tokens_(blocks * kBlockSize) {}

  void StoreAndRemove() {
    Name(next_);
    for (TokenId& token : tokens_) token = token_++;
    publisher_->Stored(Tier::kDevice, names_, std::nullopt, tokens_);
    if (next_ >= kBlocksHeld) {
      Name(next_ - kBlocksHeld);
      publisher_->Removed(Tier::kDevice, names_);
    }
    next_ += names_.size();
  }

 private:
  void Name(uint64_t first) {
    for (size_t i = 0; i < names_.size(); ++i) names_[i] = first + i + 1;
  }

  Publisher* const publisher_;
  std::vector<EngineHash> names_;
  std::vector<TokenId> tokens_;
  uint64_t next_ = 0;
  TokenId token_ = 0;
};

// The engine's thread alone: the queue has room for all, and what waits is worked off between the rounds that
// count. Argument: blocks a call.
void BM_EngineThread(benchmark::State& state) {
  const size_t blocks = static_cast<size_t>(state.range(0));
  std::unique_ptr<Publisher> publisher = MakePublisher(256 << 20);
  Engine engine(publisher.get(), blocks);
  const size_t calls = std::max<size_t>(1, 4096 / blocks);
  for (auto _ : state) {
    for (size_t i = 0; i < calls; ++i) engine.StoreAndRemove();
    state.PauseTiming();
    publisher->WaitAcknowledged(std::chrono::seconds(60));
    state.ResumeTiming();
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * calls * blocks));
}
BENCHMARK(BM_EngineThread)->Arg(1)->Arg(4)->Arg(16)->Arg(64)->Arg(512);

// Both threads: until everything is hashed, counted and in the resident set.
void BM_UntilAppended(benchmark::State& state) {
  const size_t blocks = static_cast<size_t>(state.range(0));
  std::unique_ptr<Publisher> publisher = MakePublisher(256 << 20);
  Engine engine(publisher.get(), blocks);
  const size_t calls = std::max<size_t>(1, 4096 / blocks);
  for (auto _ : state) {
    for (size_t i = 0; i < calls; ++i) engine.StoreAndRemove();
    publisher->WaitAcknowledged(std::chrono::seconds(60));
  }
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * calls * blocks));
}
BENCHMARK(BM_UntilAppended)->Arg(4)->Arg(64)->UseRealTime();

// No room at all: the engine's thread does the work itself.
void BM_QueueFull(benchmark::State& state) {
  const size_t blocks = static_cast<size_t>(state.range(0));
  std::unique_ptr<Publisher> publisher = MakePublisher(0);
  Engine engine(publisher.get(), blocks);
  for (auto _ : state) engine.StoreAndRemove();
  state.SetItemsProcessed(static_cast<int64_t>(state.iterations() * blocks));
}
BENCHMARK(BM_QueueFull)->Arg(4)->Arg(64)->UseRealTime();

}  // namespace
}  // namespace kvatlas

BENCHMARK_MAIN();
