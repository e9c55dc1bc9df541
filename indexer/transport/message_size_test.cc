// The sizes that figures of traffic are made of are those of the serialized messages.

#include "indexer/stream/message_size.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "indexer/stream/messages.h"
#include "indexer/transport/wire.h"
#include "proto/kvatlas/v1/stream.pb.h"

namespace kvatlas {
namespace {

size_t Serialized(const SenderMessage& message) {
  v1::SenderMessage wire;
  ToProto(message, &wire);
  return wire.ByteSizeLong();
}

class Random {
 public:
  explicit Random(uint32_t seed) : random_(seed) {}
  uint64_t Number() { return random_() >> (random_() % 64); }
  uint64_t Below(uint64_t bound) { return random_() % bound; }

  std::vector<SequenceHash> Blocks() {
    std::vector<SequenceHash> blocks(Below(40));
    for (SequenceHash& block : blocks) block = SequenceHash{random_()};
    return blocks;
  }
  Stored StoredRun() {
    return {.tier = static_cast<Tier>(Below(kTiers)),
            .position = static_cast<Position>(Number() & 0xffffff),
            .parent = SequenceHash{Below(2) * random_()},
            .blocks = Blocks()};
  }
  Event AnyEvent() {
    switch (Below(3)) {
      case 0:
        return StoredRun();
      case 1:
        return Removed{.tier = static_cast<Tier>(Below(kTiers)), .blocks = Blocks()};
      default:
        return Cleared{.tiers = TierMask(static_cast<uint8_t>(1 + Below(15)))};
    }
  }
  std::optional<Load> MaybeLoad() {
    if (Below(2) == 0) return std::nullopt;
    return Load{.running_requests = static_cast<uint32_t>(Number()),
                .waiting_requests = static_cast<uint32_t>(Number()),
                .used_blocks = Number(),
                .free_blocks = Number(),
                .waiting_prefill_blocks = Number(),
                .tokens_per_s = static_cast<double>(Below(3)),
                .workers = static_cast<uint32_t>(Below(3))};
  }
  std::optional<Digest> MaybeDigest() {
    if (Below(2) == 0) return std::nullopt;
    Digest digest;
    for (Digest::OfTier& tier : digest.tiers) tier = {Number(), Number()};
    return digest;
  }

 private:
  std::mt19937_64 random_;
};

TEST(MessageSizeTest, BatchesAndSnapshotsAreAsLargeAsTheirSerializedForm) {
  for (uint32_t seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Batch batch;
    batch.number = random.Number();
    for (uint64_t i = random.Below(6); i > 0; --i) batch.events.push_back(random.AnyEvent());
    batch.load = random.MaybeLoad();
    batch.digest = random.MaybeDigest();
    batch.degraded = random.Below(2) == 1;
    ASSERT_EQ(HoldingsBytes(batch), Serialized(batch));
    SnapshotPart part;
    part.snapshot_id = random.Number();
    part.as_of = random.Number();
    part.part = static_cast<uint32_t>(random.Below(300));
    part.last = random.Below(2) == 1;
    for (uint64_t i = random.Below(6); i > 0; --i) part.stored.push_back(random.StoredRun());
    part.load = random.MaybeLoad();
    part.digest = random.MaybeDigest();
    part.degraded = random.Below(2) == 1;
    ASSERT_EQ(HoldingsBytes(part), Serialized(part));
  }
}

TEST(MessageSizeTest, WhatCarriesNoHoldingsCountsNothing) {
  EXPECT_EQ(HoldingsBytes(Heartbeat{.last_sent = 7}), 0u);
  EXPECT_EQ(HoldingsBytes(Goodbye{}), 0u);
}

}  // namespace
}  // namespace kvatlas
