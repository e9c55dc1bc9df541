// A log while Redis fails, one fault at a time and, by seed, all together. Whatever it was, in the
// end every leaf has what every worker has.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/net/redis_client.h"
#include "indexer/transport/redis/redis_keys.h"
#include "indexer/transport/redis/redis_link.h"
#include "indexer/transport/redis/redis_log_harness.h"
#include "indexer/transport/redis/redis_log_options.h"
#include "indexer/transport/redis/redis_reader.h"
#include "tools/testing/servers/redis_test_server.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::string KeyOf(const std::string& kind, const std::string& worker = "worker-0") {
  return RedisTag("cell", 0) + ":" + kind + ":" + RedisStreamName({worker, 0, ""}, kTestDomain);
}

// A worker and a leaf at rest over a server with these settings.
struct Running {
  explicit Running(std::vector<std::string> config = {}, RedisWorker::Options worker_options = {})
      : server(std::move(config)),
        options(TestLogOptions(server.url())),
        client(options.redis),
        leaf(options),
        worker(options, worker_options) {
    worker.Apply(RunOf(1, 100));
    worker.AwaitAtRest();
  }

  // Changes still arrive, and all of it is there.
  void ExpectHealed() {
    worker.Apply(RunOf(500001, 10));
    worker.AwaitAtRest();
    leaf.AwaitExact(worker);
  }
  void Restart() {
    server.Start();
    AwaitTrue([&] { return client.connected(); });
  }
  std::string LastId() {
    return client.Call({"XREVRANGE", KeyOf("log"), "+", "-", "COUNT", "1"})
        ->elements[0]
        .elements[0]
        .text;
  }

  RedisTestServer server;
  RedisLogOptions options;
  RedisClient client;
  RedisLeaf leaf;
  RedisWorker worker;
};

TEST(RedisFaultsTest, ARestartThatLosesEverythingHeals) {
  Running running;
  running.server.Kill();
  running.worker.Apply(RunOf(1001, 50));
  running.worker.Apply(RemovalOf(1, 20));
  running.Restart();
  running.ExpectHealed();
  EXPECT_EQ(running.leaf.StatsOf(running.worker.holder())->receiver.repairs_timed_out, 0u);
}

TEST(RedisFaultsTest, ARestartWithWhatWasSavedHeals) {
  Running running({"appendonly yes", "appendfsync always"});
  running.server.Kill();
  running.worker.Apply(RunOf(1001, 50));
  running.Restart();
  running.ExpectHealed();
  EXPECT_EQ(running.leaf.StatsOf(running.worker.holder())->receiver.snapshots_applied, 0u)
      << "the log was there, and the window had the rest";
}

TEST(RedisFaultsTest, ARestartWithAnImageOfLongAgoHeals) {
  Running running;
  ASSERT_TRUE(running.client.Call({"SAVE"}).ok());
  for (int i = 0; i < 50; ++i) running.worker.Apply(RunOf(1000 * i + 2001, 5));
  running.worker.AwaitAtRest();
  running.server.Kill();
  running.Restart();
  running.ExpectHealed();
}

TEST(RedisFaultsTest, ALongAbsenceOverflowsTheWindowAndASnapshotHeals) {
  Running running({}, {.window_batches = 8});
  running.server.Kill();
  for (int i = 0; i < 100; ++i) {
    running.worker.Apply(RunOf(10000 * i + 1, 3000));
    running.worker.Apply(RemovalOf(10000 * i + 1, 2900));
  }
  EXPECT_GT(running.worker.pump().stats().batches_dropped, 0u);
  running.Restart();
  running.ExpectHealed();
}

TEST(RedisFaultsTest, LeavesAnswerOlderAndOlderWhileRedisIsAway) {
  RedisTestServer server;
  const RedisLogOptions options = TestLogOptions(server.url());
  ManualClock clock;
  clock.Advance(seconds(1000));
  RedisLeaf leaf(options, "leaf", &clock, seconds(10));
  RedisWorker worker(options, {});
  worker.Apply(RunOf(1, 10));
  worker.AwaitAtRest();
  server.Kill();
  AwaitTrue([&] { return !leaf.reader_stats().connected; });
  AwaitTrue([&] { return leaf.reader_stats().losses > 0; });
  clock.Advance(seconds(60));
  const std::vector<SequenceHash> prompt = {SequenceHash{1}, SequenceHash{2}};
  absl::StatusOr<OverlapAnswer> answer;
  // The registry looks at the time now and then.
  AwaitTrue([&] {
    answer = leaf.registry().FindOverlaps(kTestDomain, {.blocks = prompt});
    return answer.ok() && answer->holders.size() == 1;
  });
  EXPECT_EQ(answer->holders[0].blocks, 2u);
  EXPECT_EQ(answer->holders[0].trust, Trust::kStale);
  EXPECT_GE(answer->holders[0].age, seconds(60));
  EXPECT_FALSE(leaf.registry().StatsOf(kTestDomain)->holders[0].masked) << "it is in answers";
  server.Start();
  worker.AwaitAtRest();
  leaf.AwaitExact(worker);
}

TEST(RedisFaultsTest, AWorkerThatDiesIsMaskedThoughRedisLives) {
  RedisTestServer server;
  const RedisLogOptions options = TestLogOptions(server.url());
  RedisLeaf leaf(options, "leaf", &Clock::Real(), seconds(2));
  RedisWorker worker(options, {});
  worker.Apply(RunOf(1, 10));
  worker.AwaitAtRest();
  worker.Stop(/*goodbye=*/false);
  AwaitTrue([&] { return leaf.StatsOf(worker.holder())->masked; });
}

TEST(RedisFaultsTest, FlushallIsNoticedAndHeals) {
  Running running;
  ASSERT_TRUE(running.client.Call({"FLUSHALL"}).ok());
  running.ExpectHealed();
  RedisLeaf young(running.options, "young");
  young.AwaitExact(running.worker);
}

TEST(RedisFaultsTest, AnIdleWorkerNoticesFlushallToo) {
  Running running({}, {.digest_every = std::chrono::hours(1)});
  ASSERT_TRUE(running.client.Call({"FLUSHALL"}).ok());
  AwaitTrue([&] { return running.client.Call({"EXISTS", KeyOf("log")})->integer == 1; });
  RedisLeaf young(running.options, "young");
  young.AwaitExact(running.worker);
}

TEST(RedisFaultsTest, EvictionOfAnyKeyHeals) {
  for (const char* kind : {"log", "snap", "back"}) {
    Running running;
    RedisLeaf asks(running.options, "asks");  // so that there is a snapshot, now and then
    ASSERT_TRUE(running.client.Call({"DEL", KeyOf(kind)}).ok());
    running.ExpectHealed();
  }
  for (const char* key : {":streams", ":news"}) {
    Running running;
    ASSERT_TRUE(running.client.Call({"DEL", RedisTag("cell", 0) + key}).ok());
    running.ExpectHealed();
    RedisLeaf young(running.options, "young");
    young.AwaitExact(running.worker);
  }
}

TEST(RedisFaultsTest, TrimmingUnderASlowReaderHeals) {
  Running running;
  running.leaf.StopReader();
  for (int i = 0; i < 50; ++i) running.worker.Apply(RunOf(1000 * i + 2001, 5));
  AwaitTrue(
      [&] { return running.worker.pump().acknowledged() == running.worker.pump().last_number(); });
  ASSERT_TRUE(running.client.Call({"XTRIM", KeyOf("log"), "MAXLEN", "3"}).ok());
  running.leaf.StartReader();
  running.ExpectHealed();
}

TEST(RedisFaultsTest, OutOfMemoryIsWaitedOut) {
  Running running({"maxmemory-policy noeviction"});
  ASSERT_TRUE(running.client.Call({"CONFIG", "SET", "maxmemory", "1mb"}).ok());
  running.worker.Apply(RunOf(2001, 50));
  AwaitTrue([&] { return absl::IsResourceExhausted(running.worker.link().Stats().last_loss); });
  running.worker.Apply(RunOf(3001, 50));
  // The leaf has nothing to say meanwhile, and knows it all the same.
  AwaitTrue([&] { return absl::IsResourceExhausted(running.leaf.reader_stats().writes); });
  ASSERT_TRUE(running.client.Call({"CONFIG", "SET", "maxmemory", "0"}).ok());
  AwaitTrue([&] { return running.leaf.reader_stats().writes.ok(); });
  running.ExpectHealed();
}

TEST(RedisFaultsTest, ARedisThatLostTheShardsAndIsFullIsWaitedOut) {
  Running running({"maxmemory-policy noeviction"});
  running.leaf.StopReader();
  ASSERT_TRUE(running.client.Call({"CONFIG", "SET", "maxmemory", "1mb"}).ok());
  ASSERT_EQ(running.client.Call({"DEL", RedisShardsKey("cell")})->integer, 1);
  running.leaf.StartReader();
  AwaitTrue([&] { return absl::IsUnavailable(running.leaf.reader_stats().status); });
  ASSERT_TRUE(running.client.Call({"CONFIG", "SET", "maxmemory", "0"}).ok());
  running.ExpectHealed();
}

TEST(RedisFaultsTest, AFullDiskIsWaitedOut) {
  Running running;
  // Redis refuses writes when it is configured to save and cannot.
  std::filesystem::remove_all(running.server.directory());
  ASSERT_TRUE(running.client.Call({"CONFIG", "SET", "save", "3600 100000"}).ok());
  ASSERT_FALSE(running.client.Call({"SAVE"}).ok());
  AwaitTrue([&] {
    running.client.Call({"BGSAVE"}).IgnoreError();
    return running.client.Call({"SET", "x", "y"}).status().code() ==
           absl::StatusCode::kResourceExhausted;
  });
  running.worker.Apply(RunOf(2001, 50));
  AwaitTrue([&] { return absl::IsResourceExhausted(running.worker.link().Stats().last_loss); });
  ASSERT_TRUE(running.client.Call({"CONFIG", "SET", "stop-writes-on-bgsave-error", "no"}).ok());
  running.ExpectHealed();
}

TEST(RedisFaultsTest, ForeignEntriesAreSkipped) {
  Running running;
  const auto last = RedisEntryId::Parse(running.LastId());
  ASSERT_TRUE(last.has_value());
  const std::string between = RedisEntryId{last->epoch, last->seq + 1}.ToString();
  running.client.Call({"XADD", KeyOf("log"), between, "m", "not ours"}).IgnoreError();
  running.client.Call({"XADD", RedisTag("cell", 0) + ":news", "*", "k", "?", "s", "x"})
      .IgnoreError();
  running.client.Call({"XADD", KeyOf("back"), "*", "k", "n", "e", "x"}).IgnoreError();
  running.client.Call({"HSET", RedisTag("cell", 0) + ":streams", "x", "y"}).IgnoreError();
  running.ExpectHealed();
}

TEST(RedisFaultsTest, AForeignEntryAtTheEndOfTheLogMakesANewLog) {
  for (const char* id : {"18446744073709551615-1", "1000-99999999999999"}) {
    Running running;
    ASSERT_TRUE(running.client.Call({"XADD", KeyOf("log"), id, "m", "not ours"}).ok());
    running.ExpectHealed();
  }
}

TEST(RedisFaultsTest, AKeyOfAnotherTypeIsNoEnd) {
  Running running;
  ASSERT_TRUE(running.client.Call({"SET", KeyOf("log"), "a string"}).ok());
  running.worker.Apply(RunOf(2001, 5));
  AwaitTrue([&] { return !running.worker.link().Stats().last_loss.ok(); });
  ASSERT_TRUE(running.client.Call({"DEL", KeyOf("log")}).ok());
  running.ExpectHealed();
}

TEST(RedisFaultsTest, AServerThatHangsIsLeftAndHeals) {
  Running running;
  running.server.Pause();
  running.worker.Apply(RunOf(2001, 5));
  running.server.Resume();
  running.ExpectHealed();
}

// ---- By seed ----

struct Chaos {
  explicit Chaos(uint64_t seed) : random(seed), server({"appendonly yes"}) {
    options = TestLogOptions(server.url());
    options.log_entries_max = 30;
    for (int i = 0; i < 2; ++i) leaves.push_back(std::make_unique<RedisLeaf>(options));
    for (int i = 0; i < 3; ++i) StartWorker(i);
  }

  uint64_t Below(uint64_t bound) { return random() % bound; }

  void StartWorker(size_t i) {
    workers.resize(std::max(workers.size(), i + 1));
    workers[i].reset();
    workers[i] = std::make_unique<RedisWorker>(
        options, RedisWorker::Options{.name = "worker-" + std::to_string(i),
                                      .epoch = ++epoch * 1000,
                                      .instance_id = random(),
                                      .window_batches = 16});
  }

  void Step() {
    RedisWorker& worker = *workers[Below(workers.size())];
    const uint64_t first = 1 + 100 * Below(40);
    switch (Below(30)) {
      case 0:
        return server.Kill(), server.Start();
      case 1:
        server.Kill();
        std::filesystem::remove_all(server.directory() + "/appendonlydir");
        return server.Start();
      case 2:
        return Command({"FLUSHALL"});
      case 3:
        return Command({"DEL", KeyOf(Below(2) == 0 ? "log" : "snap", worker.holder().name)});
      case 4:
        return Command({"XTRIM", KeyOf("log", worker.holder().name), "MAXLEN", "2"});
      case 5:
        return StartWorker(Below(workers.size()));
      case 6:
      case 7: {
        RedisLeaf& leaf = *leaves[Below(leaves.size())];
        leaf.StopReader();
        return leaf.StartReader();
      }
      case 8:
        leaves[Below(leaves.size())] = std::make_unique<RedisLeaf>(options);
        return;
      case 9:
        return worker.Apply(Cleared{});
      case 10:
        return worker.link().Reset();
      default:
        return worker.Apply(Below(3) == 0 ? RemovalOf(first, 1 + Below(60))
                                          : RunOf(first, 1 + Below(90)));
    }
  }

  void Command(RedisArgs args) {
    RedisClient client(options.redis);
    client.Call(std::move(args)).IgnoreError();
  }

  std::mt19937_64 random;
  RedisTestServer server;
  RedisLogOptions options;
  uint64_t epoch = 0;
  std::vector<std::unique_ptr<RedisLeaf>> leaves;
  std::vector<std::unique_ptr<RedisWorker>> workers;
};

TEST(RedisChaosTest, WhateverHappensEveryLeafEndsWithWhatEveryWorkerHas) {
  const char* given = std::getenv("KVATLAS_REDIS_SEED");
  const uint64_t first = given == nullptr ? 1 : std::strtoull(given, nullptr, 10);
  const uint64_t last = given == nullptr ? 4 : first;
  for (uint64_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("KVATLAS_REDIS_SEED=" + std::to_string(seed));
    std::fprintf(stderr, "KVATLAS_REDIS_SEED=%llu\n", static_cast<unsigned long long>(seed));
    Chaos chaos(seed);
    for (int i = 0; i < 150; ++i) chaos.Step();
    for (auto& worker : chaos.workers) {
      worker->AwaitAtRest();
      for (auto& leaf : chaos.leaves) leaf->AwaitExact(*worker);
    }
  }
}

}  // namespace
}  // namespace kvatlas
