// A real leaf, killed with -9 again and again while publishers and an engine go on: is it exact afterwards?

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/holders/holder_registry.h"
#include "indexer/leaf/http_transcript_test_util.h"
#include "indexer/leaf/pool_engine_test_util.h"
#include "indexer/service/address.h"
#include "indexer/service/grpc_channel.h"
#include "indexer/transport/wire.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"
#include "publisher/publisher.h"
#include "tools/cluster/process.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;

constexpr int kKills = 4;
const Domain kLlama{"llama-70b", ""};

// What a holder is said to hold, and how sure.
struct Told {
  std::vector<Stored> runs;
  Trust trust = Trust::kStale;
  std::set<uint64_t> blocks;
};

class LeafProcess {
 public:
  explicit LeafProcess(const std::string& directory)
      : process_({.name = "leaf",
                  .binary = "indexer/leaf/kvatlas-leaf",
                  .args = {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0",
                           "--checkpoint_dir=" + directory + "/checkpoints",
                           "--checkpoint_every=100ms", "--checkpoint_keep=2"},
                  .log = directory + "/leaf.log"}) {}

  absl::Status Start() {
    absl::Status status = process_.Start(seconds(60));
    if (status.ok()) stub_ = v1::Leaf::NewStub(MakeChannel(address()));
    return status;
  }
  void Kill() { process_.Kill(); }
  std::string address() const { return process_.address("grpc"); }

  // What it answers to a POST.
  HttpAnswerText Post(const std::string& path, const std::string& body) const {
    const absl::StatusOr<Address> address = Address::Parse(process_.address("http"));
    return HttpTestClient(*address).Post(path, body);
  }

  // Every holder of a domain; nothing while it cannot be asked.
  std::optional<std::map<HolderId, Told>> Dump(const Domain& domain) const {
    grpc::ClientContext context;
    v1::DumpRequest request;
    ToProto(domain, request.mutable_domain());
    const auto reader = stub_->Dump(&context, request);
    std::map<HolderId, Told> all;
    for (v1::DumpResponse response; reader->Read(&response);) {
      HolderId holder;
      if (!FromProto(response.worker(), &holder).ok()) return std::nullopt;
      Told& told = all[holder];
      if (!FromProto(response.trust(), &told.trust).ok()) return std::nullopt;
      for (const v1::Stored& stored : response.stored()) {
        Stored run;
        if (!FromProto(stored, &run).ok()) return std::nullopt;
        for (const SequenceHash block : run.blocks) told.blocks.insert(Raw(block));
        told.runs.push_back(std::move(run));
      }
    }
    if (!reader->Finish().ok()) return std::nullopt;
    return all;
  }

 private:
  Process process_;
  std::unique_ptr<v1::Leaf::Stub> stub_;
};

// A publisher and what it said.
class Worker {
 public:
  Worker(const std::string& name, const std::string& leaf, uint64_t seed)
      : holder_{name, 0, ""}, random_(seed), first_(seed << 32) {
    PublisherOptions options;
    options.leaves = {leaf};
    options.worker = name;
    options.domain = kLlama;
    publisher_ = *Publisher::Create(options);
  }

  void Run(int changes) {
    for (int i = 0; i < changes; ++i) {
      if (random_() % 3 != 0 || held_.empty()) {
        std::vector<SequenceHash> chain;
        for (int block = 0; block < 20; ++block) chain.push_back(SequenceHash{++first_});
        EXPECT_TRUE(publisher_->StoredHashed(Tier::kDevice, 0, kNoParent, chain));
        for (const SequenceHash block : chain) held_.insert(Raw(block));
      } else {
        auto it = held_.lower_bound(*held_.begin() + random_() % (first_ - *held_.begin() + 1));
        if (it == held_.end()) it = held_.begin();
        const SequenceHash gone{*it};
        held_.erase(it);
        EXPECT_TRUE(publisher_->RemovedHashed(Tier::kDevice, {&gone, 1}));
      }
    }
    publisher_->Flush();
  }

  bool IsExact(const LeafProcess& leaf) {
    return Eventually([&] {
      const auto all = leaf.Dump(kLlama);
      if (!all.has_value() || !all->contains(holder_)) return false;
      const Told& told = all->at(holder_);
      return told.trust == Trust::kExact && told.blocks == held_;
    });
  }

 private:
  const HolderId holder_;
  std::mt19937_64 random_;
  uint64_t first_;
  std::set<uint64_t> held_;
  std::unique_ptr<Publisher> publisher_;
};

// How the leaf's contents differ from the engine's pool; empty: in nothing.
std::string Compare(const LeafProcess& leaf, const PoolEngine& engine,
                    const EngineRegistration& of) {
  const Domain domain = DomainOf(of.model, of.group);
  const auto all = leaf.Dump(domain);
  const HolderId id{of.instance, of.rank, ""};
  if (!all.has_value() || !all->contains(id)) return "not there";
  if (all->at(id).trust != Trust::kExact) return "not exact";
  HolderRegistryOptions options;
  options.contract_id = HashContract().Id();
  HolderRegistry registry(options);
  HolderInfo info;
  info.id = id;
  const auto holder = registry.AddLocal(domain, of.block_size, info);
  if (!holder.ok()) return holder.status().ToString();
  for (const Stored& run : all->at(id).runs) (*holder)->Apply(run).IgnoreError();
  return engine.Compare(registry, of.instance);
}

TEST(CheckpointTest, ALeafThatIsKilledAgainAndAgainIsExactAfterwards) {
  const std::string directory = testing::TempDir() + "/checkpoint_test";
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  LeafProcess leaf(directory);
  ASSERT_TRUE(leaf.Start().ok());
  PoolEngine engine({.seed = 31, .replay = true});
  const EngineRegistration registration = engine.Registration("1");
  Worker a("a", leaf.address(), 1), b("b", leaf.address(), 2);
  const HttpAnswerText registered = leaf.Post(
      "/register", "{\"instance_id\":1,\"endpoint\":\"" + registration.endpoint +
                       "\",\"replay_endpoint\":\"" + registration.replay_endpoint +
                       "\",\"model_name\":\"" + registration.model +
                       "\",\"block_size\":" + std::to_string(registration.block_size) + "}");
  ASSERT_EQ(registered.status / 100, 2) << registered.body;
  engine.sockets().WaitForSubscribers();
  for (int kill = 0; kill < kKills; ++kill) {
    SCOPED_TRACE("before kill " + std::to_string(kill));
    a.Run(200);
    engine.Run(50);
    b.Run(200);
    if (kill % 2 == 0) {
      ASSERT_TRUE(a.IsExact(leaf));
      ASSERT_TRUE(Eventually([&] { return Compare(leaf, engine, registration).empty(); }));
      const HttpAnswerText written = leaf.Post("/checkpoint", "{}");
      ASSERT_EQ(written.status, 200) << written.body;
    }
    leaf.Kill();
    a.Run(50);
    engine.Run(20, /*lost=*/true);
    const absl::Status started = leaf.Start();
    ASSERT_TRUE(started.ok()) << started;
    b.Run(50);
    EXPECT_TRUE(a.IsExact(leaf));
    EXPECT_TRUE(b.IsExact(leaf));
    EXPECT_TRUE(Eventually([&] { return Compare(leaf, engine, registration).empty(); }))
        << Compare(leaf, engine, registration);
  }
}

}  // namespace
}  // namespace kvatlas
