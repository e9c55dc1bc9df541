// Do blocks that an engine announces over ZMQ get into an index, and stay right when its stream
// breaks? Everything is real here: sockets, decoder, worker and index.

#include "indexer/kv_events/zmq_ingest.h"
#include "indexer/base/await.h"

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "indexer/base/clock.h"
#include "indexer/kv_events/decoder_test_util.h"
#include "indexer/kv_events/engine_worker_test_util.h"
#include "tools/testing/servers/zmq_test_engine.h"

namespace kvatlas {
namespace {

constexpr uint32_t kBlockSize = 4;

// [time, [BlockStored of these hashes, tokens 0, 1, … from the root], 0]
std::string StorePayload(const std::vector<uint64_t>& hashes, double time_s = 1.5,
                         std::string_view medium = "GPU", uint32_t block_size = kBlockSize) {
  MsgpackWriter writer;
  writer.Array(3).Float(time_s).Array(1).Map(7);
  writer.Text("type").Text("BlockStored");
  writer.Text("block_hashes").Array(hashes.size());
  for (const uint64_t hash : hashes) writer.Unsigned(hash);
  writer.Text("parent_block_hash").Nil();
  writer.Text("token_ids").Array(hashes.size() * block_size);
  for (size_t token = 0; token < hashes.size() * block_size; ++token) writer.Unsigned(token);
  writer.Text("block_size").Unsigned(block_size);
  writer.Text("medium").Text(std::string(medium));
  writer.Text("lora_name").Nil();
  writer.Unsigned(0);
  return writer.bytes();
}

std::string RemovePayload(uint64_t hash) {
  MsgpackWriter writer;
  writer.Array(3).Float(1.5).Array(1).Map(3);
  writer.Text("type").Text("BlockRemoved");
  writer.Text("block_hashes").Array(1).Unsigned(hash);
  writer.Text("medium").Text("GPU");
  writer.Unsigned(0);
  return writer.bytes();
}

class ZmqIngestTest : public ::testing::Test {
 protected:
  static ZmqIngestOptions Options() {
    ZmqIngestOptions options;
    options.decode_threads = 2;
    options.reconnect_min = std::chrono::milliseconds(10);
    // However slow an engine is, its replay is waited for.
    options.tracker.replay_timeout = std::chrono::seconds(60);
    return options;
  }
  static EngineWorkerOptions WorkerOptions() {
    EngineWorkerOptions options;
    options.name = "w7";
    options.block_size = kBlockSize;
    return options;
  }

  void Add(const ZmqTestEngine& engine, bool replay) { Add(engine, replay, &worker_); }
  void Add(const ZmqTestEngine& engine, bool replay, TestWorker* to) {
    const std::shared_ptr<EngineWorker> worker(std::shared_ptr<void>(), &**to);
    const absl::StatusOr<ZmqStreamId> id =
        ingest_.Add({.worker_name = "w7",
                     .endpoint = engine.endpoint(),
                     .replay_endpoint = replay ? engine.replay_endpoint() : ""},
                    worker);
    ASSERT_TRUE(id.ok()) << id.status();
    id_ = *id;
  }
  ZmqStreamStats Stats() {
    const absl::StatusOr<ZmqStreamStats> stats = ingest_.Stats(id_);
    EXPECT_TRUE(stats.ok());
    return stats.ok() ? *stats : ZmqStreamStats();
  }
  void WaitUntil(const std::function<bool(const ZmqStreamStats&)>& good) {
    ASSERT_TRUE(Await([&] { return good(Stats()) || HasFailure(); }, std::chrono::seconds(60)));
  }
  void WaitForNumber(uint64_t number) {
    WaitUntil([&](const ZmqStreamStats& stats) { return stats.tracker.last == number; });
  }

  TestWorker worker_{WorkerOptions()};
  ZmqIngest ingest_{Options()};
  ZmqStreamId id_ = 0;
};

// A connector's chunk, then a block behind one that was never heard: neither tells the engine's
// block size, and what came before it is known counts afterwards.
TEST_F(ZmqIngestTest, WhatComesBeforeTheBlockSizeIsKnownCountsAfterwards) {
  std::vector<uint32_t> found;
  EngineWorkerOptions options = WorkerOptions();
  options.block_size = 0;
  options.learn_block_size = [&](uint32_t size) {
    found.push_back(size);
    return size;
  };
  TestWorker worker(options);
  ingest_.OpenGate();
  ZmqTestEngine engine({});
  Add(engine, /*replay=*/false, &worker);
  engine.WaitForSubscribers();
  engine.Publish(StorePayload({70}, 1.5, "cpu", 8));
  engine.Publish(RemovePayload(99));
  engine.Publish(StorePayload({11, 12, 13}));
  WaitForNumber(2);
  EXPECT_EQ(found, std::vector<uint32_t>{kBlockSize});
  EXPECT_EQ(worker.RankStats().blocks, (std::array<uint64_t, kTiers>{3, 2}));
  ingest_.Remove(id_);
}

TEST_F(ZmqIngestTest, BlocksThatAnEngineAnnouncesAreFound) {
  ingest_.OpenGate();
  ZmqTestEngine engine({.topic = "kv@pod@model"});
  Add(engine, /*replay=*/false);
  engine.WaitForSubscribers();
  const double now_s = static_cast<double>(WallTimeNs()) / 1e9;
  engine.Publish(StorePayload({11, 12, 13}, now_s));
  WaitForNumber(0);
  EXPECT_EQ(worker_.Reach(Tokens(3 * kBlockSize)), 3u);
  EXPECT_GE(Stats().lag_ms, 0);
  // From the time in the batch to now, which is later.
  EXPECT_LE(Stats().lag_ms, (static_cast<double>(WallTimeNs()) / 1e9 - now_s) * 1e3);
  engine.Publish(RemovePayload(13));
  WaitForNumber(1);
  EXPECT_EQ(worker_.Reach(Tokens(3 * kBlockSize)), 2u);
}

TEST_F(ZmqIngestTest, APayloadThatIsNoBatchIsCountedAsALossAndTheStreamLives) {
  ingest_.OpenGate();
  ZmqTestEngine engine({});
  Add(engine, /*replay=*/false);
  engine.WaitForSubscribers();
  engine.Publish("garbage");
  engine.Publish(StorePayload({11}));
  WaitForNumber(1);
  EXPECT_EQ(Stats().undecodable, 1u);
  EXPECT_EQ(Stats().tracker.gaps, 0u);
  EXPECT_EQ(worker_.Reach(Tokens(kBlockSize)), 1u);
  EXPECT_EQ(worker_.RankStats().trust, Trust::kDegraded) << "it may have been a removal";
}

TEST_F(ZmqIngestTest, AGapThatIsReplayedLeavesNoTrace) {
  ingest_.OpenGate();
  ZmqTestEngine engine({.replay = true});
  Add(engine, /*replay=*/true);
  engine.WaitForSubscribers();
  WaitUntil([](const ZmqStreamStats& stats) { return stats.tracker.replays_complete == 1; });
  engine.Publish(StorePayload({11, 12, 13}));
  engine.Drop(RemovePayload(13));
  engine.Publish(RemovePayload(12));
  WaitForNumber(2);
  EXPECT_EQ(worker_.Reach(Tokens(3 * kBlockSize)), 1u);
  EXPECT_EQ(worker_.RankStats().suspects, 0u);
  EXPECT_EQ(worker_.RankStats().trust, Trust::kExact);
}

TEST_F(ZmqIngestTest, AGapThatNothingRepairsIsDegradedUntilTheUnconfirmedIsDropped) {
  ingest_.OpenGate();
  ZmqTestEngine engine({});
  Add(engine, /*replay=*/false);
  engine.WaitForSubscribers();
  engine.Publish(StorePayload({11, 12, 13}));
  engine.Drop(RemovePayload(11));
  engine.Publish(RemovePayload(13));
  WaitForNumber(2);
  EXPECT_EQ(worker_.RankStats().trust, Trust::kDegraded);
  EXPECT_EQ(Stats().tracker.messages_lost, 1u);
  // The Lost came at the clock's time.
  worker_->Tick(Clock::Real().Now() + std::chrono::hours(1));
  EXPECT_EQ(worker_.Reach(Tokens(3 * kBlockSize)), 0u);
  EXPECT_EQ(worker_.RankStats().suspects, 0u);
}

TEST_F(ZmqIngestTest, ARestartedEngineHoldsOnlyWhatItAnnouncesAnew) {
  ingest_.OpenGate();
  ZmqTestEngine engine({.replay = true});
  Add(engine, /*replay=*/true);
  engine.WaitForSubscribers();
  WaitUntil([](const ZmqStreamStats& stats) { return stats.tracker.replays_complete == 1; });
  engine.Publish(StorePayload({11, 12, 13}));
  engine.Publish(RemovePayload(99));
  WaitForNumber(1);
  engine.Restart({StorePayload({21}), RemovePayload(98), RemovePayload(97)});
  WaitUntil([](const ZmqStreamStats& stats) {
    return stats.tracker.restarts == 1 && stats.tracker.last == 2u && !stats.tracker.replaying;
  });
  EXPECT_EQ(worker_.Reach(Tokens(3 * kBlockSize)), 1u);
  EXPECT_EQ(worker_.RankStats().trust, Trust::kExact);
}

}  // namespace
}  // namespace kvatlas
