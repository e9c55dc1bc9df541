// Hellos and snapshots that no client should send: what do they cost the others?

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/stream/messages.h"
#include "indexer/stream/resident_set.h"
#include "indexer/stream/sender.h"
#include "indexer/stream/sender_pump.h"
#include "indexer/transport/grpc_link.h"
#include "tests/hostile/attacker.h"
#include "tests/hostile/raw_socket.h"
#include "tests/hostile/siege.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;

constexpr char kLease[] = "--lease_ttl=1s";

// A worker, or a cell, as it should be.
class RealSender {
 public:
  RealSender(const Siege& siege, const Hello& hello)
      : pump_({.heartbeat_every = milliseconds(300), .replaced_retry = milliseconds(500)},
              IdentityOf(hello), &resident_, &mutex_,
              std::make_unique<GrpcLink>(siege.grpc().ToString()), &Clock::Real()) {
    pump_.Start();
    ticker_ = std::thread([this] {
      MutexLock lock(&ticker_mutex_);
      while (!stopping_) {
        pump_.Tick();
        stop_.WaitFor(&ticker_mutex_, milliseconds(20));
      }
    });
  }
  ~RealSender() {
    {
      MutexLock lock(&ticker_mutex_);
      stopping_ = true;
      stop_.SignalAll();
    }
    ticker_.join();
    pump_.Stop(/*goodbye=*/false, Duration(0));
  }

  void Store(uint64_t block) {
    MutexLock lock(&mutex_);
    pump_.Append(resident_.Apply(Stored{.blocks = {SequenceHash{block}}}), std::nullopt);
  }
  bool AtRestWithin(Duration timeout) { return pump_.WaitAtRest(timeout); }
  SenderStats stats() const { return pump_.stats(); }

 private:
  static SenderIdentity IdentityOf(const Hello& hello) {
    SenderIdentity identity;
    identity.holder = hello.holder;
    identity.domain = hello.domain;
    identity.block_size = hello.block_size;
    identity.contract_id = hello.contract_id;
    identity.schedule = hello.schedule;
    identity.epoch = hello.epoch;
    identity.instance_id = hello.instance_id;
    return identity;
  }

  Mutex mutex_;
  ResidentSet resident_ ABSL_GUARDED_BY(mutex_);
  SenderPump pump_;
  Mutex ticker_mutex_;
  CondVar stop_;
  bool stopping_ ABSL_GUARDED_BY(ticker_mutex_) = false;
  std::thread ticker_;
};

class HoldersTest : public testing::TestWithParam<const char*> {
 protected:
  static std::string Program() { return GetParam(); }
};

TEST_P(HoldersTest, OneHelloInAnothersNameSilencesNobodyForGood) {
  Siege siege({.program = Program(), .args = {kLease}});
  ASSERT_TRUE(siege.ok());
  const auto channel = MakeChannel(siege.grpc().ToString());
  Hello hello = HelloOf(Program(), "worker", "model");
  RealSender real(siege, hello);
  real.Store(1);
  ASSERT_TRUE(real.AtRestWithin(std::chrono::seconds(30)));

  hello.instance_id = 1;
  hello.epoch = uint64_t{1} << 63;
  const Attacker far(channel, hello);
  EXPECT_FALSE(far.welcomed());
  EXPECT_EQ(far.refusal().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_NE(far.refusal().error_message().find("ahead of the receiver's clock"), std::string::npos);
  real.Store(2);
  EXPECT_TRUE(real.AtRestWithin(std::chrono::seconds(30)));
  EXPECT_EQ(real.stats().replaced, 0u);

  // As far ahead as it goes: the stream is lost until the attacker has been silent for a lease.
  hello.epoch = WallTimeNs() + uint64_t{23 * 3600} * 1'000'000'000;
  {
    const Attacker near(channel, hello);
    EXPECT_TRUE(near.welcomed());
  }
  real.Store(3);
  EXPECT_TRUE(real.AtRestWithin(std::chrono::seconds(60)));
  EXPECT_GT(real.stats().replaced, 0u);
  RealSender again(siege, HelloOf(Program(), "worker", "model"));
  again.Store(4);
  EXPECT_TRUE(again.AtRestWithin(std::chrono::seconds(30))) << "one that starts again has it too";
  siege.ExpectUnharmed();
}

TEST_P(HoldersTest, MadeUpModelsOfOneAddressAreBounded) {
  Siege siege({.program = Program()});
  ASSERT_TRUE(siege.ok());
  const auto channel = MakeChannel(siege.grpc().ToString());
  std::map<grpc::StatusCode, int> answers;
  std::string refusal;
  for (int i = 0; i < 1500; ++i) {
    const Attacker one(channel, HelloOf(Program(), "worker", "made-up-" + std::to_string(i)));
    ++answers[one.refusal().error_code()];
    if (!one.welcomed()) refusal = one.refusal().error_message();
  }
  EXPECT_EQ(answers[grpc::StatusCode::OK], 256);
  EXPECT_EQ(answers[grpc::StatusCode::RESOURCE_EXHAUSTED], 1500 - 256);
  EXPECT_NE(refusal.find("127.0.0.1 has announced models up to its limit of 256"),
            std::string::npos)
      << refusal;
  EXPECT_NE(refusal.find("raise --"), std::string::npos) << refusal;
  siege.ExpectUnharmed();
}

TEST_P(HoldersTest, ModelsThatWereMadeUpMakeRoomForNewOnes) {
  const std::string quota =
      Program() == kLeaf ? "--max_domains_per_peer=0" : "--peer_domains_max=0";
  Siege siege({.program = Program(),
               .args = {kLease, quota, "--sweep_after=1s", "--forget_domain_after=2s",
                        Program() == kLeaf ? "--max_domains=128" : "--domains_max=128"}});
  ASSERT_TRUE(siege.ok());
  const auto channel = MakeChannel(siege.grpc().ToString());
  int refused = 0;
  for (int i = 0; i < 200; ++i) {
    const Attacker one(channel, HelloOf(Program(), "worker", "made-up-" + std::to_string(i)));
    refused += one.welcomed() ? 0 : 1;
  }
  EXPECT_GT(refused, 0);
  RealSender real(siege, HelloOf(Program(), "worker", "model"));
  real.Store(1);
  EXPECT_TRUE(real.AtRestWithin(std::chrono::seconds(60)));
  // The first one was taken; those that were refused may be named as such for a while.
  const auto named = [&] {
    const auto metrics = HttpGet(siege.http(), "/metrics", std::chrono::seconds(60));
    return metrics.value_or("made-up-0\"").find("made-up-0\"") != std::string::npos;
  };
  const Time until = Clock::Real().Now() + std::chrono::seconds(60);
  while (named() && Clock::Real().Now() < until) siege.Watch(5);
  EXPECT_FALSE(named()) << "nothing names a model that was forgotten";
  siege.ExpectUnharmed();
}

TEST_P(HoldersTest, HoldersWithManyLabelsAreBounded) {
  Siege siege({.program = Program()});
  ASSERT_TRUE(siege.ok());
  const auto channel = MakeChannel(siege.grpc().ToString());
  Hello hello = HelloOf(Program(), "", "model");
  for (int i = 0; i < 32; ++i)
    hello.labels.emplace_back("label-" + std::to_string(i), std::string(256, 'x'));
  int welcomed = 0;
  std::string refusal;
  for (int i = 0; i < 3000; ++i) {
    hello.holder.name = "worker-" + std::to_string(i);
    const Attacker one(channel, hello);
    welcomed += one.welcomed() ? 1 : 0;
    if (!one.welcomed()) refusal = one.refusal().error_message();
  }
  EXPECT_GT(welcomed, 1000);
  EXPECT_LT(welcomed, 2000);
  EXPECT_NE(refusal.find("bytes of labels up to its limit"), std::string::npos) << refusal;
  hello.labels.clear();
  hello.holder.name = "terse";
  EXPECT_TRUE(Attacker(channel, hello).welcomed()) << "what is left is enough for a short one";
  siege.ExpectUnharmed();
}

TEST_P(HoldersTest, HoldersOfOneAddressAreBounded) {
  constexpr int kHoldersMax = 1000;
  const std::string flag = Program() == kLeaf ? "--max_workers_per_peer" : "--peer_cells_max";
  Siege siege({.program = Program(), .args = {flag + "=" + std::to_string(kHoldersMax)}});
  ASSERT_TRUE(siege.ok());
  const auto channel = MakeChannel(siege.grpc().ToString());
  Hello hello = HelloOf(Program(), "", "model");
  int welcomed = 0;
  std::string refusal;
  for (int i = 0; i < kHoldersMax + 100; ++i) {
    hello.holder.name = "worker-" + std::to_string(i);
    const Attacker one(channel, hello);
    welcomed += one.welcomed() ? 1 : 0;
    if (!one.welcomed()) refusal = one.refusal().error_message();
  }
  EXPECT_EQ(welcomed, kHoldersMax);
  EXPECT_NE(refusal.find("holders up to its limit of 1000"), std::string::npos) << refusal;
  EXPECT_NE(refusal.find("raise " + flag), std::string::npos) << refusal;
  siege.ExpectUnharmed();
}

INSTANTIATE_TEST_SUITE_P(Programs, HoldersTest, testing::Values(kLeaf, kHierarchy),
                         [](const auto& program) {
                           return std::string(program.param == kLeaf ? "leaf" : "hierarchy");
                         });

// ---- Snapshots without end ----

SnapshotPart PartOf(uint32_t part, uint64_t first) {
  SnapshotPart message{
      .snapshot_id = 1, .as_of = 2, .part = part, .stored = {}, .load = {}, .digest = {}};
  Stored run{.blocks = {}};
  for (uint64_t i = 0; i < kBatchBlocksMax; ++i) run.blocks.push_back(SequenceHash{first + i});
  message.stored.push_back(std::move(run));
  return message;
}

class SnapshotTest : public testing::Test {
 protected:
  // Sends up to `parts` parts of a snapshot, and never the last; how it ended.
  static grpc::Status Send(const Siege& siege, uint32_t parts) {
    Attacker attacker(MakeChannel(siege.grpc().ToString()), HelloOf(kLeaf, "worker", "model"));
    EXPECT_TRUE(attacker.welcomed()) << attacker.refusal().error_message();
    // Something that it replaces.
    attacker.Say(Batch{
        .number = 1, .events = {Stored{.blocks = {SequenceHash{1}}}}, .load = {}, .digest = {}});
    uint64_t first = 1000;
    for (uint32_t part = 0; part < parts; ++part, first += kBatchBlocksMax)
      if (!attacker.Say(PartOf(part, first))) return attacker.Finish();
    return grpc::Status::OK;
  }
};

TEST_F(SnapshotTest, WithoutAnEndItIsEnded) {
  Siege siege({.program = kLeaf, .args = {"--max_snapshot_blocks=200000"}});
  ASSERT_TRUE(siege.ok());
  const grpc::Status status = Send(siege, 1000);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_NE(status.error_message().find("snapshot of more than 200000 blocks"), std::string::npos)
      << status.error_message();
  siege.ExpectUnharmed();
}

// 4 M blocks, where the index takes few of them.
TEST_F(SnapshotTest, WhatTheIndexShedsIsNotRemembered) {
  Siege siege({.program = kLeaf, .args = {"--max_bytes=16777216"}});
  ASSERT_TRUE(siege.ok());
  EXPECT_TRUE(Send(siege, 1000).ok());
  siege.ExpectUnharmed();
}

}  // namespace
}  // namespace kvatlas
