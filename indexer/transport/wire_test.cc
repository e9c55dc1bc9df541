#include "indexer/transport/wire.h"

#include <gmock/gmock.h>
#include <google/protobuf/stubs/logging.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>
#include <vector>

namespace kvatlas {
namespace {

using testing::HasSubstr;

// Makes random values within the bounds.
class Maker {
 public:
  explicit Maker(uint64_t seed) : random_(seed) {}

  uint64_t Number(uint64_t below) { return random_() % below; }
  uint64_t Any() { return Number(4) == 0 ? Number(3) : random_(); }
  bool Coin() { return Number(2) == 0; }
  std::string Text(size_t min, size_t max) {
    return std::string(min + Number(max - min + 1), static_cast<char>('a' + Number(26)));
  }
  Tier AnyTier() { return static_cast<Tier>(Number(kTiers)); }
  std::vector<SequenceHash> Hashes(size_t max) {
    std::vector<SequenceHash> hashes(Number(max + 1));
    for (SequenceHash& hash : hashes) hash = SequenceHash{Any()};
    return hashes;
  }
  Stored AnyStored(size_t max) {
    Stored stored{.tier = AnyTier(), .blocks = Hashes(max)};
    if (Coin()) {
      stored.position = 1 + static_cast<Position>(Number(1 << 20));
      stored.parent = SequenceHash{Any()};
    }
    return stored;
  }
  Event AnyEvent() {
    switch (Number(3)) {
      case 0:
        return AnyStored(20);
      case 1:
        return Removed{.tier = AnyTier(), .blocks = Hashes(20)};
      default:
        return Cleared{.tiers = TierMask(static_cast<uint8_t>(1 + Number(15)))};
    }
  }
  std::optional<Load> MaybeLoad() {
    if (Coin()) return std::nullopt;
    return Load{.running_requests = static_cast<uint32_t>(Any()),
                .waiting_requests = static_cast<uint32_t>(Any()),
                .used_blocks = Any(),
                .free_blocks = Any(),
                .waiting_prefill_blocks = Any(),
                .tokens_per_s = static_cast<double>(Number(1000)) / 7,
                .workers = static_cast<uint32_t>(Number(100))};
  }
  std::optional<Digest> MaybeDigest() {
    if (Coin()) return std::nullopt;
    Digest digest;
    for (Digest::OfTier& tier : digest.tiers) tier = {.blocks = Any(), .sum = Any()};
    return digest;
  }
  Hello AnyHello() {
    Hello hello{.holder = {Text(1, 256), static_cast<uint32_t>(Any()), Text(0, 256)},
                .domain = {Text(1, 256), Text(0, 256)},
                .block_size = 1 + static_cast<uint32_t>(Number(kBlockSizeMax)),
                .contract_id = Text(1, 256),
                .schedule = Text(0, 256),
                .epoch = 1 + Number(1'000'000'000),
                .instance_id = Any(),
                .first_kept = 1 + Number(1000),
                .last_sent = 1000 + Number(1000),
                .starting = Coin(),
                .address = Text(0, 256),
                .labels = {},
                .degraded = Coin()};
    for (uint64_t i = Number(3); i > 0; --i) {
      hello.labels.insert(hello.labels.begin(), {std::to_string(i), Text(0, 256)});
    }
    return hello;
  }
  SenderMessage AnySenderMessage() {
    switch (Number(5)) {
      case 0:
        return AnyHello();
      case 1: {
        Batch batch{
            .number = 1 + Number(1000), .events = {}, .load = MaybeLoad(), .digest = MaybeDigest()};
        for (uint64_t i = Number(30); i > 0; --i) batch.events.push_back(AnyEvent());
        batch.degraded = Coin();
        return batch;
      }
      case 2: {
        SnapshotPart part{.snapshot_id = Any(),
                          .as_of = Any(),
                          .part = static_cast<uint32_t>(Any()),
                          .last = Coin(),
                          .stored = {},
                          .load = MaybeLoad(),
                          .digest = MaybeDigest()};
        for (uint64_t i = Number(30); i > 0; --i) part.stored.push_back(AnyStored(20));
        part.degraded = Coin();
        return part;
      }
      case 3:
        return Heartbeat{.last_sent = Any()};
      default:
        return Goodbye{};
    }
  }
  ReceiverMessage AnyReceiverMessage() {
    switch (Number(4)) {
      case 0:
        return Welcome{.next = Any(), .snapshot = Coin(), .credit = Any()};
      case 1:
        return Refuse{.code = static_cast<absl::StatusCode>(1 + Number(16)),
                      .reason = Text(0, 4096),
                      .epoch = Any(),
                      .instance_id = Any(),
                      .lapsed = Coin()};
      case 2:
        return Ack{.applied = Any(), .credit = Any()};
      default:
        return Need{.next = Any(), .snapshot = Coin()};
    }
  }

  std::mt19937_64& random() { return random_; }

 private:
  std::mt19937_64 random_;
};

TEST(WireTest, SenderMessagesComeBackEqual) {
  Maker make(1);
  for (int i = 0; i < 2000; ++i) {
    const SenderMessage message = make.AnySenderMessage();
    v1::SenderMessage wire, parsed;
    ToProto(message, &wire);
    ASSERT_TRUE(parsed.ParseFromString(wire.SerializeAsString()));
    SenderMessage back;
    const absl::Status status = FromProto(parsed, &back);
    ASSERT_TRUE(status.ok()) << status << " " << parsed.DebugString();
    ASSERT_TRUE(back == message) << i << " " << parsed.DebugString();
  }
}

TEST(WireTest, ReceiverMessagesComeBackEqual) {
  Maker make(2);
  for (int i = 0; i < 2000; ++i) {
    const ReceiverMessage message = make.AnyReceiverMessage();
    v1::ReceiverMessage wire, parsed;
    ToProto(message, &wire);
    ASSERT_TRUE(parsed.ParseFromString(wire.SerializeAsString()));
    ReceiverMessage back;
    ASSERT_TRUE(FromProto(parsed, &back).ok()) << parsed.DebugString();
    ASSERT_TRUE(back == message) << i << " " << parsed.DebugString();
  }
}

TEST(WireTest, TheLargestBatchFitsItsBytes) {
  Batch batch{
      .number = std::numeric_limits<uint64_t>::max(), .events = {}, .load = {}, .digest = {}};
  for (size_t i = 0; i < kBatchEventsMax; ++i) {
    batch.events.push_back(Stored{.tier = Tier::kExternal,
                                  .position = std::numeric_limits<Position>::max() - 1,
                                  .parent = SequenceHash{~uint64_t{0}},
                                  .blocks = {SequenceHash{~uint64_t{0}}}});
  }
  v1::SenderMessage wire;
  ToProto(SenderMessage(batch), &wire);
  EXPECT_LE(wire.ByteSizeLong(), kBatchBytesMax);
  SenderMessage back;
  EXPECT_TRUE(FromProto(wire, &back).ok());
}

TEST(WireTest, GarbageIsRefusedOrHarmless) {
  const google::protobuf::LogSilencer silent;  // it complains of what is no UTF-8
  Maker make(3);
  for (int i = 0; i < 20000; ++i) {
    v1::SenderMessage wire;
    ToProto(make.AnySenderMessage(), &wire);
    std::string bytes = wire.SerializeAsString().substr(0, 400);
    for (uint64_t n = 1 + make.Number(4); n > 0 && !bytes.empty(); --n) {
      bytes[make.Number(bytes.size())] = static_cast<char>(make.Any());
    }
    v1::SenderMessage to_receiver;
    SenderMessage out;
    if (to_receiver.ParseFromString(bytes)) FromProto(to_receiver, &out).IgnoreError();
    v1::ReceiverMessage to_sender;
    ReceiverMessage reply;
    if (to_sender.ParseFromString(bytes)) FromProto(to_sender, &reply).IgnoreError();
  }
}

// A message that was right before it was spoilt.
class RefusalTest : public testing::Test {
 protected:
  RefusalTest() {
    Maker make(4);
    ToProto(SenderMessage(make.AnyHello()), &hello_);
    ToProto(SenderMessage(Batch{.number = 1,
                                .events = {Stored{.blocks = {SequenceHash{1}}}},
                                .load = Load{},
                                .digest = {}}),
            &batch_);
  }
  static std::string Why(const v1::SenderMessage& wire) {
    SenderMessage out;
    const absl::Status status = FromProto(wire, &out);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  }
  v1::Hello& hello() { return *hello_.mutable_hello(); }
  v1::Batch& batch() { return *batch_.mutable_batch(); }

  v1::SenderMessage hello_;
  v1::SenderMessage batch_;
};

TEST_F(RefusalTest, NamesTheMissingPartOfAHello) {
  v1::SenderMessage spoilt = hello_;
  spoilt.mutable_hello()->clear_holder();
  EXPECT_THAT(Why(spoilt), HasSubstr("hello.holder"));
  spoilt = hello_;
  spoilt.mutable_hello()->mutable_domain()->clear_model();
  EXPECT_THAT(Why(spoilt), HasSubstr("hello.domain.model"));
  spoilt = hello_;
  spoilt.mutable_hello()->clear_contract_id();
  EXPECT_THAT(Why(spoilt), HasSubstr("hello.contract_id"));
  spoilt = hello_;
  spoilt.mutable_hello()->clear_epoch();
  EXPECT_THAT(Why(spoilt), HasSubstr("hello.epoch"));
}

TEST_F(RefusalTest, BoundsOfAHello) {
  hello().set_block_size(0);
  EXPECT_THAT(Why(hello_), HasSubstr("hello.block_size"));
  hello().set_block_size(kBlockSizeMax + 1);
  EXPECT_THAT(Why(hello_), HasSubstr("hello.block_size"));
  hello().set_block_size(16);
  hello().set_first_kept(hello().last_sent() + 2);
  EXPECT_THAT(Why(hello_), HasSubstr("hello.first_kept"));
  hello().set_first_kept(1);
  hello().mutable_holder()->set_name(std::string(257, 'x'));
  EXPECT_THAT(Why(hello_), HasSubstr("hello.holder.name"));
  hello().mutable_holder()->set_name("w");
  for (size_t i = 0; i <= kHelloLabelsMax; ++i)
    (*hello().mutable_labels())[std::to_string(i)] = "x";
  EXPECT_THAT(Why(hello_), HasSubstr("hello.labels"));
}

TEST_F(RefusalTest, UnknownTierAndMissingKind) {
  batch().mutable_events(0)->mutable_stored()->set_tier(static_cast<v1::Tier>(7));
  EXPECT_THAT(Why(batch_), HasSubstr("batch.events.stored.tier"));
  batch().mutable_events(0)->mutable_cleared()->set_tiers(16);
  EXPECT_THAT(Why(batch_), HasSubstr("batch.events.cleared.tiers"));
  batch().mutable_events(0)->clear_kind();
  EXPECT_THAT(Why(batch_), HasSubstr("batch.events.kind"));
  EXPECT_THAT(Why(v1::SenderMessage()), HasSubstr("message.kind"));
}

TEST_F(RefusalTest, TooManyBlocksInAll) {
  batch().clear_events();
  for (int i = 0; i < 2; ++i) {
    v1::Stored* const stored = batch().add_events()->mutable_stored();
    for (size_t n = 0; n < kBatchBlocksMax / 2 + 1; ++n) stored->add_blocks(n);
  }
  EXPECT_THAT(Why(batch_), HasSubstr("batch.events"));
}

TEST_F(RefusalTest, PositionsThatCannotBe) {
  v1::Stored* const stored = batch().mutable_events(0)->mutable_stored();
  stored->set_parent(5);
  EXPECT_THAT(Why(batch_), HasSubstr("stored.parent"));
  stored->set_position(std::numeric_limits<uint32_t>::max());
  EXPECT_THAT(Why(batch_), HasSubstr("stored.position"));
}

TEST_F(RefusalTest, LoadThatIsNoNumber) {
  batch().mutable_load()->set_tokens_per_s(std::numeric_limits<double>::quiet_NaN());
  EXPECT_THAT(Why(batch_), HasSubstr("batch.load.tokens_per_s"));
  batch().mutable_load()->set_tokens_per_s(-1);
  EXPECT_THAT(Why(batch_), HasSubstr("batch.load.tokens_per_s"));
}

TEST(WireTest, ARefusalCarriesAnError) {
  v1::ReceiverMessage wire;
  wire.mutable_refuse()->set_code(0);
  ReceiverMessage out;
  EXPECT_THAT(std::string(FromProto(wire, &out).message()), HasSubstr("refuse.code"));
}

TEST(WireTest, TrustHasNoUnknown) {
  for (Trust trust : {Trust::kExact, Trust::kDegraded, Trust::kStale}) {
    Trust back;
    ASSERT_TRUE(FromProto(ToProto(trust), &back).ok());
    EXPECT_EQ(back, trust);
  }
  Trust out;
  EXPECT_FALSE(FromProto(v1::TRUST_UNKNOWN, &out).ok());
}

}  // namespace
}  // namespace kvatlas
