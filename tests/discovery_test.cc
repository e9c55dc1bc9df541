// A fleet without configured addresses: leaves, hierarchy nodes and frontends find each other in a
// real Redis, come, go and move, and no process is restarted for it.

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "indexer/base/await.h"
#include "indexer/base/clock.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/base/tier.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"
#include "publisher/publisher.h"
#include "tools/testing/cluster/process.h"
#include "tools/testing/servers/redis_test_server.h"

namespace kvatlas {
namespace {

constexpr Duration kReady = std::chrono::seconds(60);
constexpr uint32_t kBlockSize = 16;
constexpr const char* kModel = "mock";

// Of the hash contract; not the default, so that a process which ignores the flag is refused by the
// others.
constexpr uint64_t kSeed = 7;

// Prompts of blocks, different in each sequence.
std::vector<SequenceHash> Prompt(uint64_t sequence, size_t blocks) {
  std::vector<SequenceHash> prompt;
  for (size_t i = 0; i < blocks; ++i) prompt.push_back(SequenceHash{(sequence << 32) + i + 1});
  return prompt;
}

class DiscoveryTest : public ::testing::Test {
 protected:
  Process& Run(const std::string& name, const std::string& binary, std::vector<std::string> args) {
    args.insert(args.end(),
                {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0", "--announce=" + redis_.url(),
                 "--announce_lease=2s", "--contract_seed=" + std::to_string(kSeed)});
    std::unique_ptr<Process>& process = processes_[name];
    process = std::make_unique<Process>(
        ProcessOptions{.name = name,
                       .binary = binary,
                       .args = std::move(args),
                       .log = std::string(std::getenv("TEST_TMPDIR")) + "/" + name + ".log"});
    const absl::Status started = process->Start(kReady);
    EXPECT_TRUE(started.ok()) << started;
    return *process;
  }

  Process& RunNode(const std::string& name) {
    return Run(name, "hierarchy/kvatlas-hierarchy", {"--node=" + name});
  }

  // A cell with one worker that holds a prompt of its own.
  void RunCell(const std::string& cell, uint64_t sequence) {
    Process& leaf =
        Run(cell, "indexer/leaf/kvatlas-leaf", {"--cell=" + cell, "--parents=" + redis_.url()});
    PublisherOptions options;
    options.leaves = {leaf.address("grpc")};
    options.worker = "worker-of-" + cell;
    options.domain = {kModel, ""};
    options.block_size = kBlockSize;
    options.contract.seed = kSeed;
    auto publisher = Publisher::Create(options);
    ASSERT_TRUE(publisher.ok()) << publisher.status();
    (*publisher)->StoredHashed(Tier::kDevice, 0, kNoParent, Prompt(sequence, 64));
    EXPECT_TRUE((*publisher)->WaitAcknowledged(kReady));
    publishers_.push_back(*std::move(publisher));
  }

  // A replica of a cell's leaf that is in no flag.
  Process& RunReplica(const std::string& replica) {
    return Run("leaf-" + replica, "indexer/leaf/kvatlas-leaf",
               {"--cell=cell-a", "--replica=" + replica, "--parents=" + redis_.url()});
  }

  // Until a leaf itself says that the worker has all of a prompt, for certain.
  static void WaitKnows(const Process& leaf, uint64_t sequence) {
    const auto stub = v1::Leaf::NewStub(
        grpc::CreateChannel(leaf.address("grpc"), grpc::InsecureChannelCredentials()));
    v1::FindOverlapsRequest request;
    request.mutable_domain()->set_model(kModel);
    for (SequenceHash hash : Prompt(sequence, 64)) request.add_sequence_hashes(Raw(hash));
    std::string last;
    const auto knows = [&] {
      grpc::ClientContext context;
      v1::FindOverlapsResponse response;
      const grpc::Status status = stub->FindOverlaps(&context, request, &response);
      if (status.ok() && response.workers_size() == 1 && response.workers(0).blocks() == 64 &&
          response.workers(0).trust() == v1::TRUST_EXACT) {
        return true;
      }
      last = status.ok() ? response.ShortDebugString() : status.error_message();
      return false;
    };
    EXPECT_TRUE(Await(knows, kReady)) << leaf.name() << " does not know: " << last;
  }

  void RunFrontend() {
    Process& frontend = Run("frontend", "frontend/kvatlas-frontend",
                            {"--hierarchy=" + redis_.url(), "--leaves=" + redis_.url()});
    frontend_ = v1::Frontend::NewStub(
        grpc::CreateChannel(frontend.address("grpc"), grpc::InsecureChannelCredentials()));
  }

  absl::StatusOr<v1::RouteResponse> Route(uint64_t sequence) {
    grpc::ClientContext context;
    v1::RouteRequest request;
    request.mutable_domain()->set_model(kModel);
    for (SequenceHash hash : Prompt(sequence, 64)) request.add_sequence_hashes(Raw(hash));
    request.set_prompt_tokens(64 * 16 + 1);  // a token behind them: all can be reused
    request.set_deadline_ms(1000);
    v1::RouteResponse response;
    const grpc::Status status = frontend_->Route(&context, request, &response);
    if (!status.ok()) return absl::UnavailableError(status.error_message());
    return response;
  }

  // Until a prompt is routed to the worker that has all of it, by way of the hierarchy.
  void WaitRouted(uint64_t sequence, const std::string& worker) {
    const Time until = Clock::Real().Now() + kReady;
    std::string last;
    while (Clock::Real().Now() < until) {
      const absl::StatusOr<v1::RouteResponse> route = Route(sequence);
      if (route.ok() && route->worker().name() == worker && route->overlap_blocks() == 64 &&
          route->receipt().fallback() == v1::FALLBACK_NONE) {
        return;
      }
      last = route.ok() ? route->ShortDebugString() : route.status().ToString();
      Mutex mutex;
      CondVar never;
      MutexLock lock(&mutex);
      never.WaitFor(&mutex, std::chrono::milliseconds(20));
    }
    FAIL() << "not routed to " << worker << ": " << last;
  }

  RedisTestServer redis_;
  std::map<std::string, std::unique_ptr<Process>> processes_;
  std::vector<std::unique_ptr<Publisher>> publishers_;
  std::unique_ptr<v1::Frontend::Stub> frontend_;
};

TEST_F(DiscoveryTest, CellsAndNodesComeGoAndMoveWithoutARestartAnywhere) {
  // No node is there when the frontend and the first cell start.
  RunFrontend();
  RunCell("cell-a", 1);
  Process& first = RunNode("node-1");
  WaitRouted(1, "worker-of-cell-a");

  // Another cell, while requests go on.
  RunCell("cell-b", 2);
  WaitRouted(2, "worker-of-cell-b");

  // The node dies for ever; another one, elsewhere, takes over.
  first.Kill();
  RunNode("node-2");
  WaitRouted(1, "worker-of-cell-a");
  WaitRouted(2, "worker-of-cell-b");

  // Redis is unreachable: no process forgets another.
  redis_.Kill();
  for (int i = 0; i < 20; ++i)
    WaitRouted(1 + i % 2, i % 2 == 0 ? "worker-of-cell-a" : "worker-of-cell-b");
  redis_.Start();  // empty: all announce themselves again
  RunCell("cell-c", 3);
  WaitRouted(3, "worker-of-cell-c");
}

// Engines that run find a replica of their leaf that is added under load, and go on when the first
// one dies for ever.
TEST_F(DiscoveryTest, AReplicaAddedUnderLoadIsToldByEnginesThatRun) {
  RunFrontend();
  RunNode("node-1");
  Process& first = RunReplica("a");
  PublisherOptions options;
  options.leaves = {redis_.url()};
  options.cell = "cell-a";
  options.worker = "worker";
  options.domain = {kModel, ""};
  options.block_size = kBlockSize;
  options.contract.seed = kSeed;
  const auto publisher = Publisher::Create(options);
  ASSERT_TRUE(publisher.ok()) << publisher.status();
  (*publisher)->StoredHashed(Tier::kDevice, 0, kNoParent, Prompt(1, 64));
  WaitRouted(1, "worker");

  // The load: the engine goes on saying things until the end.
  std::atomic<uint64_t> said{1};
  std::atomic<bool> done{false};
  std::thread engine([&] {
    while (!done.load() && said.load() < 5000) {
      (*publisher)->StoredHashed(Tier::kDevice, 0, kNoParent, Prompt(said.load() + 1, 64));
      EXPECT_TRUE((*publisher)->WaitAcknowledged(kReady));
      ++said;
    }
  });
  Process& second = RunReplica("b");
  // It knows what was said before it came, by itself.
  WaitKnows(second, 1);
  WaitRouted(1, "worker");
  first.Kill();
  for (int i = 0; i < 20; ++i) WaitRouted(1, "worker");
  done = true;
  engine.join();
  WaitKnows(second, said.load());
  WaitRouted(said.load(), "worker");
}

}  // namespace
}  // namespace kvatlas
