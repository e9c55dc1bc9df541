// Announcing and finding over a real Redis.

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
#include "indexer/base/mutex.h"
#include "indexer/discovery/announcer.h"
#include "indexer/discovery/directory.h"
#include "indexer/discovery/service_record.h"
#include "indexer/net/redis_client.h"
#include "indexer/net/redis_reply.h"
#include "indexer/net/redis_url.h"
#include "tools/testing/servers/redis_test_server.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr Duration kPoll = std::chrono::milliseconds(10);
// Renewed every third of it: long enough for a process that gets no processor for seconds.
constexpr Duration kLease = std::chrono::seconds(9);

ServiceRecord Leaf(const std::string& cell, Epoch epoch = 1) {
  ServiceRecord record;
  record.kind = ServiceKind::kLeaf;
  record.name = cell;
  record.grpc = cell + ".host:7410";
  record.epoch = epoch;
  record.instance_id = epoch;
  return record;
}

// The members of a directory, as ids; waits until it is what a test wants.
class Watcher {
 public:
  Watcher(const std::string& url, ServiceKind kind, const std::string& name = "") {
    DirectoryOptions options;
    options.entries = {url};
    options.kind = kind;
    options.name = name;
    options.poll_every = kPoll;
    options.redis_grace = kLease;
    auto directory = Directory::Open(
        options, [this](const std::vector<ServiceRecord>& records) { Record(records); });
    EXPECT_TRUE(directory.ok()) << directory.status();
    directory_ = *std::move(directory);
  }

  void WaitFor(const std::vector<std::string>& ids) {
    MutexLock lock(&mutex_);
    while (ids_ != ids) changed_.Wait(&mutex_);
  }

  // Until Redis was asked and failed, or answered again.
  void WaitForStatus(bool ok) {
    while (directory_->View().status.ok() != ok) {
      directory_->Refresh();
      MutexLock lock(&mutex_);
      changed_.WaitFor(&mutex_, kPoll);
    }
  }

  std::vector<std::string> ids() {
    MutexLock lock(&mutex_);
    return ids_;
  }
  std::vector<std::vector<std::string>> history() {
    MutexLock lock(&mutex_);
    return history_;
  }
  Directory& directory() { return *directory_; }

 private:
  void Record(const std::vector<ServiceRecord>& records) {
    MutexLock lock(&mutex_);
    ids_.clear();
    for (const ServiceRecord& record : records) ids_.push_back(IdOf(record));
    history_.push_back(ids_);
    changed_.SignalAll();
  }

  Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> ids_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::vector<std::string>> history_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Directory> directory_;
};

std::unique_ptr<Announcer> Announce(const RedisTestServer& server, ServiceRecord record,
                                    Duration lease_ttl = std::chrono::seconds(60)) {
  AnnouncerOptions options;
  options.redis = server.url();
  options.lease_ttl = lease_ttl;
  auto announcer = Announcer::Start(options, std::move(record));
  EXPECT_TRUE(announcer.ok()) << announcer.status();
  return *std::move(announcer);
}

TEST(RedisDirectoryTest, ServicesComeAndGo) {
  RedisTestServer server;
  Watcher watcher(server.url(), ServiceKind::kLeaf);
  watcher.WaitFor({});
  auto a = Announce(server, Leaf("cell-a"));
  watcher.WaitFor({"cell-a"});
  auto b = Announce(server, Leaf("cell-b"));
  watcher.WaitFor({"cell-a", "cell-b"});
  a->Stop();
  watcher.WaitFor({"cell-b"});
}

TEST(RedisDirectoryTest, KindsNamesAndReplicasAreTold) {
  RedisTestServer server;
  ServiceRecord node = Leaf("cell-a");
  node.kind = ServiceKind::kHierarchy;
  node.grpc = "h:1";
  ServiceRecord replica = Leaf("cell-a");
  replica.replica = "1";
  replica.grpc = "h:2";
  replica.labels = {{"zone", "b"}};
  replica.serves = {"llama-70b"};
  replica.load = Load{.running_requests = 7};
  const std::unique_ptr<Announcer> announced[] = {
      Announce(server, node), Announce(server, Leaf("cell-a")), Announce(server, Leaf("cell-b")),
      Announce(server, replica)};
  Watcher nodes(server.url(), ServiceKind::kHierarchy);
  nodes.WaitFor({"cell-a"});
  Watcher of_cell(server.url(), ServiceKind::kLeaf, "cell-a");
  of_cell.WaitFor({"cell-a", "cell-a@1"});
  EXPECT_EQ(of_cell.directory().View().records[1], replica);
}

TEST(RedisDirectoryTest, ALeaseThatIsNotRenewedRunsOut) {
  RedisTestServer server;
  auto announcer = Announce(server, Leaf("cell-a"), std::chrono::milliseconds(300));
  Watcher watcher(server.url(), ServiceKind::kLeaf);
  watcher.WaitFor({"cell-a"});
  announcer.reset();  // as if killed
  watcher.WaitFor({});
}

TEST(RedisDirectoryTest, ALeaseThatIsRenewedLasts) {
  RedisTestServer server;
  auto announcer = Announce(server, Leaf("cell-a"), kLease);
  Watcher watcher(server.url(), ServiceKind::kLeaf);
  watcher.WaitFor({"cell-a"});
  while (announcer->Stats().renewals < 5) watcher.directory().Refresh();
  EXPECT_THAT(watcher.ids(), ElementsAre("cell-a"));
}

TEST(RedisDirectoryTest, TheYoungerOfTwoIncarnationsWins) {
  RedisTestServer server;
  Watcher watcher(server.url(), ServiceKind::kLeaf);
  auto old = Announce(server, Leaf("cell-a", 1));
  watcher.WaitFor({"cell-a"});
  ServiceRecord younger = Leaf("cell-a", 2);
  younger.grpc = "elsewhere:7410";
  auto young = Announce(server, younger);
  while (young->Stats().renewals == 0) watcher.directory().Refresh();
  while (!absl::IsFailedPrecondition(old->Stats().status)) old->Renew();
  old->Stop();  // must not withdraw the other's
  while (watcher.directory().View().records[0].grpc != "elsewhere:7410")
    watcher.directory().Refresh();
  young->Renew();
  EXPECT_THAT(watcher.ids(), ElementsAre("cell-a"));
}

TEST(RedisDirectoryTest, WhileRedisIsAwayEverybodyStaysKnown) {
  RedisTestServer server({"appendonly yes", "appendfsync always"});
  auto announcer = Announce(server, Leaf("cell-a"));
  Watcher watcher(server.url(), ServiceKind::kLeaf);
  watcher.WaitFor({"cell-a"});
  server.Kill();
  watcher.WaitForStatus(false);
  EXPECT_THAT(watcher.ids(), ElementsAre("cell-a"));
  server.Start();
  watcher.WaitForStatus(true);
  auto b = Announce(server, Leaf("cell-b"));
  watcher.WaitFor({"cell-a", "cell-b"});
}

TEST(RedisDirectoryTest, NobodyIsMissedWhenRedisLostItsDataAndAnnouncersAreThereAgain) {
  RedisTestServer server;  // saves nothing
  auto a = Announce(server, Leaf("cell-a"), kLease);
  auto b = Announce(server, Leaf("cell-b"), kLease);
  Watcher watcher(server.url(), ServiceKind::kLeaf);
  watcher.WaitFor({"cell-a", "cell-b"});
  server.Kill();
  watcher.WaitForStatus(false);
  b.reset();  // this one died meanwhile
  server.Start();
  watcher.WaitFor({"cell-a"});  // once the grace is over
  for (const std::vector<std::string>& told : watcher.history()) {
    if (told == watcher.history().front())
      continue;  // before anybody was announced to this watcher
    EXPECT_THAT(told, ::testing::Contains("cell-a"));
  }
}

TEST(RedisDirectoryTest, WhatIsNoRecordIsLeftOut) {
  RedisTestServer server;
  auto announcer = Announce(server, Leaf("cell-a"));
  Watcher watcher(server.url(), ServiceKind::kLeaf);
  watcher.WaitFor({"cell-a"});
  RedisClient client(*ParseRedisUrl(server.url()));
  ASSERT_TRUE(client
                  .Call({"HSET", "kvatlas:{leaf}:records", "x", "rubbish", "y",
                         std::string(36, '0') + "{\"kind\":\"leaf\"}"})
                  .ok());
  ASSERT_TRUE(client.Call({"INCR", "kvatlas:{leaf}:version"}).ok());
  auto b = Announce(server, Leaf("cell-b"));
  watcher.WaitFor({"cell-a", "cell-b"});
}

TEST(RedisDirectoryTest, RefusesWhatItCannotAnnounce) {
  AnnouncerOptions options;
  options.redis = "redis://127.0.0.1:1";
  ServiceRecord nowhere = Leaf("cell-a");
  nowhere.grpc = "";
  EXPECT_EQ(Announcer::Start(options, nowhere).status().code(), absl::StatusCode::kInvalidArgument);
  options.redis = "rediss://127.0.0.1:1";
  EXPECT_EQ(Announcer::Start(options, Leaf("a")).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(CheckDirectoryEntry("rediss://127.0.0.1:1").ok()) << "no ?ca=FILE";
  EXPECT_TRUE(CheckDirectoryEntry("redis://127.0.0.1:1|127.0.0.1:2").ok());
}

TEST(RedisDirectoryTest, AnnouncerWithoutRedisStopsInTime) {
  AnnouncerOptions options;
  options.redis = "redis://127.0.0.1:1";
  auto announcer = Announcer::Start(options, Leaf("cell-a"));
  ASSERT_TRUE(announcer.ok());
  while ((*announcer)->Stats().failures == 0) (*announcer)->Renew();
  EXPECT_FALSE((*announcer)->Stats().status.ok());
  (*announcer)->Stop(std::chrono::milliseconds(100));
}

// A renewal may be under way at the moment of the withdrawal.
TEST(RedisDirectoryTest, WhatWasWithdrawnDoesNotComeBack) {
  RedisTestServer server;
  RedisClient client(*ParseRedisUrl(server.url()));
  for (int i = 0; i < 300; ++i) {
    auto announcer = Announcer::Start({.redis = server.url()}, Leaf("cell"));
    ASSERT_TRUE(announcer.ok()) << announcer.status();
    if (i % 2 == 0) {
      ASSERT_TRUE(
          Await([&] { return (*announcer)->Stats().renewals > 0; }, std::chrono::seconds(60)));
      (*announcer)->Renew();
    }
    (*announcer)->Stop(std::chrono::seconds(60));
    const absl::StatusOr<RedisReply> left = client.Call({"HLEN", "kvatlas:{leaf}:records"});
    ASSERT_TRUE(left.ok()) << left.status();
    ASSERT_EQ(left->integer, 0) << "round " << i;
  }
}

}  // namespace
}  // namespace kvatlas
