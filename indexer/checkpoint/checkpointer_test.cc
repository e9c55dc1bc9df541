#include "indexer/checkpoint/checkpointer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "indexer/base/cache_class.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/checkpoint/checkpoint_test_util.h"
#include "indexer/checkpoint/fault_files.h"
#include "indexer/registry/holder_registry.h"

namespace kvatlas {
namespace {

const Domain kLlama{"llama-70b", ""};
const Domain kQwen{"qwen-8b", "tenant-a"};
constexpr char kDirectory[] = "/checkpoints";

std::vector<SequenceHash> Sequence(uint64_t first, size_t blocks) {
  std::vector<SequenceHash> sequence;
  for (uint64_t i = 0; i < blocks; ++i) sequence.push_back(SequenceHash{first + i});
  return sequence;
}

class CheckpointerTest : public testing::Test {
 protected:
  CheckpointerTest() { clock_.Advance(std::chrono::hours(1)); }

  std::unique_ptr<CheckpointedLeaf> NewLeaf(uint32_t keep = 3) {
    return std::make_unique<CheckpointedLeaf>(&clock_, &files_, kDirectory, keep);
  }
  std::unique_ptr<TestPublisher> NewPublisher(const std::string& name, Epoch epoch = 1000,
                                              const Domain& domain = kLlama) {
    return std::make_unique<TestPublisher>(domain, name, epoch, SenderOptions(), &clock_);
  }
  void Rest(TestPublisher* publisher) {
    while (publisher->Exchange(1000)) {
    }
    ASSERT_TRUE(publisher->AtRest());
  }
  static Trust TrustOf(const CheckpointedLeaf& leaf, const TestPublisher& of) {
    return leaf.AnswerOf(of.domain(), of.holder())->trust;
  }

  ManualClock clock_;
  FaultFiles files_;
};

TEST_F(CheckpointerTest, HoldersComeBackAndTheirStreamsGoOnBehindThePosition) {
  auto worker = NewPublisher("w");
  auto leaf = NewLeaf();
  worker->Connect(&leaf->registry());
  worker->Change(Stored{.blocks = Sequence(1, 100)});
  Rest(worker.get());
  ASSERT_TRUE(leaf->checkpointer().WriteNow().ok());
  worker->Change(Removed{.blocks = Sequence(90, 11)});
  worker->Change(Stored{.blocks = Sequence(1000, 5)});
  Rest(worker.get());
  worker->Disconnect();

  leaf = NewLeaf();
  const absl::StatusOr<CheckpointReport> report = leaf->checkpointer().Restore();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->counts.blocks, 100);
  EXPECT_EQ(report->counts.holders, 1);
  const auto position = leaf->registry().PositionOf(kLlama, worker->holder());
  ASSERT_TRUE(position.has_value());
  EXPECT_EQ(position->epoch, 1000);
  EXPECT_EQ(position->applied, 1);

  worker->Connect(&leaf->registry());
  Rest(worker.get());
  EXPECT_EQ(leaf->Contents(), (AllContents{{{kLlama, worker->holder()}, worker->contents()}}));
  EXPECT_EQ(TrustOf(*leaf, *worker), Trust::kExact);
  EXPECT_EQ(worker->sender().stats().snapshots_sent, 0);
}

TEST_F(CheckpointerTest, WhatIsRestoredIsNotExactBeforeItsSenderWasHeardAndCaughtUpWith) {
  auto worker = NewPublisher("w");
  auto leaf = NewLeaf();
  worker->Connect(&leaf->registry());
  worker->Change(Stored{.blocks = Sequence(1, 10)});
  Rest(worker.get());
  ASSERT_TRUE(leaf->checkpointer().WriteNow().ok());
  worker->Change(Stored{.blocks = Sequence(100, 10)});
  Rest(worker.get());
  worker->Disconnect();

  leaf = NewLeaf();
  ASSERT_TRUE(leaf->checkpointer().Restore().ok());
  EXPECT_EQ(TrustOf(*leaf, *worker), Trust::kDegraded);
  worker->Connect(&leaf->registry());
  ASSERT_TRUE(worker->Exchange(2));  // hello, welcome
  ASSERT_TRUE(worker->sender().welcomed());
  EXPECT_EQ(TrustOf(*leaf, *worker), Trust::kDegraded);
  Rest(worker.get());
  EXPECT_EQ(TrustOf(*leaf, *worker), Trust::kExact);
}

// ---- Hybrid models ----

class HybridCheckpointerTest : public CheckpointerTest {
 protected:
  static std::vector<SequenceHash> Sides(size_t side, uint64_t first, size_t blocks) {
    std::vector<SequenceHash> names;
    for (const SequenceHash block : Sequence(first, blocks))
      names.push_back(SideName(SideTag(TestLayout().sides[side]), block));
    return names;
  }
  // Ten blocks, of which eight can be reused: there are a window and a state at their end.
  static void MakeHybrid(TestPublisher* worker) {
    worker->BecomeHybrid();
    worker->Change(Stored{.blocks = Sequence(1, 10)});
    worker->Change(Stored{.blocks = Sides(0, 6, 5), .side = 1});
    worker->Change(Stored{.tier = Tier::kHost, .blocks = Sides(0, 8, 1), .side = 1});
    worker->Change(Stored{.blocks = Sides(1, 8, 1), .side = 2});
  }
  static std::pair<uint32_t, uint32_t> ReusableAndHeld(const CheckpointedLeaf& leaf,
                                                       const TestPublisher& of) {
    const auto answer = leaf.AnswerOf(of.domain(), of.holder(), Sequence(1, 12));
    return answer.has_value() ? std::pair(answer->blocks, answer->held) : std::pair(0u, 0u);
  }
};

TEST_F(HybridCheckpointerTest, AStreamFedHybridWorkerCanReuseTheSameBlocksAfterARestart) {
  auto worker = NewPublisher("w");
  auto leaf = NewLeaf();
  worker->Connect(&leaf->registry());
  MakeHybrid(worker.get());
  Rest(worker.get());
  ASSERT_EQ(ReusableAndHeld(*leaf, *worker), std::pair(8u, 10u));
  ASSERT_TRUE(leaf->checkpointer().WriteNow().ok());
  worker->Disconnect();

  leaf = NewLeaf();
  const absl::StatusOr<CheckpointReport> report = leaf->checkpointer().Restore();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->counts.blocks, 10);
  EXPECT_EQ(report->counts.side_blocks, 6);
  EXPECT_EQ(leaf->LayoutOf(kLlama, worker->holder()), TestLayout());
  EXPECT_EQ(ReusableAndHeld(*leaf, *worker), std::pair(8u, 10u));
  // Dumps still have the class of each side block.
  std::set<std::pair<SideClass, uint64_t>> sides;
  const absl::StatusOr<HolderDump> dump = leaf->registry().Dump(kLlama, worker->holder());
  ASSERT_TRUE(dump.ok());
  for (const Stored& run : dump->runs)
    if (run.side != 0)
      for (const SequenceHash name : run.blocks) sides.emplace(run.side, Raw(name));
  std::set<std::pair<SideClass, uint64_t>> expected = {{2, Raw(Sides(1, 8, 1)[0])}};
  for (const SequenceHash name : Sides(0, 6, 5)) expected.emplace(1, Raw(name));
  EXPECT_EQ(sides, expected);
  EXPECT_EQ(TrustOf(*leaf, *worker), Trust::kDegraded);
  worker->Connect(&leaf->registry());
  Rest(worker.get());
  EXPECT_EQ(ReusableAndHeld(*leaf, *worker), std::pair(8u, 10u));
  EXPECT_EQ(TrustOf(*leaf, *worker), Trust::kExact);
  EXPECT_EQ(worker->sender().stats().snapshots_sent, 0);
  EXPECT_EQ(leaf->Contents(), (AllContents{{{kLlama, worker->holder()}, worker->contents()}}));
  // Later events of the stream apply to the restored blocks.
  worker->Change(Removed{.blocks = Sides(1, 8, 1), .side = 2});
  Rest(worker.get());
  EXPECT_EQ(ReusableAndHeld(*leaf, *worker), std::pair(0u, 10u));
  EXPECT_EQ(leaf->Contents(), (AllContents{{{kLlama, worker->holder()}, worker->contents()}}));
}

// A query during the restore sees nothing of the holder or what it can reuse, but never all that
// its main class holds.
TEST_F(HybridCheckpointerTest, ARestoredHolderNeverPromisesMoreThanItCanReuse) {
  auto worker = NewPublisher("w");
  auto leaf = NewLeaf();
  worker->Connect(&leaf->registry());
  MakeHybrid(worker.get());
  Rest(worker.get());
  absl::StatusOr<HolderCut> cut = leaf->registry().Cut(kLlama, worker->holder());
  ASSERT_TRUE(cut.ok());
  for (int round = 0; round < 50; ++round) {
    leaf = NewLeaf();
    std::atomic<bool> stop{false};
    std::atomic<uint32_t> most{0};
    std::thread asker([&] {
      while (!stop.load()) most = std::max(most.load(), ReusableAndHeld(*leaf, *worker).first);
    });
    {
      auto restored = leaf->registry().Restore(kLlama, 16, cut->image);
      ASSERT_TRUE(restored.ok());
      // The layout comes first: as soon as there is a block, it is reduced to what can be reused.
      EXPECT_EQ(leaf->LayoutOf(kLlama, worker->holder()), TestLayout());
      EXPECT_TRUE((*restored)->Apply(Stored{.blocks = Sequence(1, 10)}).ok());
      EXPECT_EQ(ReusableAndHeld(*leaf, *worker), std::pair(0u, 0u));
      for (const SideHolding& side : cut->sides) {
        for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
          if (!side.tiers.Has(tier)) continue;
          const Stored run = {.tier = tier, .blocks = {side.name}, .side = side.side};
          EXPECT_TRUE((*restored)->Apply(run).ok());
        }
      }
      EXPECT_TRUE((*restored)->Finish());
    }
    EXPECT_EQ(ReusableAndHeld(*leaf, *worker), std::pair(8u, 10u));
    stop = true;
    asker.join();
    EXPECT_LE(most.load(), 8u);
  }
}

TEST_F(CheckpointerTest, AHolderThatDoesNotComeBackExpiresByItsLease) {
  auto worker = NewPublisher("w");
  auto leaf = NewLeaf();
  worker->Connect(&leaf->registry());
  worker->Change(Stored{.blocks = Sequence(1, 10)});
  Rest(worker.get());
  ASSERT_TRUE(leaf->checkpointer().WriteNow().ok());
  leaf = NewLeaf();
  ASSERT_TRUE(leaf->checkpointer().Restore().ok());
  EXPECT_TRUE(leaf->AnswerOf(kLlama, worker->holder()).has_value());
  clock_.Advance(std::chrono::seconds(11));
  EXPECT_FALSE(leaf->AnswerOf(kLlama, worker->holder()).has_value());
  leaf->registry().Tick();
  clock_.Advance(std::chrono::minutes(6));
  leaf->registry().Tick();
  EXPECT_TRUE(leaf->registry().HoldersOf(kLlama).empty());
}

TEST_F(CheckpointerTest, AHolderWhoseLeaseWasOverIsNotShownAgain) {
  auto worker = NewPublisher("w");
  auto leaf = NewLeaf();
  worker->Connect(&leaf->registry());
  worker->Change(Stored{.blocks = Sequence(1, 10)});
  Rest(worker.get());
  worker->Disconnect();
  clock_.Advance(std::chrono::seconds(11));
  leaf->registry().Tick();
  ASSERT_TRUE(leaf->checkpointer().WriteNow().ok());
  leaf = NewLeaf();
  ASSERT_TRUE(leaf->checkpointer().Restore().ok());
  EXPECT_FALSE(leaf->AnswerOf(kLlama, worker->holder()).has_value());
  worker->Connect(&leaf->registry());
  Rest(worker.get());
  EXPECT_EQ(TrustOf(*leaf, *worker), Trust::kExact);
  EXPECT_EQ(leaf->Contents().begin()->second.size(), 10);
}

TEST_F(CheckpointerTest, ASenderThatStartedAgainReplacesWhatWasRestored) {
  auto worker = NewPublisher("w");
  auto leaf = NewLeaf();
  worker->Connect(&leaf->registry());
  worker->Change(Stored{.blocks = Sequence(1, 10)});
  Rest(worker.get());
  ASSERT_TRUE(leaf->checkpointer().WriteNow().ok());
  worker->Disconnect();
  leaf = NewLeaf();
  ASSERT_TRUE(leaf->checkpointer().Restore().ok());
  auto again = NewPublisher("w", 2000);
  again->Change(Stored{.blocks = Sequence(500, 3)});
  again->Connect(&leaf->registry());
  Rest(again.get());
  EXPECT_EQ(leaf->Contents().begin()->second, again->contents());
  EXPECT_EQ(TrustOf(*leaf, *again), Trust::kExact);
}

TEST_F(CheckpointerTest, ASenderThatNeverSentWhatWasKeptIsAskedForASnapshot) {
  auto worker = NewPublisher("w");
  auto leaf = NewLeaf();
  worker->Connect(&leaf->registry());
  for (int i = 0; i < 20; ++i) {
    worker->Change(Stored{.blocks = Sequence(1 + 100 * i, 10)});
    Rest(worker.get());
  }
  ASSERT_TRUE(leaf->checkpointer().WriteNow().ok());
  worker->Disconnect();
  leaf = NewLeaf();
  ASSERT_TRUE(leaf->checkpointer().Restore().ok());
  auto twin = NewPublisher("w");  // the same epoch and instance, and a past of its own
  twin->Change(Stored{.blocks = Sequence(7000, 3)});
  twin->Connect(&leaf->registry());
  Rest(twin.get());
  EXPECT_EQ(leaf->Contents().begin()->second, twin->contents());
  EXPECT_EQ(TrustOf(*leaf, *twin), Trust::kExact);
}

TEST_F(CheckpointerTest, WhatWasInDoubtStaysInDoubt) {
  auto leaf = NewLeaf();
  auto worker = NewPublisher("w");
  worker->Connect(&leaf->registry());
  worker->Change(Stored{.blocks = Sequence(1, 10)});
  Rest(worker.get());
  // A snapshot of which a part came, and not the rest.
  Hello hello;
  hello.holder = worker->holder();
  hello.domain = kLlama;
  hello.block_size = 16;
  hello.contract_id = HashContract().Id();
  hello.epoch = 1000;
  hello.instance_id = 1077;
  hello.last_sent = 9;
  auto session = leaf->registry().Accept([](ReceiverMessage) {});
  ASSERT_TRUE(session->OnMessage(hello).ok());
  SnapshotPart part;
  part.snapshot_id = 1;
  part.as_of = 9;
  part.stored = {Stored{.blocks = Sequence(200, 10)}};
  ASSERT_TRUE(session->OnMessage(part).ok());
  ASSERT_TRUE(leaf->checkpointer().WriteNow().ok());
  session.reset();

  leaf = NewLeaf();
  ASSERT_TRUE(leaf->checkpointer().Restore().ok());
  EXPECT_FALSE(leaf->registry().PositionOf(kLlama, worker->holder())->whole);
  std::optional<Welcome> welcome;
  session = leaf->registry().Accept([&](ReceiverMessage message) {
    if (const Welcome* is = std::get_if<Welcome>(&message)) welcome = *is;
  });
  ASSERT_TRUE(session->OnMessage(hello).ok());
  ASSERT_TRUE(welcome.has_value());
  EXPECT_TRUE(welcome->snapshot);
}

TEST_F(CheckpointerTest, AHolderThatDoesNotFitIsHealedByASnapshotLater) {
  auto worker = NewPublisher("w");
  auto leaf = NewLeaf();
  worker->Connect(&leaf->registry());
  worker->Change(Stored{.blocks = Sequence(1, 100)});
  Rest(worker.get());
  ASSERT_TRUE(leaf->checkpointer().WriteNow().ok());
  worker->Disconnect();
  leaf = std::make_unique<CheckpointedLeaf>(&clock_, &files_, kDirectory, 3,
                                            IndexOptions{.blocks_max = 50});
  ASSERT_TRUE(leaf->checkpointer().Restore().ok());
  EXPECT_FALSE(leaf->registry().PositionOf(kLlama, worker->holder())->whole);
  EXPECT_EQ(TrustOf(*leaf, *worker), Trust::kDegraded);
}

TEST_F(CheckpointerTest, KeepsTheYoungestAndRemovesTheOthers) {
  auto leaf = NewLeaf(2);
  for (uint64_t i = 1; i <= 5; ++i) {
    const absl::StatusOr<CheckpointReport> report = leaf->checkpointer().WriteNow();
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->number, i);
  }
  EXPECT_EQ(files_.Paths(),
            (std::vector<std::string>{"/checkpoints/checkpoint-00000000000000000004",
                                      "/checkpoints/checkpoint-00000000000000000005"}));
  EXPECT_EQ(leaf->checkpointer().Stats().written, 5);
}

TEST_F(CheckpointerTest, TakesTheNextOlderOneWhenTheYoungestIsSpoiled) {
  auto worker = NewPublisher("w");
  auto leaf = NewLeaf();
  worker->Connect(&leaf->registry());
  worker->Change(Stored{.blocks = Sequence(1, 10)});
  Rest(worker.get());
  ASSERT_TRUE(leaf->checkpointer().WriteNow().ok());
  worker->Change(Stored{.blocks = Sequence(100, 10)});
  Rest(worker.get());
  const std::string path = leaf->checkpointer().WriteNow()->path;
  (*files_.BytesOf(path))[100] ^= 1;
  worker->Disconnect();
  leaf = NewLeaf();
  const absl::StatusOr<CheckpointReport> report = leaf->checkpointer().Restore();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->number, 1);
  EXPECT_EQ(leaf->checkpointer().Stats().refused, 1);
  EXPECT_NE(leaf->metrics().Text().find("kvatlas_leaf_checkpoint_refused_total 1"),
            std::string::npos);
  worker->Connect(&leaf->registry());
  Rest(worker.get());
  EXPECT_EQ(leaf->Contents().begin()->second, worker->contents());
}

TEST_F(CheckpointerTest, WithoutAnyGoodOneItStartsEmptyAndAsksForSnapshots) {
  auto worker = NewPublisher("w");
  auto leaf = NewLeaf();
  worker->Connect(&leaf->registry());
  worker->Change(Stored{.blocks = Sequence(1, 10)});
  Rest(worker.get());
  const std::string path = leaf->checkpointer().WriteNow()->path;
  files_.BytesOf(path)->resize(70);
  worker->Disconnect();
  leaf = NewLeaf();
  EXPECT_TRUE(absl::IsDataLoss(leaf->checkpointer().Restore().status()));
  EXPECT_TRUE(absl::IsDataLoss(leaf->checkpointer().Stats().restore_error));
  EXPECT_TRUE(leaf->Contents().empty());
  worker->Connect(&leaf->registry());
  Rest(worker.get());
  EXPECT_EQ(leaf->Contents().begin()->second, worker->contents());
  // A number is never given twice.
  EXPECT_EQ(leaf->checkpointer().WriteNow()->number, 2);
}

TEST_F(CheckpointerTest, AFullDiskIsCountedAndTheLeafGoesOn) {
  auto worker = NewPublisher("w");
  auto leaf = NewLeaf();
  worker->Connect(&leaf->registry());
  worker->Change(Stored{.blocks = Sequence(1, 10)});
  Rest(worker.get());
  ASSERT_TRUE(leaf->checkpointer().WriteNow().ok());
  files_.SetRoom(50);
  EXPECT_NE(leaf->metrics().Text().find("kvatlas_leaf_checkpoint_free_bytes 50\n"),
            std::string::npos);
  EXPECT_TRUE(absl::IsResourceExhausted(leaf->checkpointer().WriteNow().status()));
  EXPECT_EQ(files_.Paths().size(), 1) << "the half-written one takes room";
  EXPECT_NE(leaf->metrics().Text().find("kvatlas_leaf_checkpoint_failures_total 1"),
            std::string::npos);
  worker->Change(Stored{.blocks = Sequence(100, 10)});
  Rest(worker.get());
  EXPECT_EQ(TrustOf(*leaf, *worker), Trust::kExact);
  files_.SetRoom(std::nullopt);
  EXPECT_TRUE(leaf->checkpointer().WriteNow().ok());
}

TEST_F(CheckpointerTest, ADirectoryThatCannotBeWrittenIsToldAndTriedAgain) {
  files_.SetWritable(false);
  auto leaf = NewLeaf();
  EXPECT_TRUE(absl::IsPermissionDenied(leaf->checkpointer().Restore().status()));
  EXPECT_TRUE(absl::IsPermissionDenied(leaf->checkpointer().WriteNow().status()));
  EXPECT_EQ(leaf->checkpointer().Stats().failed, 1);
  files_.SetWritable(true);
  EXPECT_TRUE(leaf->checkpointer().WriteNow().ok());
}

TEST_F(CheckpointerTest, StopWritesALastOneWhenTold) {
  auto leaf = NewLeaf();
  leaf->checkpointer().Start();
  leaf->checkpointer().Stop(/*write_last=*/true);
  EXPECT_EQ(files_.Paths().size(), 1);
  EXPECT_TRUE(absl::IsUnavailable(leaf->checkpointer().WriteNow().status()));
}

}  // namespace
}  // namespace kvatlas
