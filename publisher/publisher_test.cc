// A publisher against real leaves' receiving ends over gRPC on loopback.

#include "publisher/publisher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "indexer/base/await.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/stream/validate.h"
#include "publisher/fake_leaf.h"

namespace kvatlas {
namespace {

constexpr std::chrono::seconds kLong(60);
constexpr uint32_t kBlockSize = 4;

std::unique_ptr<Publisher> MakePublisher(std::vector<std::string> leaves,
                                         size_t queue_bytes_max = 32 << 20) {
  return *Publisher::Create({.leaves = std::move(leaves),
                             .worker = "w",
                             .domain = {.model = "m", .tenant = ""},
                             .block_size = kBlockSize,
                             .queue_bytes_max = queue_bytes_max});
}

// Block `name` has tokens that are all `name`.
std::vector<TokenId> TokensOf(const std::vector<uint64_t>& names) {
  std::vector<TokenId> tokens;
  for (uint64_t name : names) tokens.insert(tokens.end(), kBlockSize, static_cast<TokenId>(name));
  return tokens;
}

Holdings ChainOf(const std::vector<uint64_t>& names, Tier tier = Tier::kDevice) {
  Holdings holdings;
  for (SequenceHash block :
       SequenceHashes(LocalHashes(TokensOf(names), {.block_size = kBlockSize}, BlockSeed({})))) {
    holdings.insert({static_cast<int>(tier), Raw(block)});
  }
  return holdings;
}

TEST(PublisherTest, OptionsOutOfRangeAreRefused) {
  EXPECT_EQ(
      Publisher::Create({.worker = "", .domain = {.model = "m", .tenant = ""}}).status().code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(Publisher::Create({.worker = "w"}).ok());
  EXPECT_FALSE(
      Publisher::Create({.worker = "w", .domain = {.model = "m", .tenant = ""}, .block_size = 0})
          .ok());
}

// Protobuf's strings: a leaf could not even parse the hello.
TEST(PublisherTest, NamesThatAreNotUtf8AreRefused) {
  const Domain domain = {.model = "m", .tenant = ""};
  EXPECT_TRUE(Publisher::Create({.worker = "gr\xc3\xbcn", .domain = domain}).ok());
  EXPECT_FALSE(Publisher::Create({.worker = "\xff", .domain = domain}).ok());
  EXPECT_FALSE(Publisher::Create({.worker = "w", .domain = {.model = "\xc3", .tenant = ""}}).ok());
  EXPECT_FALSE(Publisher::Create({.worker = "w", .domain = {.model = "m", .tenant = "\x80"}}).ok());
  EXPECT_FALSE(
      Publisher::Create({.worker = "w", .domain = domain, .labels = {{"zone", "\xfe"}}}).ok());
}

TEST(PublisherTest, LabelsOutOfBoundsAreRefused) {
  PublisherOptions options = {.worker = "w", .domain = {.model = "m", .tenant = ""}};
  options.labels = {{"", "a"}};
  EXPECT_FALSE(Publisher::Create(options).ok());
  options.labels.assign(kHelloLabelsMax + 1, {"zone", "a"});
  EXPECT_FALSE(Publisher::Create(options).ok());
  options.labels.pop_back();
  EXPECT_TRUE(Publisher::Create(options).ok());
}

TEST(PublisherTest, ALeafHoldsWhatTheEngineSaid) {
  FakeLeaf leaf;
  TestServer server(&leaf);
  std::unique_ptr<Publisher> publisher = MakePublisher({server.target()});
  publisher->Stored(Tier::kDevice, {1, 2, 3}, std::nullopt, TokensOf({1, 2, 3}));
  publisher->SetLoad({.running_requests = 5});
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  EXPECT_EQ(leaf.holdings(), ChainOf({1, 2, 3}));
  EXPECT_EQ(leaf.load().running_requests, 5u);
  publisher->Removed(Tier::kDevice, {3});
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  EXPECT_EQ(leaf.holdings(), ChainOf({1, 2}));
  publisher->Cleared();
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  EXPECT_TRUE(leaf.holdings().empty());
  const PublisherStats stats = publisher->Stats();
  EXPECT_EQ(stats.blocks_stored, 3u);
  EXPECT_EQ(stats.blocks_removed_passed, 1u);
  EXPECT_GT(stats.replicas[0].bytes_sent, 0u);
}

TEST(PublisherTest, WhatIsDroppedIsSaidInLastError) {
  std::unique_ptr<Publisher> publisher = MakePublisher({});
  publisher->Stored(Tier::kDevice, {1, 2}, std::nullopt, TokensOf({1, 2}));
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  EXPECT_TRUE(publisher->Stats().last_error.ok()) << publisher->Stats().last_error;
  publisher->Removed(Tier::kDevice, {2, 3, 4});
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  EXPECT_EQ(publisher->Stats().last_error.message(), "removed: 2 blocks that are not held");
  publisher->Stored(Tier::kDevice, {1}, std::nullopt, TokensOf({7}));
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  EXPECT_NE(publisher->Stats().last_error.message().find("1 name of blocks"), std::string::npos)
      << publisher->Stats().last_error;
}

TEST(PublisherTest, BlocksOfAGroupDoNotGoWithoutThePublishersSalt) {
  PublisherOptions options;
  options.worker = "w";
  options.domain = {.model = "m", .tenant = ""};
  options.block_size = kBlockSize;
  options.cache_salt = "a";
  std::unique_ptr<Publisher> publisher = *Publisher::Create(options);
  const EngineGroup group = {.number = 0, .kind = CacheKind::kFull};
  const EngineHash block[] = {1};
  const auto store = [&](const CacheNamespace& of) {
    return publisher->StoredInGroup(group, Tier::kDevice, block, std::nullopt, TokensOf({1}), of);
  };
  EXPECT_FALSE(store({}));
  EXPECT_FALSE(store({.lora_name = "l", .cache_salt = ""}));
  EXPECT_NE(publisher->Stats().last_error.message().find("cache_salt"), std::string::npos);
  EXPECT_TRUE(store({.lora_name = "l", .cache_salt = "b"}));
  EXPECT_TRUE(publisher->StoredInGroup(group, Tier::kDevice, block, std::nullopt, TokensOf({1})));
}

TEST(PublisherTest, NothingIsWaitedForAfterStop) {
  std::unique_ptr<Publisher> publisher = MakePublisher({"127.0.0.1:1"});
  publisher->Stored(Tier::kDevice, {1}, std::nullopt, TokensOf({1}));
  std::thread waits([&] { EXPECT_FALSE(publisher->WaitAcknowledged(std::chrono::hours(1))); });
  publisher->Stop(/*goodbye=*/false, Duration::zero());
  waits.join();  // or the test runs out of its time
}

TEST(PublisherTest, HashesOfTheContractAreTakenAsTheyAre) {
  FakeLeaf leaf;
  TestServer server(&leaf);
  std::unique_ptr<Publisher> publisher = MakePublisher({server.target()});
  const std::vector<SequenceHash> blocks = {SequenceHash{10}, SequenceHash{11}};
  publisher->StoredHashed(Tier::kHost, 0, kNoParent, blocks);
  publisher->RemovedHashed(Tier::kHost, {blocks.data(), 1});
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  EXPECT_EQ(leaf.holdings(), (Holdings{{static_cast<int>(Tier::kHost), 11}}));
}

// A window whose blocks are the domain's, and states at every second block.
const CacheLayout kHybrid = {
    .main = {.block_size = kBlockSize},
    .sides = {{.kind = CacheKind::kWindow, .block_size = kBlockSize, .window_tokens = 7},
              {.kind = CacheKind::kState, .block_size = 2 * kBlockSize}}};

Holdings SideHoldings(SideClass side, const std::vector<uint64_t>& blocks,
                      Tier tier = Tier::kDevice) {
  Holdings holdings;
  for (uint64_t block : blocks)
    holdings.insert({static_cast<int>(tier),
                     Raw(SideName(SideTag(kHybrid.sides[side - 1]), SequenceHash{block}))});
  return holdings;
}

TEST(PublisherTest, SideBlocksArriveWithTheLayoutAndTheirCopiesAreCounted) {
  FakeLeaf leaf;
  TestServer server(&leaf);
  std::unique_ptr<Publisher> publisher = MakePublisher({server.target()});
  const std::vector<SequenceHash> blocks = {SequenceHash{10}, SequenceHash{11}};
  ASSERT_TRUE(publisher->SetLayout(kHybrid));
  EXPECT_TRUE(publisher->StoredHashed(Tier::kDevice, 0, kNoParent, blocks));
  EXPECT_TRUE(publisher->StoredSideHashed(1, Tier::kDevice, blocks));
  EXPECT_TRUE(publisher->StoredSideHashed(2, Tier::kHost, {&blocks[1], 1}));
  EXPECT_TRUE(publisher->StoredSideHashed(1, Tier::kDevice, {&blocks[1], 1}));
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  EXPECT_EQ(leaf.layout(), kHybrid);
  EXPECT_EQ(leaf.holdings_of(0), (Holdings{{0, 10}, {0, 11}}));
  EXPECT_EQ(leaf.holdings_of(1), SideHoldings(1, {10, 11}));
  EXPECT_EQ(leaf.holdings_of(2), SideHoldings(2, {11}, Tier::kHost));
  EXPECT_TRUE(publisher->RemovedSideHashed(1, Tier::kDevice, blocks));
  EXPECT_TRUE(publisher->RemovedSideHashed(2, Tier::kDevice, blocks)) << "in another tier";
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  EXPECT_EQ(leaf.holdings_of(1), SideHoldings(1, {11})) << "a copy is left";
  EXPECT_EQ(publisher->Stats().unknown_removed, 2u);
  EXPECT_TRUE(publisher->RemovedSideHashed(1, Tier::kDevice, {&blocks[1], 1}));
  EXPECT_TRUE(publisher->RemovedSideHashed(2, Tier::kHost, {&blocks[1], 1}));
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  EXPECT_EQ(leaf.holdings(), (Holdings{{0, 10}, {0, 11}}));
  EXPECT_EQ(leaf.layout(), kHybrid);
}

TEST(PublisherTest, ARestartedLeafGetsSideBlocksAndTheLayoutBySnapshot) {
  auto leaf = std::make_unique<FakeLeaf>();
  auto server = std::make_unique<TestServer>(leaf.get());
  const uint16_t port = server->port();
  std::unique_ptr<Publisher> publisher = MakePublisher({server->target()});
  const std::vector<SequenceHash> blocks = {SequenceHash{10}, SequenceHash{11}};
  publisher->SetLayout(kHybrid);
  publisher->StoredHashed(Tier::kDevice, 0, kNoParent, blocks);
  publisher->StoredSideHashed(1, Tier::kDevice, blocks);
  publisher->StoredSideHashed(2, Tier::kDevice, {&blocks[1], 1});
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  server = nullptr;
  publisher->RemovedSideHashed(1, Tier::kDevice, {blocks.data(), 1});
  leaf = std::make_unique<FakeLeaf>();
  server = std::make_unique<TestServer>(leaf.get(), port);
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  EXPECT_EQ(leaf->layout(), kHybrid);
  EXPECT_EQ(leaf->holdings_of(0), (Holdings{{0, 10}, {0, 11}}));
  EXPECT_EQ(leaf->holdings_of(1), SideHoldings(1, {11}));
  EXPECT_EQ(leaf->holdings_of(2), SideHoldings(2, {11}));
  server = nullptr;
}

TEST(PublisherTest, LayoutsThatContradictTheOneBeforeAndUnknownClassesAreRefused) {
  FakeLeaf leaf;
  TestServer server(&leaf);
  std::unique_ptr<Publisher> publisher = MakePublisher({server.target()});
  const std::vector<SequenceHash> block = {SequenceHash{10}};
  EXPECT_FALSE(publisher->StoredSideHashed(1, Tier::kDevice, block)) << "no layout";
  CacheLayout layout = kHybrid;
  layout.main.block_size = 2 * kBlockSize;
  EXPECT_FALSE(publisher->SetLayout(layout)) << "not the domain's";
  ASSERT_TRUE(publisher->SetLayout(kHybrid));
  EXPECT_FALSE(publisher->StoredSideHashed(0, Tier::kDevice, block));
  EXPECT_FALSE(publisher->RemovedSideHashed(3, Tier::kDevice, block));
  layout = kHybrid;
  std::swap(layout.sides[0], layout.sides[1]);
  EXPECT_FALSE(publisher->SetLayout(layout)) << "names of blocks that may be held";
  layout = kHybrid;
  layout.sides[0].drops_last = true;
  layout.sides.push_back({.kind = CacheKind::kWindow, .block_size = 6, .window_tokens = 7});
  EXPECT_TRUE(publisher->SetLayout(layout));
  EXPECT_FALSE(publisher->StoredSideHashed(3, Tier::kDevice, block)) << "ends inside main blocks";
  EXPECT_TRUE(publisher->StoredSideHashed(1, Tier::kDevice, block));
  EXPECT_FALSE(publisher->Publish("")) << "it has spoken by calls";
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  EXPECT_EQ(leaf.layout(), layout);
  EXPECT_EQ(leaf.holdings(), SideHoldings(1, {10}));
  EXPECT_EQ(publisher->Stats().invalid_calls, 7u);
}

TEST(PublisherTest, CopiesAreCounted) {
  FakeLeaf leaf;
  TestServer server(&leaf);
  std::unique_ptr<Publisher> publisher = MakePublisher({server.target()});
  for (int i = 0; i < 3; ++i) publisher->Stored(Tier::kDevice, {1}, std::nullopt, TokensOf({1}));
  for (int i = 0; i < 2; ++i) publisher->Removed(Tier::kDevice, {1});
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  EXPECT_EQ(leaf.holdings(), ChainOf({1}));
  for (int i = 0; i < 5; ++i) publisher->Removed(Tier::kDevice, {1});
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  EXPECT_TRUE(leaf.holdings().empty());
}

TEST(PublisherTest, AnEnginesBugsAreCountedAndHarmless) {
  FakeLeaf leaf;
  TestServer server(&leaf);
  std::unique_ptr<Publisher> publisher = MakePublisher({server.target()});
  publisher->Stored(Tier::kDevice, {3}, std::nullopt, TokensOf({3, 4}));
  publisher->StoredHashed(Tier::kDevice, 1, kNoParent, std::vector<SequenceHash>{SequenceHash{1}});
  publisher->Stored(Tier::kDevice, {2}, /*parent=*/1, TokensOf({2}));
  publisher->Removed(Tier::kDevice, {9});
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  EXPECT_TRUE(leaf.holdings().empty());
  const PublisherStats stats = publisher->Stats();
  EXPECT_EQ(stats.unknown_parents, 1u);
  EXPECT_EQ(stats.unknown_removed, 1u);
  EXPECT_EQ(stats.invalid_calls, 2u);
  EXPECT_EQ(stats.last_error.code(), absl::StatusCode::kNotFound);
}

TEST(PublisherTest, ARefusedCallSaysWhatWasExpectedAndWhatCame) {
  std::unique_ptr<Publisher> publisher = MakePublisher({});
  const auto error = [&] { return std::string(publisher->Stats().last_error.message()); };
  EXPECT_EQ(error(), "");
  const std::vector<TokenId> tokens(5, 1);
  EXPECT_FALSE(publisher->Stored(Tier::kDevice, {1, 2}, std::nullopt, tokens));
  EXPECT_EQ(error(), "2 blocks of 4 tokens need 8 token ids; got 5");
  EXPECT_FALSE(publisher->Stored(Tier::kDevice, {1}, std::nullopt, tokens));
  EXPECT_EQ(error(), "1 block of 4 tokens needs 4 token ids; got 5");
  EXPECT_FALSE(publisher->StoredHashed(Tier::kDevice, 1, kNoParent,
                                       std::vector<SequenceHash>{SequenceHash{1}}));
  EXPECT_EQ(error(), "parent is 0 at position 0 and nowhere else; got parent 0 at position 1");
  EXPECT_TRUE(publisher->Removed(Tier::kDevice, {1}));
  EXPECT_FALSE(publisher->Publish(""));
  EXPECT_THAT(error(), ::testing::HasSubstr("has spoken by calls of blocks before"));
}

TEST(PublisherTest, ALeafThatIsNotReachedIsSaidWithTheReason) {
  std::unique_ptr<Publisher> publisher;
  std::string target;
  {
    FakeLeaf leaf;
    TestServer server(&leaf);
    target = server.target();
    publisher = MakePublisher({target});
    ASSERT_TRUE(Await([&] { return publisher->Stats().replicas[0].welcomed; }, kLong));
    EXPECT_TRUE(publisher->Stats().replicas[0].status.ok());
    EXPECT_TRUE(publisher->Stats().last_error.ok());
  }
  const auto status = [&] { return publisher->Stats().replicas[0].status; };
  EXPECT_TRUE(Await(
      [&] { return status().message().find("Connection refused") != absl::string_view::npos; },
      kLong))
      << status();
  EXPECT_EQ(status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(publisher->Stats().last_error.message()),
              ::testing::StartsWith("leaf " + target + ": "));
}

// A call that was refused long ago does not hide that a leaf is not told, nor the other way round.
TEST(PublisherTest, TheLastErrorIsTheLatest) {
  std::unique_ptr<Publisher> publisher;
  const auto error = [&] { return std::string(publisher->Stats().last_error.message()); };
  const auto refused = [&](size_t count) {
    return !publisher->Stored(Tier::kDevice, {1}, std::nullopt, std::vector<TokenId>(count, 1));
  };
  std::string leaf_error;
  {
    FakeLeaf leaf;
    TestServer server(&leaf);
    leaf_error = "leaf " + server.target() + ": ";
    publisher = MakePublisher({server.target()});
    ASSERT_TRUE(Await([&] { return publisher->Stats().replicas[0].welcomed; }, kLong));
    EXPECT_TRUE(refused(5));
    EXPECT_EQ(error(), "1 block of 4 tokens needs 4 token ids; got 5");
  }
  EXPECT_TRUE(Await([&] { return error().starts_with(leaf_error); }, kLong)) << error();
  EXPECT_TRUE(refused(6));
  EXPECT_EQ(error(), "1 block of 4 tokens needs 4 token ids; got 6");
}

TEST(PublisherTest, AnAddressWithoutAPortIsRefused) {
  const absl::Status refused =
      Publisher::Create(
          {.leaves = {"leaf-0"}, .worker = "w", .domain = {.model = "m", .tenant = ""}})
          .status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("'leaf-0': expected HOST:PORT"));
}

TEST(PublisherTest, WorksWithoutLeaves) {
  std::unique_ptr<Publisher> publisher = MakePublisher({});
  publisher->Stored(Tier::kDevice, {1}, std::nullopt, TokensOf({1}));
  EXPECT_TRUE(publisher->WaitAcknowledged(kLong));
  EXPECT_EQ(publisher->Stats().blocks_held, 1u);
}

TEST(PublisherTest, AnUnreachableLeafIsSaidToBeSo) {
  std::unique_ptr<Publisher> publisher = MakePublisher({"127.0.0.1:1"});
  publisher->Stored(Tier::kDevice, {1}, std::nullopt, TokensOf({1}));
  EXPECT_FALSE(publisher->WaitAcknowledged(std::chrono::milliseconds(1)));
  publisher->Stop(/*goodbye=*/true);
  publisher->Stored(Tier::kDevice, {2}, std::nullopt, TokensOf({2}));
}

TEST(PublisherTest, AGoodbyeReachesTheLeaf) {
  FakeLeaf leaf;
  TestServer server(&leaf);
  std::unique_ptr<Publisher> publisher = MakePublisher({server.target()});
  publisher->Stored(Tier::kDevice, {1}, std::nullopt, TokensOf({1}));
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  EXPECT_FALSE(leaf.gone());
  publisher->Stop(/*goodbye=*/true, kLong);
  EXPECT_TRUE(Await([&] { return leaf.gone(); }, kLong));
}

TEST(PublisherTest, ARestartedLeafIsFilledBySnapshot) {
  auto leaf = std::make_unique<FakeLeaf>();
  auto server = std::make_unique<TestServer>(leaf.get());
  const uint16_t port = server->port();
  std::unique_ptr<Publisher> publisher = MakePublisher({server->target()});
  publisher->Stored(Tier::kDevice, {1, 2}, std::nullopt, TokensOf({1, 2}));
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  server = nullptr;
  publisher->Stored(Tier::kDevice, {3}, 2, TokensOf({3}));
  publisher->Removed(Tier::kDevice, {2});
  leaf = std::make_unique<FakeLeaf>();
  server = std::make_unique<TestServer>(leaf.get(), port);
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  Holdings expected = ChainOf({1, 2, 3});
  for (const auto& holding : ChainOf({1, 2})) {
    if (!ChainOf({1}).contains(holding)) expected.erase(holding);
  }
  EXPECT_EQ(leaf->holdings(), expected);
  EXPECT_GE(leaf->stats().snapshots_applied + leaf->stats().batches_applied, 1u);
  server = nullptr;
}

TEST(PublisherTest, EveryReplicaIsTold) {
  FakeLeaf leaves[2];
  TestServer first(&leaves[0]);
  std::unique_ptr<TestServer> second = std::make_unique<TestServer>(&leaves[1]);
  const uint16_t port = second->port();
  std::unique_ptr<Publisher> publisher = MakePublisher({first.target(), second->target()});
  publisher->Stored(Tier::kDevice, {1}, std::nullopt, TokensOf({1}));
  while (!leaves[0].seen_hello() || !leaves[1].seen_hello()) publisher->WaitAcknowledged(kLong);
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  EXPECT_EQ(leaves[0].holdings(), ChainOf({1}));
  EXPECT_EQ(leaves[1].holdings(), ChainOf({1}));
  second = nullptr;  // one is enough to go on
  publisher->Stored(Tier::kDevice, {2}, 1, TokensOf({2}));
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  EXPECT_EQ(leaves[0].holdings(), ChainOf({1, 2}));
  second = std::make_unique<TestServer>(&leaves[1], port);
  while (!publisher->Stats().replicas[1].at_rest) publisher->WaitAcknowledged(kLong);
  EXPECT_EQ(leaves[1].holdings(), ChainOf({1, 2}));
}

// The state that a publisher waits for when it does not come to rest.
std::string StateOf(const Publisher& publisher, const ReceiverStats& leaf) {
  const PublisherStats stats = publisher.Stats();
  const ReplicaStats& replica = stats.replicas.at(0);
  const SenderStats& sender = replica.sender;
  return absl::StrCat(
      "connected ", replica.connected, ", welcomed ", replica.welcomed, ", sent ",
      replica.last_number, ", acknowledged ", replica.acknowledged, ", status ",
      replica.status.ToString(), ", queued ", stats.queue_bytes, " bytes; sender: batches ",
      sender.batches_sent, ", snapshots ", sender.snapshots_sent, "; leaf: batches ",
      leaf.batches_applied, ", snapshots ", leaf.snapshots_applied, ", gaps ", leaf.gaps,
      ", replays asked ", leaf.replays_asked, ", snapshots asked ", leaf.snapshots_asked,
      ", duplicates ", leaf.batches_duplicate, "; replayed ", sender.batches_replayed, ", dropped ",
      sender.batches_dropped, ", hellos ", sender.hellos_sent);
}

// Calls of two threads, one of which only flushes and asks, with leaves that come and go; the twin
// is a plain set.
void RandomCalls(uint64_t seed, size_t queue_bytes_max) {
  std::mt19937_64 random(seed);
  auto leaf = std::make_unique<FakeLeaf>();
  auto server = std::make_unique<TestServer>(leaf.get());
  const uint16_t port = server->port();
  std::unique_ptr<Publisher> publisher = MakePublisher({server->target()}, queue_bytes_max);
  std::atomic<bool> done{false};
  std::thread asker([&] {
    while (!done.load()) {
      publisher->Flush();
      publisher->Stats();
      std::this_thread::yield();
    }
  });
  std::map<std::pair<int, uint64_t>, int> copies;
  for (int round = 0; round < 4; ++round) {
    for (int step = 0; step < 500; ++step) {
      const int tier = static_cast<int>(random() % 2);
      const uint64_t chain = 1 + random() % 50, from = random() % 20, count = 1 + random() % 20;
      std::vector<SequenceHash> blocks;
      for (uint64_t i = from; i < from + count; ++i)
        blocks.push_back(SequenceHash{(chain << 32) | (i + 1)});
      const bool store = random() % 100 < 55;
      for (SequenceHash block : blocks) {
        int& n = copies[{tier, Raw(block)}];
        n = store ? n + 1 : std::max(0, n - 1);
      }
      if (store) {
        const SequenceHash parent = from == 0 ? kNoParent : SequenceHash{(chain << 32) | from};
        publisher->StoredHashed(static_cast<Tier>(tier), static_cast<Position>(from), parent,
                                blocks);
      } else {
        publisher->RemovedHashed(static_cast<Tier>(tier), blocks);
      }
      if (step == 250 && round % 2 == 1) {
        server = nullptr;
        if (round == 3) leaf = std::make_unique<FakeLeaf>();  // it forgot everything
        server = std::make_unique<TestServer>(leaf.get(), port);
      }
    }
    if (!publisher->WaitAcknowledged(kLong)) {
      done = true;
      asker.join();
      FAIL() << "seed " << seed << " round " << round << ": " << StateOf(*publisher, leaf->stats());
    }
    Holdings expected;
    for (const auto& [holding, n] : copies) {
      if (n > 0) expected.insert(holding);
    }
    ASSERT_EQ(leaf->holdings(), expected) << "seed " << seed << " round " << round;
  }
  done = true;
  asker.join();
  publisher = nullptr;
  server = nullptr;
}

TEST(PublisherTest, RandomCallsEndEqualToTheTwin) {
  for (uint64_t seed = 1; seed <= 3; ++seed) RandomCalls(seed, 32 << 20);
}

TEST(PublisherTest, AFullQueueLosesNothing) {
  for (uint64_t seed = 11; seed <= 13; ++seed) RandomCalls(seed, 300);
}

TEST(PublisherTest, AFullQueueIsWorkedOffByTheEngine) {
  std::unique_ptr<Publisher> publisher = MakePublisher({}, 0);
  publisher->Stored(Tier::kDevice, {1}, std::nullopt, TokensOf({1}));
  publisher->Stored(Tier::kDevice, {2}, 1, TokensOf({2}));
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  EXPECT_EQ(publisher->Stats().inline_records, 2u);
  EXPECT_EQ(publisher->Stats().blocks_held, 2u);
}

}  // namespace
}  // namespace kvatlas
