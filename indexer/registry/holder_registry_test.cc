#include "indexer/registry/holder_registry.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/mutex.h"
#include "indexer/registry/refused_holders.h"
#include "indexer/stream/messages.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Domain kLlama{"llama-70b", ""};
const Domain kQwen{"qwen-8b", "tenant-a"};
constexpr char kContract[] = "xxh3-chain-1:1337";

std::vector<SequenceHash> Sequence(uint64_t first, size_t blocks) {
  std::vector<SequenceHash> sequence;
  for (uint64_t i = 0; i < blocks; ++i) sequence.push_back(SequenceHash{first + i});
  return sequence;
}

Digest DigestOf(const std::vector<SequenceHash>& blocks) {
  Digest digest;
  for (SequenceHash block : blocks) digest.Add(Tier::kDevice, block);
  return digest;
}

// The reports to an observer, put together.
class Mirror : public DomainObserver {
 public:
  void OnChanged(HolderIndex holder, const ChangeLog::Part& changes, const Stored* run) override {
    changes.ForEachBlock(
        [&](SequenceHash block, Position position, TierMask before, TierMask after) {
          Change(holder, block, position, before, after, run);
        });
  }
  void Change(HolderIndex holder, SequenceHash block, Position position, TierMask before,
              TierMask after, const Stored* run) {
    MutexLock lock(&mutex_);
    const auto key = std::make_pair(Raw(holder), Raw(block));
    const auto it = held_.find(key);
    EXPECT_EQ(it == held_.end() ? TierMask() : it->second, before) << "position " << position;
    if (after.empty()) {
      held_.erase(key);
    } else {
      held_[key] = after;
    }
    if (run != nullptr) {
      EXPECT_EQ(run->blocks.at(position - run->position), block);
      ++in_runs_;
    }
  }
  void OnLoad(HolderIndex holder, const std::optional<Load>& load) override {
    MutexLock lock(&mutex_);
    if (load.has_value()) {
      loads_[Raw(holder)] = *load;
    } else {
      loads_.erase(Raw(holder));
    }
  }
  size_t held() const {
    MutexLock lock(&mutex_);
    return held_.size();
  }
  // Changes that came with the run they are in.
  size_t in_runs() const {
    MutexLock lock(&mutex_);
    return in_runs_;
  }
  size_t loads() const {
    MutexLock lock(&mutex_);
    return loads_.size();
  }

 private:
  mutable Mutex mutex_;
  size_t in_runs_ = 0;
  std::map<std::pair<uint32_t, uint64_t>, TierMask> held_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, Load> loads_ ABSL_GUARDED_BY(mutex_);
};

// A sender at the other end of a connection in memory.
class Connection {
 public:
  explicit Connection(HolderRegistry* registry)
      : session_(registry->Accept([this](ReceiverMessage message) {
          MutexLock lock(&mutex_);
          replies_.push_back(std::move(message));
        })) {}

  absl::Status Say(SenderMessage message) { return session_->OnMessage(std::move(message)); }

  // The last reply of a kind.
  template <typename Kind>
  std::optional<Kind> Last() const {
    MutexLock lock(&mutex_);
    for (auto it = replies_.rbegin(); it != replies_.rend(); ++it) {
      if (const Kind* kind = std::get_if<Kind>(&*it)) return *kind;
    }
    return std::nullopt;
  }

 private:
  mutable Mutex mutex_;
  std::vector<ReceiverMessage> replies_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<ReceiverSession> session_;  // ends first
};

class HolderRegistryTest : public testing::Test {
 protected:
  HolderRegistryOptions Options() {
    return {.index_name = "reference",
            .index = {},
            .receiver = {},
            .contract_id = kContract,
            .schedule = "",
            .sweep_after = std::chrono::minutes(5),
            .sweep_blocks_per_tick = 1 << 16,
            .domains_max = 4,
            .holders_max = 1000,
            .clock = &clock_,
            .observe = [this](const Domain& domain, uint32_t) { return &mirrors_[domain]; }};
  }

  static Hello HelloOf(const std::string& worker, const Domain& domain = kLlama, Epoch epoch = 10) {
    Hello hello;
    hello.holder = {worker, 0, ""};
    hello.domain = domain;
    hello.block_size = 16;
    hello.contract_id = kContract;
    hello.epoch = epoch;
    hello.instance_id = 99;
    hello.starting = true;
    hello.address = worker + ":1";
    hello.labels = {{"zone", "a"}};
    return hello;
  }

  // The same sender on a new connection, after it sent batches up to `last`.
  static Hello Again(Hello hello, BatchNumber last) {
    hello.starting = false;
    hello.last_sent = last;
    return hello;
  }

  static Batch StoredBatch(BatchNumber number, std::vector<SequenceHash> blocks) {
    Batch batch;
    batch.number = number;
    batch.events = {Stored{.tier = Tier::kDevice, .position = 0, .blocks = std::move(blocks)}};
    return batch;
  }

  // "w0:3 w1:5", sorted.
  static std::string Answer(const HolderRegistry& registry, const Domain& domain,
                            const std::vector<SequenceHash>& blocks, bool all = false) {
    const auto answer = registry.FindOverlaps(domain, {.blocks = blocks}, all);
    if (!answer.ok()) return answer.status().ToString();
    std::vector<std::string> lines;
    for (const HolderOverlap& overlap : answer->holders) {
      lines.push_back(overlap.holder->id.name + ":" + std::to_string(overlap.blocks));
    }
    std::sort(lines.begin(), lines.end());
    std::string text;
    for (const std::string& line : lines) text += (text.empty() ? "" : " ") + line;
    return text;
  }

  void Pass(HolderRegistry* registry, Duration time) {
    for (Duration step{0}; step < time; step += seconds(1)) {
      clock_.Advance(seconds(1));
      registry->Tick();
    }
  }

  ManualClock clock_;
  std::map<Domain, Mirror> mirrors_;
};

// ---- Hellos ----

TEST_F(HolderRegistryTest, AStreamIsWelcomedAndItsBlocksAreFound) {
  HolderRegistry registry(Options());
  Connection worker(&registry);
  ASSERT_TRUE(worker.Say(HelloOf("w0")).ok());
  ASSERT_TRUE(worker.Last<Welcome>().has_value());
  ASSERT_TRUE(worker.Say(StoredBatch(1, Sequence(1, 8))).ok());
  const auto answer = registry.FindOverlaps(kLlama, {.blocks = Sequence(1, 5)});
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(answer->block_size, 16u);
  ASSERT_EQ(answer->holders.size(), 1u);
  EXPECT_EQ(answer->holders[0].blocks, 5u);
  EXPECT_EQ(answer->holders[0].trust, Trust::kExact);
  EXPECT_EQ(answer->holders[0].holder->address, "w0:1");
  EXPECT_EQ(mirrors_[kLlama].in_runs(), 8u);
  EXPECT_EQ(answer->holders[0].holder->labels[0].second, "a");
  EXPECT_FALSE(answer->holders[0].load.has_value());
  EXPECT_EQ(registry.Stats().streams_open, 1u);
}

TEST_F(HolderRegistryTest, AnotherContractIsRefusedWithTheReason) {
  HolderRegistry registry(Options());
  Connection worker(&registry);
  Hello hello = HelloOf("w0");
  hello.contract_id = "xxh3-chain-1:42";
  const absl::Status status = worker.Say(hello);
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  ASSERT_TRUE(worker.Last<Refuse>().has_value());
  EXPECT_EQ(worker.Last<Refuse>()->code, absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(worker.Last<Refuse>()->reason.find("xxh3-chain-1:42"), std::string::npos);
  EXPECT_NE(worker.Last<Refuse>()->reason.find(kContract), std::string::npos);
  EXPECT_TRUE(registry.Domains().empty());
  EXPECT_EQ(registry.Stats().streams_refused, 1u);
}

TEST_F(HolderRegistryTest, AnotherScheduleIsRefused) {
  HolderRegistry registry(Options());
  Connection worker(&registry);
  Hello hello = HelloOf("w0");
  hello.schedule = "every:32";
  EXPECT_TRUE(absl::IsFailedPrecondition(worker.Say(hello)));
}

TEST_F(HolderRegistryTest, WhoIsRefusedIsRememberedUntilItIsWelcomed) {
  HolderRegistry registry(Options());
  Hello hello = HelloOf("w0");
  hello.schedule = "every:32";
  for (int i = 0; i < 3; ++i) {
    Connection worker(&registry);
    EXPECT_FALSE(worker.Say(hello).ok());
  }
  ASSERT_EQ(registry.Refused().size(), 1u);
  const RefusedHolder refused = registry.Refused()[0];
  EXPECT_EQ(refused.holder.name, "w0");
  EXPECT_EQ(refused.times, 3u);
  EXPECT_NE(refused.reason.find("every:32"), std::string::npos) << refused.reason;
  Connection mended(&registry);
  EXPECT_TRUE(mended.Say(HelloOf("w0")).ok());
  EXPECT_TRUE(registry.Refused().empty());
}

TEST_F(HolderRegistryTest, OnlySoManyRefusedAreRemembered) {
  HolderRegistry registry(Options());
  for (size_t i = 0; i < kRefusedHoldersMax + 10; ++i) {
    Connection worker(&registry);
    Hello hello = HelloOf("w" + std::to_string(i));
    hello.schedule = "every:32";
    EXPECT_FALSE(worker.Say(hello).ok());
  }
  EXPECT_EQ(registry.Refused().size(), kRefusedHoldersMax);
  EXPECT_EQ(registry.Stats().streams_refused, kRefusedHoldersMax + 10);
}

TEST_F(HolderRegistryTest, TheFirstHelloFixesTheBlockSize) {
  HolderRegistry registry(Options());
  Connection first(&registry);
  Connection second(&registry);
  ASSERT_TRUE(first.Say(HelloOf("w0")).ok());
  Hello hello = HelloOf("w1");
  hello.block_size = 32;
  EXPECT_TRUE(absl::IsFailedPrecondition(second.Say(hello)));
  EXPECT_NE(second.Last<Refuse>()->reason.find("32"), std::string::npos);
  EXPECT_EQ(*registry.BlockSizeOf(kLlama), 16u);
  EXPECT_EQ(registry.HoldersOf(kLlama).size(), 1u);
}

TEST_F(HolderRegistryTest, HellosOutOfBoundsAreRefused) {
  HolderRegistry registry(Options());
  Hello no_model = HelloOf("w0", {"", ""});
  Hello no_name = HelloOf("");
  Hello no_size = HelloOf("w0");
  no_size.block_size = 0;
  for (const Hello& hello : {no_model, no_name, no_size}) {
    Connection worker(&registry);
    EXPECT_TRUE(absl::IsInvalidArgument(worker.Say(hello)));
    EXPECT_EQ(worker.Last<Refuse>()->code, absl::StatusCode::kInvalidArgument);
  }
  Connection mute(&registry);
  EXPECT_TRUE(absl::IsInvalidArgument(mute.Say(StoredBatch(1, Sequence(1, 1)))));
}

TEST_F(HolderRegistryTest, AnOlderEpochIsRefusedAndHarmsNothing) {
  HolderRegistry registry(Options());
  Connection younger(&registry);
  ASSERT_TRUE(younger.Say(HelloOf("w0", kLlama, 20)).ok());
  ASSERT_TRUE(younger.Say(StoredBatch(1, Sequence(1, 4))).ok());
  Connection older(&registry);
  EXPECT_FALSE(older.Say(HelloOf("w0", kLlama, 19)).ok());
  ASSERT_TRUE(older.Last<Refuse>().has_value());
  EXPECT_EQ(older.Last<Refuse>()->epoch, 20u);
  EXPECT_TRUE(younger.Say(StoredBatch(2, Sequence(1, 6))).ok());
  EXPECT_EQ(Answer(registry, kLlama, Sequence(1, 9)), "w0:6");
}

// One such hello would lock out every later sender of the name.
TEST_F(HolderRegistryTest, AnEpochMoreThanADayAheadIsRefused) {
  HolderRegistry registry(Options());
  const Epoch day = uint64_t{24 * 3600} * 1'000'000'000;
  Connection real(&registry);
  ASSERT_TRUE(real.Say(HelloOf("w0", kLlama, clock_.WallNs())).ok());
  for (const Epoch epoch : {clock_.WallNs() + day + 1, Epoch{1} << 63}) {
    Connection far(&registry);
    const absl::Status status = far.Say(HelloOf("w0", kLlama, epoch));
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_NE(status.message().find("ahead of the receiver's clock"), std::string::npos) << status;
    ASSERT_TRUE(far.Last<Refuse>().has_value());
    EXPECT_EQ(far.Last<Refuse>()->epoch, 0u) << "no sender is to raise its own above it";
  }
  EXPECT_TRUE(real.Say(StoredBatch(1, Sequence(1, 4))).ok()) << "the real one has the stream";
  Connection near(&registry);
  EXPECT_TRUE(near.Say(HelloOf("w0", kLlama, clock_.WallNs() + day)).ok());
  clock_.Advance(seconds(1));
  Connection later(&registry);
  EXPECT_TRUE(later.Say(HelloOf("w0", kLlama, clock_.WallNs() + day)).ok());
}

// With the epoch of a clock that is set right since, a sender would lock out every later one.
TEST_F(HolderRegistryTest, AnEpochOfAClockThatRanAheadDoesNotCount) {
  class SetClock : public Clock {
   public:
    explicit SetClock(const Clock* right) : right_(right) {}
    Time Now() const override { return right_->Now(); }
    uint64_t WallNs() const override { return right_->WallNs() + ahead_ns; }
    uint64_t ahead_ns = uint64_t{48 * 3600} * 1'000'000'000;

   private:
    const Clock* const right_;
  };
  SetClock clock(&clock_);
  HolderRegistryOptions options = Options();
  options.clock = &clock;
  HolderRegistry registry(options);
  Connection before(&registry);
  const Hello of_before = HelloOf("w0", kLlama, clock.WallNs());
  ASSERT_TRUE(before.Say(of_before).ok());
  ASSERT_TRUE(before.Say(StoredBatch(1, Sequence(1, 4))).ok());
  clock.ahead_ns = 0;
  EXPECT_TRUE(before.Say(StoredBatch(2, Sequence(1, 5))).ok()) << "its connection goes on";
  Hello hello = HelloOf("w0", kLlama, clock.WallNs());
  hello.instance_id = 100;
  Connection after(&registry);
  EXPECT_TRUE(after.Say(hello).ok());
  ASSERT_TRUE(after.Last<Welcome>().has_value());
  EXPECT_EQ(registry.StatsOf(kLlama)->holders[0].epoch, hello.epoch);
  Connection again(&registry);
  EXPECT_TRUE(absl::IsFailedPrecondition(again.Say(Again(of_before, 2))));
  EXPECT_EQ(again.Last<Refuse>()->epoch, 0u) << "it is to go back to its clock";
}

TEST_F(HolderRegistryTest, AnImageWithAnEpochMoreThanADayAheadIsNotRestored) {
  HolderRegistry registry(Options());
  HolderImage image;
  image.info.id = {"w0", 0, ""};
  image.stream = {.epoch = Epoch{1} << 63, .instance_id = 1, .applied = 1};
  EXPECT_TRUE(absl::IsFailedPrecondition(registry.Restore(kLlama, 16, image).status()));
  EXPECT_TRUE(registry.Domains().empty());
}

// Two live senders of one name: the one without the stream is seen in metrics as long as it tries.
TEST_F(HolderRegistryTest, AReplacedSenderIsShownAsRefusedWhileItTries) {
  HolderRegistry registry(Options());
  Connection younger(&registry);
  ASSERT_TRUE(younger.Say(HelloOf("w0", kLlama, 20)).ok());
  Connection starting(&registry);
  EXPECT_FALSE(starting.Say(HelloOf("w0", kLlama, 19)).ok());
  EXPECT_TRUE(registry.Refused().empty()) << "one that starts raises its epoch";
  Connection replaced(&registry);
  EXPECT_FALSE(replaced.Say(Again(HelloOf("w0", kLlama, 19), 0)).ok());
  ASSERT_EQ(registry.Refused().size(), 1u);
  EXPECT_EQ(registry.Refused()[0].holder.name, "w0");
  clock_.Advance(kRefusedFor);
  EXPECT_TRUE(registry.Refused().empty());
}

TEST_F(HolderRegistryTest, DomainsAndHoldersAreBounded) {
  HolderRegistryOptions options = Options();
  options.domains_max = 1;
  options.holders_max = 1;
  HolderRegistry registry(options);
  Connection first(&registry);
  Connection second(&registry);
  Connection third(&registry);
  ASSERT_TRUE(first.Say(HelloOf("w0")).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(second.Say(HelloOf("w1"))));
  EXPECT_TRUE(absl::IsResourceExhausted(third.Say(HelloOf("w0", kQwen))));
  EXPECT_EQ(registry.Domains().size(), 1u);
}

TEST_F(HolderRegistryTest, WhoStopsTakesNoMoreStreams) {
  HolderRegistry registry(Options());
  registry.StopAccepting();
  Connection worker(&registry);
  EXPECT_TRUE(absl::IsUnavailable(worker.Say(HelloOf("w0"))));
}

// ---- Domains ----

TEST_F(HolderRegistryTest, DomainsNeverMatchEachOther) {
  HolderRegistry registry(Options());
  Connection llama(&registry);
  Connection qwen(&registry);
  ASSERT_TRUE(llama.Say(HelloOf("w0")).ok());
  ASSERT_TRUE(qwen.Say(HelloOf("w0", kQwen)).ok());
  ASSERT_TRUE(llama.Say(StoredBatch(1, Sequence(1, 4))).ok());
  EXPECT_EQ(Answer(registry, kLlama, Sequence(1, 4)), "w0:4");
  EXPECT_EQ(Answer(registry, kQwen, Sequence(1, 4)), "");
  EXPECT_EQ(Answer(registry, kQwen, Sequence(1, 4), /*all=*/true), "w0:0");
  EXPECT_TRUE(absl::IsNotFound(registry.FindOverlaps({"other", ""}, {}).status()));
  EXPECT_EQ(registry.Domains(), (std::vector<Domain>{kLlama, kQwen}));
}

// ---- Connections ----

TEST_F(HolderRegistryTest, ASenderThatReconnectsGoesOnWhereItWas) {
  HolderRegistry registry(Options());
  {
    Connection worker(&registry);
    ASSERT_TRUE(worker.Say(HelloOf("w0")).ok());
    ASSERT_TRUE(worker.Say(StoredBatch(1, Sequence(1, 4))).ok());
  }
  EXPECT_EQ(Answer(registry, kLlama, Sequence(1, 9)), "w0:4");
  Connection worker(&registry);
  ASSERT_TRUE(worker.Say(Again(HelloOf("w0"), 1)).ok());
  EXPECT_EQ(worker.Last<Welcome>()->next, 2u);
  EXPECT_FALSE(worker.Last<Welcome>()->snapshot);
  ASSERT_TRUE(worker.Say(StoredBatch(2, Sequence(1, 6))).ok());
  EXPECT_EQ(Answer(registry, kLlama, Sequence(1, 9)), "w0:6");
}

TEST_F(HolderRegistryTest, ANewConnectionReplacesTheOldOneWhoseLateMessagesHaveNoEffect) {
  HolderRegistry registry(Options());
  auto old_one = std::make_unique<Connection>(&registry);
  ASSERT_TRUE(old_one->Say(HelloOf("w0")).ok());
  ASSERT_TRUE(old_one->Say(StoredBatch(1, Sequence(1, 2))).ok());
  Connection new_one(&registry);
  ASSERT_TRUE(new_one.Say(Again(HelloOf("w0"), 1)).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(old_one->Say(StoredBatch(2, Sequence(1, 9)))));
  EXPECT_FALSE(old_one->Say(Goodbye{}).ok());
  old_one.reset();
  ASSERT_TRUE(new_one.Say(StoredBatch(2, Sequence(1, 4))).ok());
  EXPECT_EQ(Answer(registry, kLlama, Sequence(1, 9)), "w0:4");
  EXPECT_EQ(registry.Stats().streams_open, 1u);
}

TEST_F(HolderRegistryTest, AConnectionCarriesOneStream) {
  HolderRegistry registry(Options());
  Connection worker(&registry);
  ASSERT_TRUE(worker.Say(HelloOf("w0")).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(worker.Say(HelloOf("w1"))));
}

// ---- Leases ----

TEST_F(HolderRegistryTest, ASilentHolderIsMaskedAtOnceAndIsAsItWasWhenItResumes) {
  HolderRegistry registry(Options());
  Connection worker(&registry);
  ASSERT_TRUE(worker.Say(HelloOf("w0")).ok());
  Batch batch = StoredBatch(1, Sequence(1, 4));
  batch.load = Load{.running_requests = 3};
  ASSERT_TRUE(worker.Say(batch).ok());
  EXPECT_EQ(mirrors_[kLlama].held(), 4u);
  EXPECT_EQ(mirrors_[kLlama].loads(), 1u);
  clock_.Advance(seconds(11));
  EXPECT_EQ(Answer(registry, kLlama, Sequence(1, 9)), "") << "before any tick";
  EXPECT_EQ(Answer(registry, kLlama, Sequence(1, 9), /*all=*/true), "");
  registry.Tick();
  EXPECT_EQ(mirrors_[kLlama].held(), 0u);
  EXPECT_EQ(mirrors_[kLlama].loads(), 0u);
  EXPECT_TRUE(registry.StatsOf(kLlama)->holders[0].masked);
  EXPECT_EQ(registry.Stats().holders_expired, 1u);
  ASSERT_TRUE(worker.Say(StoredBatch(2, Sequence(1, 6))).ok());
  EXPECT_EQ(Answer(registry, kLlama, Sequence(1, 9)), "w0:6");
  EXPECT_EQ(mirrors_[kLlama].held(), 6u);
  EXPECT_EQ(mirrors_[kLlama].loads(), 1u);
}

TEST_F(HolderRegistryTest, HeartbeatsKeepTheLease) {
  HolderRegistry registry(Options());
  Connection worker(&registry);
  ASSERT_TRUE(worker.Say(HelloOf("w0")).ok());
  ASSERT_TRUE(worker.Say(StoredBatch(1, Sequence(1, 4))).ok());
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(milliseconds(3333));
    ASSERT_TRUE(worker.Say(Heartbeat{.last_sent = 1}).ok());
    registry.Tick();
  }
  EXPECT_EQ(Answer(registry, kLlama, Sequence(1, 9)), "w0:4");
}

TEST_F(HolderRegistryTest, WhoStaysSilentIsSweptInBoundedSteps) {
  HolderRegistryOptions options = Options();
  options.index_name = "atlas";  // the reference takes all at once
  options.sweep_blocks_per_tick = 2;
  HolderRegistry registry(options);
  Connection worker(&registry);
  ASSERT_TRUE(worker.Say(HelloOf("w0")).ok());
  ASSERT_TRUE(worker.Say(StoredBatch(1, Sequence(1, 5))).ok());
  ASSERT_TRUE(worker.Say(StoredBatch(2, Sequence(100, 7))).ok());
  clock_.Advance(seconds(11));
  registry.Tick();
  EXPECT_EQ(registry.StatsOf(kLlama)->index.holdings, 12u);
  clock_.Advance(seconds(300));
  registry.Tick();
  EXPECT_TRUE(registry.HoldersOf(kLlama).empty());
  // A sequence at a time here: an index sweeps about as many blocks as it is asked to.
  EXPECT_GE(registry.StatsOf(kLlama)->index.holdings, 5u);
  EXPECT_LE(registry.StatsOf(kLlama)->index.holdings, 7u);
  registry.Tick();
  registry.Tick();
  registry.Tick();
  EXPECT_EQ(registry.StatsOf(kLlama)->index.holdings, 0u);
  EXPECT_EQ(registry.StatsOf(kLlama)->index.holders, 0u);
  EXPECT_EQ(registry.Stats().holders_swept, 1u);
  // Its connection was only half dead: it must say hello again, and is asked for everything.
  EXPECT_TRUE(absl::IsFailedPrecondition(worker.Say(StoredBatch(3, Sequence(1, 6)))));
  Connection again(&registry);
  ASSERT_TRUE(again.Say(Again(HelloOf("w0"), 1)).ok());
  ASSERT_TRUE(again.Last<Welcome>().has_value());
  SnapshotPart part;
  part.snapshot_id = 1;
  part.as_of = 1;
  part.last = true;
  part.stored = {Stored{.tier = Tier::kDevice, .position = 0, .blocks = Sequence(1, 5)}};
  part.digest = DigestOf(Sequence(1, 5));
  if (again.Last<Welcome>()->snapshot) {
    ASSERT_TRUE(again.Say(part).ok());
  } else {
    ASSERT_EQ(again.Last<Welcome>()->next, 1u);
    ASSERT_TRUE(again.Say(StoredBatch(1, Sequence(1, 5))).ok());
  }
  EXPECT_EQ(Answer(registry, kLlama, Sequence(1, 9)), "w0:5");
  EXPECT_EQ(mirrors_[kLlama].held(), 5u);
}

TEST_F(HolderRegistryTest, GoodbyeForgetsAtOnce) {
  HolderRegistry registry(Options());
  Connection worker(&registry);
  Connection other(&registry);
  ASSERT_TRUE(worker.Say(HelloOf("w0")).ok());
  ASSERT_TRUE(other.Say(HelloOf("w1")).ok());
  ASSERT_TRUE(worker.Say(StoredBatch(1, Sequence(1, 4))).ok());
  ASSERT_TRUE(other.Say(StoredBatch(1, Sequence(1, 3))).ok());
  ASSERT_TRUE(worker.Say(Goodbye{}).ok());
  EXPECT_EQ(Answer(registry, kLlama, Sequence(1, 9), /*all=*/true), "w1:3");
  EXPECT_EQ(mirrors_[kLlama].held(), 3u);
  registry.Tick();
  EXPECT_EQ(registry.StatsOf(kLlama)->index.holdings, 3u);
  EXPECT_EQ(registry.StatsOf(kLlama)->batches, 2u) << "also of who is gone";
  EXPECT_TRUE(absl::IsFailedPrecondition(worker.Say(StoredBatch(2, Sequence(1, 4)))));
}

TEST_F(HolderRegistryTest, ANumberGivenBackIsNeverMistakenForItsOldOwner) {
  HolderRegistry registry(Options());
  for (int round = 0; round < 20; ++round) {
    Connection worker(&registry);
    const std::string name = "w" + std::to_string(round);
    ASSERT_TRUE(worker.Say(HelloOf(name)).ok());
    ASSERT_TRUE(worker.Say(StoredBatch(1, Sequence(1, 3))).ok());
    EXPECT_EQ(Answer(registry, kLlama, Sequence(1, 3)), name + ":3");
    ASSERT_TRUE(worker.Say(Goodbye{}).ok());
    registry.Tick();
  }
  EXPECT_EQ(registry.StatsOf(kLlama)->index.holders, 0u);
}

// ---- Dump and figures ----

TEST_F(HolderRegistryTest, ADumpIsRunsOfWhatIsHeld) {
  HolderRegistry registry(Options());
  Connection worker(&registry);
  ASSERT_TRUE(worker.Say(HelloOf("w0")).ok());
  ASSERT_TRUE(worker.Say(StoredBatch(1, Sequence(1, 6))).ok());
  Batch more{.number = 2, .events = {}, .load = std::nullopt, .digest = std::nullopt};
  more.events = {Removed{.tier = Tier::kDevice, .blocks = {SequenceHash{3}}},
                 Stored{.tier = Tier::kHost,
                        .position = 2,
                        .parent = SequenceHash{2},
                        .blocks = {SequenceHash{3}}}};
  ASSERT_TRUE(worker.Say(more).ok());
  const absl::StatusOr<HolderDump> dump = registry.Dump(kLlama, {"w0", 0, ""});
  ASSERT_TRUE(dump.ok());
  EXPECT_EQ(dump->applied, 2u);
  ASSERT_EQ(dump->runs.size(), 3u);
  EXPECT_EQ(dump->runs[0],
            (Stored{.tier = Tier::kDevice, .position = 0, .blocks = Sequence(1, 2)}));
  EXPECT_EQ(dump->runs[1], (Stored{.tier = Tier::kDevice,
                                   .position = 3,
                                   .parent = SequenceHash{3},
                                   .blocks = Sequence(4, 3)}));
  EXPECT_EQ(dump->runs[2].tier, Tier::kHost);
  EXPECT_TRUE(absl::IsNotFound(registry.Dump(kLlama, {"w1", 0, ""}).status()));
  const DomainStats stats = *registry.StatsOf(kLlama);
  EXPECT_EQ(stats.blocks_stored, 7u);
  EXPECT_EQ(stats.blocks_removed, 1u);
  EXPECT_EQ(stats.batches, 2u);
  EXPECT_GT(stats.bytes_received, 7u * 8);
  EXPECT_EQ(stats.holders[0].blocks, 6u);
}

// ---- Many at once ----

// Writers grow and shrink their own sequences, others come and go, a timer ticks, queries run
// beside. An answer is never deeper than what the holder ever had, and in the end everything is
// exact.
TEST_F(HolderRegistryTest, IngestQueriesAndTicksRunTogether) {
  constexpr int kWriters = 3;
  constexpr int kRounds = 200;
  HolderRegistry registry(Options());
  {
    Connection first(&registry);  // so that the domain is there
    ASSERT_TRUE(first.Say(HelloOf("first")).ok());
  }
  std::atomic<int> writing{kWriters};
  std::vector<std::unique_ptr<Connection>> connections(kWriters);
  std::vector<std::thread> threads;
  for (int writer = 0; writer < kWriters; ++writer) {
    threads.emplace_back([&, writer] {
      auto& connection = connections[writer];
      const std::string name = "w" + std::to_string(writer);
      BatchNumber number = 0;
      Epoch epoch = 10;
      for (int round = 0; round < kRounds; ++round) {
        if (round % 20 == 0) {
          if (connection != nullptr) {
            ASSERT_TRUE(connection->Say(Goodbye{}).ok());
          }
          connection = std::make_unique<Connection>(&registry);
          ASSERT_TRUE(connection->Say(HelloOf(name, kLlama, ++epoch)).ok());
          number = 0;
        }
        ASSERT_TRUE(connection->Say(StoredBatch(++number, Sequence(1, 10 + writer))).ok());
        Batch removed{
            .number = ++number, .events = {}, .load = std::nullopt, .digest = std::nullopt};
        removed.events = {Removed{.tier = Tier::kDevice, .blocks = {SequenceHash{5}}}};
        ASSERT_TRUE(connection->Say(removed).ok());
      }
      writing.fetch_sub(1);
    });
  }
  threads.emplace_back([&] {
    while (writing.load() > 0) {
      registry.Tick();
      std::this_thread::yield();
    }
  });
  const std::vector<SequenceHash> query = Sequence(1, 20);
  while (writing.load() > 0) {
    const auto answer = registry.FindOverlaps(kLlama, {.blocks = query});
    ASSERT_TRUE(answer.ok());
    for (const HolderOverlap& overlap : answer->holders) {
      const std::string& name = overlap.holder->id.name;
      ASSERT_EQ(name[0], 'w');
      ASSERT_LE(overlap.blocks, 10u + static_cast<uint32_t>(name[1] - '0'));
    }
  }
  for (std::thread& thread : threads) thread.join();
  registry.Tick();
  EXPECT_EQ(Answer(registry, kLlama, query), "w0:4 w1:4 w2:4");
  EXPECT_EQ(mirrors_[kLlama].held(), 9u + 10 + 11);
}

}  // namespace
}  // namespace kvatlas
