// A real leaf, killed with -9 again and again while publishers and an engine go on: is it exact
// afterwards? And of publishers whose streams go through a log in Redis: did it go on in the log
// where its checkpoint stands?

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/engine_directory/pool_engine_test_util.h"
#include "indexer/leaf/http_transcript_test_util.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/net/redis_client.h"
#include "indexer/net/redis_reply.h"
#include "indexer/net/redis_url.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/transport/redis/redis_keys.h"
#include "indexer/transport/wire.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"
#include "publisher/publisher.h"
#include "tools/testing/cluster/process.h"
#include "tools/testing/servers/redis_test_server.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;

constexpr int kKills = 4;
const Domain kLlama{"llama-70b", ""};

// What a holder is said to hold, and how sure.
struct Recorder {
  std::vector<Stored> runs;
  Trust trust = Trust::kStale;
  std::set<uint64_t> blocks;
};

class LeafProcess {
 public:
  explicit LeafProcess(const std::string& directory,
                       std::vector<std::string> args = {"--checkpoint_every=100ms"})
      : checkpoints_(directory + "/checkpoints"),
        process_({.name = "leaf",
                  .binary = "indexer/leaf/kvatlas-leaf",
                  .args = With({"--grpc=127.0.0.1:0", "--http=127.0.0.1:0",
                                "--checkpoint_dir=" + checkpoints_, "--checkpoint_keep=2"},
                               std::move(args)),
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

  // A value of /metrics; nothing: it is not there.
  std::optional<double> Metric(const std::string& name) const {
    const absl::StatusOr<Address> address = Address::Parse(process_.address("http"));
    const std::string page = "\n" + HttpTestClient(*address).Get("/metrics").body;
    const size_t at = page.find("\n" + name + " ");
    if (at == std::string::npos) return std::nullopt;
    return std::stod(page.substr(at + name.size() + 2));
  }

  // Every holder of a domain; nothing while it cannot be asked.
  std::optional<std::map<HolderId, Recorder>> Dump(const Domain& domain) const {
    grpc::ClientContext context;
    v1::DumpRequest request;
    ToProto(domain, request.mutable_domain());
    const auto reader = stub_->Dump(&context, request);
    std::map<HolderId, Recorder> all;
    for (v1::DumpResponse response; reader->Read(&response);) {
      HolderId holder;
      if (!FromProto(response.worker(), &holder).ok()) return std::nullopt;
      Recorder& told = all[holder];
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

  const std::string& checkpoints() const { return checkpoints_; }

 private:
  static std::vector<std::string> With(std::vector<std::string> args,
                                       std::vector<std::string> more) {
    args.insert(args.end(), more.begin(), more.end());
    return args;
  }

  const std::string checkpoints_;
  Process process_;
  std::unique_ptr<v1::Leaf::Stub> stub_;
};

// A publisher and what it said.
class Worker {
 public:
  Worker(const std::string& name, const std::string& leaf, uint64_t seed)
      : Worker({.leaves = {leaf}, .worker = name, .domain = kLlama}, seed) {}
  // Through the log of a cell in Redis.
  Worker(const std::string& name, const RedisPublisherOptions& redis, uint64_t seed)
      : Worker({.redis = redis, .worker = name, .domain = kLlama}, seed) {}

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

  // Batches of its stream: what its log has, when nothing was trimmed.
  uint64_t batches() const { return publisher_->Stats().replicas[0].last_number; }
  bool WaitAcknowledged() { return publisher_->WaitAcknowledged(seconds(60)); }
  // Redis has them.
  uint64_t batches_logged() const { return publisher_->Stats().replicas[0].acknowledged; }

  // One change after the other, each a batch of its own.
  void RunLogged(int changes) {
    for (int i = 0; i < changes; ++i) {
      const uint64_t before = batches();
      Run(1);
      EXPECT_TRUE(Eventually([&] {
        const uint64_t said = batches();
        return said > before && batches_logged() >= said;
      }));
    }
  }

  const HolderId& holder() const { return holder_; }
  bool IsExact(const LeafProcess& leaf) {
    return Eventually([&] {
      const auto all = leaf.Dump(kLlama);
      if (!all.has_value() || !all->contains(holder_)) return false;
      const Recorder& told = all->at(holder_);
      return told.trust == Trust::kExact && told.blocks == held_;
    });
  }

 private:
  Worker(const PublisherOptions& options, uint64_t seed)
      : holder_{options.worker, 0, ""}, random_(seed), first_(seed << 32) {
    publisher_ = *Publisher::Create(options);
  }

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

std::string EmptyDirectory(const std::string& name) {
  const std::string directory = testing::TempDir() + "/" + name;
  std::filesystem::remove_all(directory);
  std::filesystem::create_directories(directory);
  return directory;
}

TEST(CheckpointTest, ALeafThatIsKilledAgainAndAgainIsExactAfterwards) {
  LeafProcess leaf(EmptyDirectory("checkpoint_test"));
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

// A leaf and two publishers with a Redis between them.
class CheckpointOfRedisTest : public ::testing::Test {
 protected:
  void StartLeaf(const std::string& checkpoint_every) {
    leaf_ = std::make_unique<LeafProcess>(
        EmptyDirectory("checkpoint_of_redis_test"),
        std::vector<std::string>{"--cell=" + through_.cell, "--redis=" + redis_.url(),
                                 "--checkpoint_every=" + checkpoint_every});
    const absl::Status started = leaf_->Start();
    ASSERT_TRUE(started.ok()) << started;
  }

  // Says so much that each worker's log has at least `kBatches`, and has it written into a
  // checkpoint.
  void FillAndCheckpoint() {
    StartLeaf("1h");
    for (int batch = 0; batch < kBatches; ++batch) {
      for (Worker* worker : {&a_, &b_}) {
        worker->Run(2);
        ASSERT_TRUE(worker->WaitAcknowledged());
      }
    }
    ASSERT_TRUE(a_.IsExact(*leaf_));
    ASSERT_TRUE(b_.IsExact(*leaf_));
    in_checkpoint_ = batches();
    of_a_in_checkpoint_ = a_.batches();
    const HttpAnswerText written = leaf_->Post("/checkpoint", "{}");
    ASSERT_EQ(written.status, 200) << written.body;
  }

  // kill -9 while the workers go on, who go on while it starts too.
  void KillAndRestart(const std::function<void()>& while_it_is_dead) {
    std::thread engine_a([this] { a_.RunLogged(kBatchesMeanwhile); });
    std::thread engine_b([this] { b_.RunLogged(kBatchesMeanwhile); });
    leaf_->Kill();
    while_it_is_dead();
    const absl::Status started = leaf_->Start();
    engine_a.join();
    engine_b.join();
    ASSERT_TRUE(started.ok()) << started;
    EXPECT_TRUE(a_.IsExact(*leaf_));
    EXPECT_TRUE(b_.IsExact(*leaf_));
  }

  uint64_t batches() const { return a_.batches() + b_.batches(); }
  double entries_read() const {
    return leaf_->Metric("kvatlas_leaf_redis_entries_read_total").value();
  }
  double snapshots_read() const {
    return leaf_->Metric("kvatlas_leaf_redis_snapshots_read_total").value();
  }

  static constexpr int kBatches = 60, kBatchesMeanwhile = 12;

  RedisTestServer redis_;
  const RedisPublisherOptions through_{.url = redis_.url(), .cell = "cell-a"};
  std::unique_ptr<LeafProcess> leaf_;
  Worker a_{"a", through_, 1};
  Worker b_{"b", through_, 2};
  uint64_t in_checkpoint_ = 0, of_a_in_checkpoint_ = 0;  // batches
};

TEST_F(CheckpointOfRedisTest, AKilledLeafGoesOnInTheLogWhereItsCheckpointStands) {
  FillAndCheckpoint();
  KillAndRestart([] {});
  EXPECT_EQ(snapshots_read(), 0);
  // Not a batch that is in the checkpoint is read again; entries may be looked at twice when a log
  // is opened.
  const uint64_t since = batches() - in_checkpoint_;
  ASSERT_LT(2 * since, in_checkpoint_) << "nothing would be proved";
  EXPECT_GT(entries_read(), 0);
  EXPECT_LE(entries_read(), 2.0 * static_cast<double>(since));
  EXPECT_EQ(leaf_->Metric("kvatlas_leaf_checkpoint_refused_total"), 0);
}

TEST_F(CheckpointOfRedisTest, WithoutItsCheckpointItReadsTheWholeLog) {
  FillAndCheckpoint();
  KillAndRestart([this] { std::filesystem::remove_all(leaf_->checkpoints()); });
  EXPECT_GE(entries_read() + snapshots_read() * static_cast<double>(in_checkpoint_),
            static_cast<double>(in_checkpoint_));
}

TEST_F(CheckpointOfRedisTest, ALogThatWasTrimmedBehindTheCheckpointIsMadeUpForByASnapshot) {
  FillAndCheckpoint();
  KillAndRestart([this] {
    ASSERT_TRUE(Eventually([this] { return a_.batches_logged() > of_a_in_checkpoint_ + 2; }));
    RedisClient client(*ParseRedisUrl(redis_.url()));
    const RedisStreamKeys keys(RedisTag(through_.cell, 0), RedisStreamName(a_.holder(), kLlama));
    const absl::StatusOr<RedisReply> trimmed = client.Call({"XTRIM", keys.log, "MAXLEN", "1"});
    ASSERT_TRUE(trimmed.ok()) << trimmed.status();
  });
  EXPECT_GE(snapshots_read(), 1);
}

TEST_F(CheckpointOfRedisTest, KilledAgainAndAgainWithItsRedisItIsExactAfterwards) {
  StartLeaf("100ms");
  for (int kill = 0; kill < kKills; ++kill) {
    SCOPED_TRACE("kill " + std::to_string(kill));
    KillAndRestart([&] {
      if (kill % 2 == 0) return;
      redis_.Kill();
      redis_.Start();  // empty
    });
  }
}

}  // namespace
}  // namespace kvatlas
