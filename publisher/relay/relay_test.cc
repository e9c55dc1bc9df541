// A relay between engines over real ZeroMQ sockets and leaves over real gRPC.

#include "publisher/relay/relay.h"
#include "indexer/base/await.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "indexer/base/address.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"
#include "indexer/base/tier.h"
#include "indexer/discovery/announcer.h"
#include "indexer/discovery/service_record.h"
#include "indexer/kv_events/engine_registration.h"
#include "indexer/net/grpc_server.h"
#include "indexer/net/redis_url.h"
#include "indexer/transport/grpc_acceptor.h"
#include "indexer/transport/redis/redis_log_options.h"
#include "indexer/transport/redis/redis_reader.h"
#include "publisher/relay/relay_test_util.h"
#include "publisher/side_events.h"
#include "publisher/zmq_events.h"
#include "tools/testing/servers/redis_test_server.h"
#include "tools/testing/servers/reserved_test_ports.h"
#include "tools/testing/servers/zmq_test_engine.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint32_t kBlockSize = 4;
using Names = std::vector<uint64_t>;

bool Eventually(const std::function<bool()>& condition) { return Await(condition, seconds(60)); }

// Block `name` has tokens that are all `name`; a chain begins a sequence.
std::vector<TokenId> TokensOf(const Names& names) {
  std::vector<TokenId> tokens;
  for (uint64_t name : names) tokens.insert(tokens.end(), kBlockSize, static_cast<TokenId>(name));
  return tokens;
}

HeldBlocks Chain(const Names& names, Tier tier = Tier::kDevice) {
  HeldBlocks held;
  for (SequenceHash block :
       SequenceHashes(LocalHashes(TokensOf(names), {.block_size = kBlockSize}, BlockSeed({}))))
    held.insert({static_cast<int>(tier), Raw(block)});
  return held;
}

HeldBlocks operator+(HeldBlocks a, const HeldBlocks& b) {
  a.insert(b.begin(), b.end());
  return a;
}

// An engine that knows nothing of kvatlas.
class Engine {
 public:
  explicit Engine(ZmqTestEngineOptions options = {.replay = true}, uint32_t rank = 0,
                  ZmqEventForm form = ZmqEventForm::kMap)
      : can_replay_(options.replay), sockets(options), encoder_(form, kBlockSize, rank) {}

  EngineRegistration Registration(const std::string& name, uint32_t rank = 0) const {
    EngineRegistration of;
    of.instance = name;
    of.model = "m";
    of.rank = rank;
    of.block_size = kBlockSize;
    of.endpoint = sockets.endpoint();
    if (can_replay_) of.replay_endpoint = sockets.replay_endpoint();
    return of;
  }

  std::string Stored(const Names& names, Tier tier = Tier::kDevice) {
    const std::vector<TokenId> tokens = TokensOf(names);
    encoder_.Stored({.tier = tier, .hashes = names, .tokens = tokens});
    return encoder_.Finish(1.0);
  }
  std::string Removed(const Names& names, Tier tier = Tier::kDevice) {
    encoder_.Removed(tier, names);
    return encoder_.Finish(1.0);
  }
  std::string AllCleared() {
    encoder_.AllCleared();
    return encoder_.Finish(1.0);
  }

 private:
  const bool can_replay_;

 public:
  ZmqTestEngine sockets;

 private:
  ZmqEventEncoder encoder_;
};

// A leaf's stream service, which can be away.
class LeafServer {
 public:
  LeafServer() : leaf(std::make_unique<TestLeaf>(&Clock::Real())) { Start(0); }
  ~LeafServer() { Stop(); }

  // With all that it knew.
  void Stop() {
    if (server_ == nullptr) return;
    port_ = server_->address().port;
    streams_->Stop();
    server_->Stop(Duration(0));
    server_.reset();
    streams_.reset();
    leaf.reset();
    (void)held_.Hold({"127.0.0.1", port_});
  }
  void Restart() {
    Stop();
    leaf = std::make_unique<TestLeaf>(&Clock::Real());
    Start(port_);
  }
  std::string target() const { return server_->address().ToString(); }

  std::unique_ptr<TestLeaf> leaf;

 private:
  void Start(uint16_t port) {
    streams_ = std::make_unique<GrpcAcceptor>(leaf.get());
    server_ = std::make_unique<GrpcServer>(GrpcServerOptions{.listen = {"127.0.0.1", port}});
    server_->Register(streams_->service(), "kvatlas.v1.Holdings");
    ASSERT_TRUE(server_->Start().ok());
  }

  uint16_t port_ = 0;
  ReservedTestPorts held_;  // while it is away
  std::unique_ptr<GrpcAcceptor> streams_;
  std::unique_ptr<GrpcServer> server_;
};

class RelayTest : public testing::Test {
 protected:
  std::unique_ptr<Relay> Start(std::vector<EngineRegistration> workers,
                               std::function<void(RelayOptions*)> change = nullptr) {
    RelayOptions options;
    options.leaves = {leaf.target()};
    options.workers = std::move(workers);
    options.ingest.reconnect_min = milliseconds(10);
    options.ingest.reconnect_max = milliseconds(50);
    options.goodbye_for = seconds(60);
    if (change) change(&options);
    absl::StatusOr<std::unique_ptr<Relay>> relay = Relay::Start(std::move(options));
    EXPECT_TRUE(relay.ok()) << relay.status();
    return relay.ok() ? *std::move(relay) : nullptr;
  }
  bool Becomes(const std::string& holder, const HeldBlocks& held, Trust trust = Trust::kExact) {
    return Eventually(
        [&] { return leaf.leaf->HeldBy(holder) == held && leaf.leaf->TrustOf(holder) == trust; });
  }
  bool TrustBecomes(const std::string& holder, Trust trust) {
    return Eventually([&] { return leaf.leaf->TrustOf(holder) == trust; });
  }

  LeafServer leaf;
};

TEST_F(RelayTest, TheLeafHoldsWhatTheEngineSaidBeforeAndAfterTheRelayCame) {
  Engine engine;
  engine.sockets.Publish(engine.Stored({1, 2, 3}));
  engine.sockets.Publish(engine.Removed({3}));
  const std::unique_ptr<Relay> relay = Start({engine.Registration("w")});
  EXPECT_TRUE(Becomes("w", Chain({1, 2})));
  engine.sockets.Publish(engine.Stored({1, 2}, Tier::kHost));
  engine.sockets.Publish(engine.Stored({7}));
  EXPECT_TRUE(Becomes("w", Chain({1, 2}) + Chain({1, 2}, Tier::kHost) + Chain({7})));
  engine.sockets.Publish(engine.AllCleared());
  EXPECT_TRUE(Becomes("w", {}));
}

TEST_F(RelayTest, EachRankHasTheUrlThatItWasRegisteredWith) {
  Engine first({.replay = true}, 0);
  Engine second({.replay = true}, 1);
  Engine* const engines[] = {&first, &second};
  std::vector<EngineRegistration> ranks;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ranks.push_back(engines[rank]->Registration("w", rank));
    ranks.back().url = "http://10.0.0.7:800" + std::to_string(rank);
  }
  const std::unique_ptr<Relay> relay = Start(ranks);
  for (uint32_t rank = 0; rank < 2; ++rank) {
    engines[rank]->sockets.WaitForSubscribers();
    engines[rank]->sockets.Publish(engines[rank]->Stored({1}));
  }
  EXPECT_TRUE(Becomes("w", Chain({1})));
  EXPECT_TRUE(Becomes("w/1", Chain({1})));
  EXPECT_EQ(leaf.leaf->LabelOf("w", "url"), "http://10.0.0.7:8000");
  EXPECT_EQ(leaf.leaf->LabelOf("w/1", "url"), "http://10.0.0.7:8001");
}

TEST_F(RelayTest, WindowsOfAHybridModelReachTheLeafWithTheLayoutAndTheUrlAsALabel) {
  constexpr uint32_t kWindow = 8;
  Engine engine;
  EngineRegistration registration = engine.Registration("w");
  registration.url = "http://10.0.0.7:8000";
  registration.eagle_drop = "1";
  const std::unique_ptr<Relay> relay = Start({registration});
  engine.sockets.WaitForSubscribers();
  engine.sockets.Publish(engine.Stored({1, 2}));
  engine.sockets.Publish(WindowBatch(true, {2}, kBlockSize, kWindow));
  CacheLayout layout = WindowLayout(kBlockSize, kWindow);
  layout.sides[0].drops_last = true;
  HeldBlocks second = Chain({1, 2});
  second.erase(*Chain({1}).begin());
  const HeldBlocks all = Chain({1, 2}) + SidesOf(second, layout.sides[0]);
  EXPECT_TRUE(Becomes("w", all));
  EXPECT_EQ(leaf.leaf->LayoutOf("w"), layout);
  EXPECT_EQ(leaf.leaf->LabelOf("w", "url"), "http://10.0.0.7:8000");
  EXPECT_EQ(leaf.leaf->LabelOf("w", "via"), "relay");
  leaf.Restart();
  EXPECT_TRUE(Becomes("w", all));
  EXPECT_EQ(leaf.leaf->LayoutOf("w"), layout);
  engine.sockets.Publish(WindowBatch(false, {2}, kBlockSize, kWindow));
  EXPECT_TRUE(Becomes("w", Chain({1, 2})));
}

TEST_F(RelayTest, AHybridWhoseEventsTellOfFullAttentionAloneIsDegradedAtTheLeaf) {
  Engine engine;
  EngineRegistration registration = engine.Registration("w");
  registration.hybrid = true;
  const std::unique_ptr<Relay> relay = Start({registration});
  engine.sockets.WaitForSubscribers();
  engine.sockets.Publish(engine.Stored({1, 2}));
  EXPECT_TRUE(Becomes("w", Chain({1, 2}), Trust::kDegraded));
}

TEST_F(RelayTest, ABlockSizeIsLearnedFromTheFirstStoredBlock) {
  Engine engine, second;
  EngineRegistration registration = engine.Registration("w");
  registration.block_size = kBlockSizeAuto;
  EngineRegistration of_second = second.Registration("v");
  of_second.block_size = kBlockSizeAuto;
  const std::unique_ptr<Relay> relay = Start({registration, of_second});
  engine.sockets.WaitForSubscribers();
  EXPECT_EQ(relay->Instances()[0].block_size, 0u);
  EXPECT_TRUE(relay->Instances()[0].ranks.empty()) << "a leaf would be told a size";
  engine.sockets.Publish(engine.Stored({1, 2}));
  EXPECT_TRUE(Becomes("w", Chain({1, 2})));
  for (const RelayInstance& instance : relay->Instances())
    EXPECT_EQ(instance.block_size, instance.name == "w" ? kBlockSize : 0u);
  // A registration with another size does not fit the domain any more.
  Engine third;
  EngineRegistration other = third.Registration("u");
  other.block_size = kBlockSize + 1;
  EXPECT_EQ(relay->Register(other).code(), absl::StatusCode::kAlreadyExists);
  second.sockets.WaitForSubscribers();
  second.sockets.Publish(second.Stored({7}));
  EXPECT_TRUE(Becomes("v", Chain({7})));
}

TEST_F(RelayTest, AUrlThatNoLabelCanHoldIsRefused) {
  Engine engine;
  const std::unique_ptr<Relay> relay = Start({});
  EngineRegistration registration = engine.Registration("w");
  registration.url = std::string(257, 'u');
  EXPECT_EQ(relay->Register(registration).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(RelayTest, CopiesAreCountedHereAndTheLastRemovalPassedOn) {
  Engine engine;
  const std::unique_ptr<Relay> relay = Start({engine.Registration("w")});
  engine.sockets.WaitForSubscribers();
  engine.sockets.Publish(engine.Stored({1}));
  engine.sockets.Publish(engine.Stored({1}));
  engine.sockets.Publish(engine.Removed({1}));
  engine.sockets.Publish(engine.Stored({2}));
  EXPECT_TRUE(Becomes("w", Chain({1}) + Chain({2})));
  engine.sockets.Publish(engine.Removed({1}));
  EXPECT_TRUE(Becomes("w", Chain({2})));
}

TEST_F(RelayTest, RanksFormsAndGroupsAreKeptApart) {
  Engine map({.replay = true}, 0), array({.replay = true}, 1, ZmqEventForm::kLegacyArray);
  Engine other({.replay = true, .layout = ZmqTestEngineOptions::Layout::kPlain});
  EngineRegistration grouped = other.Registration("v");
  grouped.group = "tenant-a";
  grouped.model = "n";
  const std::unique_ptr<Relay> relay =
      Start({map.Registration("w", 0), array.Registration("w", 1), grouped});
  map.sockets.WaitForSubscribers();
  map.sockets.Publish(map.Stored({1, 2}));
  array.sockets.WaitForSubscribers();
  array.sockets.Publish(array.Stored({3}));
  other.sockets.WaitForSubscribers();
  other.sockets.Publish(other.Stored({4}));
  EXPECT_TRUE(Becomes("w", Chain({1, 2})));
  EXPECT_TRUE(Becomes("w/1", Chain({3})));
  EXPECT_TRUE(Becomes("v", Chain({4})));
  const std::vector<RelayInstance> instances = relay->Instances();
  ASSERT_EQ(instances.size(), 2u);
  EXPECT_EQ(instances[0].domain, (Domain{"n", "tenant-a"}));
  EXPECT_EQ(instances[1].ranks.size(), 2u);
}

TEST_F(RelayTest, ALossThatAReplayRepairsLeavesTheLeafExact) {
  Engine engine;
  const std::unique_ptr<Relay> relay = Start({engine.Registration("w")});
  engine.sockets.WaitForSubscribers();
  engine.sockets.Publish(engine.Stored({1, 2, 3}));
  ASSERT_TRUE(Becomes("w", Chain({1, 2, 3})));
  engine.sockets.Drop(engine.Removed({2, 3}));
  engine.sockets.Publish(engine.Stored({9}));
  EXPECT_TRUE(Becomes("w", Chain({1}) + Chain({9})));
}

TEST_F(RelayTest, ALossThatNothingRepairsIsTheLeafsDoubtToo) {
  Engine engine({.replay = false});
  const std::unique_ptr<Relay> relay = Start({engine.Registration("w")}, [](RelayOptions* options) {
    options->worker.repair_timeout = milliseconds(50);
  });
  engine.sockets.WaitForSubscribers();
  engine.sockets.Publish(engine.Stored({1, 2, 3}));
  ASSERT_TRUE(Becomes("w", Chain({1, 2, 3})));
  engine.sockets.Drop(engine.Removed({3}));
  engine.sockets.Publish(engine.Stored({9}));
  // Blocks that nothing confirmed are dropped, blocks that came after the loss stay; no more than
  // that is certain.
  EXPECT_TRUE(Becomes("w", Chain({9}), Trust::kDegraded));
  // A clear leaves nothing to doubt.
  engine.sockets.Publish(engine.AllCleared());
  engine.sockets.Publish(engine.Stored({5}));
  EXPECT_TRUE(Becomes("w", Chain({5})));
}

TEST_F(RelayTest, ARelayThatCameTooLateForAnEngineWithoutReplaySaysSo) {
  Engine engine({.replay = false});
  engine.sockets.Publish(engine.Stored({1, 2, 3}));
  const std::unique_ptr<Relay> relay = Start({engine.Registration("w")});
  engine.sockets.WaitForSubscribers();
  EXPECT_TRUE(TrustBecomes("w", Trust::kDegraded));
  engine.sockets.Publish(engine.Stored({4}));
  EXPECT_TRUE(Becomes("w", Chain({4}), Trust::kDegraded));
}

TEST_F(RelayTest, ALeafThatForgotEverythingGetsItAgainThoughTheEngineCannotReplay) {
  Engine engine({.replay = false});
  const std::unique_ptr<Relay> relay = Start({engine.Registration("w")});
  engine.sockets.WaitForSubscribers();
  engine.sockets.Publish(engine.Stored({1, 2, 3}));
  ASSERT_TRUE(Becomes("w", Chain({1, 2, 3})));
  leaf.Stop();
  engine.sockets.Publish(engine.Removed({3}));
  leaf.Restart();
  EXPECT_TRUE(Becomes("w", Chain({1, 2})));
}

TEST_F(RelayTest, ARelayStartedAnewMakesTheLeafExactAgain) {
  Engine engine;
  std::unique_ptr<Relay> relay = Start({engine.Registration("w")});
  engine.sockets.WaitForSubscribers();
  engine.sockets.Publish(engine.Stored({1, 2, 3}));
  ASSERT_TRUE(Becomes("w", Chain({1, 2, 3})));
  relay->Stop(/*goodbye=*/false, Duration(0));
  relay.reset();
  EXPECT_FALSE(leaf.leaf->SaidGoodbye("w"));
  engine.sockets.Publish(engine.Removed({1}));
  engine.sockets.Publish(engine.Stored({8}));
  relay = Start({engine.Registration("w")});
  HeldBlocks held = Chain({1, 2, 3});
  held.erase(*Chain({1}).begin());
  EXPECT_TRUE(Becomes("w", held + Chain({8})));
}

TEST_F(RelayTest, AnEngineStartedAnewHasWhatItHasNow) {
  Engine engine;
  const std::unique_ptr<Relay> relay = Start({engine.Registration("w")});
  engine.sockets.WaitForSubscribers();
  engine.sockets.Publish(engine.Stored({1, 2, 3}));
  ASSERT_TRUE(Becomes("w", Chain({1, 2, 3})));
  engine.sockets.Restart();
  engine.sockets.WaitForSubscribers();
  engine.sockets.Publish(engine.Stored({5}));
  EXPECT_TRUE(Becomes("w", Chain({5})));
}

TEST_F(RelayTest, EveryReplicaOfTheLeafIsTold) {
  LeafServer second;
  Engine engine;
  const std::unique_ptr<Relay> relay =
      Start({engine.Registration("w")},
            [&](RelayOptions* options) { options->leaves.push_back(second.target()); });
  engine.sockets.WaitForSubscribers();
  engine.sockets.Publish(engine.Stored({1, 2}));
  EXPECT_TRUE(Becomes("w", Chain({1, 2})));
  EXPECT_TRUE(Eventually([&] { return second.leaf->HeldBy("w") == Chain({1, 2}); }));
  EXPECT_EQ(relay->Instances().at(0).ranks.at(0).links.size(), 2u);
}

std::unique_ptr<Announcer> Announce(const RedisTestServer& redis, const std::string& replica,
                                    const std::string& address) {
  ServiceRecord record;
  record.kind = ServiceKind::kLeaf;
  record.name = "cell";
  record.replica = replica;
  record.grpc = address;
  return *Announcer::Start({.redis = redis.url()}, std::move(record));
}

TEST_F(RelayTest, AReplicaThatComesIsToldAllAndOneThatLeavesIsDropped) {
  RedisTestServer redis;
  const auto first = Announce(redis, "a", leaf.target());
  Engine engine;
  const std::unique_ptr<Relay> relay =
      Start({engine.Registration("w")}, [&](RelayOptions* options) {
        options->leaves = {redis.url()};
        options->cell = "cell";
        options->find_every = milliseconds(20);
      });
  engine.sockets.WaitForSubscribers();
  engine.sockets.Publish(engine.Stored({1, 2}));
  ASSERT_TRUE(Becomes("w", Chain({1, 2})));
  LeafServer second;
  const auto announced = Announce(redis, "b", second.target());
  EXPECT_TRUE(Eventually([&] { return second.leaf->HeldBy("w") == Chain({1, 2}); }));
  first->Stop();
  EXPECT_TRUE(Eventually([&] { return relay->leaves() == std::vector{second.target()}; }));
  EXPECT_TRUE(Eventually([&] { return relay->Instances().at(0).ranks.at(0).links.size() == 1; }));
  engine.sockets.Publish(engine.Stored({3}));
  EXPECT_TRUE(Eventually([&] { return second.leaf->HeldBy("w") == Chain({1, 2}) + Chain({3}); }));
  EXPECT_EQ(leaf.leaf->HeldBy("w"), Chain({1, 2}));
}

TEST_F(RelayTest, ThroughALogInRedisEveryReaderHears) {
  RedisTestServer redis;
  RedisLogOptions log;
  log.redis = *ParseRedisUrl(redis.url());
  log.cell = "cell";
  TestLeaf hearing(&Clock::Real()), late(&Clock::Real());
  const RedisReader reader(log, "a", &hearing);
  Engine engine;
  const std::unique_ptr<Relay> relay =
      Start({engine.Registration("w")}, [&](RelayOptions* options) {
        options->leaves = {};
        options->redis = log;
      });
  engine.sockets.WaitForSubscribers();
  engine.sockets.Publish(engine.Stored({1, 2}));
  const auto hears = [](const TestLeaf& leaf, const HeldBlocks& held) {
    return Eventually(
        [&] { return leaf.HeldBy("w") == held && leaf.TrustOf("w") == Trust::kExact; });
  };
  EXPECT_TRUE(hears(hearing, Chain({1, 2})));
  EXPECT_EQ(relay->leaves(), std::vector{redis.url()});
  engine.sockets.Publish(WindowBatch(true, {2}, kBlockSize, 8));
  const CacheLayout layout = WindowLayout(kBlockSize, 8);
  HeldBlocks window = Chain({1, 2});
  window.erase(*Chain({1}).begin());
  window = SidesOf(window, layout.sides[0]);
  EXPECT_TRUE(hears(hearing, Chain({1, 2}) + window));
  EXPECT_EQ(hearing.LayoutOf("w"), layout);
  // Another one, at its own pace; and a Redis that lost everything.
  const RedisReader second(log, "b", &late);
  EXPECT_TRUE(hears(late, Chain({1, 2}) + window));
  EXPECT_EQ(late.LayoutOf("w"), layout);
  redis.Kill();
  engine.sockets.Publish(engine.Removed({2}));
  redis.Start();
  EXPECT_TRUE(hears(hearing, Chain({1}) + window));
  EXPECT_TRUE(hears(late, Chain({1}) + window));
}

TEST_F(RelayTest, RegistrationsComeAndGo) {
  Engine engine;
  const std::unique_ptr<Relay> relay = Start({});
  EXPECT_TRUE(relay->readiness().ready);
  const EngineRegistration of = engine.Registration("w");
  EXPECT_TRUE(relay->Register(of).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(relay->Register(of)));
  EngineRegistration elsewhere = engine.Registration("w", 1);
  elsewhere.model = "other";
  EXPECT_TRUE(absl::IsAlreadyExists(relay->Register(elsewhere)));
  EngineRegistration larger = engine.Registration("v");
  larger.block_size = 32;
  EXPECT_TRUE(absl::IsAlreadyExists(relay->Register(larger)));
  EngineRegistration nowhere = engine.Registration("v");
  nowhere.endpoint = "10.0.0.1:5557";
  EXPECT_TRUE(absl::IsInvalidArgument(relay->Register(nowhere)));
  for (const char* forbidden : {"ipc:///tmp/x", "inproc://x", "tcp://8.8.8.8:5557"}) {
    nowhere.endpoint = forbidden;
    EXPECT_TRUE(absl::IsInvalidArgument(relay->Register(nowhere))) << forbidden;
  }
  engine.sockets.WaitForSubscribers();
  engine.sockets.Publish(engine.Stored({1}));
  ASSERT_TRUE(Becomes("w", Chain({1})));
  EXPECT_TRUE(absl::IsNotFound(relay->Unregister("v", "m", std::nullopt, std::nullopt)));
  EXPECT_TRUE(absl::IsNotFound(relay->Unregister("w", "n", std::nullopt, std::nullopt)));
  EXPECT_TRUE(absl::IsNotFound(relay->Unregister("w", "m", std::nullopt, 3)));
  EXPECT_TRUE(relay->Unregister("w", "m", std::nullopt, std::nullopt).ok());
  EXPECT_TRUE(Eventually([&] { return leaf.leaf->SaidGoodbye("w"); }));
  EXPECT_TRUE(relay->Instances().empty());
  // As soon as no thread of the relay looks at the rank any more.
  EXPECT_TRUE(Eventually([&] { return relay->blocks_held() == 0; }));
  // And again.
  EXPECT_TRUE(relay->Register(of).ok());
  EXPECT_TRUE(Becomes("w", Chain({1})));
}

TEST_F(RelayTest, BoundsAreKept) {
  Engine engine;
  const std::unique_ptr<Relay> relay = Start({}, [](RelayOptions* options) {
    options->instances_max = 2;
    options->ranks_max = 1;
    options->blocks_max = 2;
  });
  EXPECT_TRUE(relay->Register(engine.Registration("a")).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(relay->Register(engine.Registration("b"))));
  engine.sockets.WaitForSubscribers();
  engine.sockets.Publish(engine.Stored({1, 2}));
  engine.sockets.Publish(engine.Stored({3}));
  EXPECT_TRUE(Becomes("a", Chain({1, 2}), Trust::kDegraded));
  EXPECT_EQ(relay->blocks_held(), 2u);
}

TEST_F(RelayTest, OptionsOutOfRangeAreRefused) {
  RelayOptions options;
  EXPECT_TRUE(absl::IsInvalidArgument(Relay::Start(options).status()));
  options.leaves = {"127.0.0.1:1", "127.0.0.1:1"};
  EXPECT_TRUE(absl::IsInvalidArgument(Relay::Start(options).status()));
  options.leaves = {"127.0.0.1:1"};
  options.labels = {{"", "a"}};
  EXPECT_TRUE(absl::IsInvalidArgument(Relay::Start(options).status()));
  options.labels = {};
  EngineRegistration nameless;
  nameless.endpoint = "tcp://127.0.0.1:1";
  nameless.model = "m";
  nameless.block_size = 16;
  options.workers = {nameless};
  EXPECT_TRUE(absl::IsInvalidArgument(Relay::Start(options).status()));
}

TEST_F(RelayTest, IsReadyOnceEnoughEnginesAreOffered) {
  Engine engine;
  const std::unique_ptr<Relay> relay =
      Start({}, [](RelayOptions* options) { options->min_initial_workers = 1; });
  EXPECT_EQ(relay->readiness().reason, "0 of 1 workers");
  EXPECT_TRUE(relay->Register(engine.Registration("a")).ok());
  EXPECT_TRUE(Eventually([&] { return relay->readiness().ready; }));
}

TEST_F(RelayTest, TheDumpIsWhatLeavesAreToldAndHasNoTokens) {
  Engine engine;
  const std::unique_ptr<Relay> relay = Start({engine.Registration("w")});
  engine.sockets.WaitForSubscribers();
  engine.sockets.Publish(engine.Stored({1, 2}));
  ASSERT_TRUE(Becomes("w", Chain({1, 2})));
  std::vector<RelayRankDump> dumps;
  relay->ForEachDump(std::nullopt, "", [&](const RelayRankDump& dump) {
    dumps.push_back(dump);
    return true;
  });
  ASSERT_EQ(dumps.size(), 1u);
  HeldBlocks told;
  for (const Stored& run : dumps[0].runs) {
    EXPECT_TRUE(run.local_hashes.empty());
    for (SequenceHash block : run.blocks) told.insert({static_cast<int>(run.tier), Raw(block)});
  }
  EXPECT_EQ(told, Chain({1, 2}));
  EXPECT_EQ(dumps[0].trust, Trust::kExact);
}

}  // namespace
}  // namespace kvatlas
