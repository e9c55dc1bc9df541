// The cost of one block for the engine's thread, by each interface and whatever the network does,
// and the cost in all.
//
//   bazel run -c opt //publisher:publisher_benchmark

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "indexer/base/hash.h"
#include "indexer/base/tier.h"
#include "publisher/fake_leaf.h"
#include "publisher/kvatlas_publisher.h"
#include "publisher/publisher.h"
#include "publisher/zmq_events.h"

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

// Stores runs of `blocks` and removes them `kBlocksHeld` blocks later. Names and tokens never
// repeat.
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

// The engine's thread alone: the queue has room for all, and what waits is worked off between the
// rounds that count. Argument: blocks a call.
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

// ---- One call at a time, as an engine makes them: how long is the engine's thread away? ----

using SteadyClock = std::chrono::steady_clock;

constexpr size_t kStepBlocks = 32;
constexpr size_t kSteps = 20000;
constexpr auto kStepEvery = std::chrono::microseconds(100);  // 320,000 blocks/s
// A stored block is removed this many steps later.
constexpr size_t kStepsHeld = 512;

// The calls' durations as counters: `p50_ns` and so on.
void Report(benchmark::State& state, std::vector<int64_t> ns) {
  std::sort(ns.begin(), ns.end());
  const auto at = [&](double share) {
    return static_cast<double>(ns[static_cast<size_t>(share * static_cast<double>(ns.size() - 1))]);
  };
  state.counters["p50_ns"] = at(0.5);
  state.counters["p90_ns"] = at(0.9);
  state.counters["p99_ns"] = at(0.99);
  state.counters["p999_ns"] = at(0.999);
  state.counters["max_ns"] = at(1);
}

enum Network : int { kNoLeaf, kUp, kRefused, kSilent };
const char* NameOf(int network) {
  static const char* const names[] = {"no leaf", "leaf up", "connections refused", "leaf silent"};
  return names[network];
}

// Accepts connections and never says a word.
class SilentLeaf : public StreamAcceptor {
 public:
  std::unique_ptr<ReceiverSession> Accept(ReplyFn) override { return std::make_unique<Session>(); }

 private:
  class Session : public ReceiverSession {
    absl::Status OnMessage(SenderMessage) override { return absl::OkStatus(); }
  };
};

// Leaves for a run, and their addresses.
class Surroundings {
 public:
  explicit Surroundings(int network) {
    if (network == kUp) server_.emplace(&leaf_);
    if (network == kSilent) server_.emplace(&silent_);
    if (network == kRefused) leaves_ = {"127.0.0.1:1"};
    if (server_) leaves_ = {server_->target()};
  }
  const std::vector<std::string>& leaves() const { return leaves_; }

 private:
  FakeLeaf leaf_;
  SilentLeaf silent_;
  std::optional<TestServer> server_;
  std::vector<std::string> leaves_;
};

// The arguments of a step's store: names and tokens that never repeat.
struct Step {
  std::vector<uint64_t> names = std::vector<uint64_t>(kStepBlocks);
  std::vector<TokenId> tokens = std::vector<TokenId>(kStepBlocks * kBlockSize);

  void Fill(uint64_t step) {
    for (size_t i = 0; i < names.size(); ++i) names[i] = step * kStepBlocks + i + 1;
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<TokenId>(step * tokens.size() + i);
    }
  }
};

// Calls `store` once a step, on time, with that step's arguments, and `remove` unmeasured.
template <typename StoreFn, typename RemoveFn>
void Pace(benchmark::State& state, const StoreFn& store, const RemoveFn& remove) {
  Step now, old;
  std::vector<int64_t> ns;
  for (auto _ : state) {
    SteadyClock::time_point next = SteadyClock::now();
    for (uint64_t step = 0; step < kSteps; ++step) {
      now.Fill(step);
      next += kStepEvery;
      while (SteadyClock::now() < next) {
      }
      const SteadyClock::time_point start = SteadyClock::now();
      store(now);
      ns.push_back((SteadyClock::now() - start) / std::chrono::nanoseconds(1));
      if (step < kStepsHeld) continue;
      old.Fill(step - kStepsHeld);
      remove(old);
    }
  }
  state.SetLabel(NameOf(static_cast<int>(state.range(0))));
  Report(state, std::move(ns));
}

void BM_StepByCpp(benchmark::State& state) {
  const Surroundings around(static_cast<int>(state.range(0)));
  std::unique_ptr<Publisher> publisher = *Publisher::Create({.leaves = around.leaves(),
                                                             .worker = "w",
                                                             .domain = {.model = "m", .tenant = ""},
                                                             .block_size = kBlockSize});
  Pace(
      state,
      [&](const Step& step) {
        publisher->Stored(Tier::kDevice, step.names, std::nullopt, step.tokens);
      },
      [&](const Step& step) { publisher->Removed(Tier::kDevice, step.names); });
}

// A publisher by the C interface, for the life of it.
class CPublisher {
 public:
  explicit CPublisher(const std::vector<std::string>& leaves) {
    std::vector<const char*> texts;
    for (const std::string& leaf : leaves) texts.push_back(leaf.c_str());
    kvatlas_publisher_options options;
    kvatlas_publisher_options_init(&options, sizeof(options));
    options.leaves = texts.data();
    options.leaves_count = texts.size();
    options.worker = "w";
    options.model = "m";
    options.block_size = kBlockSize;
    kvatlas_publisher_create(&options, &publisher_, nullptr, 0);
  }
  ~CPublisher() { kvatlas_publisher_destroy(publisher_); }
  CPublisher(const CPublisher&) = delete;
  CPublisher& operator=(const CPublisher&) = delete;
  kvatlas_publisher* get() const { return publisher_; }

 private:
  kvatlas_publisher* publisher_ = nullptr;
};

void BM_StepByC(benchmark::State& state) {
  const Surroundings around(static_cast<int>(state.range(0)));
  const CPublisher publisher(around.leaves());
  Pace(
      state,
      [&](const Step& step) {
        kvatlas_publisher_stored(publisher.get(), KVATLAS_TIER_DEVICE, step.names.data(),
                                 step.names.size(), nullptr, step.tokens.data(), step.tokens.size(),
                                 nullptr);
      },
      [&](const Step& step) {
        kvatlas_publisher_removed(publisher.get(), KVATLAS_TIER_DEVICE, step.names.data(),
                                  step.names.size());
      });
}

// The engine's own batch, encoded by the engine (not measured: it is the engine's encoder that does
// it).
void BM_StepByEngineBatch(benchmark::State& state) {
  const Surroundings around(static_cast<int>(state.range(0)));
  const CPublisher publisher(around.leaves());
  ZmqEventEncoder encoder(ZmqEventForm::kMap, kBlockSize, 0);
  std::string payload;
  Step now, old;
  std::vector<int64_t> ns;
  for (auto _ : state) {
    SteadyClock::time_point next = SteadyClock::now();
    for (uint64_t step = 0; step < kSteps; ++step) {
      now.Fill(step);
      encoder.Stored({.hashes = now.names, .tokens = now.tokens});
      if (step >= kStepsHeld) {
        old.Fill(step - kStepsHeld);
        encoder.Removed(Tier::kDevice, old.names);
      }
      payload = encoder.Finish(1.5);
      next += kStepEvery;
      while (SteadyClock::now() < next) {
      }
      const SteadyClock::time_point start = SteadyClock::now();
      kvatlas_publisher_publish(publisher.get(), payload.data(), payload.size());
      ns.push_back((SteadyClock::now() - start) / std::chrono::nanoseconds(1));
    }
  }
  state.SetLabel(NameOf(static_cast<int>(state.range(0))));
  Report(state, std::move(ns));
}

void EveryNetwork(benchmark::internal::Benchmark* benchmark) {
  for (const int network : {kNoLeaf, kUp, kRefused, kSilent}) benchmark->Arg(network);
  benchmark->Iterations(1)->UseRealTime();
}
BENCHMARK(BM_StepByCpp)->Apply(EveryNetwork);
BENCHMARK(BM_StepByC)->Apply(EveryNetwork);
BENCHMARK(BM_StepByEngineBatch)->Apply(EveryNetwork);

}  // namespace
}  // namespace kvatlas

BENCHMARK_MAIN();
