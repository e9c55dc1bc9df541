// A publisher that was told where leaves announce themselves, and leaves that come and go while it
// runs.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/await.h"
#include "indexer/base/event.h"
#include "indexer/base/hash.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "indexer/discovery/announcer.h"
#include "indexer/discovery/service_record.h"
#include "publisher/fake_leaf.h"
#include "publisher/publisher.h"
#include "tools/testing/servers/redis_test_server.h"

namespace kvatlas {
namespace {

constexpr std::chrono::seconds kLong(60);

// A leaf that serves and announces itself.
class Replica {
 public:
  Replica(const RedisTestServer& redis, const std::string& cell, const std::string& name)
      : redis_(redis.url()), cell_(cell), name_(name), server_(&leaf) {
    Announce();
  }

  void Announce() {
    ServiceRecord record;
    record.kind = ServiceKind::kLeaf;
    record.name = cell_;
    record.replica = name_;
    record.grpc = server_.target();
    AnnouncerOptions options;
    options.redis = redis_;
    announcer_ = *Announcer::Start(options, std::move(record));
  }
  // It is no longer found; it goes on serving.
  void Withdraw() { announcer_->Stop(std::chrono::seconds(30)); }

  std::string target() const { return server_.target(); }

  FakeLeaf leaf;

 private:
  const std::string redis_, cell_, name_;
  TestServer server_;
  std::unique_ptr<Announcer> announcer_;
};

class FoundLeavesOfPublisherTest : public ::testing::Test {
 protected:
  std::unique_ptr<Publisher> MakePublisher(std::vector<std::string> leaves) {
    auto publisher = Publisher::Create({.leaves = std::move(leaves),
                                        .cell = "cell",
                                        .find_every = std::chrono::milliseconds(20),
                                        .worker = "w",
                                        .domain = {.model = "m", .tenant = ""}});
    EXPECT_TRUE(publisher.ok()) << publisher.status();
    return *std::move(publisher);
  }

  // One more block.
  void Store(Publisher* publisher) {
    const SequenceHash block{++blocks_};
    EXPECT_TRUE(publisher->StoredHashed(Tier::kDevice, 0, kNoParent, {&block, 1}));
    held_.insert({static_cast<int>(Tier::kDevice), Raw(block)});
  }
  void Remove(Publisher* publisher, uint64_t one) {
    const SequenceHash block{one};
    EXPECT_TRUE(publisher->RemovedHashed(Tier::kDevice, {&block, 1}));
    held_.erase({static_cast<int>(Tier::kDevice), one});
  }

  // The leaves that it tells now.
  static std::set<std::string> ToldBy(const Publisher& publisher) {
    std::set<std::string> told;
    for (const ReplicaStats& replica : publisher.Stats().replicas) told.insert(replica.address);
    return told;
  }
  static void AwaitTold(const Publisher& publisher, const std::set<std::string>& leaves) {
    ASSERT_TRUE(Await([&] { return ToldBy(publisher) == leaves; }, std::chrono::seconds(60)));
  }
  // Until it has, at one moment, what the engine has now.
  void AwaitExact(Publisher* publisher, Replica* replica) {
    while (replica->leaf.holdings() != held_) publisher->WaitAcknowledged(std::chrono::seconds(1));
  }

  RedisTestServer redis_;
  uint64_t blocks_ = 0;
  Holdings held_;
};

TEST_F(FoundLeavesOfPublisherTest, LeavesWithoutACellAreRefused) {
  const auto publisher = Publisher::Create(
      {.leaves = {redis_.url()}, .worker = "w", .domain = {.model = "m", .tenant = ""}});
  EXPECT_EQ(publisher.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(FoundLeavesOfPublisherTest, NobodyIsThereAtTheStart) {
  const auto publisher = MakePublisher({redis_.url()});
  Store(publisher.get());
  // Leaves are looked for: an empty list is no acknowledgement.
  EXPECT_FALSE(publisher->WaitAcknowledged(std::chrono::milliseconds(1)));
  Replica stranger(redis_, "other-cell", "a");
  Replica a(redis_, "cell", "a");
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  EXPECT_EQ(a.leaf.holdings(), held_);
  EXPECT_EQ(ToldBy(*publisher), std::set<std::string>({a.target()}));
  EXPECT_FALSE(stranger.leaf.seen_hello());
}

TEST_F(FoundLeavesOfPublisherTest, AReplicaThatComesIsToldAllAndOneThatLeavesNoMore) {
  Replica a(redis_, "cell", "a");
  const auto publisher = MakePublisher({redis_.url()});
  AwaitTold(*publisher, {a.target()});
  for (int i = 0; i < 100; ++i) Store(publisher.get());
  publisher->SetLoad({.running_requests = 7});
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  Remove(publisher.get(), 5);

  Replica b(redis_, "cell", "b");
  AwaitTold(*publisher, {a.target(), b.target()});
  Store(publisher.get());
  AwaitExact(publisher.get(), &a);
  AwaitExact(publisher.get(), &b);
  // Also what was said long before it came.
  EXPECT_EQ(b.leaf.load().running_requests, 7u);

  a.Withdraw();
  AwaitTold(*publisher, {b.target()});
  const Holdings before = a.leaf.holdings();
  Store(publisher.get());
  AwaitExact(publisher.get(), &b);
  EXPECT_EQ(a.leaf.holdings(), before);
  EXPECT_FALSE(a.leaf.gone()) << "a leaf that moves keeps what it knows for a lease";
}

TEST_F(FoundLeavesOfPublisherTest, OneThatComesBackRememberingIsExact) {
  Replica a(redis_, "cell", "a"), b(redis_, "cell", "b");
  const auto publisher = MakePublisher({redis_.url()});
  AwaitTold(*publisher, {a.target(), b.target()});
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 20; ++i) Store(publisher.get());
    AwaitExact(publisher.get(), &a);
    b.Withdraw();
    AwaitTold(*publisher, {a.target()});
    Store(publisher.get());
    Remove(publisher.get(), 1 + static_cast<uint64_t>(round));
    b.Announce();
    AwaitTold(*publisher, {a.target(), b.target()});
    AwaitExact(publisher.get(), &b);
  }
}

TEST_F(FoundLeavesOfPublisherTest, RedisThatGoesAwayTakesNobodyAlong) {
  Replica a(redis_, "cell", "a");
  const auto publisher = MakePublisher({redis_.url()});
  AwaitTold(*publisher, {a.target()});
  redis_.Kill();
  Store(publisher.get());
  ASSERT_TRUE(publisher->WaitAcknowledged(kLong));
  EXPECT_EQ(a.leaf.holdings(), held_);
  redis_.Start();  // empty
  Replica b(redis_, "cell", "b");
  AwaitTold(*publisher, {a.target(), b.target()});
  AwaitExact(publisher.get(), &b);
}

TEST_F(FoundLeavesOfPublisherTest, ThoseGivenAreToldWhoeverElseIsFound) {
  FakeLeaf given;
  TestServer server(&given);
  Replica a(redis_, "cell", "a");
  const auto publisher = MakePublisher({server.target(), redis_.url()});
  AwaitTold(*publisher, {server.target(), a.target()});
  Store(publisher.get());
  AwaitExact(publisher.get(), &a);
  while (given.holdings() != held_) publisher->WaitAcknowledged(std::chrono::seconds(1));
}

// Under load: an engine's calls go on, with random comings and goings; leaves found in the end have
// what the engine has.
TEST_F(FoundLeavesOfPublisherTest, UnderLoadWhoeverIsFoundInTheEndIsExact) {
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    std::vector<std::unique_ptr<Replica>> all;
    std::vector<bool> announced;
    for (const char* name : {"a", "b", "c"}) {
      all.push_back(std::make_unique<Replica>(redis_, "cell", name));
      announced.push_back(true);
    }
    held_.clear();
    const auto publisher = MakePublisher({redis_.url()});
    std::atomic<bool> done{false};
    std::thread asker([&] {
      while (!done.load()) {
        publisher->Flush();
        publisher->Stats();
        publisher->WaitAcknowledged(std::chrono::milliseconds(1));
      }
    });
    for (int step = 0; step < 12; ++step) {
      for (int i = 0; i < 200; ++i) {
        if (random() % 3 == 0 && !held_.empty()) {
          Remove(publisher.get(), held_.begin()->second);
        } else {
          Store(publisher.get());
        }
      }
      const size_t which = random() % all.size();
      if (announced[which]) {
        all[which]->Withdraw();
      } else {
        all[which]->Announce();
      }
      announced[which] = !announced[which];
      if (random() % 2 == 0) continue;
      // Now and then it is seen, and acted upon, before the next thing happens.
      std::set<std::string> wanted;
      for (size_t i = 0; i < all.size(); ++i)
        if (announced[i]) wanted.insert(all[i]->target());
      if (!wanted.empty()) AwaitTold(*publisher, wanted);
    }
    for (size_t i = 0; i < all.size(); ++i)
      if (!announced[i]) all[i]->Announce();
    std::set<std::string> everybody;
    for (const auto& replica : all) everybody.insert(replica->target());
    AwaitTold(*publisher, everybody);
    for (const auto& replica : all) AwaitExact(publisher.get(), replica.get());
    done = true;
    asker.join();
    publisher->Stop(/*goodbye=*/true, kLong);
    for (const auto& replica : all) replica->Withdraw();
  }
}

}  // namespace
}  // namespace kvatlas
