// The pump of `indexer/stream`, over a link that runs step by step.

#include "indexer/stream/sender_pump.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/base/tier.h"
#include "indexer/stream/link.h"
#include "indexer/stream/messages.h"
#include "indexer/stream/receiver.h"
#include "indexer/stream/resident_set.h"
#include "indexer/transport/in_process_link.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// The other end: one receiver, kept across connections, as a leaf keeps it. Used by the thread that
// runs the link.
class Leaf : public StreamAcceptor, private HoldingsSink {
 public:
  explicit Leaf(const Clock* clock, const ReceiverOptions& options = {})
      : clock_(clock), receiver_(options, this) {}

  std::unique_ptr<ReceiverSession> Accept(ReplyFn reply) override {
    ++accepted;
    return std::make_unique<Session>(this, std::move(reply));
  }

  const ResidentSet& held() const { return held_; }
  const StreamReceiver& receiver() const { return receiver_; }

  int accepted = 0;
  std::vector<Load> loads;
  // Said instead of what the receiver would say to the next batch.
  std::optional<ReceiverMessage> instead;

 private:
  class Session : public ReceiverSession {
   public:
    Session(Leaf* leaf, ReplyFn reply) : leaf_(leaf), reply_(std::move(reply)) {}
    ~Session() override { leaf_->receiver_.OnDisconnected(leaf_->clock_->Now()); }
    absl::Status OnMessage(SenderMessage message) override {
      std::vector<ReceiverMessage> replies;
      absl::Status status = leaf_->receiver_.OnMessage(message, leaf_->clock_->Now(), &replies);
      if (std::holds_alternative<Batch>(message) && leaf_->instead.has_value()) {
        replies = {*std::exchange(leaf_->instead, std::nullopt)};
      }
      for (ReceiverMessage& answer : replies) reply_(std::move(answer));
      return status;
    }

   private:
    Leaf* const leaf_;
    const ReplyFn reply_;
  };

  absl::Status Apply(const Event& event) override {
    held_.Apply(event);
    return absl::OkStatus();
  }
  void SetLoad(const Load& load) override { loads.push_back(load); }
  void ForEachHeld(const std::function<void(SequenceHash, TierMask, SideClass)>& visit) override {
    for (const Stored& run : held_.AsRuns()) {
      for (SequenceHash block : run.blocks) visit(block, held_.TiersOf(block), run.side);
    }
  }
  Digest CurrentDigest() override { return held_.digest(); }

  const Clock* const clock_;
  ResidentSet held_;
  StreamReceiver receiver_;
};

class SenderPumpTest : public testing::Test {
 protected:
  void MakePump(const SenderOptions& options = {}, size_t messages_max = 64) {
    auto link = std::make_unique<InProcessLink>(&leaf_, messages_max);
    link_ = link.get();
    pump_ = std::make_unique<SenderPump>(options,
                                         SenderIdentity{.holder = {"w", 0, ""},
                                                        .domain = {"m", ""},
                                                        .block_size = 16,
                                                        .contract_id = "contract",
                                                        .schedule = "",
                                                        .address = "",
                                                        .labels = {},
                                                        .epoch = 5,
                                                        .instance_id = 6},
                                         &resident_, &mutex_, std::move(link), &clock_);
  }

  // A block of its own at the sequence's start, told to the pump as owners do it.
  void Store(uint64_t block) {
    MutexLock lock(&mutex_);
    pump_->Append(resident_.Apply(Stored{.tier = Tier::kDevice, .blocks = {SequenceHash{block}}}),
                  std::nullopt);
  }

  void RunAll() {
    while (link_->Run()) {
    }
  }

  // The leaf holds exactly what there is, and the pump knows it.
  void ExpectConverged() {
    EXPECT_TRUE(pump_->AtRest());
    MutexLock lock(&mutex_);
    EXPECT_EQ(leaf_.held().digest(), resident_.digest());
  }

  ManualClock clock_;
  Leaf leaf_{&clock_};
  Mutex mutex_;
  ResidentSet resident_;  // under `mutex_`
  InProcessLink* link_ = nullptr;
  std::unique_ptr<SenderPump> pump_;
};

TEST_F(SenderPumpTest, NothingIsSaidBeforeTheStart) {
  MakePump();
  Store(1);
  pump_->Flush();
  RunAll();
  EXPECT_EQ(leaf_.accepted, 0);
  EXPECT_FALSE(pump_->connected());
  EXPECT_FALSE(pump_->AtRest());
}

TEST_F(SenderPumpTest, WhatIsAppendedArrivesWithTheNextFlush) {
  MakePump();
  pump_->Start();
  RunAll();
  EXPECT_TRUE(pump_->welcomed());
  Store(1);
  Store(2);
  RunAll();
  EXPECT_EQ(leaf_.held().size(), 0u) << "appending writes nothing";
  pump_->Flush();
  RunAll();
  ExpectConverged();
  EXPECT_EQ(leaf_.held().size(), 2u);
  EXPECT_EQ(pump_->acknowledged(), pump_->last_number());
}

TEST_F(SenderPumpTest, ALoadTravelsWithoutEvents) {
  MakePump();
  pump_->Start();
  RunAll();
  {
    MutexLock lock(&mutex_);
    pump_->Append({}, Load{.running_requests = 7});
  }
  pump_->Tick();
  RunAll();
  ASSERT_EQ(leaf_.loads.size(), 1u);
  EXPECT_EQ(leaf_.loads[0].running_requests, 7u);
}

TEST_F(SenderPumpTest, AMessageThatAFullLinkRefusedIsTheNextOneWritten) {
  MakePump({}, /*messages_max=*/1);
  pump_->Start();
  RunAll();
  for (uint64_t block = 1; block <= 5; ++block) {
    Store(block);
    pump_
        ->Flush();  // the first fills the link, the second is refused and kept, the others join a batch
  }
  EXPECT_EQ(pump_->acknowledged(), 0u);
  RunAll();
  ExpectConverged();
  EXPECT_EQ(leaf_.held().size(), 5u);
  EXPECT_EQ(leaf_.receiver().stats().gaps, 0u);
  EXPECT_EQ(leaf_.receiver().stats().batches_duplicate, 0u);
}

TEST_F(SenderPumpTest, WhatALostConnectionTookIsReplayed) {
  MakePump();
  pump_->Start();
  RunAll();
  Store(1);
  pump_->Flush();
  RunAll();
  Store(2);
  pump_->Flush();
  link_->Reset();  // drops what is queued
  Store(3);
  pump_->Flush();
  RunAll();
  ExpectConverged();
  EXPECT_EQ(leaf_.accepted, 2);
  EXPECT_EQ(leaf_.held().size(), 3u);
  EXPECT_EQ(pump_->stats().snapshots_sent, 0u);
}

TEST_F(SenderPumpTest, ASmallWindowOwesASnapshotAfterALongAbsence) {
  MakePump({.window_batches = 2});
  pump_->Start();
  RunAll();
  for (uint64_t block = 1; block <= 9; ++block) {
    Store(block);
    pump_->Flush();
  }
  link_->Reset();
  for (uint64_t block = 10; block <= 20; ++block) {
    Store(block);
    pump_->Flush();
  }
  RunAll();
  ExpectConverged();
  EXPECT_EQ(leaf_.held().size(), 20u);
  EXPECT_GE(pump_->stats().snapshots_sent, 1u);
}

TEST_F(SenderPumpTest, AnAnswerThatCannotBeTrueEndsTheConnection) {
  MakePump();
  pump_->Start();
  RunAll();
  leaf_.instead = Ack{.applied = 1000, .credit = 1};
  Store(1);
  pump_->Flush();
  RunAll();
  EXPECT_EQ(leaf_.accepted, 2);
  EXPECT_TRUE(pump_->status().ok());
  ExpectConverged();
}

TEST_F(SenderPumpTest, AYoungerIncarnationSuspendsTheStream) {
  MakePump();
  pump_->Start();
  RunAll();
  leaf_.instead = Refuse{.code = absl::StatusCode::kFailedPrecondition,
                         .reason = "replaced",
                         .epoch = 9,
                         .instance_id = 1};
  Store(1);
  pump_->Flush();
  RunAll();
  EXPECT_TRUE(pump_->status().ok());
  EXPECT_EQ(pump_->WhyRefused().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(pump_->WaitAtRest(seconds(0)));
  clock_.Advance(SenderOptions().replaced_retry * 2);
  pump_->Tick();
  RunAll();
  EXPECT_TRUE(pump_->WhyRefused().ok());
  ExpectConverged();
}

TEST_F(SenderPumpTest, TimeBringsHeartbeatsAndDigests) {
  const SenderOptions options;
  MakePump(options);
  pump_->Start();
  Store(1);
  pump_->Flush();
  RunAll();
  const Time before = leaf_.receiver().last_heard();
  clock_.Advance(options.heartbeat_every);
  pump_->Tick();
  RunAll();
  EXPECT_EQ(leaf_.receiver().last_heard() - before, options.heartbeat_every);
  clock_.Advance(options.digest_every);
  pump_->Tick();
  RunAll();
  EXPECT_GE(leaf_.receiver().stats().digests_equal, 1u);
  EXPECT_EQ(leaf_.receiver().stats().digests_different, 0u);
}

TEST_F(SenderPumpTest, AGoodbyeIsTheLastWord) {
  MakePump();
  pump_->Start();
  Store(1);
  pump_->Flush();
  RunAll();
  pump_->Stop(/*goodbye=*/true, seconds(1));
  EXPECT_TRUE(leaf_.receiver().gone());
  EXPECT_FALSE(pump_->connected());
  pump_->Stop(true, seconds(1));  // idempotent
  const BatchNumber last = pump_->last_number();
  Store(2);
  pump_->Flush();
  EXPECT_EQ(pump_->last_number(), last) << "ignored";
  EXPECT_EQ(leaf_.held().size(), 1u);
}

TEST_F(SenderPumpTest, WithoutAGoodbyeTheLeafWaitsForTheLease) {
  MakePump();
  pump_->Start();
  RunAll();
  pump_.reset();
  EXPECT_FALSE(leaf_.receiver().gone());
  EXPECT_FALSE(leaf_.receiver().Expired(clock_.Now()));
  clock_.Advance(ReceiverOptions().lease_ttl + milliseconds(1));
  EXPECT_TRUE(leaf_.receiver().Expired(clock_.Now()));
}

// Threads that append, a link with a thread of its own that loses connections, and a thread that
// waits.
TEST_F(SenderPumpTest, ManyThreadsConverge) {
  MakePump({.window_batches = 8}, /*messages_max=*/4);
  pump_->Start();
  std::atomic<bool> done{false};
  std::thread runner([&] {
    for (int step = 0; !done.load(); ++step) {
      if (step < 200 && step % 20 == 19) link_->Reset();
      if (!link_->Run()) std::this_thread::yield();
    }
  });
  std::vector<std::thread> appenders;
  for (uint64_t thread = 0; thread < 2; ++thread) {
    appenders.emplace_back([&, thread] {
      for (uint64_t i = 0; i < 500; ++i) {
        Store(thread * 1000 + i + 1);
        pump_->Flush();
      }
    });
  }
  for (std::thread& appender : appenders) appender.join();
  EXPECT_TRUE(pump_->WaitAtRest(seconds(60)));
  done.store(true);
  runner.join();
  RunAll();
  ExpectConverged();
  EXPECT_EQ(leaf_.held().size(), 1000u);
}

}  // namespace
}  // namespace kvatlas
