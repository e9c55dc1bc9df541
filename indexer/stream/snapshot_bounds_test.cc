// The cost of a snapshot that never ends. `stream_test.cc` has those that do.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/stream/held_blocks_test_util.h"
#include "indexer/stream/messages.h"
#include "indexer/stream/receiver.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;

class SnapshotBoundsTest : public testing::Test {
 protected:
  void SetUp() override {
    SayHello(0);
    Say(Batch{.number = 1, .events = {RunOf(1, 3)}, .load = {}, .digest = {}});
    ASSERT_EQ(receiver.trust(now), Trust::kExact);
  }

  static Stored RunOf(uint64_t first, size_t count) {
    Stored stored{.blocks = {}};
    for (size_t i = 0; i < count; ++i) stored.blocks.push_back(SequenceHash{first + i});
    return stored;
  }
  std::vector<ReceiverMessage> Say(const SenderMessage& message) {
    std::vector<ReceiverMessage> out;
    status = receiver.OnMessage(message, now, &out);
    return out;
  }
  Welcome SayHello(BatchNumber last_sent) {
    Hello hello;
    hello.holder.name = "worker-0";
    hello.domain.model = "model";
    hello.block_size = 16;
    hello.epoch = 100;
    hello.instance_id = 7;
    hello.last_sent = last_sent;
    return std::get<Welcome>(Say(hello).at(0));
  }
  // Another part of a snapshot with blocks that were not named before.
  void SayPart(uint64_t snapshot, uint32_t part, size_t blocks) {
    Say(SnapshotPart{.snapshot_id = snapshot,
                     .as_of = 10 + snapshot,
                     .part = part,
                     .last = false,
                     .stored = {RunOf(next_block, blocks)},
                     .load = {},
                     .digest = {}});
    next_block += blocks;
  }

  Time now{1000};
  absl::Status status;
  uint64_t next_block = 1000;
  Holdings holdings;
  StreamReceiver receiver{ReceiverOptions{.snapshot_blocks_max = 10}, &holdings};
};

TEST_F(SnapshotBoundsTest, ASnapshotThatNamesTooManyBlocksIsDroppedAndTheStreamEnded) {
  SayPart(1, 0, 4);
  SayPart(1, 1, 4);
  EXPECT_TRUE(status.ok());
  SayPart(1, 2, 4);
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_NE(status.message().find("snapshot of more than 10 blocks"), std::string::npos) << status;
  EXPECT_EQ(receiver.stats().snapshots_dropped, 1u);
  EXPECT_EQ(holdings.held.count(SequenceHash{1}), 1u) << "what was held before stays, in doubt";
  EXPECT_EQ(receiver.trust(now), Trust::kDegraded);
  EXPECT_FALSE(receiver.position().whole);
  receiver.OnDisconnected(now);
  EXPECT_TRUE(SayHello(1).snapshot);
}

TEST_F(SnapshotBoundsTest, OneThatComesInDropsHasATimeToEnd) {
  for (Time began = now; now - began < ReceiverOptions().snapshot_time_max; now += seconds(20)) {
    SayPart(1, static_cast<uint32_t>((now - began) / seconds(20)), 0);
    ASSERT_TRUE(status.ok());
    std::vector<ReceiverMessage> out;
    receiver.Tick(now, &out);
  }
  const auto parts = static_cast<uint32_t>(ReceiverOptions().snapshot_time_max / seconds(20));
  SayPart(1, parts, 0);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(receiver.stats().snapshots_dropped, 1u);
  EXPECT_EQ(receiver.trust(now), Trust::kDegraded);
}

// Else a sender that begins one snapshot after the other keeps what it has not confirmed, and more
// of it each time.
TEST_F(SnapshotBoundsTest, AfterOneWasDroppedPartsOfOthersDoNotPutOffTheRepairTimeout) {
  uint64_t snapshots = 0;
  for (Time began = now; now - began <= ReceiverOptions().repair_timeout; now += seconds(1)) {
    SayHello(1);
    ++snapshots;
    for (uint32_t part = 0; part < 3; ++part) SayPart(snapshots, part, 4);
    EXPECT_TRUE(absl::IsResourceExhausted(status));
    std::vector<ReceiverMessage> out;
    receiver.Tick(now, &out);
    receiver.OnDisconnected(now);
  }
  EXPECT_EQ(receiver.stats().repairs_timed_out, 1u);
  EXPECT_TRUE(holdings.held.empty());
  SayHello(1);
  for (uint32_t part = 0; part < 3; ++part) SayPart(snapshots + 1, part, 4);
  EXPECT_TRUE(holdings.held.empty()) << "nor do later ones leave anything";
}

TEST_F(SnapshotBoundsTest, SnapshotsThatAreOnlyBegunCountTogether) {
  for (uint64_t snapshot = 1; snapshot <= 3; ++snapshot) {
    EXPECT_TRUE(status.ok());
    receiver.OnDisconnected(now);
    SayHello(1);
    SayPart(snapshot, 0, 4);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(receiver.stats().snapshots_dropped, 1u);
}

TEST_F(SnapshotBoundsTest, AWholeOneHealsAfterOneWasDropped) {
  for (uint32_t part = 0; part < 3; ++part) SayPart(1, part, 4);
  receiver.OnDisconnected(now);
  EXPECT_TRUE(SayHello(12).snapshot);
  Digest digest;
  for (const SequenceHash block : RunOf(1, 5).blocks) digest.Add(Tier::kDevice, block);
  Say(SnapshotPart{.snapshot_id = 2,
                   .as_of = 12,
                   .part = 0,
                   .last = true,
                   .stored = {RunOf(1, 5)},
                   .load = {},
                   .digest = digest});
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(holdings.held.size(), 5u);
  EXPECT_EQ(receiver.trust(now), Trust::kExact);
}

TEST(SnapshotBlocksMaxTest, FollowsFromWhatTheHolderMayHold) {
  EXPECT_EQ(SnapshotBlocksMax({}), ReceiverOptions().snapshot_blocks_max);
  EXPECT_EQ(SnapshotBlocksMax({.blocks_max = 100}), 2000u);
  EXPECT_EQ(SnapshotBlocksMax({.blocks_max = UINT64_MAX}), ReceiverOptions().snapshot_blocks_max);
}

}  // namespace
}  // namespace kvatlas
