// Both ends of the log over a real redis-server that behaves.

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/net/redis_client.h"
#include "indexer/registry/holder_registry.h"
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

class RedisLogTest : public testing::Test {
 protected:
  std::string KeyOf(const std::string& kind, const std::string& worker = "worker-0") const {
    return RedisTag("cell", 0) + ":" + kind + ":" + RedisStreamName({worker, 0, ""}, kTestDomain);
  }
  int64_t LengthOf(const std::string& key) { return client_.Call({"XLEN", key})->integer; }

  RedisTestServer server_;
  RedisLogOptions options_ = TestLogOptions(server_.url());
  RedisClient client_{options_.redis};
};

TEST_F(RedisLogTest, WhatAWorkerSaysALeafHasOnceItIsConfirmed) {
  RedisLeaf leaf(options_);
  RedisWorker worker(options_, {});
  worker.Apply(RunOf(100, 50));
  worker.Apply(RunOf(100, 20, Tier::kHost));
  worker.Apply(RemovalOf(120, 30));
  worker.SetLoad({.running_requests = 3, .waiting_requests = 4});
  worker.AwaitAtRest();
  EXPECT_EQ(leaf.DigestOf(worker.holder()), worker.digest()) << "at rest means applied";
  EXPECT_EQ(leaf.StatsOf(worker.holder())->load->waiting_requests, 4u);
  EXPECT_EQ(leaf.StatsOf(worker.holder())->trust, Trust::kExact);
  EXPECT_EQ(worker.link().Stats().readers, 1u);
}

TEST_F(RedisLogTest, NothingIsConfirmedBeforeALeafIsThere) {
  RedisWorker worker(options_, {});
  worker.Apply(RunOf(1, 10));
  AwaitTrue([&] { return worker.pump().acknowledged() == worker.pump().last_number(); });
  EXPECT_FALSE(worker.pump().AtRest());
  RedisLeaf leaf(options_);
  worker.AwaitAtRest();
  EXPECT_TRUE(leaf.Has(worker));
  EXPECT_EQ(leaf.reader_stats().snapshots_read, 0u) << "the log has it all";
}

TEST_F(RedisLogTest, ManyBatchesOfManyWorkersArriveInOrder) {
  RedisLeaf leaf(options_);
  std::vector<std::unique_ptr<RedisWorker>> workers;
  for (int i = 0; i < 5; ++i) {
    workers.push_back(std::make_unique<RedisWorker>(
        options_, RedisWorker::Options{.name = "worker-" + std::to_string(i)}));
  }
  for (int round = 0; round < 200; ++round) {
    for (auto& worker : workers) {
      worker->Apply(RunOf(1000 * round + 1, 30));
      if (round >= 5) worker->Apply(RemovalOf(1000 * (round - 5) + 11, 20));
    }
  }
  for (auto& worker : workers) {
    worker->AwaitAtRest();
    EXPECT_TRUE(leaf.Has(*worker));
    EXPECT_EQ(leaf.StatsOf(worker->holder())->receiver.gaps, 0u);
  }
}

TEST_F(RedisLogTest, TwoReplicasReadTheSameLogAndBothHaveToConfirm) {
  RedisLeaf one(options_, "one");
  RedisLeaf two(options_, "two");
  RedisWorker worker(options_, {});
  for (int i = 0; i < 100; ++i) worker.Apply(RunOf(1000 * i + 1, 10));
  AwaitTrue([&] { return worker.link().Stats().readers == 2; });
  worker.AwaitAtRest();
  EXPECT_TRUE(one.Has(worker));
  EXPECT_TRUE(two.Has(worker));
}

TEST_F(RedisLogTest, AReaderThatComesBackGoesOnWhereItWas) {
  RedisLeaf leaf(options_);
  RedisWorker worker(options_, {});
  worker.Apply(RunOf(1, 100));
  worker.AwaitAtRest();
  leaf.StopReader();
  worker.Apply(RunOf(1001, 100));
  worker.Apply(RemovalOf(1, 50));
  leaf.StartReader();
  worker.AwaitAtRest();
  EXPECT_TRUE(leaf.Has(worker));
  const auto stats = leaf.StatsOf(worker.holder());
  EXPECT_EQ(stats->receiver.snapshots_applied, 0u);
  EXPECT_EQ(stats->receiver.batches_duplicate, 0u);
}

TEST_F(RedisLogTest, ANewReplicaGetsASnapshotWhenTheLogIsTrimmedAndNobodyElseIsDisturbed) {
  options_.log_entries_max = 5;
  RedisLeaf old(options_, "old");
  RedisWorker worker(options_, {});
  // Trimming takes whole nodes of the stream's tree, of 100 entries.
  for (int i = 0; i < 400; ++i) {
    worker.Apply(RunOf(1000 * i + 1, 10));
    AwaitTrue([&] { return worker.pump().acknowledged() == worker.pump().last_number(); });
    // The old leaf is never further behind than what is kept for it.
    if (i % 5 == 4) worker.AwaitAtRest();
  }
  ASSERT_LT(LengthOf(KeyOf("log")), 300);
  RedisLeaf young(options_, "young");
  young.AwaitExact(worker);
  EXPECT_EQ(young.StatsOf(worker.holder())->receiver.snapshots_applied, 1u);
  worker.AwaitAtRest();
  EXPECT_TRUE(old.Has(worker));
  const ReceiverStats undisturbed = old.StatsOf(worker.holder())->receiver;
  EXPECT_EQ(undisturbed.snapshots_applied, 0u);
  EXPECT_EQ(undisturbed.snapshots_asked, 0u);
  EXPECT_EQ(undisturbed.gaps, 0u);

  // The next one finds the snapshot there.
  const uint64_t asked = worker.link().Stats().snapshots_asked;
  RedisLeaf younger(options_, "younger");
  younger.AwaitExact(worker);
  EXPECT_EQ(worker.link().Stats().snapshots_asked, asked);
}

TEST_F(RedisLogTest, AReaderThatTheLogLeftBehindIsHealedByASnapshot) {
  options_.log_entries_max = 5;
  RedisLeaf leaf(options_);
  RedisWorker worker(options_, {});
  worker.Apply(RunOf(1, 10));
  worker.AwaitAtRest();
  leaf.StopReader();
  for (int i = 1; i < 400; ++i) {
    worker.Apply(RunOf(1000 * i + 1, 10));
    worker.Apply(RemovalOf(1000 * i - 999, 10));
    AwaitTrue([&] { return worker.pump().acknowledged() == worker.pump().last_number(); });
  }
  leaf.StartReader();
  leaf.AwaitExact(worker);
  EXPECT_GE(leaf.StatsOf(worker.holder())->receiver.snapshots_applied, 1u);
}

TEST_F(RedisLogTest, LogsWhoseEntriesDoNotFitAReplyAreReadInSmallerSteps) {
  std::vector<std::unique_ptr<RedisWorker>> workers;
  for (int i = 0; i < 3; ++i) {
    workers.push_back(std::make_unique<RedisWorker>(
        options_, RedisWorker::Options{.name = "worker-" + std::to_string(i)}));
    // Little is held at the end, so that a snapshot fits a reply.
    for (int j = 0; j < 20; ++j) {
      const auto apply = [&worker = *workers.back()](const auto& event) {
        worker.Apply(event);
        // Else batches that wait become one, which alone may not fit.
        AwaitTrue([&] { return worker.pump().acknowledged() == worker.pump().last_number(); });
      };
      apply(RunOf(10000 * j + 1, 1000));
      apply(RemovalOf(10000 * j + 1, 990));
    }
  }
  // Room for two batches, not for one of each worker.
  options_.redis.reply_bytes_max = 20 << 10;
  RedisLeaf leaf(options_);
  for (const auto& worker : workers) leaf.AwaitExact(*worker);
  for (const auto& worker : workers) worker->AwaitAtRest();
  // Halved eight times, and then hardly tried with more.
  EXPECT_LE(leaf.reader_stats().rounds_too_large, 12u);
}

TEST_F(RedisLogTest, ASnapshotOfManyPartsArrives) {
  RedisWorker worker(options_, {});
  for (int i = 0; i < 60; ++i) worker.Apply(RunOf(10000 * i + 1, 3000));
  AwaitTrue([&] { return worker.pump().acknowledged() == worker.pump().last_number(); });
  ASSERT_TRUE(client_.Call({"XTRIM", KeyOf("log"), "MAXLEN", "0"}).ok());
  RedisLeaf leaf(options_);
  leaf.AwaitExact(worker);
  EXPECT_EQ(leaf.DigestOf(worker.holder())->tiers[0].blocks, 180000u);
  EXPECT_GT(LengthOf(KeyOf("snap")), 40);
}

TEST_F(RedisLogTest, AYoungerEpochTakesOverAndTheOlderOneWaits) {
  RedisLeaf leaf(options_);
  RedisWorker older(options_, {.epoch = 1000, .instance_id = 1});
  older.Apply(RunOf(1, 10));
  older.AwaitAtRest();
  RedisWorker younger(options_, {.epoch = 2000, .instance_id = 2});
  younger.Apply(RunOf(500, 20));
  younger.AwaitAtRest();
  leaf.AwaitExact(younger);
  older.Apply(RunOf(100, 10));
  AwaitTrue([&] { return older.pump().stats().replaced > 0; });
  EXPECT_EQ(older.pump().WhyRefused().code(), absl::StatusCode::kFailedPrecondition);
  younger.Apply(RunOf(700, 5));
  younger.AwaitAtRest();
  EXPECT_TRUE(leaf.Has(younger));
}

TEST_F(RedisLogTest, AWorkerThatStartsRaisesItsEpochAboveTheOneInRedis) {
  RedisLeaf leaf(options_);
  {
    RedisWorker before(options_, {.epoch = 5000, .instance_id = 1});
    before.Apply(RunOf(1, 10));
    before.AwaitAtRest();
  }
  RedisWorker after(options_, {.epoch = 100, .instance_id = 2});
  after.Apply(RunOf(300, 7));
  after.AwaitAtRest();
  leaf.AwaitExact(after);
  EXPECT_EQ(leaf.StatsOf(after.holder())->epoch, 5001u);
}

TEST_F(RedisLogTest, AReplacedWorkerTakesTheLogAgainWhenTheOtherIsSilent) {
  options_.lease_ttl = seconds(5);  // of many heartbeats: the other one lives though it may be late
  options_.look_every = milliseconds(50);
  RedisLeaf leaf(options_);
  RedisWorker worker(options_, {.epoch = 1000, .instance_id = 1});
  worker.Apply(RunOf(1, 10));
  worker.AwaitAtRest();
  {
    RedisWorker other(options_, {.epoch = 2000, .instance_id = 2});
    other.Apply(RunOf(500, 20));
    other.AwaitAtRest();
    AwaitTrue([&] { return worker.pump().stats().replaced > 0; });
    AwaitTrue([&] { return worker.pump().stats().replaced > 2; });
    EXPECT_FALSE(worker.pump().welcomed()) << "the other one lives";
    EXPECT_TRUE(leaf.Has(other));
  }
  leaf.AwaitExact(worker);
  EXPECT_EQ(leaf.StatsOf(worker.holder())->epoch, 2001u);
}

// Whichever process wrote them: no sender starts above such an epoch.
TEST_F(RedisLogTest, ARegistrationAndALogOfAFarEpochDoNotLockOutTheWorker) {
  const std::string far = "9000000000000000000";
  const std::string streams = RedisTag("cell", 0) + ":streams";
  const std::string name = RedisStreamName({"worker-0", 0, ""}, kTestDomain);
  ASSERT_TRUE(
      client_.Call({"HSET", streams, name, "0" + far + "00000000000000ff" + "no hello"}).ok());
  ASSERT_TRUE(client_.Call({"XADD", KeyOf("log"), far + "-5", "m", "x"}).ok());
  RedisLeaf leaf(options_);
  RedisWorker worker(options_, {.epoch = 1000, .instance_id = 1});
  worker.Apply(RunOf(1, 10));
  worker.AwaitAtRest();
  leaf.AwaitExact(worker);
}

TEST_F(RedisLogTest, AnEpochMoreThanADayAheadIsRefused) {
  RedisWorker far(options_, {.epoch = 9'000'000'000'000'000'000, .instance_id = 2});
  AwaitTrue([&] { return !far.pump().WhyRefused().ok(); });
  EXPECT_NE(far.pump().WhyRefused().message().find("ahead of Redis' clock"), std::string::npos);
  RedisLeaf leaf(options_);
  RedisWorker worker(options_, {.epoch = 1000, .instance_id = 1});
  worker.Apply(RunOf(1, 10));
  worker.AwaitAtRest();
  leaf.AwaitExact(worker);
}

TEST_F(RedisLogTest, GoodbyeForgetsTheWorkerAndItsKeys) {
  RedisLeaf leaf(options_);
  RedisWorker worker(options_, {});
  worker.Apply(RunOf(1, 10));
  worker.AwaitAtRest();
  worker.Stop(/*goodbye=*/true);
  AwaitTrue([&] { return !leaf.StatsOf(worker.holder()).has_value(); });
  EXPECT_EQ(client_.Call({"EXISTS", KeyOf("log"), KeyOf("snap")})->integer, 0);
  EXPECT_EQ(client_.Call({"HLEN", RedisTag("cell", 0) + ":streams"})->integer, 0);
}

TEST_F(RedisLogTest, HeartbeatsReachLeavesAndLeaveTheLogAlone) {
  RedisLeaf leaf(options_);
  RedisWorker worker(options_, {.digest_every = std::chrono::hours(1)});
  worker.Apply(RunOf(1, 10));
  worker.AwaitAtRest();
  const std::string news = RedisTag("cell", 0) + ":news";
  const int64_t news_before = LengthOf(news);
  const int64_t log_before = LengthOf(KeyOf("log"));
  const auto heard = [&] {
    const auto stats = leaf.StatsOf(worker.holder());
    return Clock::Real().Now() - stats->age;
  };
  const Time heard_before = heard();
  AwaitTrue([&] { return LengthOf(news) >= news_before + 3; });
  AwaitTrue([&] { return heard() > heard_before + milliseconds(200); });
  EXPECT_EQ(LengthOf(KeyOf("log")), log_before);
  EXPECT_TRUE(leaf.Has(worker));
}

TEST_F(RedisLogTest, TheLogIsGoneSomeTimeAfterItsWorker) {
  options_.log_ttl = milliseconds(400);
  {
    RedisWorker worker(options_, {});
    // On a slow machine it may be gone again before it is looked for.
    AwaitTrue([&, first = uint64_t{1}]() mutable {
      worker.Apply(RunOf(first, 10));
      first += 100;
      return client_.Call({"EXISTS", KeyOf("log")})->integer == 1;
    });
  }
  AwaitTrue([&] { return client_.Call({"EXISTS", KeyOf("log")})->integer == 0; });
  // The next look at the registration takes it away.
  RedisLeaf leaf(options_);
  AwaitTrue([&] { return client_.Call({"HLEN", RedisTag("cell", 0) + ":streams"})->integer == 0; });
}

TEST_F(RedisLogTest, ShardsSpreadStreamsAndHaveToAgree) {
  options_.shards = 4;
  RedisLeaf leaf(options_);
  std::vector<std::unique_ptr<RedisWorker>> workers;
  for (int i = 0; i < 8; ++i) {
    workers.push_back(std::make_unique<RedisWorker>(
        options_, RedisWorker::Options{.name = "worker-" + std::to_string(i)}));
    workers.back()->Apply(RunOf(1, 10));
  }
  for (auto& worker : workers) worker->AwaitAtRest();
  for (auto& worker : workers) EXPECT_TRUE(leaf.Has(*worker));

  RedisLogOptions other = options_;
  other.shards = 2;
  RedisWorker stranger(other, {.name = "stranger"});
  AwaitTrue([&] { return stranger.link().Stats().losses > 0; });
  EXPECT_EQ(stranger.link().Stats().last_loss.code(), absl::StatusCode::kFailedPrecondition);
  RedisLeaf deaf(other, "deaf");
  AwaitTrue([&] { return absl::IsFailedPrecondition(deaf.reader_stats().status); });
}

TEST_F(RedisLogTest, ARefusalOfAReaderIsKnownToTheWorker) {
  HolderRegistryOptions other;
  other.contract_id = "another contract";
  HolderRegistry registry(other);
  RedisReader reader(options_, "leaf", &registry);
  RedisWorker worker(options_, {});
  AwaitTrue([&] { return worker.link().Stats().refusals > 0; });
  EXPECT_NE(worker.link().Stats().last_refusal.find("another contract"), std::string::npos);
  EXPECT_GE(reader.Stats().streams_refused, 1u);
}

TEST_F(RedisLogTest, AWrongPasswordIsSaid) {
  ASSERT_TRUE(client_.Call({"CONFIG", "SET", "requirepass", "secret"}).ok());
  RedisWorker worker(options_, {});
  AwaitTrue([&] { return !worker.link().Stats().last_loss.ok(); });
  EXPECT_EQ(worker.link().Stats().last_loss.code(), absl::StatusCode::kPermissionDenied);
  RedisLeaf leaf(options_);
  AwaitTrue(
      [&] { return leaf.reader_stats().status.code() == absl::StatusCode::kPermissionDenied; });
}

}  // namespace
}  // namespace kvatlas
