// How long is a leaf that starts with nothing without its workers? Publishers that hold many
// blocks, and a real leaf that forgot everything: snapshots over gRPC, until each publisher has
// been told that all of it is applied.
//
//   bazel run -c opt //tools/bench:snapshot_bench -- --blocks 10000000 --workers 8
//
// *Truth*: time counts from the leaf's ready line, with connections still to be made, to the last
// acknowledgement. Then the leaf is asked how many blocks it has of each worker, and for a prompt
// of each; others than are held are an error.
// *Threads*: the caller's, and the publishers' own. Both ends share this machine: processor seconds
// of each are beside.

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/durations.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/process/flags.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"
#include "publisher/publisher.h"
#include "tools/bench/service_bench_target.h"
#include "tools/testing/cluster/process.h"

namespace kvatlas {
namespace {

constexpr char kModel[] = "bench";
constexpr std::chrono::seconds kLong(600);

struct Options {
  uint64_t blocks = 10'000'000;  // of all workers together
  uint32_t workers = 8;
  uint32_t chain = 512;  // blocks of a sequence
  std::string leaf = "indexer/leaf/kvatlas-leaf";
  uint64_t chains() const { return blocks / workers / chain; }  // of a worker
};

std::vector<SequenceHash> Chain(const Options& options, uint32_t worker, uint64_t number) {
  std::vector<SequenceHash> chain;
  for (uint64_t i = 0; i < options.chain; ++i) {
    const uint64_t name = (uint64_t{worker} << 40) + number * options.chain + i + 1;
    chain.push_back(SequenceHash{DigestTerm(SequenceHash{name})});
  }
  return chain;
}

std::string NameOf(uint32_t worker) { return "worker-" + std::to_string(worker); }

absl::StatusOr<std::unique_ptr<Publisher>> FullPublisher(const Options& options,
                                                         const std::string& leaf, uint32_t worker) {
  PublisherOptions publishing;
  publishing.leaves = {leaf};
  publishing.worker = NameOf(worker);
  publishing.domain = {kModel, ""};
  publishing.sender.window_batches = 1;  // nothing to replay from
  auto publisher = Publisher::Create(std::move(publishing));
  if (!publisher.ok()) return publisher;
  for (uint64_t number = 0; number < options.chains(); ++number)
    (*publisher)->StoredHashed(Tier::kDevice, 0, kNoParent, Chain(options, worker, number));
  // In its resident set, not only in its queue: no receiver is there to acknowledge.
  while ((*publisher)->Stats().blocks_held < options.chains() * options.chain)
    (*publisher)->WaitAcknowledged(std::chrono::milliseconds(10));
  return publisher;
}

absl::Status CheckLeaf(const Options& options, const std::string& address) {
  const auto stub = v1::Leaf::NewStub(MakeChannel(address));
  for (uint32_t worker = 0; worker < options.workers; ++worker) {
    grpc::ClientContext context;
    v1::FindOverlapsRequest request;
    request.mutable_domain()->set_model(kModel);
    for (const SequenceHash block : Chain(options, worker, options.chains() - 1))
      request.add_sequence_hashes(Raw(block));
    v1::FindOverlapsResponse response;
    const grpc::Status status = stub->FindOverlaps(&context, request, &response);
    if (!status.ok()) return absl::UnavailableError(status.error_message());
    if (response.workers_size() != 1 || response.workers(0).worker().name() != NameOf(worker) ||
        response.workers(0).blocks() != options.chain ||
        response.workers(0).trust() != v1::TRUST_EXACT)
      return absl::InternalError("a wrong answer: " + response.ShortDebugString());
  }
  return absl::OkStatus();
}

double CpuOf(pid_t pid) { return BenchTarget::CpuSecondsOf(pid).value_or(0); }

absl::Status Run(const Options& options) {
  Process leaf({.name = "leaf",
                .binary = options.leaf,
                .args = {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0", "--exit_with_parent=true"},
                .log = "/tmp/kvatlas_snapshot_bench.log"});
  if (absl::Status bad = leaf.Start(kLong); !bad.ok()) return bad;
  const std::string address = leaf.address("grpc");
  leaf.Kill();
  std::vector<std::unique_ptr<Publisher>> publishers;
  for (uint32_t worker = 0; worker < options.workers; ++worker) {
    auto publisher = FullPublisher(options, address, worker);
    if (!publisher.ok()) return publisher.status();
    publishers.push_back(*std::move(publisher));
  }
  if (absl::Status bad = leaf.Start(kLong); !bad.ok()) return bad;
  const Time begun = Clock::Real().Now();
  const double own = CpuOf(getpid()), its = CpuOf(leaf.pid());
  for (const auto& publisher : publishers)
    if (!publisher->WaitAcknowledged(kLong)) return absl::DeadlineExceededError("no end");
  const double took = Seconds(Clock::Real().Now() - begun);
  const double own_cpu = CpuOf(getpid()) - own, its_cpu = CpuOf(leaf.pid()) - its;
  if (absl::Status bad = CheckLeaf(options, address); !bad.ok()) return bad;
  if (publishers[0]->Stats().replicas[0].sender.snapshots_sent == 0)
    return absl::InternalError("it was told without a snapshot");
  uint64_t bytes = 0, blocks = 0, snapshots = 0;
  for (const auto& publisher : publishers) {
    const PublisherStats stats = publisher->Stats();
    bytes += stats.replicas[0].bytes_sent;
    snapshots += stats.replicas[0].sender.snapshots_sent;
    blocks += stats.blocks_held;
  }
  const double per_block = 1e9 / static_cast<double>(blocks);
  std::printf("%.2f M blocks of %u workers in %llu snapshots\n", static_cast<double>(blocks) / 1e6,
              options.workers, static_cast<unsigned long long>(snapshots));
  std::printf("exact after              %.2f s, %.2f M blocks/s\n", took,
              static_cast<double>(blocks) / took / 1e6);
  std::printf("bytes a block            %.2f\n",
              static_cast<double>(bytes) / static_cast<double>(blocks));
  std::printf("processor, ns a block    publishers %.0f, leaf %.0f\n", own_cpu * per_block,
              its_cpu * per_block);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  FlagSet flags("snapshot_bench", "How long is a leaf that forgot everything without its workers?");
  flags.Add("blocks", &options.blocks, "blocks of all workers together", uint64_t{1});
  flags.Add("workers", &options.workers, "publishers that hold them", 1u, 1024u);
  flags.Add("chain", &options.chain, "blocks of a sequence", 1u, 65536u);
  flags.Add("leaf", &options.leaf, "kvatlas-leaf");
  flags.ParseOrExit(argc, argv);
  if (options.chains() == 0) {
    std::fprintf(stderr, "snapshot_bench: less than a sequence for each worker\n");
    return 2;
  }
  const absl::Status status = Run(options);
  if (!status.ok()) std::fprintf(stderr, "snapshot_bench: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace kvatlas

int main(int argc, char** argv) { return kvatlas::Main(argc, argv); }
