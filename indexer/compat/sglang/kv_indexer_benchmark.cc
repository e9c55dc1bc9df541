// How many prefix queries of SGLang's router does a leaf answer? Prompts of 118 blocks of 16
// tokens, 15 workers that hold more or less of each, in process on one core, and over gRPC on the
// machine's own.
//
//   bazel run -c opt //indexer/compat/sglang:kv_indexer_benchmark
//
// `decode` reads the request from its bytes too, and writes the answer to bytes: what is left of a
// call is gRPC's.

#include <benchmark/benchmark.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/compat/sglang/kv_indexer.h"
#include "indexer/compat/sglang/kv_indexer_service.h"
#include "indexer/kv_events/sglang_block_hash.h"
#include "indexer/net/arena_messages.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/net/grpc_server.h"
#include "indexer/registry/holder_handle.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {
namespace {

namespace wire = ::kv_indexer::v1;

constexpr size_t kBlocks = 118;
constexpr size_t kWorkers = 15;
constexpr uint32_t kBlockSize = 16;
const Domain kDomain{"m", ""};

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

// A fleet that holds some prompts: each worker a random part of each, one of them all.
class Fleet {
 public:
  explicit Fleet(size_t prompts) : registry_(HolderRegistryOptions()) {
    options_.domain = kDomain;
    names_ = SglangBlockHashes::Create(options_.names);
    indexer_ = std::make_unique<KvIndexer>(options_, &registry_, names_.get());
    for (size_t i = 0; i < kWorkers; ++i) {
      const std::string name = "worker-" + std::to_string(i);
      holders_.push_back(*registry_.AddLocal(
          kDomain, kBlockSize,
          {.id = {name, 0, ""},
           .address = "",
           .labels = {{"zone", "a"}, {"url", "http://10.0.0." + std::to_string(i) + ":30000"}}}));
    }
    std::mt19937_64 random(1);
    PageNamer namer(names_.get(), /*is_sglang=*/false);
    for (size_t prompt = 0; prompt < prompts; ++prompt) Add(&random, &namer);
  }

  KvIndexerOptions options() const { return options_; }
  const HolderRegistry& registry() const { return registry_; }
  const SglangBlockHashes& names() const { return *names_; }
  const KvIndexer& indexer() const { return *indexer_; }
  const wire::MatchExternalKvPrefixRequest& request(size_t i) const {
    return requests_[i * 7919 % requests_.size()];
  }
  const std::string& bytes(size_t i) const { return bytes_[i * 7919 % bytes_.size()]; }

 private:
  void Add(std::mt19937_64* random, PageNamer* namer) {
    std::vector<TokenId> tokens(kBlocks * kBlockSize);
    for (TokenId& token : tokens) token = static_cast<TokenId>((*random)() % 150000);
    const std::vector<SequenceHash> sequence = SequenceHashes(
        LocalHashes(tokens, {.block_size = kBlockSize, .eagle = false}, BlockSeed({}, {})), {});
    wire::MatchExternalKvPrefixRequest request;
    for (size_t i = 0; i < kBlocks; ++i) {
      namer->Placed({.name = {.value = (*random)(), .bytes = {}},
                     .block = sequence[i],
                     .parent = i == 0 ? kNoParent : sequence[i - 1],
                     .tokens = std::span(tokens).subspan(i * kBlockSize, kBlockSize),
                     .plain = true});
      request.add_hashes(
          static_cast<int64_t>(PageNameOf(names_->FindDigest(sequence[i]).value_or(PageDigest()))));
    }
    for (size_t i = 0; i < kWorkers; ++i) {
      const size_t held = i == 0 ? kBlocks : 1 + (*random)() % kBlocks;
      Stored run;
      run.blocks.assign(sequence.begin(), sequence.begin() + static_cast<ptrdiff_t>(held));
      Check(holders_[(i + requests_.size()) % kWorkers]->Apply(run));
    }
    bytes_.push_back(request.SerializeAsString());
    requests_.push_back(std::move(request));
  }

  KvIndexerOptions options_;
  HolderRegistry registry_;
  std::unique_ptr<SglangBlockHashes> names_;
  std::unique_ptr<KvIndexer> indexer_;
  std::vector<std::unique_ptr<HolderHandle>> holders_;
  std::vector<wire::MatchExternalKvPrefixRequest> requests_;
  std::vector<std::string> bytes_;
};

const Fleet& FleetOf(size_t prompts) {
  static std::unique_ptr<Fleet> fleet;
  static size_t of = 0;
  if (std::exchange(of, prompts) != prompts) {
    fleet.reset();
    fleet = std::make_unique<Fleet>(prompts);
  }
  return *fleet;
}

void Names(benchmark::State& state) {
  const Fleet& fleet = FleetOf(static_cast<size_t>(state.range(0)));
  std::vector<SequenceHash> blocks;
  size_t i = 0;
  for (auto _ : state) {
    const auto& hashes = fleet.request(i++).hashes();
    fleet.names().FindPrefix({reinterpret_cast<const uint64_t*>(hashes.data()), kBlocks}, &blocks);
    if (blocks.size() != kBlocks) state.SkipWithError("a name is missing");
  }
  state.SetItemsProcessed(state.iterations());
  state.counters["bytes_a_block"] = static_cast<double>(fleet.names().Stats().bytes) /
                                    static_cast<double>(fleet.names().Stats().names);
}
BENCHMARK(Names)->Arg(100)->Arg(10000);

void Answer(benchmark::State& state) {
  const Fleet& fleet = FleetOf(static_cast<size_t>(state.range(0)));
  google::protobuf::Arena arena;
  std::string trust;
  size_t i = 0;
  for (auto _ : state) {
    auto* const response =
        google::protobuf::Arena::CreateMessage<wire::MatchExternalKvPrefixResponse>(&arena);
    Check(fleet.indexer().MatchPrefix(fleet.request(i++), response, &trust));
    if (response->best_prefix_blocks() != kBlocks) state.SkipWithError("wrong");
    arena.Reset();
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(Answer)->Arg(100)->Arg(10000);

void Decode(benchmark::State& state) {
  const Fleet& fleet = FleetOf(static_cast<size_t>(state.range(0)));
  ArenaMessages<wire::MatchExternalKvPrefixRequest, wire::MatchExternalKvPrefixResponse> messages;
  std::string trust, out;
  size_t i = 0;
  for (auto _ : state) {
    auto* const holder = messages.AllocateMessages();
    if (!holder->request()->ParseFromString(fleet.bytes(i++))) state.SkipWithError("bytes");
    Check(fleet.indexer().MatchPrefix(*holder->request(), holder->response(), &trust));
    out.clear();
    holder->response()->AppendToString(&out);
    benchmark::DoNotOptimize(out.data());
    holder->Release();
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(Decode)->Arg(100)->Arg(10000);

// The cost of naming a block at ingest where names are computed.
void NameABlock(benchmark::State& state) {
  const bool is_sglang = state.range(0) != 0;
  std::unique_ptr<SglangBlockHashes> names = SglangBlockHashes::Create();
  auto namer = std::make_unique<PageNamer>(names.get(), is_sglang);
  std::vector<TokenId> tokens(kBlockSize, 7);
  uint64_t block = 0;
  for (auto _ : state) {
    if (block % (1 << 20) == 0) {
      names = SglangBlockHashes::Create();
      namer = std::make_unique<PageNamer>(names.get(), is_sglang);
    }
    const SequenceHash parent = block % 128 == 0 ? kNoParent : SequenceHash{block};
    ++block;
    tokens[0] = static_cast<TokenId>(block);
    namer->Placed({.name = {.value = block * 0x9e3779b97f4a7c15, .bytes = {}},
                   .block = SequenceHash{block},
                   .parent = parent,
                   .tokens = tokens,
                   .plain = true});
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(NameABlock)->Arg(0)->Arg(1);

// Calls as a router makes them, `range(1)` at a time, all on this machine: client and server share
// its cores.
void Grpc(benchmark::State& state) {
  const Fleet& fleet = FleetOf(static_cast<size_t>(state.range(0)));
  Metrics metrics;
  KvIndexerOptions options = fleet.options();
  options.in_flight_max = 1 << 20;
  KvIndexerService service(
      options, &fleet.registry(), &fleet.names(), [] { return true; }, &metrics);
  GrpcServer server({.listen = {"127.0.0.1", 0}});
  server.Register(&service, "kv_indexer.v1.KVIndexer");
  Check(server.Start());
  const auto stub = wire::KVIndexer::NewStub(MakeChannel(server.address().ToString()));
  const int callers = static_cast<int>(state.range(1));
  std::atomic<bool> stop{false};
  std::atomic<uint64_t> answered{0}, failed{0};
  std::vector<std::thread> threads;
  for (int caller = 0; caller < callers; ++caller) {
    threads.emplace_back([&, caller] {
      for (size_t i = static_cast<size_t>(caller); !stop.load(std::memory_order_relaxed); ++i) {
        wire::MatchExternalKvPrefixResponse response;
        grpc::ClientContext context;
        if (!stub->MatchExternalKvPrefix(&context, fleet.request(i), &response).ok() ||
            response.best_prefix_blocks() != kBlocks)
          failed.fetch_add(1, std::memory_order_relaxed);
        answered.fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  uint64_t done = 0;
  for (auto _ : state) {
    // A thousand answers are one round.
    done += 1000;
    while (answered.load(std::memory_order_relaxed) < done) std::this_thread::yield();
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  if (failed.load() != 0) state.SkipWithError("calls failed");
  state.SetItemsProcessed(static_cast<int64_t>(done));
  server.Stop(Duration::zero());
}
BENCHMARK(Grpc)->Args({100, 1})->Args({100, 16})->UseRealTime();

}  // namespace
}  // namespace kvatlas

BENCHMARK_MAIN();
