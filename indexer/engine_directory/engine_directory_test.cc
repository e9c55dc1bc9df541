#include "indexer/engine_directory/engine_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/engine_directory/pool_engine_test_util.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

class EngineDirectoryTest : public testing::Test {
 protected:
  static HolderRegistryOptions RegistryOptions() {
    HolderRegistryOptions options;
    options.contract_id = HashContract().Id();
    return options;
  }

  EngineDirectoryTest() : registry_(RegistryOptions()) {
    ZmqIngestOptions ingest;
    ingest.decode_threads = 2;
    ingest.reconnect_min = milliseconds(10);
    ingest.reconnect_max = milliseconds(20);
    // However slow an engine is, its replay is waited for.
    ingest.tracker.replay_timeout = seconds(60);
    ingest_ = std::make_unique<ZmqIngest>(ingest);
    EngineDirectoryOptions options;
    options.clock = &clock_;
    options.lease_ttl = seconds(10);
    options.adopted_ttl = seconds(60);
    directory_ = std::make_unique<EngineDirectory>(options, &registry_, ingest_.get());
    directory_->Open();
  }

  std::string LabelOf(const std::string& label, const std::string& holder, uint32_t rank) {
    const absl::StatusOr<HolderDump> dump = registry_.Dump({"m", ""}, {holder, rank, ""});
    if (!dump.ok()) return std::string(dump.status().message());
    for (const auto& [name, value] : dump->holder->labels)
      if (name == label) return value;
    return "";
  }
  std::string UrlOf(const std::string& holder, uint32_t rank = 0) {
    return LabelOf("url", holder, rank);
  }

  static EngineRegistration Of(const std::string& instance, uint32_t rank = 0,
                               const std::string& model = "m", uint32_t block_size = 4) {
    EngineRegistration registration;
    registration.instance = instance;
    registration.model = model;
    registration.rank = rank;
    registration.block_size = block_size;
    registration.endpoint = "tcp://127.0.0.1:9";  // no engine there
    return registration;
  }

  std::string Register(const EngineRegistration& registration) {
    const absl::Status status = directory_->Register(registration);
    return status.ok() ? "ok" : std::string(status.message());
  }
  std::string Unregister(const std::string& instance, const std::string& model = "m",
                         const std::optional<std::string>& group = std::nullopt,
                         std::optional<uint32_t> rank = std::nullopt) {
    const absl::Status status = directory_->Unregister(instance, model, group, rank);
    return status.ok() ? "ok" : std::string(status.message());
  }
  std::vector<std::string> Names(std::optional<std::string_view> model = std::nullopt,
                                 std::optional<std::string_view> group = std::nullopt) {
    std::vector<std::string> names;
    for (const EngineEntry& entry : directory_->List(model, group)) {
      std::string ranks;
      for (const EngineListener& listener : entry.listeners)
        ranks += "/" + std::to_string(listener.rank);
      names.push_back(entry.instance + ranks);
    }
    return names;
  }
  bool IsExact(const PoolEngine& engine, const std::string& instance) {
    return Eventually([&] { return engine.Compare(registry_, instance).empty(); });
  }

  ManualClock clock_;
  HolderRegistry registry_;
  std::unique_ptr<ZmqIngest> ingest_;
  std::unique_ptr<EngineDirectory> directory_;
};

TEST_F(EngineDirectoryTest, ARegisteredUrlIsALabelOfEveryRank) {
  EngineRegistration registration = Of("1");
  registration.url = "http://10.0.0.1:30000";
  EXPECT_EQ(Register(registration), "ok");
  EXPECT_EQ(Register(Of("2")), "ok");
  EXPECT_EQ(UrlOf("1"), "http://10.0.0.1:30000");
  EXPECT_EQ(UrlOf("2"), "");
  EXPECT_EQ(directory_->List()[0].url, "http://10.0.0.1:30000");
  registration = Of("3");
  registration.url = std::string(5000, 'x');
  EXPECT_THAT(Register(registration), HasSubstr("url is longer than"));
}

TEST_F(EngineDirectoryTest, EachRankHasTheUrlThatItWasRegisteredWith) {
  for (uint32_t rank = 0; rank < 3; ++rank) {
    EngineRegistration registration = Of("1", rank);
    if (rank < 2) registration.url = "http://10.0.0.1:800" + std::to_string(rank);
    EXPECT_EQ(Register(registration), "ok");
  }
  EXPECT_EQ(UrlOf("1", 0), "http://10.0.0.1:8000");
  EXPECT_EQ(UrlOf("1", 1), "http://10.0.0.1:8001");
  EXPECT_EQ(UrlOf("1", 2), "http://10.0.0.1:8000") << "which says none";
  const EngineEntry entry = directory_->List()[0];
  EXPECT_EQ(entry.listeners[1].url, "http://10.0.0.1:8001");
}

// Each of several servers of a pod is asked for its ranks by numbers from 0.
TEST_F(EngineDirectoryTest, TheFirstRankBehindAUrlIsTheLowestThatSaysIt) {
  for (uint32_t rank = 0; rank < 4; ++rank) {
    EngineRegistration registration = Of("1", rank);
    registration.url = "http://10.0.0.1:800" + std::to_string(rank / 2);
    EXPECT_EQ(Register(registration), "ok");
  }
  EXPECT_EQ(LabelOf("first_rank", "1", 0), "");
  EXPECT_EQ(LabelOf("first_rank", "1", 1), "");
  EXPECT_EQ(LabelOf("first_rank", "1", 2), "2");
  EXPECT_EQ(LabelOf("first_rank", "1", 3), "2");
}

TEST_F(EngineDirectoryTest, RefusesInTheWordsOfDynamosIndexer) {
  EngineRegistration bad = Of("1");
  bad.endpoint = "127.0.0.1:5901";
  EXPECT_EQ(Register(bad), "invalid ZMQ endpoint `127.0.0.1:5901`: missing scheme");
  bad = Of("1");
  bad.replay_endpoint = "nonsense";
  EXPECT_EQ(Register(bad),
            "invalid replay endpoint `nonsense`: invalid ZMQ endpoint `nonsense`: missing scheme");
  EXPECT_TRUE(absl::IsInvalidArgument(directory_->Register(bad)));
  bad = Of("1");
  bad.topic = std::string(kRegisteredTextBytesMax + 1, 't');
  EXPECT_EQ(Register(bad), "topic is longer than 4096 bytes");
  EXPECT_TRUE(Names().empty());
  EXPECT_EQ(Register(Of("1")), "ok");
  EXPECT_TRUE(absl::IsAlreadyExists(directory_->Register(Of("1"))));
  EXPECT_EQ(Register(Of("1")), "instance 1 dp_rank 0 already registered");
  EXPECT_EQ(Register(Of("1", 0, "other")),
            "instance 1 is already registered for model=m routing_group=default");
  EngineRegistration group = Of("1");
  group.group = "g2";
  EXPECT_EQ(Register(group), "instance 1 is already registered for model=m routing_group=default");
  EXPECT_EQ(Register(Of("2", 0, "m", 16)),
            "block_size mismatch for model=m routing_group=default: existing=4, requested=16");
  EXPECT_EQ(Register(Of("1", 1, "m", 16)),
            "block_size mismatch for model=m routing_group=default: existing=4, requested=16");
  EXPECT_EQ(Register(Of("1", 1)), "ok");
  EXPECT_EQ(Register(Of("18446744073709551615")), "ok");

  EXPECT_EQ(Unregister("999"), "instance 999 not found");
  EXPECT_TRUE(absl::IsNotFound(directory_->Unregister("999", "m", {}, {})));
  EXPECT_EQ(Unregister("1", "other"), "instance 1 is registered for model=m routing_group=default");
  EXPECT_EQ(Unregister("1", "m", "g2"),
            "instance 1 is registered for model=m routing_group=default");
  EXPECT_EQ(Unregister("1", "m", "default", 7), "instance 1 dp_rank 7 not found");
  EXPECT_EQ(Unregister("1", "m", "default", 1), "ok");
  EXPECT_THAT(Names(), ElementsAre("1/0", "18446744073709551615/0"));
  EXPECT_EQ(Unregister("1", "m", std::nullopt, 7), "ok") << "without a group: the whole instance";
  EXPECT_EQ(Unregister("1"), "instance 1 not found");
}

TEST_F(EngineDirectoryTest, ListsInOrderAndByModelAndGroup) {
  for (const char* name : {"10", "9", "pod-b", "pod-a"}) ASSERT_EQ(Register(Of(name)), "ok");
  EngineRegistration other = Of("7", 3, "n");
  other.group = "g";
  ASSERT_EQ(Register(other), "ok");
  EXPECT_THAT(Names(), ElementsAre("7/3", "9/0", "10/0", "pod-a/0", "pod-b/0"));
  EXPECT_THAT(Names("m"), ElementsAre("9/0", "10/0", "pod-a/0", "pod-b/0"));
  EXPECT_THAT(Names("n", "g"), ElementsAre("7/3"));
  EXPECT_THAT(Names(std::nullopt, "default"), ElementsAre("9/0", "10/0", "pod-a/0", "pod-b/0"));
  EXPECT_THAT(Names("m", "g"), ElementsAre());
  EXPECT_EQ(directory_->instances(), 5u);
  EXPECT_THAT(directory_->Domains(), ElementsAre(Domain{"m", ""}, Domain{"n", "g"}));
}

TEST_F(EngineDirectoryTest, ADomainGoesWithItsLastInstance) {
  ASSERT_EQ(Register(Of("1")), "ok");
  ASSERT_EQ(Register(Of("2")), "ok");
  EXPECT_EQ(registry_.BlockSizeOf({"m", ""}).value_or(0), 4u);
  ASSERT_EQ(Unregister("1"), "ok");
  EXPECT_EQ(directory_->BlockSizeOf({"m", ""}), 4u);
  ASSERT_EQ(Unregister("2", "m", "default", 0), "ok") << "its last rank";
  EXPECT_EQ(directory_->BlockSizeOf({"m", ""}), std::nullopt);
  EXPECT_TRUE(absl::IsNotFound(registry_.BlockSizeOf({"m", ""}).status()));
  EXPECT_THAT(Names(), ElementsAre());
  EXPECT_EQ(Register(Of("1", 0, "m", 16)), "ok") << "another block size now";
}

TEST_F(EngineDirectoryTest, ABlockSizeOfZeroIsTakenAndHoldsNothing) {
  EXPECT_EQ(Register(Of("77", 0, "zero", 0)), "ok");
  EXPECT_EQ(directory_->BlockSizeOf({"zero", ""}), 0u);
  EXPECT_EQ(Unregister("77", "zero"), "ok");
}

TEST_F(EngineDirectoryTest, ABlockSizeIsLearnedFromTheFirstStoredBlock) {
  PoolEngine first({.seed = 31}), second({.seed = 32});
  for (const auto& [engine, name] : {std::pair(&first, "1"), std::pair(&second, "2")}) {
    EngineRegistration registration = engine->Registration(name);
    registration.block_size = kBlockSizeAuto;
    ASSERT_EQ(Register(registration), "ok");
    engine->sockets().WaitForSubscribers();
  }
  // They are there, so that requests may be sent to them, and hold nothing.
  EXPECT_EQ(registry_.HoldersOf({"m", ""}).size(), 2u);
  EXPECT_EQ(directory_->BlockSizeOf({"m", ""}), 0u);
  EXPECT_EQ(directory_->List()[0].block_size, 0u);
  EXPECT_TRUE(directory_->Registrations().empty());
  first.Run(20);
  EXPECT_TRUE(IsExact(first, "1")) << first.Compare(registry_, "1");
  EXPECT_EQ(directory_->BlockSizeOf({"m", ""}), 4u);
  EXPECT_EQ(*registry_.BlockSizeOf({"m", ""}), 4u);
  EXPECT_EQ(registry_.HoldersOf({"m", ""}).size(), 2u);
  second.Run(20);
  EXPECT_TRUE(IsExact(second, "2")) << second.Compare(registry_, "2");
  EXPECT_EQ(directory_->Registrations().size(), 2u);
  EXPECT_EQ(Register(Of("3", 0, "m", 16)),
            "block_size mismatch for model=m routing_group=default: existing=4, requested=16");
  EngineRegistration known = Of("4");
  known.block_size = kBlockSizeAuto;
  EXPECT_EQ(Register(known), "ok");
  EXPECT_EQ(directory_->List()[2].block_size, 4u);
}

// As of an engine that is registered when it has run for long: its first number shows that some
// were missed.
TEST_F(EngineDirectoryTest, ALossBeforeTheBlockSizeIsKnownCountsFromThen) {
  PoolEngine engine({.seed = 34});
  engine.Run(20);
  EngineRegistration learns = engine.Registration("1");
  learns.block_size = kBlockSizeAuto;
  ASSERT_EQ(Register(learns), "ok");
  engine.sockets().WaitForSubscribers();
  engine.Run(20);
  const auto stats = [&] { return *registry_.StatsOf({"m", ""}); };
  EXPECT_TRUE(Eventually([&] { return directory_->BlockSizeOf({"m", ""}) == 4u; }));
  EXPECT_EQ(*registry_.BlockSizeOf({"m", ""}), 4u);
  ASSERT_EQ(stats().holders.size(), 1u);
  EXPECT_TRUE(Eventually([&] { return stats().holders[0].trust == Trust::kDegraded; }));
  ASSERT_EQ(Unregister("1"), "ok");
  EXPECT_TRUE(absl::IsNotFound(registry_.BlockSizeOf({"m", ""}).status()));
}

TEST_F(EngineDirectoryTest, ARegistrationThatSaysABlockSizeEndsTheLearningOfOthers) {
  PoolEngine engine({.seed = 33});
  EngineRegistration learns = engine.Registration("1");
  learns.block_size = kBlockSizeAuto;
  ASSERT_EQ(Register(learns), "ok");
  engine.sockets().WaitForSubscribers();
  EXPECT_EQ(Register(Of("2", 0, "m", 8)), "ok");
  EXPECT_EQ(*registry_.BlockSizeOf({"m", ""}), 8u);
  EXPECT_EQ(registry_.HoldersOf({"m", ""}).size(), 2u);
  // Its blocks are of another size than the domain's: refused, as they would have been.
  engine.Run(20);
  EXPECT_TRUE(Eventually([&] {
    return directory_->List()[0].worker.refused[static_cast<size_t>(Refusal::kBlockSize)] > 0;
  }));
  const std::vector<EngineEntry> entries = directory_->List();
  for (const EngineRankStats& rank : entries[0].worker.ranks)
    EXPECT_EQ(rank.blocks, (std::array<uint64_t, kTiers>{}));
}

TEST_F(EngineDirectoryTest, AnEngineThatIsRegisteredAgainStartsFresh) {
  PoolEngine engine({.seed = 21, .replay = true});
  ASSERT_EQ(Register(engine.Registration("1")), "ok");
  engine.sockets().WaitForSubscribers();
  engine.Run(50);
  ASSERT_TRUE(IsExact(engine, "1")) << engine.Compare(registry_, "1");
  ASSERT_EQ(Unregister("1"), "ok");
  EXPECT_TRUE(absl::IsNotFound(registry_.BlockSizeOf({"m", ""}).status()));
  // Its numbers began anew meanwhile, with other contents.
  engine.Restart();
  engine.Run(10);
  ASSERT_EQ(Register(engine.Registration("1")), "ok");
  engine.sockets().WaitForSubscribers();
  engine.Run(10);
  EXPECT_TRUE(IsExact(engine, "1")) << engine.Compare(registry_, "1");
}

// Their removals are no longer heard: if they were kept, answers would show them as held for ever.
TEST_F(EngineDirectoryTest, RanksNamedByBatchesGoWithTheStreamThatNamedThem) {
  PoolEngine engine({.seed = 22, .rank = 5});
  PoolEngine other({.seed = 23, .rank = 6});
  EngineRegistration registration = engine.Registration("1");
  registration.rank = 0;
  ASSERT_EQ(Register(registration), "ok");
  registration = other.Registration("1");
  registration.rank = 1;
  ASSERT_EQ(Register(registration), "ok");
  engine.sockets().WaitForSubscribers();
  other.sockets().WaitForSubscribers();
  engine.Run(50);
  other.Run(50);
  EXPECT_TRUE(IsExact(engine, "1")) << engine.Compare(registry_, "1");
  EXPECT_TRUE(IsExact(other, "1")) << other.Compare(registry_, "1");
  EXPECT_EQ(registry_.HoldersOf({"m", ""}).size(), 4u);
  ASSERT_EQ(Unregister("1", "m", "default", 0), "ok");
  EXPECT_EQ(registry_.HoldersOf({"m", ""}).size(), 2u) << "rank 5 was never registered";
  EXPECT_NE(engine.Compare(registry_, "1"), "");
  EXPECT_EQ(other.Compare(registry_, "1"), "");
}

// A rank that is registered itself stays, without what another stream said of it.
TEST_F(EngineDirectoryTest, ARankThatAnotherStreamNamedStaysWhenItIsRegistered) {
  PoolEngine engine({.seed = 22, .rank = 1});
  EngineRegistration registration = engine.Registration("1");
  registration.rank = 0;
  ASSERT_EQ(Register(registration), "ok");
  ASSERT_EQ(Register(Of("1", 1)), "ok");
  engine.sockets().WaitForSubscribers();
  engine.Run(50);
  EXPECT_TRUE(IsExact(engine, "1")) << engine.Compare(registry_, "1");
  ASSERT_EQ(Unregister("1", "m", "default", 0), "ok");
  EXPECT_EQ(registry_.HoldersOf({"m", ""}).size(), 1u);
  EXPECT_NE(engine.Compare(registry_, "1"), "");
  engine.EvictAll();
  EXPECT_EQ(engine.Compare(registry_, "1"), "");
}

// Events of a paused engine are not read: answers about it hold for no longer than a lease.
TEST_F(EngineDirectoryTest, AnEngineThatIsPausedForLongerThanItsLeaseIsInNoAnswer) {
  PoolEngine engine({.seed = 24, .replay = true});
  ASSERT_EQ(Register(engine.Registration("1")), "ok");
  engine.sockets().WaitForSubscribers();
  engine.Run(50);
  ASSERT_TRUE(IsExact(engine, "1"));
  const auto masked = [&] { return registry_.StatsOf({"m", ""})->holders[0].masked; };
  const auto pass = [&](Duration time) {
    clock_.Advance(time);
    directory_->Tick();
  };
  ASSERT_TRUE(directory_->Pause("1", std::nullopt).ok());
  pass(seconds(2));
  pass(seconds(9));
  EXPECT_FALSE(masked());
  engine.EvictAll();
  pass(seconds(2));
  EXPECT_TRUE(masked());
  ASSERT_TRUE(directory_->Resume("1", std::nullopt).ok());
  pass(seconds(2));
  EXPECT_FALSE(masked());
  EXPECT_TRUE(IsExact(engine, "1")) << engine.Compare(registry_, "1");
}

// A rank without a stream: no stream of its number is made for it.
TEST_F(EngineDirectoryTest, ARestoredRankThatNobodyListensToIsInDoubtByItself) {
  HolderRegistry registry(RegistryOptions());
  EngineDirectoryOptions options;
  options.clock = &clock_;
  EngineDirectory directory(options, &registry, ingest_.get());
  const auto worker = directory.Adopt(Of("1"), /*unconfirmed=*/false);
  ASSERT_TRUE(worker.ok());
  EngineAlias alias;
  alias.rank = 5;
  alias.hash.value = 7;
  alias.block = SequenceHash{11};
  alias.copies = {1};
  alias.stream_rank = 3;
  ASSERT_TRUE((*worker)->Restore(alias).ok());
  directory.Open();
  const EngineWorkerStats stats = (*worker)->Stats();
  ASSERT_EQ(stats.ranks.size(), 1u);
  EXPECT_EQ(stats.ranks[0].trust, Trust::kDegraded);
  EXPECT_EQ(stats.ranks[0].stream_rank, 3u);
  EXPECT_EQ(stats.ranks[0].streams, 1u);
}

TEST_F(EngineDirectoryTest, PausesAndResumesInTheWordsOfDynamosIndexer) {
  PoolEngine engine({.seed = 23, .replay = true});
  EXPECT_EQ(directory_->Pause("1", std::nullopt).message(), "instance 1 not found");
  ASSERT_EQ(Register(engine.Registration("1")), "ok");
  engine.sockets().WaitForSubscribers();
  engine.Run(5);
  ASSERT_TRUE(IsExact(engine, "1"));
  EXPECT_EQ(directory_->Resume("1", std::nullopt).message(),
            "instance 1 dp_rank 0 cannot be resumed from status active");
  EXPECT_EQ(directory_->Pause("1", 4).message(), "instance 1 dp_rank 4 not found");
  ASSERT_TRUE(directory_->Pause("1", std::nullopt).ok());
  EXPECT_EQ(directory_->List()[0].status, ListenerStatus::kPaused);
  const absl::Status twice = directory_->Pause("1", 0);
  EXPECT_TRUE(absl::IsFailedPrecondition(twice));
  EXPECT_EQ(twice.message(), "instance 1 dp_rank 0 cannot be paused from status paused");
  engine.Run(20);
  ASSERT_TRUE(directory_->Resume("1", 0).ok());
  EXPECT_TRUE(IsExact(engine, "1")) << engine.Compare(registry_, "1");
}

TEST_F(EngineDirectoryTest, AnEngineThatIsGoneForLongerThanItsLeaseIsInNoAnswer) {
  PoolEngine engine({.seed = 24, .replay = true});
  ASSERT_EQ(Register(engine.Registration("1")), "ok");
  engine.sockets().WaitForSubscribers();
  engine.Run(50);
  ASSERT_TRUE(IsExact(engine, "1"));
  const auto connected = [&] { return directory_->List()[0].listeners[0].stream.connected; };
  const auto masked = [&] { return registry_.StatsOf({"m", ""})->holders[0].masked; };
  const auto pass = [&](Duration time) {
    clock_.Advance(time);
    directory_->Tick();
  };
  engine.sockets().Stop();
  ASSERT_TRUE(Eventually([&] { return !connected(); }));
  pass(seconds(2));
  pass(seconds(9));
  EXPECT_FALSE(masked());
  pass(seconds(2));
  EXPECT_TRUE(masked());
  EXPECT_NE(engine.Compare(registry_, "1"), "");
  engine.sockets().Start();
  ASSERT_TRUE(Eventually(connected));
  pass(seconds(2));
  EXPECT_FALSE(masked());
  EXPECT_TRUE(IsExact(engine, "1")) << "as it was: " << engine.Compare(registry_, "1");
}

TEST_F(EngineDirectoryTest, WhatAPeerToldOfAnInstanceThatNobodyRegistersIsForgotten) {
  const auto worker = directory_->Adopt(Of("1"), /*unconfirmed=*/true);
  ASSERT_TRUE(worker.ok()) << worker.status();
  EngineAlias alias;
  alias.hash.value = 7;
  alias.block = SequenceHash{11};
  alias.copies = {1};
  alias.suspect = alias.lasting = true;
  ASSERT_TRUE((*worker)->Restore(alias).ok());
  const std::vector<SequenceHash> prompt = {SequenceHash{11}};
  EXPECT_EQ(registry_.FindOverlaps({"m", ""}, {.blocks = prompt})->holders.size(), 1u);
  EXPECT_THAT(Names(), ElementsAre()) << "it does not listen";
  EXPECT_EQ(directory_->instances(), 0u);
  EXPECT_EQ(Register(Of("2", 0, "m", 16)),
            "block_size mismatch for model=m routing_group=default: existing=4, requested=16");
  clock_.Advance(seconds(59));
  directory_->Tick();
  EXPECT_EQ(registry_.FindOverlaps({"m", ""}, {.blocks = prompt})->holders.size(), 1u);
  clock_.Advance(seconds(2));
  directory_->Tick();
  EXPECT_TRUE(absl::IsNotFound(registry_.BlockSizeOf({"m", ""}).status()));
}

TEST_F(EngineDirectoryTest, BlocksWithoutTokensAreFoundByTheNamesOfOtherInstances) {
  PoolEngine engine({.seed = 25});
  ASSERT_EQ(Register(engine.Registration("1")), "ok");
  engine.sockets().WaitForSubscribers();
  engine.Run(20);
  ASSERT_TRUE(IsExact(engine, "1"));
  const auto other = directory_->Adopt(Of("2"), /*unconfirmed=*/false);
  ASSERT_TRUE(other.ok());
  std::vector<std::pair<uint64_t, SequenceHash>> names;
  directory_->ForEachAlias({"m", ""}, [&](const std::string& instance, const EngineAlias& alias) {
    EXPECT_EQ(instance, "1");
    if (alias.position == 0) names.emplace_back(alias.hash.value, alias.block);
  });
  ASSERT_FALSE(names.empty());
  // Mooncake's: a hash, a medium, nothing else.
  const EngineBlockHash hash{.value = names[0].first, .bytes = {}};
  EngineEvent event;
  event.kind = EngineEvent::Kind::kStored;
  event.envelope = true;
  event.hashes = {&hash, 1};
  event.medium = "cpu";
  EngineBatch batch;
  batch.events.push_back(event);
  (*other)->Apply(0, batch, clock_.Now());
  (*other)->Tick(clock_.Now());
  const std::vector<SequenceHash> prompt = {names[0].second};
  const auto found = registry_.FindOverlaps({"m", ""}, {.blocks = prompt, .tiers = Tier::kHost});
  ASSERT_EQ(found->holders.size(), 1u);
  EXPECT_EQ(found->holders[0].holder->id.name, "2");
}

// Removals that take long hold up no other instance, and no domain is lost between them.
TEST_F(EngineDirectoryTest, RegistrationsAndRemovalsRace) {
  constexpr int kThreads = 4, kRounds = 150;
  clock_.Advance(seconds(3600));  // a tick forgets what has no listener
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      for (int round = 0; round < kRounds; ++round) {
        const std::string instance = std::to_string(random() % 3);
        switch (random() % 4) {
          case 0:
            (void)directory_->Unregister(instance, "m", std::nullopt, std::nullopt);
            break;
          case 1:
            (void)directory_->Unregister(instance, "m", "default", random() % 2);
            break;
          default:
            (void)directory_->Register(Of(instance, random() % 2));
        }
        for (const EngineEntry& entry : directory_->List()) {
          EXPECT_EQ(entry.block_size, 4u);
          EXPECT_FALSE(entry.listeners.empty());
        }
        clock_.Advance(seconds(1));
        directory_->Tick();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const bool any = directory_->instances() > 0;
  EXPECT_EQ(registry_.BlockSizeOf({"m", ""}).ok(), any);
  size_t listeners = 0;
  for (const EngineEntry& entry : directory_->List()) listeners += entry.listeners.size();
  EXPECT_EQ(registry_.HoldersOf({"m", ""}).size(), listeners);
  for (const char* name : {"0", "1", "2"}) Unregister(name);
  EXPECT_FALSE(registry_.BlockSizeOf({"m", ""}).ok());
}

}  // namespace
}  // namespace kvatlas
