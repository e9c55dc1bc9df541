// The cost of writing a snapshot of what engines hold, and of restoring it in another leaf.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/hash.h"
#include "indexer/checkpoint/dynamo_dump.h"
#include "indexer/checkpoint/replica_snapshot.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/kv_events/engine_event.h"
#include "indexer/kv_events/engine_worker.h"
#include "indexer/kv_events/stream_tracker.h"
#include "indexer/kv_events/zmq_ingest.h"
#include "indexer/registry/holder_registry.h"

namespace kvatlas {
namespace {

constexpr int kInstances = 16;
constexpr uint32_t kBlocks = 20000;  // of each, in chains of 100
constexpr uint32_t kChain = 100;

struct Leafs {
  Leafs() : ingest({}), registry(Options()), directory(DirectoryOptions(), &registry, &ingest) {}

  static HolderRegistryOptions Options() {
    HolderRegistryOptions options;
    options.contract_id = HashContract().Id();
    options.index.keep_local_hashes = true;
    return options;
  }
  static EngineDirectoryOptions DirectoryOptions() {
    EngineDirectoryOptions options;
    options.worker.keep_local_hashes = true;
    return options;
  }
  EngineWorker* Adopt(const std::string& instance) {
    EngineRegistration registration;
    registration.instance = instance;
    registration.model = "m";
    registration.block_size = 16;
    return directory.Adopt(registration, false).value().get();
  }

  ZmqIngest ingest;
  HolderRegistry registry;
  EngineDirectory directory;
};

// One instance's blocks, each chain its own.
void Fill(EngineWorker* worker, uint32_t instance) {
  for (uint32_t chain = 0; chain < kBlocks / kChain; ++chain) {
    std::vector<EngineBlockHash> hashes(kChain);
    std::vector<TokenId> tokens(size_t{kChain} * 16);
    for (uint32_t i = 0; i < kChain; ++i) hashes[i].value = uint64_t{chain} << 32 | (i + 1);
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<TokenId>(instance * 1000003 + chain * 5003 + i);
    EngineEvent event;
    event.kind = EngineEvent::Kind::kStored;
    event.hashes = hashes;
    event.tokens = tokens;
    event.block_size = 16;
    event.medium = "GPU";
    EngineBatch batch;
    batch.events.push_back(event);
    worker->Apply(0, batch, Clock::Real().Now());
  }
}

// A snapshot tells of instances that listen: endpoints without an engine.
std::unique_ptr<Leafs> Filled() {
  auto leafs = std::make_unique<Leafs>();
  for (int i = 0; i < kInstances; ++i) {
    Fill(leafs->Adopt(std::to_string(i)), static_cast<uint32_t>(i));
    EngineRegistration listening;
    listening.instance = std::to_string(i);
    listening.model = "m";
    listening.block_size = 16;
    listening.endpoint = "tcp://127.0.0.1:1";
    if (!leafs->directory.Register(listening).ok()) std::abort();
  }
  return leafs;
}

std::string All(const TextSource& source) {
  std::string text;
  while (source(&text)) {
  }
  return text;
}

ReadChunk From(const std::string& text, size_t* at) {
  return [&text, at](char* to, size_t size) -> absl::StatusOr<size_t> {
    size = std::min(size, text.size() - *at);
    text.copy(to, size, *at);
    *at += size;
    return size;
  };
}

class Restorer : public SnapshotVisitor, public DumpVisitor {
 public:
  explicit Restorer(Leafs* to) : to_(to) {}
  absl::Status OnInstance(const EngineEntry& entry) override {
    worker_ = to_->Adopt(instance_ = entry.instance);
    return absl::OkStatus();
  }
  absl::Status OnRank(const EngineEntry&, const EngineRankMark& mark) override {
    return worker_->RestoreRank(mark);
  }
  absl::Status OnName(const EngineEntry&, const EngineAlias& alias) override {
    return worker_->Restore(alias, /*more=*/true);
  }
  absl::Status OnPosition(const EngineEntry&, uint32_t,
                          const std::optional<StreamPosition>&) override {
    return absl::OkStatus();
  }
  absl::Status OnDomain(const Domain&, uint32_t) override { return absl::OkStatus(); }
  absl::Status OnBlock(const Domain&, const std::string& instance,
                       const EngineAlias& alias) override {
    if (instance != instance_) worker_ = to_->Adopt(instance_ = instance);
    return worker_->Restore(alias, /*more=*/true);
  }

 private:
  Leafs* const to_;
  std::string instance_;
  EngineWorker* worker_ = nullptr;
};

void Report(benchmark::State& state, size_t bytes) {
  state.counters["ns_per_block"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * kInstances * kBlocks / 1e9,
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
  state.counters["bytes_per_block"] = static_cast<double>(bytes) / (kInstances * kBlocks);
}

void BM_WriteSnapshot(benchmark::State& state) {
  const std::unique_ptr<Leafs> leafs = Filled();
  size_t bytes = 0;
  for (auto _ : state) bytes = All(ReplicaSnapshotSource({}, &leafs->directory, true)).size();
  Report(state, bytes);
}
BENCHMARK(BM_WriteSnapshot)->Unit(benchmark::kMillisecond);

void BM_RestoreSnapshot(benchmark::State& state) {
  const std::string text = All(ReplicaSnapshotSource({}, &Filled()->directory, true));
  for (auto _ : state) {
    Leafs to;
    Restorer restorer(&to);
    size_t at = 0;
    if (!ReadReplicaSnapshot({}, From(text, &at), &restorer).ok())
      state.SkipWithError("not restored");
  }
  Report(state, text.size());
}
BENCHMARK(BM_RestoreSnapshot)->Unit(benchmark::kMillisecond);

void BM_WriteDump(benchmark::State& state) {
  const std::unique_ptr<Leafs> leafs = Filled();
  size_t bytes = 0;
  for (auto _ : state) bytes = All(DumpSource(&leafs->directory)).size();
  Report(state, bytes);
}
BENCHMARK(BM_WriteDump)->Unit(benchmark::kMillisecond);

void BM_RestoreDump(benchmark::State& state) {
  const std::string text = All(DumpSource(&Filled()->directory));
  for (auto _ : state) {
    Leafs to;
    Restorer restorer(&to);
    size_t at = 0;
    if (!ReadDump({}, From(text, &at), &restorer).ok()) state.SkipWithError("not restored");
  }
  Report(state, text.size());
}
BENCHMARK(BM_RestoreDump)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvatlas

BENCHMARK_MAIN();
