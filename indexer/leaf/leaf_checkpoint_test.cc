// A leaf that was killed and started again from its checkpoint, publishers and engines over real
// sockets: what is true afterwards.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/base/overlap.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/engine_directory/pool_engine_test_util.h"
#include "indexer/leaf/leaf.h"
#include "indexer/stream/resident_set.h"
#include "indexer/stream/sender.h"
#include "indexer/stream/sender_pump.h"
#include "indexer/transport/grpc_link.h"
#include "tools/testing/servers/reserved_test_ports.h"
#include "tools/testing/servers/zmq_test_engine.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing::Not;

const Domain kLlama{"llama-70b", "tenant-a"};

// A directory of this test's own.
std::string CheckpointDirectory() {
  const std::string path = testing::TempDir() + "/leaf_checkpoint_test_" +
                           testing::UnitTest::GetInstance()->current_test_info()->name();
  std::filesystem::remove_all(path);
  return path;
}

LeafOptions Options(const std::string& directory, const Address& grpc = {"127.0.0.1", 0}) {
  LeafOptions options;
  options.grpc = grpc;
  options.http = {"127.0.0.1", 0};
  options.engines.ingest.reconnect_min = milliseconds(10);
  options.engines.ingest.reconnect_max = milliseconds(50);
  // Longer than any engine takes: replays must not time out.
  options.engines.ingest.tracker.replay_timeout = seconds(60);
  options.checkpoint.directory = directory;
  options.checkpoint.every = std::chrono::hours(1);
  return options;
}

std::unique_ptr<Leaf> Start(LeafOptions options) {
  absl::StatusOr<std::unique_ptr<Leaf>> leaf = Leaf::Start(std::move(options));
  EXPECT_TRUE(leaf.ok()) << leaf.status();
  return leaf.ok() ? *std::move(leaf) : nullptr;
}

// A worker with the stream's real sending end, which does not know that a leaf was killed.
class Worker {
 public:
  Worker(const std::string& name, const Address& leaf)
      : holder_{name, 0, ""},
        pump_({},
              {.holder = holder_,
               .domain = kLlama,
               .block_size = 16,
               .contract_id = HashContract().Id(),
               .schedule = "",
               .address = "",
               .labels = {},
               .epoch = WallTimeNs(),
               .instance_id = RandomInstanceId()},
              &resident_, &mutex_, std::make_unique<GrpcLink>(leaf.ToString()), &Clock::Real()),
        timer_([this] { Run(); }) {
    pump_.Start();
  }
  ~Worker() {
    {
      MutexLock lock(&timer_mutex_);
      stopping_ = true;
      wake_.SignalAll();
    }
    timer_.join();
    pump_.Stop(/*goodbye=*/false, seconds(1));
  }

  void Send(const Event& event) {
    {
      MutexLock lock(&mutex_);
      pump_.Append(resident_.Apply(event), std::nullopt);
    }
    pump_.Flush();
  }
  const HolderId& holder() const { return holder_; }
  SenderStats stats() const { return pump_.stats(); }
  // The leaf knows all of it, and says that it does.
  bool IsExact(const Leaf& leaf) {
    return Eventually([&] {
      if (!pump_.AtRest()) return false;
      const auto dump = leaf.registry().Dump(kLlama, holder_);
      if (!dump.ok() || dump->trust != Trust::kExact) return false;
      ResidentSet told;
      for (const Stored& run : dump->runs) told.Apply(run);
      MutexLock lock(&mutex_);
      return told.digest() == resident_.digest();
    });
  }

 private:
  void Run() {
    MutexLock lock(&timer_mutex_);
    while (!stopping_) {
      timer_mutex_.Unlock();
      pump_.Tick();
      timer_mutex_.Lock();
      if (!stopping_) wake_.WaitFor(&timer_mutex_, milliseconds(20));
    }
  }

  const HolderId holder_;
  Mutex mutex_;
  ResidentSet resident_ ABSL_GUARDED_BY(mutex_);
  SenderPump pump_;
  Mutex timer_mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(timer_mutex_) = false;
  std::thread timer_;
};

std::vector<SequenceHash> Sequence(uint64_t first, size_t blocks) {
  std::vector<SequenceHash> sequence;
  for (uint64_t i = 0; i < blocks; ++i) sequence.push_back(SequenceHash{first + i});
  return sequence;
}

Trust TrustOf(Leaf& leaf, const std::string& instance) {
  for (const EngineEntry& entry : leaf.engines().List())
    if (entry.instance == instance && !entry.worker.ranks.empty())
      return entry.worker.ranks[0].trust;
  return Trust::kStale;
}

bool IsExact(Leaf& leaf, const PoolEngine& engine, const std::string& instance) {
  return Eventually([&] {
    return engine.Compare(leaf.registry(), instance).empty() &&
           TrustOf(leaf, instance) == Trust::kExact;
  });
}

TEST(LeafCheckpointTest, PublishersGoOnWhereTheCheckpointIs) {
  const std::string directory = CheckpointDirectory();
  ReservedTestPorts held;
  const Address grpc = held.HoldAny();
  std::unique_ptr<Leaf> leaf = Start(Options(directory, grpc));
  Worker worker("w", grpc);
  worker.Send(Stored{.blocks = Sequence(1, 1000)});
  ASSERT_TRUE(worker.IsExact(*leaf));
  ASSERT_TRUE(leaf->Checkpoint().ok());
  worker.Send(Removed{.blocks = Sequence(500, 100)});
  ASSERT_TRUE(worker.IsExact(*leaf));
  leaf.reset();  // as if killed: no last one
  worker.Send(Stored{.blocks = Sequence(5000, 10)});
  leaf = Start(Options(directory, grpc));
  // Before its publisher was heard the holder is there, and not exact.
  EXPECT_TRUE(leaf->registry().PositionOf(kLlama, worker.holder()).has_value());
  EXPECT_TRUE(worker.IsExact(*leaf));
  EXPECT_EQ(worker.stats().snapshots_sent, 0);
}

TEST(LeafCheckpointTest, ALeafIsNotReadyBeforeItsPublishersAreCaughtUpWith) {
  const std::string directory = CheckpointDirectory();
  ReservedTestPorts held;
  const Address grpc = held.HoldAny();
  LeafOptions options = Options(directory, grpc);
  options.registry.receiver.lease_ttl = std::chrono::hours(1);
  options.engines.ready_after = std::chrono::hours(1);
  std::unique_ptr<Leaf> leaf = Start(options);
  EXPECT_TRUE(leaf->readiness().ready) << "there was no publisher to wait for";
  Worker worker("w", grpc);
  worker.Send(Stored{.blocks = Sequence(1, 1000)});
  ASSERT_TRUE(worker.IsExact(*leaf));
  leaf->Stop(seconds(5));
  leaf.reset();
  // Another port: its publisher does not find it there.
  options.grpc = {"127.0.0.1", 0};
  leaf = Start(options);
  EXPECT_EQ(leaf->readiness().reason, "1 workers are not caught up with");
  leaf.reset();
  options.grpc = grpc;
  leaf = Start(options);
  EXPECT_TRUE(Eventually([&] { return leaf->readiness().ready; })) << leaf->readiness().reason;
  EXPECT_TRUE(worker.IsExact(*leaf));
}

// An answer does not show that a part of an engine's blocks is still missing.
TEST(LeafCheckpointTest, ALeafIsNotReadyBeforeItsEnginesAreCaughtUpWith) {
  const std::string directory = CheckpointDirectory();
  PoolEngine replays({.seed = 41, .replay = true}), cannot({.seed = 42});
  LeafOptions options = Options(directory);
  options.registry.receiver.lease_ttl = std::chrono::hours(1);
  options.registry.receiver.repair_timeout = seconds(1);  // after it nothing is in doubt any more
  options.engines.ready_after = std::chrono::hours(1);
  std::unique_ptr<Leaf> leaf = Start(options);
  EXPECT_TRUE(leaf->readiness().ready) << "there was no engine to wait for";
  ASSERT_TRUE(leaf->engines().Register(replays.Registration("1")).ok());
  ASSERT_TRUE(leaf->engines().Register(cannot.Registration("2")).ok());
  for (PoolEngine* engine : {&replays, &cannot}) {
    engine->sockets().WaitForSubscribers();
    engine->Run(100);
  }
  ASSERT_TRUE(IsExact(*leaf, replays, "1"));
  ASSERT_TRUE(IsExact(*leaf, cannot, "2"));
  leaf->Stop(seconds(5));
  leaf.reset();
  replays.Run(50, /*lost=*/true);
  leaf = Start(options);
  EXPECT_TRUE(Eventually([&] { return leaf->readiness().ready; })) << leaf->readiness().reason;
  EXPECT_EQ(replays.Compare(leaf->registry(), "1"), "");
  EXPECT_EQ(TrustOf(*leaf, "1"), Trust::kExact);
  const EngineRegistration of = cannot.Registration("2");
  const absl::StatusOr<OverlapAnswer> answer = leaf->registry().FindOverlaps(
      DomainOf(of.model, of.group), {.blocks = {}}, /*all_holders=*/true);
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->holders.size(), 2u);
}

// The blocks that the engine held before may have been evicted meanwhile.
TEST(LeafCheckpointTest, ALeafIsNotReadyWhileWhatAReplayDidNotReachBackToIsInDoubt) {
  const std::string directory = CheckpointDirectory();
  PoolEngine engine({.seed = 44, .replay = true, .ring = 10});
  LeafOptions options = Options(directory);
  options.registry.receiver.repair_timeout = std::chrono::hours(1);
  options.engines.ready_after = std::chrono::hours(1);
  std::unique_ptr<Leaf> leaf = Start(options);
  ASSERT_TRUE(leaf->engines().Register(engine.Registration("1")).ok());
  engine.sockets().WaitForSubscribers();
  engine.Run(100);
  ASSERT_TRUE(IsExact(*leaf, engine, "1"));
  ASSERT_TRUE(leaf->Checkpoint().ok());
  leaf.reset();
  engine.Run(50, /*lost=*/true);
  const auto suspects = [&] {
    uint64_t blocks = 0;
    for (const EngineEntry& entry : leaf->engines().List())
      for (const EngineRankStats& rank : entry.worker.ranks) blocks += rank.suspects;
    return blocks;
  };
  leaf = Start(options);
  ASSERT_TRUE(Eventually([&] { return suspects() > 0; }));
  EXPECT_FALSE(leaf->readiness().ready);
  EXPECT_EQ(leaf->readiness().reason, "1 workers are not caught up with");
  leaf.reset();
  options.registry.receiver.repair_timeout = milliseconds(100);
  leaf = Start(options);
  EXPECT_TRUE(Eventually([&] { return leaf->readiness().ready; })) << leaf->readiness().reason;
  EXPECT_EQ(suspects(), 0u);
  EXPECT_EQ(engine.Compare(leaf->registry(), "1", /*under=*/true), "");
}

TEST(LeafCheckpointTest, ALeafThatCanReadNoneOfItsCheckpointsSaysSo) {
  const std::string directory = CheckpointDirectory();
  std::unique_ptr<Leaf> leaf = Start(Options(directory));
  ASSERT_TRUE(leaf->Checkpoint().ok());
  leaf.reset();
  for (const auto& file : std::filesystem::directory_iterator(directory))
    if (file.path().filename().string().starts_with("checkpoint-"))
      std::filesystem::resize_file(file.path(), 20);
  LeafOptions options = Options(directory);
  options.engines.ready_after = std::chrono::hours(1);
  leaf = Start(options);
  EXPECT_FALSE(leaf->readiness().ready);
  EXPECT_THAT(leaf->readiness().reason, HasSubstr("none of the checkpoints in " + directory));
  leaf.reset();
  options.engines.ready_after = milliseconds(1);
  leaf = Start(options);
  EXPECT_TRUE(Eventually([&] { return leaf->readiness().ready; })) << leaf->readiness().reason;
}

TEST(LeafCheckpointTest, AnEngineThatIsGoneIsWaitedForAsLongAsALease) {
  const std::string directory = CheckpointDirectory();
  auto engine = std::make_unique<PoolEngine>(PoolEngineOptions{.seed = 43, .replay = true});
  LeafOptions options = Options(directory);
  options.registry.receiver.lease_ttl = std::chrono::hours(1);
  options.engines.ready_after = std::chrono::hours(1);
  std::unique_ptr<Leaf> leaf = Start(options);
  const EngineRegistration registration = engine->Registration("1");
  ASSERT_TRUE(leaf->engines().Register(registration).ok());
  engine->sockets().WaitForSubscribers();
  engine->Run(100);
  ASSERT_TRUE(IsExact(*leaf, *engine, "1"));
  ASSERT_TRUE(leaf->Checkpoint().ok());
  leaf.reset();
  engine.reset();
  leaf = Start(options);
  EXPECT_EQ(leaf->readiness().reason, "1 workers are not caught up with");
  ASSERT_TRUE(leaf->engines().Unregister("1", registration.model, std::nullopt, std::nullopt).ok());
  EXPECT_TRUE(leaf->readiness().ready) << leaf->readiness().reason;
  leaf.reset();
  options.registry.receiver.lease_ttl = milliseconds(100);
  leaf = Start(options);
  EXPECT_TRUE(Eventually([&] { return leaf->readiness().ready; })) << leaf->readiness().reason;
}

TEST(LeafCheckpointTest, ALeafThatStopsWritesALastOne) {
  const std::string directory = CheckpointDirectory();
  ReservedTestPorts held;
  const Address grpc = held.HoldAny();
  std::unique_ptr<Leaf> leaf = Start(Options(directory, grpc));
  Worker worker("w", grpc);
  worker.Send(Stored{.blocks = Sequence(1, 1000)});
  ASSERT_TRUE(worker.IsExact(*leaf));
  leaf->Stop(seconds(5));
  leaf.reset();
  leaf = Start(Options(directory, grpc));
  EXPECT_EQ(leaf->registry().StatsOf(kLlama)->holders[0].blocks, 1000);
  EXPECT_TRUE(worker.IsExact(*leaf));
}

TEST(LeafCheckpointTest, EnginesThatCanReplayAreExactAgain) {
  const std::string directory = CheckpointDirectory();
  PoolEngine engine({.seed = 21, .replay = true});
  PoolEngine digests({.seed = 22, .replay = true, .digests = true});
  std::unique_ptr<Leaf> leaf = Start(Options(directory));
  ASSERT_TRUE(leaf->engines().Register(engine.Registration("1")).ok());
  ASSERT_TRUE(leaf->engines().Register(digests.Registration("2")).ok());
  engine.sockets().WaitForSubscribers();
  digests.sockets().WaitForSubscribers();
  for (int killed = 0; killed < 3; ++killed) {
    engine.Run(100);
    digests.Run(100);
    ASSERT_TRUE(IsExact(*leaf, engine, "1")) << engine.Compare(leaf->registry(), "1");
    ASSERT_TRUE(IsExact(*leaf, digests, "2")) << digests.Compare(leaf->registry(), "2");
    ASSERT_TRUE(leaf->Checkpoint().ok());
    engine.Run(20);
    leaf.reset();
    engine.Run(20, /*lost=*/true);
    digests.Run(30, /*lost=*/true);
    // Registrations come back too.
    leaf = Start(Options(directory));
    EXPECT_TRUE(IsExact(*leaf, engine, "1")) << engine.Compare(leaf->registry(), "1");
    EXPECT_TRUE(IsExact(*leaf, digests, "2")) << digests.Compare(leaf->registry(), "2");
  }
}

// The leading blocks of its prompt that a hybrid worker can reuse, and those that its main class
// holds.
std::pair<uint32_t, uint32_t> ReusableAndHeld(const Leaf& leaf, const EngineRegistration& of) {
  const std::vector<SequenceHash> prompt =
      SequenceHashes(LocalHashes(HybridTokens(6), {.block_size = 4}, BlockSeed({})));
  const absl::StatusOr<OverlapAnswer> answer =
      leaf.registry().FindOverlaps(DomainOf(of.model, of.group), {.blocks = prompt});
  if (!answer.ok() || answer->holders.size() != 1) return {0, 0};
  return {answer->holders[0].blocks, answer->holders[0].held};
}

TEST(LeafCheckpointTest, AnEngineFedHybridWorkerCanReuseTheSameBlocksAfterARestart) {
  const std::string directory = CheckpointDirectory();
  ZmqTestEngine engine({.replay = true});
  EngineRegistration registration;
  registration.instance = "1";
  registration.model = "m";
  registration.block_size = 4;
  registration.endpoint = engine.endpoint();
  registration.replay_endpoint = engine.replay_endpoint();
  std::unique_ptr<Leaf> leaf = Start(Options(directory));
  ASSERT_TRUE(leaf->engines().Register(registration).ok());
  engine.WaitForSubscribers();
  engine.Publish(HybridPromptPayload());
  const auto can_reuse = [&](uint32_t reusable, uint32_t held) {
    return Eventually([&] {
      return ReusableAndHeld(*leaf, registration) == std::pair(reusable, held) &&
             TrustOf(*leaf, "1") == Trust::kExact;
    });
  };
  ASSERT_TRUE(can_reuse(4, 6));
  ASSERT_TRUE(leaf->Checkpoint().ok());
  leaf.reset();
  leaf = Start(Options(directory));
  EXPECT_TRUE(can_reuse(4, 6));
  const auto stats = leaf->engines().List()[0].worker.ranks[0];
  EXPECT_EQ(stats.side_names, 6u);
  EXPECT_EQ(stats.unjoined, 2u);
  leaf.reset();
  // The replay of the missed batches applies to names of all classes.
  engine.Drop(HybridPayload({{.group = 2, .kind = "mamba", .names = {5}, .parent = 4}}));
  leaf = Start(Options(directory));
  EXPECT_TRUE(can_reuse(5, 6));
  engine.Publish(HybridPayload({{.stored = false, .group = 1, .names = {4}}}));
  EXPECT_TRUE(can_reuse(0, 6));
}

TEST(LeafCheckpointTest, AnEngineThatCannotReplayIsNotCalledExact) {
  const std::string directory = CheckpointDirectory();
  PoolEngine engine({.seed = 23});
  LeafOptions options = Options(directory);
  options.registry.receiver.repair_timeout = seconds(1);
  std::unique_ptr<Leaf> leaf = Start(options);
  ASSERT_TRUE(leaf->engines().Register(engine.Registration("1")).ok());
  engine.sockets().WaitForSubscribers();
  engine.Run(100);
  ASSERT_TRUE(IsExact(*leaf, engine, "1"));
  ASSERT_TRUE(leaf->Checkpoint().ok());
  leaf.reset();
  engine.Run(20, /*lost=*/true);
  leaf = Start(options);
  engine.sockets().WaitForSubscribers();
  engine.Run(5);
  // Blocks whose removal was missed are dropped with all unconfirmed ones: never too much is
  // promised, perhaps too little.
  EXPECT_TRUE(Eventually([&] {
    return engine.Compare(leaf->registry(), "1", /*under=*/true).empty();
  })) << engine.Compare(leaf->registry(), "1", /*under=*/true);
}

TEST(LeafCheckpointTest, AnEngineThatIsGoneIsInNoAnswer) {
  const std::string directory = CheckpointDirectory();
  auto engine = std::make_unique<PoolEngine>(PoolEngineOptions{.seed = 24, .replay = true});
  std::unique_ptr<Leaf> leaf = Start(Options(directory));
  const EngineRegistration registration = engine->Registration("1");
  ASSERT_TRUE(leaf->engines().Register(registration).ok());
  engine->sockets().WaitForSubscribers();
  engine->Run(100);
  ASSERT_TRUE(IsExact(*leaf, *engine, "1"));
  ASSERT_TRUE(leaf->Checkpoint().ok());
  leaf.reset();
  engine.reset();
  leaf = Start(Options(directory));
  const absl::StatusOr<OverlapAnswer> answer = leaf->registry().FindOverlaps(
      DomainOf(registration.model, registration.group), {.blocks = {}}, /*all_holders=*/true);
  ASSERT_TRUE(answer.ok());
  EXPECT_TRUE(answer->holders.empty());
}

// "1 tcp://127.0.0.1:5557" of each listener.
std::vector<std::string> Listeners(Leaf& leaf) {
  std::vector<std::string> listeners;
  for (const EngineEntry& entry : leaf.engines().List())
    for (const EngineListener& listener : entry.listeners)
      listeners.push_back(entry.instance + " " + listener.endpoint);
  return listeners;
}

EngineRegistration OfFlags(const PoolEngine& engine, const std::string& instance) {
  EngineRegistration registration = engine.Registration(instance);
  registration.from_flags = true;
  return registration;
}

TEST(LeafCheckpointTest, OfEnginesOfFlagsThoseComeBackThatFlagsNameStill) {
  const std::string directory = CheckpointDirectory();
  PoolEngine kept({.seed = 31, .replay = true}), gone({.seed = 32}), over_http({.seed = 33});
  LeafOptions options = Options(directory);
  options.engines.workers = {OfFlags(kept, "kept"), OfFlags(gone, "gone")};
  std::unique_ptr<Leaf> leaf = Start(options);
  ASSERT_TRUE(leaf->engines().Register(over_http.Registration("7")).ok());
  for (PoolEngine* engine : {&kept, &gone, &over_http}) {
    engine->sockets().WaitForSubscribers();
    engine->Run(50);
  }
  ASSERT_TRUE(IsExact(*leaf, kept, "kept"));
  ASSERT_TRUE(IsExact(*leaf, gone, "gone"));
  ASSERT_TRUE(IsExact(*leaf, over_http, "7"));
  options.engines.workers.pop_back();
  const std::vector<std::string> named = {"7 " + over_http.sockets().endpoint(),
                                          "kept " + kept.sockets().endpoint()};
  for (int restart = 0; restart < 2; ++restart) {
    leaf->Stop(seconds(5));
    leaf.reset();
    kept.Run(20, /*lost=*/true);
    testing::internal::CaptureStderr();
    leaf = Start(options);
    EXPECT_THAT(testing::internal::GetCapturedStderr(), Not(HasSubstr("level=error")));
    EXPECT_EQ(Listeners(*leaf), named);
    EXPECT_TRUE(IsExact(*leaf, kept, "kept")) << kept.Compare(leaf->registry(), "kept");
    const auto stats = leaf->registry().StatsOf(DomainOf(options.engines.workers[0].model, ""));
    ASSERT_TRUE(stats.ok());
    EXPECT_EQ(stats->holders.size(), 2u);
  }
}

// An engine at another endpoint has another cache and other sequence numbers.
TEST(LeafCheckpointTest, AnEngineThatFlagsNameElsewhereStartsFresh) {
  const std::string directory = CheckpointDirectory();
  PoolEngine before({.seed = 34}), after({.seed = 35});
  LeafOptions options = Options(directory);
  options.engines.workers = {OfFlags(before, "w")};
  std::unique_ptr<Leaf> leaf = Start(options);
  before.sockets().WaitForSubscribers();
  before.Run(50);
  ASSERT_TRUE(IsExact(*leaf, before, "w"));
  leaf->Stop(seconds(5));
  leaf.reset();
  options.engines.workers = {OfFlags(after, "w")};
  leaf = Start(options);
  EXPECT_EQ(Listeners(*leaf), std::vector<std::string>{"w " + after.sockets().endpoint()});
  const auto stats = leaf->registry().StatsOf(DomainOf(options.engines.workers[0].model, ""));
  ASSERT_TRUE(stats.ok());
  ASSERT_EQ(stats->holders.size(), 1u);
  EXPECT_EQ(stats->holders[0].blocks, 0u);
  after.sockets().WaitForSubscribers();
  after.Run(50);
  EXPECT_TRUE(IsExact(*leaf, after, "w")) << after.Compare(leaf->registry(), "w");
}

TEST(LeafCheckpointTest, AnEngineWhoseBlockSizeIsLearnedGoesOnWithTheOneThatItHad) {
  const std::string directory = CheckpointDirectory();
  PoolEngine engine({.seed = 36, .replay = true});
  LeafOptions options = Options(directory);
  options.engines.workers = {OfFlags(engine, "w")};
  options.engines.workers[0].block_size = kBlockSizeAuto;
  std::unique_ptr<Leaf> leaf = Start(options);
  engine.sockets().WaitForSubscribers();
  engine.Run(50);
  ASSERT_TRUE(IsExact(*leaf, engine, "w"));
  leaf->Stop(seconds(5));
  leaf.reset();
  engine.Run(20, /*lost=*/true);
  leaf = Start(options);
  engine.sockets().WaitForSubscribers();
  engine.Run(20);
  EXPECT_TRUE(IsExact(*leaf, engine, "w")) << engine.Compare(leaf->registry(), "w");
}

// As in `kvatlas serve`, which registers its engines after it has asked them what they are.
TEST(LeafCheckpointTest, WhoRegistersItsEnginesLaterSaysWhichComeBack) {
  const std::string directory = CheckpointDirectory();
  PoolEngine kept({.seed = 37, .replay = true}), gone({.seed = 38});
  LeafOptions options = Options(directory);
  options.engines.named = [&](const EngineEntry& entry, const EngineListener& listener) {
    return entry.instance == "kept" && listener.endpoint == kept.sockets().endpoint();
  };
  std::unique_ptr<Leaf> leaf = Start(options);
  ASSERT_TRUE(leaf->engines().Register(OfFlags(kept, "kept")).ok());
  ASSERT_TRUE(leaf->engines().Register(OfFlags(gone, "gone")).ok());
  kept.sockets().WaitForSubscribers();
  kept.Run(50);
  ASSERT_TRUE(IsExact(*leaf, kept, "kept"));
  for (int restart = 0; restart < 2; ++restart) {
    leaf->Stop(seconds(5));
    leaf.reset();
    leaf = Start(options);
    EXPECT_EQ(Listeners(*leaf), std::vector<std::string>{"kept " + kept.sockets().endpoint()});
    EXPECT_TRUE(IsExact(*leaf, kept, "kept")) << kept.Compare(leaf->registry(), "kept");
  }
}

TEST(LeafCheckpointTest, ADirectoryOfAnotherLeafIsRefusedAtTheStart) {
  const std::string directory = CheckpointDirectory();
  std::unique_ptr<Leaf> leaf = Start(Options(directory));
  const absl::Status refused = Leaf::Start(Options(directory)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused));
  EXPECT_NE(std::string(refused.message()).find("most likely another leaf"), std::string::npos);
}

// An error at the first checkpoint would come too late.
TEST(LeafCheckpointTest, ADirectoryThatCannotBeMadeIsRefusedAtTheStart) {
  const absl::Status refused = Leaf::Start(Options("/dev/null/checkpoints")).status();
  EXPECT_EQ(refused, absl::InvalidArgumentError("--checkpoint_dir: cannot make "
                                                "/dev/null/checkpoints: Not a directory"));
}

}  // namespace
}  // namespace kvatlas
