// The messages of the two ends, one rule at a time. `simulation_test.cc` shows that the rules
// suffice.

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/event.h"
#include "indexer/stream/held_blocks_test_util.h"
#include "indexer/stream/messages.h"
#include "indexer/stream/receiver.h"
#include "indexer/stream/resident_set.h"
#include "indexer/stream/sender.h"
#include "indexer/stream/validate.h"

namespace kvatlas {
namespace {

constexpr auto kSecond = std::chrono::seconds(1);

Stored RunOf(uint64_t first, size_t count, Position position = 0) {
  Stored stored{.position = position,
                .parent = position == 0 ? kNoParent : SequenceHash{first - 1},
                .blocks = {}};
  for (size_t i = 0; i < count; ++i) stored.blocks.push_back(SequenceHash{first + i});
  return stored;
}

SenderIdentity Identity(Epoch epoch = 100, uint64_t instance_id = 7) {
  SenderIdentity identity;
  identity.holder.name = "worker-0";
  identity.domain.model = "model";
  identity.block_size = 16;
  identity.epoch = epoch;
  identity.instance_id = instance_id;
  return identity;
}

Hello MakeHello(Epoch epoch, uint64_t instance_id, BatchNumber first_kept = 1,
                BatchNumber last_sent = 0) {
  Hello hello;
  hello.holder.name = "worker-0";
  hello.domain.model = "model";
  hello.block_size = 16;
  hello.epoch = epoch;
  hello.instance_id = instance_id;
  hello.first_kept = first_kept;
  hello.last_sent = last_sent;
  return hello;
}

Batch BatchOf(BatchNumber number, Event event) {
  return Batch{.number = number, .events = {std::move(event)}, .load = {}, .digest = {}};
}

class ReceiverTest : public testing::Test {
 protected:
  std::vector<ReceiverMessage> Say(const SenderMessage& message) {
    std::vector<ReceiverMessage> out;
    status = receiver.OnMessage(message, now, &out);
    return out;
  }
  std::vector<ReceiverMessage> Tick() {
    std::vector<ReceiverMessage> out;
    receiver.Tick(now, &out);
    return out;
  }
  SnapshotPart Part(BatchNumber as_of, uint32_t part, Stored stored, bool last) {
    SnapshotPart message{.snapshot_id = as_of,
                         .as_of = as_of,
                         .part = part,
                         .last = last,
                         .stored = {std::move(stored)},
                         .load = {},
                         .digest = {}};
    for (const SequenceHash block : message.stored[0].blocks) digest.Add(Tier::kDevice, block);
    if (last) message.digest = digest;
    return message;
  }
  template <typename M>
  static std::vector<ReceiverMessage> Only(M message) {
    return {ReceiverMessage(std::move(message))};
  }

  Time now{1000};
  absl::Status status;
  Digest digest;
  Holdings holdings;
  StreamReceiver receiver{ReceiverOptions{}, &holdings};
};

TEST_F(ReceiverTest, FreshReceiverTakesAllBatchesFromTheFirst) {
  EXPECT_EQ(Say(MakeHello(100, 7, 1, 2)),
            Only(Welcome{.next = 1, .snapshot = false, .credit = 64}));
  EXPECT_EQ(Say(BatchOf(1, RunOf(1, 3))), Only(Ack{.applied = 1, .credit = 64}));
  EXPECT_EQ(holdings.held.size(), 3u);
  EXPECT_EQ(Say(BatchOf(2, RunOf(4, 1))), Only(Ack{.applied = 2, .credit = 64}));
  EXPECT_EQ(receiver.trust(now), Trust::kExact);
}

// A sender that ran without a receiver says hello now; what it says first is of long ago.
TEST_F(ReceiverTest, NothingIsCurrentBeforeTheLatestBatchThatTheHelloNamed) {
  Say(MakeHello(100, 7, 1, 2));
  EXPECT_EQ(receiver.trust(now), Trust::kDegraded);
  Say(BatchOf(1, RunOf(1, 3)));
  EXPECT_EQ(receiver.trust(now), Trust::kDegraded);
  Say(BatchOf(2, RunOf(4, 1)));
  EXPECT_EQ(receiver.trust(now), Trust::kExact);
  receiver.OnDisconnected(now);
  Say(MakeHello(100, 7, 1, 3));
  EXPECT_EQ(receiver.trust(now), Trust::kDegraded);
  now += kSecond;
  EXPECT_EQ(Tick(), Only(Need{.next = 3, .snapshot = false}))
      << "it is asked for when it stays away";
  Say(BatchOf(3, RunOf(5, 1)));
  EXPECT_EQ(receiver.trust(now), Trust::kExact);
}

TEST_F(ReceiverTest, FreshReceiverWantsASnapshotWhenTheFirstBatchIsGone) {
  EXPECT_EQ(Say(MakeHello(100, 7, 2, 3)), Only(Welcome{.next = 1, .snapshot = true, .credit = 64}));
  EXPECT_EQ(receiver.trust(now), Trust::kDegraded);
}

TEST_F(ReceiverTest, AMessageBeforeTheHelloIsInvalid) {
  EXPECT_TRUE(Say(BatchOf(1, RunOf(1, 3))).empty());
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_TRUE(holdings.held.empty());
}

TEST_F(ReceiverTest, DuplicateIsIgnoredAndAcknowledgedAgain) {
  Say(MakeHello(100, 7));
  Say(BatchOf(1, RunOf(1, 3)));
  EXPECT_EQ(Say(BatchOf(1, RunOf(10, 3))), Only(Ack{.applied = 1, .credit = 64}));
  EXPECT_EQ(holdings.held.size(), 3u);
}

TEST_F(ReceiverTest, GapAsksForReplayOnce) {
  Say(MakeHello(100, 7));
  EXPECT_EQ(Say(BatchOf(2, RunOf(1, 3))), Only(Need{.next = 1, .snapshot = false}));
  EXPECT_TRUE(Say(BatchOf(3, RunOf(1, 3))).empty());
  EXPECT_TRUE(holdings.held.empty());
  EXPECT_EQ(receiver.trust(now), Trust::kDegraded);
  now += kSecond;
  EXPECT_EQ(Tick(), Only(Need{.next = 1, .snapshot = false}));
  EXPECT_TRUE(Tick().empty());
  for (BatchNumber number = 1; number <= 3; ++number) Say(BatchOf(number, RunOf(number, 1)));
  EXPECT_EQ(receiver.trust(now), Trust::kExact);
  EXPECT_EQ(receiver.stats().gaps, 1u);
}

TEST_F(ReceiverTest, LostTailIsNoticedByTheHeartbeat) {
  Say(MakeHello(100, 7));
  const auto out = Say(Heartbeat{.last_sent = 2});
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0], ReceiverMessage(Need{.next = 1, .snapshot = false}));
}

TEST_F(ReceiverTest, OlderEpochIsRefused) {
  Say(MakeHello(100, 7));
  const auto out = Say(MakeHello(99, 8));
  ASSERT_EQ(out.size(), 1u);
  const Refuse& refuse = std::get<Refuse>(out[0]);
  EXPECT_EQ(refuse.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refuse.epoch, 100u);
  EXPECT_EQ(refuse.instance_id, 7u);
}

TEST_F(ReceiverTest, ARefusalSaysWhetherTheYoungerOneWasHeardWithinALease) {
  Say(MakeHello(100, 7));
  now += ReceiverOptions().lease_ttl - kSecond;
  EXPECT_FALSE(std::get<Refuse>(Say(MakeHello(99, 8)).at(0)).lapsed);
  now += kSecond;
  EXPECT_TRUE(std::get<Refuse>(Say(MakeHello(99, 8)).at(0)).lapsed);
}

TEST_F(ReceiverTest, SameEpochOfAnotherInstanceIsRefused) {
  Say(MakeHello(100, 7));
  EXPECT_TRUE(std::holds_alternative<Refuse>(Say(MakeHello(100, 8))[0]));
}

TEST_F(ReceiverTest, SameInstanceGoesOnAfterReconnecting) {
  Say(MakeHello(100, 7));
  Say(BatchOf(1, RunOf(1, 3)));
  receiver.OnDisconnected(now);
  EXPECT_EQ(Say(MakeHello(100, 7, 1, 1)),
            Only(Welcome{.next = 2, .snapshot = false, .credit = 64}));
  EXPECT_EQ(receiver.trust(now), Trust::kExact);
}

TEST_F(ReceiverTest, YoungerEpochKeepsHoldingsUntilItsSnapshot) {
  Say(MakeHello(100, 7));
  Say(BatchOf(1, RunOf(1, 3)));
  EXPECT_EQ(Say(MakeHello(101, 8)), Only(Welcome{.next = 1, .snapshot = true, .credit = 64}));
  EXPECT_EQ(holdings.held.size(), 3u);
  EXPECT_EQ(receiver.trust(now), Trust::kDegraded);
  EXPECT_EQ(Say(Part(1, 0, RunOf(2, 1), true)), Only(Ack{.applied = 1, .credit = 64}));
  EXPECT_EQ(holdings.held, std::set<SequenceHash>({SequenceHash{2}}));
  EXPECT_EQ(receiver.trust(now), Trust::kExact);
}

TEST_F(ReceiverTest, SnapshotRemovesWhatItDoesNotNameOnlyAtItsEnd) {
  Say(MakeHello(100, 7));
  Say(BatchOf(1, RunOf(1, 3)));
  Say(Part(2, 0, RunOf(3, 2), false));
  EXPECT_EQ(holdings.held.size(), 4u);
  EXPECT_EQ(receiver.trust(now), Trust::kDegraded);
  Say(Part(2, 1, RunOf(9, 1), true));
  EXPECT_EQ(holdings.held,
            std::set<SequenceHash>({SequenceHash{3}, SequenceHash{4}, SequenceHash{9}}));
  EXPECT_EQ(receiver.applied(), 2u);
}

// The first finds nothing to remove at its end; the second finds what the first has said so far.
TEST_F(ReceiverTest, ASnapshotThatComesAmidAnotherRemovesWhatOnlyThatNamed) {
  Say(MakeHello(100, 7, /*first_kept=*/2, /*last_sent=*/1));
  Say(Part(2, 0, RunOf(1, 3), false));
  digest = Digest{};
  Say(Part(4, 0, RunOf(3, 2), true));
  EXPECT_EQ(holdings.held, std::set<SequenceHash>({SequenceHash{3}, SequenceHash{4}}));
  EXPECT_EQ(receiver.trust(now), Trust::kExact);
  EXPECT_EQ(receiver.applied(), 4u);
}

TEST_F(ReceiverTest, MissingPartAsksForTheSnapshotAgain) {
  Say(MakeHello(100, 7));
  Say(Part(2, 0, RunOf(3, 2), false));
  now += kSecond;
  EXPECT_EQ(Say(Part(2, 2, RunOf(9, 1), true)), Only(Need{.next = 3, .snapshot = true}));
  EXPECT_EQ(receiver.applied(), 0u);
}

TEST_F(ReceiverTest, ASnapshotThatIsLostIsAskedForWithWhatCameBehindIt) {
  Say(MakeHello(100, 7, 2, 1));
  Say(Heartbeat{.last_sent = 2});  // the snapshot was 2
  now += kSecond;
  EXPECT_EQ(Tick(), Only(Need{.next = 3, .snapshot = true}));
  Say(MakeHello(100, 7, 2, 1));
  now += kSecond;
  EXPECT_EQ(Tick(), Only(Need{.next = 1, .snapshot = true})) << "on another connection";
}

TEST_F(ReceiverTest, DigestDifferenceAsksForASnapshot) {
  Say(MakeHello(100, 7));
  Batch batch = BatchOf(1, RunOf(1, 3));
  batch.digest = Digest{};
  const auto out = Say(batch);
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0], ReceiverMessage(Need{.next = 2, .snapshot = true}));
  EXPECT_EQ(receiver.trust(now), Trust::kDegraded);
}

TEST_F(ReceiverTest, EqualDigestHeals) {
  Say(MakeHello(100, 7));
  Batch wrong = BatchOf(1, RunOf(1, 3));
  wrong.digest = Digest{};
  Say(wrong);
  ASSERT_EQ(receiver.trust(now), Trust::kDegraded);
  Batch batch = BatchOf(2, RunOf(4, 1));
  for (uint64_t block = 1; block <= 4; ++block) digest.Add(Tier::kDevice, SequenceHash{block});
  batch.digest = digest;
  Say(batch);
  EXPECT_EQ(receiver.trust(now), Trust::kExact);
}

TEST_F(ReceiverTest, WhatNobodyConfirmsIsDroppedAfterTheRepairTimeout) {
  Say(MakeHello(100, 7));
  Say(BatchOf(1, RunOf(1, 3)));
  Say(BatchOf(3, RunOf(1, 3)));
  now += 30 * kSecond;
  EXPECT_EQ(Tick(), Only(Need{.next = 4, .snapshot = true}));
  EXPECT_TRUE(holdings.held.empty());
  EXPECT_EQ(receiver.stats().repairs_timed_out, 1u);
}

TEST_F(ReceiverTest, SheddingDegradesAndAsksForASnapshotLater) {
  Say(MakeHello(100, 7));
  holdings.full = true;
  Say(BatchOf(1, RunOf(1, 3)));
  EXPECT_EQ(receiver.trust(now), Trust::kDegraded);
  EXPECT_TRUE(Tick().empty());
  holdings.full = false;
  now += 60 * kSecond;
  EXPECT_EQ(Tick(), Only(Need{.next = 2, .snapshot = true}));
  Say(Part(2, 0, RunOf(1, 3), true));
  EXPECT_EQ(receiver.trust(now), Trust::kExact);
}

TEST_F(ReceiverTest, WhatTheSenderItselfDoubtsIsDegradedUntilItSaysOtherwise) {
  Say(MakeHello(100, 7));
  Batch doubtful = BatchOf(1, RunOf(1, 3));
  doubtful.degraded = true;
  Say(doubtful);
  EXPECT_EQ(receiver.trust(now), Trust::kDegraded);
  EXPECT_EQ(holdings.held.size(), 3u);
  // Nothing is missing here: no repair, nothing dropped, and equal digests say nothing about the
  // sender's own doubt.
  now += 60 * kSecond;
  EXPECT_TRUE(Tick().empty());
  Batch digest_batch{.number = 2, .events = {}, .load = {}, .digest = holdings.CurrentDigest()};
  digest_batch.degraded = true;
  Say(digest_batch);
  EXPECT_EQ(receiver.trust(now), Trust::kDegraded);
  EXPECT_EQ(holdings.held.size(), 3u);
  Say(BatchOf(3, Removed{.tier = Tier::kDevice, .blocks = {SequenceHash{1}}}));
  EXPECT_EQ(receiver.trust(now), Trust::kExact);
}

TEST_F(ReceiverTest, ASnapshotSaysWhetherTheSenderDoubtsIt) {
  Say(MakeHello(100, 7, 2, 3));
  SnapshotPart doubtful = Part(3, 0, RunOf(1, 3), true);
  doubtful.degraded = true;
  Say(doubtful);
  EXPECT_EQ(receiver.applied(), 3u);
  EXPECT_EQ(receiver.trust(now), Trust::kDegraded);
  Say(BatchOf(4, RunOf(20, 1)));
  EXPECT_EQ(receiver.trust(now), Trust::kExact);
}

TEST_F(ReceiverTest, AHelloSaysItToAReceiverThatDoesNotRemember) {
  Hello doubtful = MakeHello(100, 7);
  doubtful.degraded = true;
  Say(doubtful);
  EXPECT_EQ(receiver.trust(now), Trust::kDegraded);
  // The same sender's next connection does not take back what a batch is to take back.
  Say(MakeHello(100, 7));
  EXPECT_EQ(receiver.trust(now), Trust::kDegraded);
  // Another incarnation does.
  Say(MakeHello(101, 8));
  EXPECT_EQ(receiver.trust(now), Trust::kExact);
}

TEST_F(ReceiverTest, SilenceIsStale) {
  Say(MakeHello(100, 7));
  now += 10 * kSecond;
  EXPECT_EQ(receiver.trust(now), Trust::kStale);
  Say(Heartbeat{.last_sent = 0});
  EXPECT_EQ(receiver.trust(now), Trust::kExact);
}

class SenderTest : public testing::Test {
 protected:
  void Append(const Event& event) { sender.Append(resident.Apply(event), std::nullopt, now); }
  void Say(const ReceiverMessage& message) { status = sender.OnMessage(message, now); }
  void Connect(const Welcome& welcome) {
    sender.OnConnected(now);
    ASSERT_TRUE(std::holds_alternative<Hello>(*sender.Poll(now)));
    Say(welcome);
  }
  BatchNumber NextBatch() {
    const std::optional<SenderMessage> message = sender.Poll(now);
    if (!message.has_value() || !std::holds_alternative<Batch>(*message)) return 0;
    return std::get<Batch>(*message).number;
  }

  Time now{1000};
  absl::Status status;
  ResidentSet resident;
  StreamSender sender{SenderOptions{.window_batches = 4}, Identity(), &resident};
};

TEST_F(SenderTest, SendsNothingButAHelloBeforeItIsWelcomed) {
  Append(RunOf(1, 3));
  EXPECT_FALSE(sender.Poll(now).has_value());
  sender.OnConnected(now);
  const Hello hello = std::get<Hello>(*sender.Poll(now));
  EXPECT_TRUE(hello.starting);
  EXPECT_EQ(hello.last_sent, 1u);
  EXPECT_FALSE(sender.Poll(now).has_value());
  now += 2 * kSecond;
  EXPECT_TRUE(std::holds_alternative<Hello>(*sender.Poll(now)));
}

TEST_F(SenderTest, StopsAtTheCreditAndGoesOnWithAcknowledgements) {
  Connect(Welcome{.next = 1, .credit = 1});
  Append(RunOf(1, 1));
  EXPECT_EQ(NextBatch(), 1u);
  Append(RunOf(10, 1));
  EXPECT_EQ(NextBatch(), 0u);
  Say(Ack{.applied = 1, .credit = 1});
  EXPECT_EQ(NextBatch(), 2u);
}

TEST_F(SenderTest, UnsentAppendsAreMergedIntoOneBatch) {
  now += std::chrono::seconds(1);
  for (uint64_t i = 0; i < 100; ++i) Append(RunOf(1 + 10 * i, 1));
  EXPECT_EQ(sender.last_number(), 1u);
}

TEST_F(SenderTest, DoubtTravelsInTheOrderOfTheStream) {
  Connect(Welcome{.next = 1, .credit = 64});
  Append(RunOf(1, 1));
  EXPECT_FALSE(std::get<Batch>(*sender.Poll(now)).degraded);
  sender.SetDegraded(true);
  const Batch doubtful = std::get<Batch>(*sender.Poll(now));
  EXPECT_EQ(doubtful.number, 2u);
  EXPECT_TRUE(doubtful.events.empty());
  EXPECT_TRUE(doubtful.degraded);
  Append(RunOf(10, 1));
  EXPECT_TRUE(std::get<Batch>(*sender.Poll(now)).degraded);
  sender.SetDegraded(true);
  EXPECT_FALSE(sender.Poll(now).has_value());
  // An unsent batch says how it ends.
  Append(RunOf(20, 1));
  sender.SetDegraded(false);
  EXPECT_FALSE(std::get<Batch>(*sender.Poll(now)).degraded);
  EXPECT_FALSE(sender.Poll(now).has_value());
}

TEST_F(SenderTest, DoubtIsInSnapshotsAndHellos) {
  Append(RunOf(1, 1));
  sender.SetDegraded(true);
  sender.OnConnected(now);
  EXPECT_TRUE(std::get<Hello>(*sender.Poll(now)).degraded);
  Say(Welcome{.next = 1, .snapshot = true, .credit = 64});
  EXPECT_TRUE(std::get<SnapshotPart>(*sender.Poll(now)).degraded);
  sender.SetDegraded(false);
  now += 5 * kSecond;
  Say(Need{.next = 0, .snapshot = true});
  EXPECT_FALSE(std::get<SnapshotPart>(*sender.Poll(now)).degraded);
}

TEST_F(SenderTest, DoubtThatFindsNoRoomIsInTheSnapshot) {
  Connect(Welcome{.next = 1, .credit = 64});
  for (uint64_t i = 1; i <= 4; ++i) {
    Append(RunOf(10 * i, 1));
    EXPECT_EQ(NextBatch(), i);
  }
  sender.SetDegraded(true);
  EXPECT_TRUE(sender.snapshot_owed());
  EXPECT_TRUE(std::get<SnapshotPart>(*sender.Poll(now)).degraded);
}

TEST_F(SenderTest, BatchesKeepTheirBounds) {
  Connect(Welcome{.next = 1, .credit = 64});
  Append(RunOf(1, 2 * kBatchBlocksMax + 5));
  for (BatchNumber number = 1; number <= 3; ++number) {
    const SenderMessage message = *sender.Poll(now);
    EXPECT_TRUE(Validate(message).ok());
    EXPECT_EQ(std::get<Batch>(message).number, number);
  }
  EXPECT_FALSE(sender.Poll(now).has_value());
}

TEST_F(SenderTest, ReplaysFromItsWindow) {
  Connect(Welcome{.next = 1, .credit = 64});
  for (uint64_t i = 1; i <= 3; ++i) {
    Append(RunOf(10 * i, 1));
    EXPECT_EQ(NextBatch(), i);
  }
  Say(Need{.next = 2});
  EXPECT_EQ(sender.acknowledged(), 1u);
  EXPECT_EQ(NextBatch(), 2u);
  EXPECT_EQ(NextBatch(), 3u);
  EXPECT_EQ(sender.stats().batches_replayed, 2u);
}

TEST_F(SenderTest, OverflowOwesASnapshot) {
  Connect(Welcome{.next = 1, .credit = 64});
  for (uint64_t i = 1; i <= 5; ++i) {
    Append(RunOf(10 * i, 1));
    NextBatch();
  }
  EXPECT_EQ(sender.stats().snapshots_sent, 1u);
  EXPECT_TRUE(sender.snapshot_owed());
  Say(Ack{.applied = 4, .credit = 64});
  EXPECT_TRUE(sender.snapshot_owed());
  Say(Ack{.applied = sender.last_number(), .credit = 64});
  EXPECT_TRUE(sender.AtRest());
}

// The overflow already owes another snapshot, which waits for the one that was lost.
TEST_F(SenderTest, LostSnapshotIsSentAgainAfterAnOverflowBehindIt) {
  Connect(Welcome{.next = 1, .snapshot = true, .credit = 1});
  const BatchNumber lost = std::get<SnapshotPart>(*sender.Poll(now)).as_of;
  for (uint64_t i = 1; i <= 6; ++i) {
    Append(RunOf(10 * i, 1));
    NextBatch();
    Append(RunOf(1000 * i, kBatchBlocksMax));
  }
  now += 5 * kSecond;
  Say(Need{.snapshot = true});
  EXPECT_GT(std::get<SnapshotPart>(*sender.Poll(now)).as_of, lost);
}

// A receiver with much to do asks every second for what waits at its door.
TEST_F(SenderTest, WhoAsksForASnapshotThatIsOnItsWayIsNotSentAnother) {
  Append(RunOf(1, 3));
  Connect(Welcome{.next = 1, .snapshot = true, .credit = 64});
  const auto asks = [this] {
    Say(Need{.next = 0, .snapshot = true});
    const std::optional<SenderMessage> message = sender.Poll(now);
    return message.has_value() && std::holds_alternative<SnapshotPart>(*message);
  };
  EXPECT_TRUE(std::holds_alternative<SnapshotPart>(*sender.Poll(now)));
  for (int i = 0; i < 4; ++i) {
    now += kSecond;
    EXPECT_FALSE(asks()) << i;
  }
  now += kSecond;
  EXPECT_TRUE(asks()) << "it may be lost";
  now += 9 * kSecond;
  EXPECT_FALSE(asks()) << "twice as long after the second";
  now += kSecond;
  EXPECT_TRUE(asks());
  EXPECT_EQ(sender.stats().snapshots_sent, 3u);
  // A receiver that has the snapshot and asks again found a difference.
  Say(Ack{.applied = sender.last_number(), .credit = 64});
  EXPECT_TRUE(asks());
  // On another connection nothing is on its way.
  sender.OnDisconnected(now);
  Connect(Welcome{.next = 1, .snapshot = true, .credit = 64});
  EXPECT_TRUE(std::holds_alternative<SnapshotPart>(*sender.Poll(now)));
}

// Links keep the order: a receiver that has heard of a later number does not have the snapshot
// queued.
TEST_F(SenderTest, WhoWasToldOfWhatIsBehindASnapshotIsSentAnother) {
  Append(RunOf(1, 3));
  Connect(Welcome{.next = 1, .snapshot = true, .credit = 64});
  const BatchNumber lost = std::get<SnapshotPart>(*sender.Poll(now)).as_of;
  EXPECT_EQ(sender.Poll(now), SenderMessage(Heartbeat{.last_sent = lost}));
  EXPECT_EQ(sender.Poll(now), std::nullopt);
  now += kSecond;
  Say(Need{.next = lost, .snapshot = true});
  EXPECT_EQ(sender.Poll(now), std::nullopt) << "it has not heard what was sent behind it";
  Say(Need{.next = lost + 1, .snapshot = true});
  const SnapshotPart again = std::get<SnapshotPart>(*sender.Poll(now));
  EXPECT_GT(again.as_of, lost);
  Say(Ack{.applied = again.as_of, .credit = 64});
  EXPECT_EQ(sender.Poll(now), std::nullopt) << "who has it need not be told that it was sent";
}

TEST_F(SenderTest, SnapshotSupersedesWhatWasUnsent) {
  Append(RunOf(1, kBatchBlocksMax + 1));
  Connect(Welcome{.next = 1, .snapshot = true, .credit = 64});
  const SnapshotPart first = std::get<SnapshotPart>(*sender.Poll(now));
  EXPECT_FALSE(first.last);
  Append(RunOf(9000, 1));
  const SnapshotPart second = std::get<SnapshotPart>(*sender.Poll(now));
  EXPECT_TRUE(second.last);
  EXPECT_EQ(second.digest->tiers[0].blocks, kBatchBlocksMax + 1);
  EXPECT_EQ(NextBatch(), second.as_of + 1);
}

TEST_F(SenderTest, StartingSenderRaisesItsEpoch) {
  sender.OnConnected(now);
  sender.Poll(now);
  Say(Refuse{.code = absl::StatusCode::kFailedPrecondition,
             .reason = "younger",
             .epoch = 500,
             .instance_id = 1});
  EXPECT_EQ(std::get<Hello>(*sender.Poll(now)).epoch, 501u);
}

// The epoch above which it raised its own was made by a clock that ran ahead.
TEST_F(SenderTest, ARaisedEpochThatIsRefusedGoesBackToTheClock) {
  const ManualClock clock;
  StreamSender starting({.clock = &clock}, Identity(), &resident);
  const auto hello = [&] {
    now += std::chrono::minutes(1);
    return std::get<Hello>(*starting.Poll(now)).epoch;
  };
  const auto refuse = [&](Epoch epoch, uint64_t instance_id) {
    EXPECT_TRUE(starting
                    .OnMessage(Refuse{.code = absl::StatusCode::kFailedPrecondition,
                                      .reason = "not this epoch",
                                      .epoch = epoch,
                                      .instance_id = instance_id},
                               now)
                    .ok());
  };
  const Epoch ahead = 2 * clock.WallNs();
  starting.OnConnected(now);
  EXPECT_EQ(hello(), Identity().epoch);
  refuse(ahead, 1);
  EXPECT_EQ(hello(), ahead + 1);
  refuse(0, 0);
  EXPECT_EQ(hello(), clock.WallNs());
  // Where its raised epoch was taken, and still counts, it is not another sender's.
  EXPECT_TRUE(starting.OnMessage(Welcome{.next = 1, .credit = 64}, now).ok());
  starting.OnDisconnected(now);
  starting.OnConnected(now);
  EXPECT_EQ(hello(), clock.WallNs());
  refuse(ahead + 1, Identity().instance_id);
  EXPECT_EQ(hello(), ahead + 2);
  EXPECT_EQ(starting.stats().replaced, 0u);
}

TEST_F(SenderTest, RefusedAsInvalidStopsForGood) {
  sender.OnConnected(now);
  sender.Poll(now);
  Say(Refuse{.code = absl::StatusCode::kInvalidArgument, .reason = "contract"});
  EXPECT_TRUE(absl::IsInvalidArgument(sender.status()));
}

TEST_F(SenderTest, ARefusalThatMayBeMendedIsKnownUntilTheWelcome) {
  sender.OnConnected(now);
  sender.Poll(now);
  Say(Refuse{.code = absl::StatusCode::kFailedPrecondition, .reason = "schedule"});
  EXPECT_TRUE(absl::IsFailedPrecondition(sender.refusal()));
  EXPECT_EQ(sender.refusal().message(), "schedule");
  EXPECT_TRUE(sender.status().ok());
  sender.OnDisconnected(now);
  sender.OnConnected(now);
  sender.Poll(now);
  EXPECT_FALSE(sender.refusal().ok()) << "no answer yet";
  Say(Welcome{.next = 1, .credit = 64});
  EXPECT_TRUE(sender.refusal().ok());
}

TEST_F(SenderTest, SilentStreamSendsDigestsAndHeartbeats) {
  Connect(Welcome{.next = 1, .credit = 64});
  now += std::chrono::milliseconds(3500);
  EXPECT_TRUE(std::holds_alternative<Heartbeat>(*sender.Poll(now)));
  now += 2 * kSecond;
  EXPECT_TRUE(std::get<Batch>(*sender.Poll(now)).digest.has_value());
}

TEST_F(SenderTest, AStreamWithFewBlocksSendsDigestsMoreSeldom) {
  StreamSender sparse(
      {.digest_every = 10 * kSecond, .digest_blocks = 3, .digest_quiet_every = 60 * kSecond},
      Identity(), &resident);
  const auto digest_after = [&](Duration time, const Event& event) {
    now += time;
    sparse.Append(resident.Apply(event), std::nullopt, now);
    const Batch batch = std::get<Batch>(*sparse.Poll(now));
    EXPECT_TRUE(sparse.OnMessage(Ack{.applied = batch.number, .credit = 1}, now).ok());
    return batch.digest.has_value();
  };
  now += 60 * kSecond;
  sparse.OnConnected(now);
  sparse.Poll(now);
  EXPECT_TRUE(sparse.OnMessage(Welcome{.next = 1, .credit = 1}, now).ok());
  EXPECT_TRUE(digest_after(Duration(0), RunOf(1, 2)));
  EXPECT_FALSE(digest_after(10 * kSecond, RunOf(10, 2)));
  EXPECT_TRUE(digest_after(kSecond, RunOf(20, 1))) << "now there are three blocks since";
  EXPECT_FALSE(digest_after(59 * kSecond, RunOf(30, 1)));
  EXPECT_TRUE(digest_after(kSecond, RunOf(40, 1))) << "few, but for a minute";
}

TEST_F(SenderTest, AcknowledgingWhatWasNeverSentIsInvalid) {
  Connect(Welcome{.next = 1, .credit = 64});
  Say(Ack{.applied = 9});
  EXPECT_TRUE(absl::IsInvalidArgument(status));
}

TEST_F(SenderTest, StopSaysGoodbyeOnce) {
  Connect(Welcome{.next = 1, .credit = 64});
  sender.Stop();
  EXPECT_TRUE(std::holds_alternative<Goodbye>(*sender.Poll(now)));
  EXPECT_FALSE(sender.Poll(now).has_value());
}

const CacheLayout kHybrid = {
    .main = {.block_size = 16},
    .sides = {{.kind = CacheKind::kWindow, .block_size = 16, .window_tokens = 100}}};

Stored SideBlocks(std::vector<SequenceHash> names, SideClass side = 1) {
  return Stored{.blocks = std::move(names), .side = side};
}

TEST_F(SenderTest, ALayoutIsInTheBatchOfTheFirstEventsThatNeedItAndInSnapshots) {
  Connect(Welcome{.next = 1, .credit = 64});
  Append(RunOf(1, 2));
  EXPECT_FALSE(std::get<Batch>(*sender.Poll(now)).layout.has_value());
  resident.SetLayout(kHybrid);
  sender.NoteLayout();
  Append(SideBlocks({SequenceHash{77}}));
  Batch batch = std::get<Batch>(*sender.Poll(now));
  EXPECT_TRUE(Validate(SenderMessage(batch)).ok());
  EXPECT_EQ(batch.layout, kHybrid);
  EXPECT_EQ(batch.events, (std::vector<Event>{SideBlocks({SequenceHash{77}})}));
  Append(RunOf(10, 1));
  EXPECT_FALSE(std::get<Batch>(*sender.Poll(now)).layout.has_value());
  Say(Need{.next = 0, .snapshot = true});
  const SnapshotPart part = std::get<SnapshotPart>(*sender.Poll(now));
  EXPECT_TRUE(Validate(SenderMessage(part)).ok());
  EXPECT_EQ(part.layout, kHybrid);
  EXPECT_EQ(part.stored.back(), SideBlocks({SequenceHash{77}}));
}

TEST_F(SenderTest, ALayoutThatFindsNoRoomIsInTheSnapshot) {
  for (uint64_t i = 1; i <= 5; ++i) Append(RunOf(10000 * i, kBatchBlocksMax));
  resident.SetLayout(kHybrid);
  sender.NoteLayout();
  Connect(Welcome{.next = 1, .credit = 64});
  EXPECT_EQ(std::get<SnapshotPart>(*sender.Poll(now)).layout, kHybrid);
}

TEST_F(SenderTest, ASenderThatStartsWithALayoutAndNoBlocksTellsIt) {
  ResidentSet empty;
  empty.SetLayout(kHybrid);
  StreamSender late(SenderOptions{}, Identity(), &empty);
  late.OnConnected(now);
  late.Poll(now);
  EXPECT_TRUE(late.OnMessage(Welcome{.next = 1, .snapshot = true, .credit = 64}, now).ok());
  EXPECT_EQ(std::get<SnapshotPart>(*late.Poll(now)).layout, kHybrid);
}

// Both ends, with a batch in between that is lost for good: the window of replays has one batch.
TEST_F(ReceiverTest, AGapRepairedBySnapshotKeepsSideBlocksAndTheLayout) {
  ResidentSet resident;
  StreamSender sender(SenderOptions{.window_batches = 1}, Identity(), &resident);
  const auto append = [&](const Event& event) {
    sender.Append(resident.Apply(event), std::nullopt, now);
  };
  const auto deliver = [&](bool lost) {
    while (std::optional<SenderMessage> message = sender.Poll(now)) {
      if (lost) continue;
      for (const ReceiverMessage& reply : Say(*message))
        ASSERT_TRUE(sender.OnMessage(reply, now).ok());
    }
  };
  sender.OnConnected(now);
  append(RunOf(1, 3));
  deliver(/*lost=*/false);
  EXPECT_EQ(holdings.held.size(), 3u);
  resident.SetLayout(kHybrid);
  sender.NoteLayout();
  append(SideBlocks({SequenceHash{77}, SequenceHash{78}}));
  deliver(/*lost=*/true);
  append(Removed{.blocks = {SequenceHash{78}}, .side = 1});
  append(SideBlocks({SequenceHash{79}}));
  deliver(/*lost=*/false);
  EXPECT_EQ(sender.stats().snapshots_sent, 1u);
  EXPECT_EQ(receiver.trust(now), Trust::kExact);
  EXPECT_EQ(holdings.layout, kHybrid);
  EXPECT_EQ(holdings.CurrentDigest(), resident.digest());
  EXPECT_EQ(holdings.held,
            (std::set<SequenceHash>{SequenceHash{1}, SequenceHash{2}, SequenceHash{3},
                                    SequenceHash{77}, SequenceHash{79}}));
}

TEST(ResidentSetTest, CutsARunWhereItIsHeldAlready) {
  ResidentSet resident;
  resident.Apply(RunOf(3, 2, 2));
  const std::vector<Event> changes = resident.Apply(RunOf(1, 6));
  EXPECT_EQ(changes, (std::vector<Event>{RunOf(1, 2), RunOf(5, 2, 4)}));
  EXPECT_TRUE(resident.Apply(RunOf(1, 6)).empty());
}

TEST(ResidentSetTest, RemovingWhatIsNotHeldHasNoEffect) {
  ResidentSet resident;
  EXPECT_TRUE(resident.Apply(Removed{.blocks = {SequenceHash{1}}}).empty());
  EXPECT_TRUE(resident.Apply(Cleared{}).empty());
}

TEST(ResidentSetTest, RunsAreWholeSequencesParentsFirst) {
  ResidentSet resident;
  resident.Apply(RunOf(1, kBatchBlocksMax + 2));
  resident.Apply(Stored{.position = 3, .parent = SequenceHash{3}, .blocks = {SequenceHash{99999}}});
  const std::vector<Stored> runs = resident.AsRuns();
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0], RunOf(1, kBatchBlocksMax));
  EXPECT_EQ(runs[1].position, kBatchBlocksMax);
  EXPECT_EQ(runs[2].parent, SequenceHash{3});
}

TEST(ResidentSetTest, ClearOfOneTierKeepsTheOthers) {
  ResidentSet resident;
  resident.Apply(RunOf(1, 2));
  Stored host = RunOf(2, 2, 1);
  host.tier = Tier::kHost;
  resident.Apply(host);
  resident.Apply(Cleared{Tier::kDevice});
  EXPECT_EQ(resident.size(), 2u);
  EXPECT_EQ(resident.digest().tiers[0], Digest::OfTier());
  EXPECT_EQ(resident.digest().tiers[1].blocks, 2u);
}

TEST(ValidateTest, NamesTheFieldThatIsWrong) {
  Hello hello = MakeHello(1, 1);
  EXPECT_TRUE(Validate(SenderMessage(hello)).ok());
  hello.block_size = 0;
  EXPECT_NE(std::string(Validate(SenderMessage(hello)).message()).find("block_size"),
            std::string::npos);
  hello = MakeHello(1, 1);
  hello.holder.name = std::string(257, 'x');
  EXPECT_TRUE(absl::IsInvalidArgument(Validate(SenderMessage(hello))));
  EXPECT_TRUE(absl::IsInvalidArgument(Validate(Event(RunOf(1, 2, 0xffffffff)))));
  EXPECT_TRUE(absl::IsInvalidArgument(Validate(SenderMessage(BatchOf(0, RunOf(1, 1))))));
  EXPECT_TRUE(absl::IsInvalidArgument(Validate(SenderMessage(BatchOf(1, RunOf(1, 4097))))));
}

}  // namespace
}  // namespace kvatlas
