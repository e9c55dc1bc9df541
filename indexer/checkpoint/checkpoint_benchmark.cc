// What does a checkpoint of 10 M blocks cost: to write, on the disk, for queries meanwhile, and to
// take up again?
//
//   checkpoint_benchmark [BLOCKS [HOLDERS [DIRECTORY]]]
//
// One thread asks without pause: 190 blocks of a random holder each, first alone, then while
// checkpoints are written at the leaf's pace. Figures are of real files. A machine under load says
// less: compare before with while.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/durations.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/checkpoint/checkpointer.h"
#include "indexer/index/index.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/stream/link.h"
#include "indexer/stream/messages.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {
namespace {

constexpr size_t kChain = 512;  // blocks of a sequence
constexpr size_t kQuery = 190;
constexpr size_t kQueriesBefore = 500'000;
const Domain kDomain{"llama-70b", ""};

// CPU time of all threads: comparable on a machine that does other things too.
double CpuSeconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Size {
  uint64_t blocks = 10'000'000;
  uint64_t holders = 128;
  std::string directory = "/tmp/kvatlas_checkpoint_benchmark";
  uint64_t chains() const { return blocks / holders / kChain; }  // of each holder
};

// Sequences of their own.
SequenceHash BlockOf(uint64_t holder, uint64_t chain, uint64_t position) {
  return SequenceHash{DigestTerm(SequenceHash{(holder << 40) + (chain << 12) + position + 1})};
}

std::vector<SequenceHash> Chain(uint64_t holder, uint64_t chain, size_t blocks) {
  std::vector<SequenceHash> hashes;
  for (uint64_t i = 0; i < blocks; ++i) hashes.push_back(BlockOf(holder, chain, i));
  return hashes;
}

struct BenchLeaf {
  explicit BenchLeaf(const Size& size) {
    HolderRegistryOptions options;
    options.contract_id = HashContract().Id();
    options.receiver.lease_ttl = std::chrono::hours(1);
    registry = std::make_unique<HolderRegistry>(std::move(options));
    CheckpointOptions checkpoint;
    checkpoint.directory = size.directory;
    checkpoint.keep = 1;
    checkpointer = std::make_unique<Checkpointer>(checkpoint, registry.get(), nullptr, &metrics);
  }
  Metrics metrics;
  std::unique_ptr<HolderRegistry> registry;
  std::unique_ptr<Checkpointer> checkpointer;
};

Hello HelloOf(uint64_t holder) {
  Hello hello;
  hello.holder = {"worker-" + std::to_string(holder), 0, ""};
  hello.domain = kDomain;
  hello.block_size = 16;
  hello.contract_id = HashContract().Id();
  hello.epoch = 1;
  hello.instance_id = holder + 1;
  return hello;
}

void Fill(BenchLeaf* leaf, const Size& size) {
  for (uint64_t holder = 0; holder < size.holders; ++holder) {
    const auto session = leaf->registry->Accept([](ReceiverMessage) {});
    if (!session->OnMessage(HelloOf(holder)).ok()) std::abort();
    for (uint64_t chain = 0; chain < size.chains(); ++chain) {
      Batch batch;
      batch.number = chain + 1;
      batch.events = {Stored{.blocks = Chain(holder, chain, kChain)}};
      if (!session->OnMessage(std::move(batch)).ok()) std::abort();
    }
  }
}

struct Latencies {
  std::vector<uint32_t> ns;
  double At(double share) {
    std::sort(ns.begin(), ns.end());
    return ns.empty() ? 0
                      : ns[static_cast<size_t>(share * static_cast<double>(ns.size() - 1))] / 1e3;
  }
};

// Asks until told to stop, or often enough.
Latencies Ask(const BenchLeaf& leaf, const Size& size, const std::atomic<bool>* stop,
              size_t queries_max = SIZE_MAX) {
  Latencies latencies;
  std::mt19937_64 random(3);
  while (!stop->load(std::memory_order_relaxed) && latencies.ns.size() < queries_max) {
    const auto query = Chain(random() % size.holders, random() % size.chains(), kQuery);
    const Time begun = Clock::Real().Now();
    const auto answer = leaf.registry->FindOverlaps(kDomain, {.blocks = query});
    latencies.ns.push_back(static_cast<uint32_t>((Clock::Real().Now() - begun).count()));
    if (!answer.ok() || answer->holders.size() != 1 || answer->holders[0].blocks != kQuery)
      std::abort();
  }
  return latencies;
}

void Report(const char* when, Latencies latencies) {
  std::printf("queries %-22s %9zu   p50 %7.2f us   p99 %7.2f us   p99.9 %8.2f us\n", when,
              latencies.ns.size(), latencies.At(0.5), latencies.At(0.99), latencies.At(0.999));
}

int Run(const Size& size) {
  const double million = static_cast<double>(size.chains() * kChain * size.holders) / 1e6;
  auto leaf = std::make_unique<BenchLeaf>(size);
  Fill(leaf.get(), size);
  std::printf("%.2f M blocks of %llu holders\n", million,
              static_cast<unsigned long long>(size.holders));
  double cpu = CpuSeconds();
  const absl::StatusOr<CheckpointReport> now = leaf->checkpointer->WriteNow();
  cpu = CpuSeconds() - cpu;
  if (!now.ok()) {
    std::fprintf(stderr, "%s\n", now.status().ToString().c_str());
    return 1;
  }
  std::printf("written at full speed    %.2f s, %.2f s CPU, %.1f MB, %.2f bytes a block\n",
              Seconds(now->took), cpu, static_cast<double>(now->counts.bytes) / 1e6,
              static_cast<double>(now->counts.bytes) / static_cast<double>(now->counts.blocks));
  std::atomic<bool> stop{false};
  Latencies before, during;
  absl::StatusOr<CheckpointReport> beside = absl::UnavailableError("none");
  const auto ask_while = [&](Latencies* into, const std::function<void()>& what) {
    stop = false;
    std::thread asker([&] { *into = Ask(*leaf, size, &stop); });
    std::thread(what).join();
    stop = true;
    asker.join();
  };
  before = Ask(*leaf, size, &stop, kQueriesBefore);
  ask_while(&during, [&] { beside = leaf->checkpointer->WriteNow(/*paced=*/true); });
  if (!beside.ok()) return 1;
  Report("before", before);
  Report("while one is written", during);
  std::printf("written beside queries   %.2f s\n", Seconds(beside->took));

  leaf.reset();
  leaf = std::make_unique<BenchLeaf>(size);
  cpu = CpuSeconds();
  const absl::StatusOr<CheckpointReport> restored = leaf->checkpointer->Restore();
  cpu = CpuSeconds() - cpu;
  if (!restored.ok() || restored->counts.blocks != size.chains() * kChain * size.holders) return 1;
  const Time begun = Clock::Real().Now();
  for (uint64_t holder = 0; holder < size.holders; ++holder) {
    Hello hello = HelloOf(holder);
    hello.last_sent = size.chains();
    const auto session = leaf->registry->Accept([](ReceiverMessage) {});
    if (!session->OnMessage(std::move(hello)).ok()) return 1;
  }
  const Duration hellos = Clock::Real().Now() - begun;
  const absl::StatusOr<DomainStats> stats = leaf->registry->StatsOf(kDomain);
  if (!stats.ok()) return 1;
  for (const HolderStats& holder : stats->holders)
    if (holder.trust != Trust::kExact) return 1;
  std::printf(
      "restored                 %.2f s, %.2f s CPU; all exact after %.3f s more of hellos\n",
      Seconds(restored->took), cpu, Seconds(hellos));
  return 0;
}

}  // namespace
}  // namespace kvatlas

int main(int argc, char** argv) {
  kvatlas::Size size;
  if (argc > 4 || (argc > 1 && argv[1][0] == '-')) {
    const bool asked = argc == 2 && std::strcmp(argv[1], "--help") == 0;
    std::fprintf(asked ? stdout : stderr, "checkpoint_benchmark [BLOCKS [HOLDERS [DIRECTORY]]]\n");
    return asked ? 0 : 2;
  }
  if (argc > 1) size.blocks = std::strtoull(argv[1], nullptr, 10);
  if (argc > 2) size.holders = std::strtoull(argv[2], nullptr, 10);
  if (argc > 3) size.directory = argv[3];
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (size.holders == 0 || size.chains() == 0) {
    std::fprintf(stderr, "expected at least %zu blocks for each holder\n", kvatlas::kChain);
    return 2;
  }
  return kvatlas::Run(size);
}
