// A sender whose name another one has taken. `stream_test.cc` has all other rules.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <variant>

#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/stream/messages.h"
#include "indexer/stream/resident_set.h"
#include "indexer/stream/sender.h"

namespace kvatlas {
namespace {

constexpr std::chrono::milliseconds kStep(250);

SenderIdentity Identity(uint64_t instance_id) {
  SenderIdentity identity;
  identity.holder.name = "worker-0";
  identity.domain.model = "model";
  identity.block_size = 16;
  identity.epoch = 100;
  identity.instance_id = instance_id;
  return identity;
}

// Welcomed once, then told again and again that another sender has a younger epoch.
class ReplacedSenderTest : public testing::Test {
 protected:
  void SetUp() override {
    SayHello();
    Say(Welcome{.next = 1, .credit = 64});
    SayHello();
  }

  void Say(const ReceiverMessage& message) { ASSERT_TRUE(sender.OnMessage(message, now).ok()); }

  Hello SayHello() {
    sender.OnDisconnected(now);
    sender.OnConnected(now);
    const std::optional<SenderMessage> message = sender.Poll(now);
    return message.has_value() ? std::get<Hello>(*message) : Hello{};
  }
  void Refused(bool lapsed) {
    Say(Refuse{.code = absl::StatusCode::kFailedPrecondition,
               .reason = "younger",
               .epoch = 500,
               .instance_id = 1,
               .lapsed = lapsed});
  }
  // Until the next hello, in quarters of a second; the connection breaks all the time.
  Duration Wait() {
    const Time from = now;
    while (now < from + std::chrono::hours(1)) {
      if (SayHello().epoch != 0) break;
      now += kStep;
    }
    return now - from;
  }

  Time now{1000};
  ResidentSet resident;
  StreamSender sender{SenderOptions(), Identity(7), &resident};
};

TEST_F(ReplacedSenderTest, TriesAgainSlowlyWithTheEpochThatItHas) {
  Duration about = SenderOptions().replaced_retry;
  for (uint64_t times = 1; times <= 8; ++times) {
    Refused(/*lapsed=*/false);
    EXPECT_TRUE(sender.status().ok()) << "it does not stop for good";
    EXPECT_TRUE(absl::IsFailedPrecondition(sender.refusal()));
    EXPECT_EQ(sender.stats().replaced, times);
    const Duration wait = Wait();
    EXPECT_GE(wait, about * 3 / 4);
    EXPECT_LE(wait, about * 5 / 4 + kStep);
    EXPECT_EQ(sender.epoch(), 100u) << "the other sender lives";
    about = std::min(2 * about, SenderOptions().replaced_retry_max);
  }
}

TEST_F(ReplacedSenderTest, TakesTheStreamAgainOnceTheOtherSenderIsSilent) {
  Refused(/*lapsed=*/true);
  EXPECT_FALSE(sender.Poll(now).has_value()) << "a connection that just broke is no proof";
  Wait();
  Refused(/*lapsed=*/true);
  const Hello hello = std::get<Hello>(*sender.Poll(now));
  EXPECT_EQ(hello.epoch, 501u);
  Say(Welcome{.next = 1, .credit = 64});
  EXPECT_TRUE(sender.refusal().ok());
  sender.Append(resident.Apply(Stored{.blocks = {SequenceHash{1}}}), std::nullopt, now);
  EXPECT_EQ(std::get<Batch>(*sender.Poll(now)).number, 1u);
}

TEST_F(ReplacedSenderTest, TakesTheStreamAgainWithItsEpochWhereTheOtherIsForgotten) {
  Refused(/*lapsed=*/false);
  Wait();
  Say(Welcome{.next = 1, .credit = 64});
  EXPECT_EQ(sender.epoch(), 100u);
  EXPECT_TRUE(sender.welcomed());
  EXPECT_TRUE(sender.refusal().ok());
}

TEST_F(ReplacedSenderTest, TwoOfOneNameTryAtDifferentTimes) {
  StreamSender other(SenderOptions{}, Identity(8), &resident);
  other.OnConnected(now);
  other.Poll(now);
  ASSERT_TRUE(other.OnMessage(Welcome{.next = 1, .credit = 64}, now).ok());
  other.OnDisconnected(now);
  other.OnConnected(now);
  other.Poll(now);
  Refused(/*lapsed=*/false);
  ASSERT_TRUE(other
                  .OnMessage(Refuse{.code = absl::StatusCode::kFailedPrecondition,
                                    .reason = "younger",
                                    .epoch = 500,
                                    .instance_id = 1},
                             now)
                  .ok());
  Time hello{0}, other_hello{0};
  for (; hello == Time(0) || other_hello == Time(0); now += kStep) {
    if (hello == Time(0) && sender.Poll(now).has_value()) hello = now;
    if (other_hello == Time(0) && other.Poll(now).has_value()) other_hello = now;
  }
  EXPECT_NE(hello, other_hello);
}

}  // namespace
}  // namespace kvatlas
