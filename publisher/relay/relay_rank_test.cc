// One rank's stream to a leaf, step by step: an in-process link, and time that the test sets.

#include "publisher/relay/relay_rank.h"
#include "indexer/base/test_seed.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "indexer/base/cache_class.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "indexer/transport/in_process_link.h"
#include "publisher/relay/relay_test_util.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

Stored RunOf(uint64_t first, size_t count, Tier tier = Tier::kDevice) {
  Stored stored{.tier = tier, .position = 0, .parent = kNoParent, .blocks = {}};
  for (size_t i = 0; i < count; ++i) stored.blocks.push_back(SequenceHash{first + i});
  return stored;
}

HeldBlocks Held(uint64_t first, size_t count) {
  HeldBlocks held;
  for (size_t i = 0; i < count; ++i) held.insert({0, first + i});
  return held;
}

// One rank and one leaf; nothing moves but by `Run`.
class RelayRankTest : public testing::Test {
 protected:
  RelayRankTest() { Make(/*blocks_max=*/0); }

  void Make(uint64_t blocks_max) {
    rank = nullptr;
    links.clear();
    budget = std::make_unique<BlockBudget>(blocks_max);
    RelayRankOptions options;
    options.identity.holder.name = "w";
    options.identity.domain.model = "m";
    options.identity.block_size = 16;
    options.identity.contract_id = "c";
    options.leaves = {"leaf"};
    options.make_link = [this](const std::string& name, const SenderIdentity&) {
      auto link = std::make_unique<InProcessLink>(name == "other" ? &other : &leaf);
      links.push_back(link.get());
      return link;
    };
    options.budget = budget.get();
    options.wake = [this](std::shared_ptr<RelayRank>) { ++wakes; };
    options.clock = &clock;
    rank = std::make_shared<RelayRank>(options);
  }

  void Run() {
    rank->Flush();
    while (links.back()->Run()) rank->Flush();
  }
  void Settle() {
    rank->SetStream(/*heard=*/true, /*settled=*/true, /*certain=*/true, clock.Now());
    Run();
  }
  // As the relay does: its timer looks at the engine and ticks the stream.
  void Pass(Duration time, bool heard) {
    for (; time > Duration(0); time -= milliseconds(500)) {
      clock.Advance(milliseconds(500));
      rank->SetStream(heard, /*settled=*/true, /*certain=*/false, clock.Now());
      rank->Tick();
      if (rank->Stats().stand == RelayStand::kOffered) Run();
    }
  }

  ManualClock clock;
  TestLeaf leaf{&clock}, other{&clock};
  std::unique_ptr<BlockBudget> budget;
  std::vector<InProcessLink*> links;  // the last one is connected
  int wakes = 0;
  std::shared_ptr<RelayRank> rank;
};

TEST_F(RelayRankTest, NothingIsOfferedBeforeTheFirstReplayIsOver) {
  EXPECT_TRUE(rank->Apply(RunOf(1, 3)).ok());
  rank->SetStream(/*heard=*/true, /*settled=*/false, /*certain=*/true, clock.Now());
  EXPECT_EQ(rank->Stats().stand, RelayStand::kNew);
  EXPECT_TRUE(links.empty());
  Settle();
  EXPECT_EQ(rank->Stats().stand, RelayStand::kOffered);
  EXPECT_EQ(leaf.HeldBy("w"), Held(1, 3));
  EXPECT_EQ(leaf.TrustOf("w"), Trust::kExact);
}

TEST_F(RelayRankTest, AnEngineThatSaidNothingYetIsOfferedInDoubt) {
  rank->SetStream(/*heard=*/true, /*settled=*/true, /*certain=*/false, clock.Now());
  Run();
  EXPECT_EQ(leaf.TrustOf("w"), Trust::kDegraded);
  EXPECT_EQ(rank->Stats().doubt, "nothing was heard from it yet");
  Settle();
  EXPECT_EQ(leaf.TrustOf("w"), Trust::kExact);
  EXPECT_EQ(rank->Stats().doubt, "");
}

TEST_F(RelayRankTest, ALeafThatComesIsToldAllAndOneThatLeavesNoMore) {
  EXPECT_TRUE(rank->Apply(RunOf(1, 3)).ok());
  rank->SetLeaves({"leaf"});
  Settle();
  InProcessLink* const first = links.back();
  const auto run = [&] {
    bool any = true;
    while (any) {
      rank->Flush();
      any = first->Run();
      any = links.back()->Run() || any;
    }
  };
  rank->SetLeaves({"other", "leaf"});
  ASSERT_EQ(links.size(), 2u) << "a worker that was there keeps its stream";
  EXPECT_TRUE(rank->Apply(RunOf(4, 2)).ok());
  run();
  EXPECT_EQ(leaf.HeldBy("w"), Held(1, 5));
  EXPECT_EQ(other.HeldBy("w"), Held(1, 5));
  EXPECT_EQ(other.TrustOf("w"), Trust::kExact);
  EXPECT_GT(other.EpochOf("w"), leaf.EpochOf("w"));
  // Doubt reaches both.
  rank->SetTrust(Trust::kDegraded);
  run();
  EXPECT_EQ(other.TrustOf("w"), Trust::kDegraded);

  rank->SetLeaves({"other"});
  EXPECT_TRUE(rank->Apply(RunOf(6, 1)).ok());
  Run();
  EXPECT_EQ(leaf.HeldBy("w"), Held(1, 5));
  EXPECT_FALSE(leaf.SaidGoodbye("w"));
  EXPECT_EQ(other.HeldBy("w"), Held(1, 6));
  // It remembers; one that comes back is told anew, in doubt as things are.
  rank->SetLeaves({"other", "leaf"});
  while (links.back()->Run()) rank->Flush();
  EXPECT_EQ(leaf.HeldBy("w"), Held(1, 6));
  EXPECT_EQ(leaf.TrustOf("w"), Trust::kDegraded);
}

TEST_F(RelayRankTest, TheWorkersTrustIsTheLeafs) {
  Settle();
  EXPECT_TRUE(rank->Apply(RunOf(1, 3)).ok());
  Run();
  EXPECT_EQ(leaf.TrustOf("w"), Trust::kExact);
  rank->SetTrust(Trust::kDegraded);
  Run();
  EXPECT_EQ(leaf.TrustOf("w"), Trust::kDegraded);
  EXPECT_EQ(leaf.HeldBy("w"), Held(1, 3));
  // The worker drops blocks that nothing confirmed, and stays degraded until the engine starts
  // anew.
  EXPECT_TRUE(rank->Apply(Removed{.tier = Tier::kDevice, .blocks = {SequenceHash{2}}}).ok());
  Run();
  EXPECT_EQ(leaf.TrustOf("w"), Trust::kDegraded);
  EXPECT_TRUE(rank->Apply(Cleared()).ok());
  rank->SetTrust(Trust::kExact);
  Run();
  EXPECT_EQ(leaf.TrustOf("w"), Trust::kExact);
  EXPECT_TRUE(leaf.HeldBy("w").empty());
}

TEST_F(RelayRankTest, AnEngineThatIsNotHeardIsNotSpokenFor) {
  Settle();
  EXPECT_TRUE(rank->Apply(RunOf(1, 3)).ok());
  Run();
  Pass(seconds(8), /*heard=*/true);
  EXPECT_EQ(leaf.TrustOf("w"), Trust::kExact);  // heartbeats
  Pass(seconds(5), /*heard=*/false);
  EXPECT_EQ(rank->Stats().stand, RelayStand::kQuiet);
  EXPECT_EQ(leaf.TrustOf("w"), Trust::kExact);  // the lease still runs
  // Back in time: nothing was lost, nothing is said again.
  const Epoch epoch = leaf.EpochOf("w");
  Pass(seconds(1), /*heard=*/true);
  EXPECT_EQ(leaf.EpochOf("w"), epoch);
  EXPECT_EQ(leaf.StatsOf("w").snapshots_applied, 0u);
  Pass(seconds(11), /*heard=*/false);
  EXPECT_EQ(rank->Stats().stand, RelayStand::kWithdrawn);
  EXPECT_EQ(leaf.TrustOf("w"), Trust::kStale);
  EXPECT_FALSE(leaf.SaidGoodbye("w"));
}

TEST_F(RelayRankTest, AnEngineThatComesBackIsOfferedAnewWithASnapshot) {
  Settle();
  EXPECT_TRUE(rank->Apply(RunOf(1, 3)).ok());
  Run();
  const Epoch before = leaf.EpochOf("w");
  Pass(seconds(15), /*heard=*/false);
  EXPECT_TRUE(rank->Apply(Cleared()).ok());  // while no leaf was told
  EXPECT_TRUE(rank->Apply(RunOf(50, 2)).ok());
  EXPECT_EQ(leaf.HeldBy("w"), Held(1, 3));
  Settle();
  EXPECT_GT(leaf.EpochOf("w"), before);
  EXPECT_EQ(leaf.HeldBy("w"), Held(50, 2));
  EXPECT_EQ(leaf.StatsOf("w").snapshots_applied, 1u);
  EXPECT_EQ(leaf.TrustOf("w"), Trust::kExact);
}

TEST_F(RelayRankTest, BlocksThereIsNoRoomForMakeTheRestDoubtfulUntilTheEngineClears) {
  Make(/*blocks_max=*/4);
  Settle();
  EXPECT_TRUE(rank->Apply(RunOf(1, 3)).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(rank->Apply(RunOf(10, 2))));
  Run();
  EXPECT_EQ(leaf.HeldBy("w"), Held(1, 3));
  EXPECT_EQ(leaf.TrustOf("w"), Trust::kDegraded);
  EXPECT_EQ(rank->Stats().shed, 2u);
  EXPECT_EQ(budget->used(), 3u);
  EXPECT_TRUE(rank->Apply(Removed{.tier = Tier::kDevice, .blocks = {SequenceHash{3}}}).ok());
  EXPECT_TRUE(rank->Apply(RunOf(10, 2)).ok());
  Run();
  EXPECT_EQ(leaf.TrustOf("w"), Trust::kDegraded);  // something else may still be missing
  EXPECT_TRUE(rank->Apply(Cleared()).ok());
  Run();
  EXPECT_EQ(leaf.TrustOf("w"), Trust::kExact);
  EXPECT_EQ(budget->used(), 0u);
  EXPECT_TRUE(rank->Apply(RunOf(1, 4)).ok());
  // Known blocks in another tier take no more room, if there is room to look.
  EXPECT_TRUE(absl::IsResourceExhausted(rank->Apply(RunOf(1, 4, Tier::kHost))));
  rank = nullptr;
  EXPECT_EQ(budget->used(), 0u);
}

TEST_F(RelayRankTest, GoodbyeMakesTheLeafForget) {
  Settle();
  EXPECT_TRUE(rank->Apply(RunOf(1, 3)).ok());
  Run();
  rank->Stop(/*goodbye=*/true, seconds(1));
  EXPECT_TRUE(leaf.SaidGoodbye("w"));
  rank->SetStream(/*heard=*/true, /*settled=*/true, /*certain=*/true, clock.Now());
  EXPECT_EQ(rank->Stats().stand, RelayStand::kWithdrawn);
}

TEST_F(RelayRankTest, WakesOnceUntilItIsFlushed) {
  Settle();
  wakes = 0;
  EXPECT_TRUE(rank->Apply(RunOf(1, 1)).ok());
  EXPECT_TRUE(rank->Apply(RunOf(2, 1)).ok());
  rank->SetTrust(Trust::kDegraded);
  EXPECT_EQ(wakes, 1);
  Run();
  EXPECT_TRUE(rank->Apply(RunOf(3, 1)).ok());
  EXPECT_EQ(wakes, 2);
}

TEST_F(RelayRankTest, TheLayoutGoesAheadOfSideBlocksAndIsInTheSnapshotForALeafThatComes) {
  CacheLayout layout = {.main = {.block_size = 16},
                        .sides = {{.kind = CacheKind::kState, .block_size = 32}}};
  Settle();
  rank->SetLayout(layout);
  EXPECT_TRUE(rank->Apply(RunOf(1, 2)).ok());
  EXPECT_TRUE(rank->Apply(Stored{.blocks = {SequenceHash{77}}, .side = 1}).ok());
  Run();
  EXPECT_EQ(leaf.LayoutOf("w"), layout);
  HeldBlocks held = Held(1, 2);
  held.insert({0, 77});
  EXPECT_EQ(leaf.HeldBy("w"), held);
  EXPECT_EQ(rank->Dump().layout, layout);
  rank->SetLeaves({"other"});
  Run();
  EXPECT_EQ(other.LayoutOf("w"), layout);
  EXPECT_EQ(other.HeldBy("w"), held);
  layout.sides[0].drops_last = true;
  rank->SetLayout(layout);
  Run();
  EXPECT_EQ(other.LayoutOf("w"), layout);
  EXPECT_TRUE(rank->Apply(Removed{.blocks = {SequenceHash{77}}, .side = 1}).ok());
  Run();
  EXPECT_EQ(other.HeldBy("w"), Held(1, 2));
}

// Its leaf has to know the classes although nothing is held of any.
TEST_F(RelayRankTest, ALayoutWithoutBlocksIsToldToALeafThatComes) {
  const CacheLayout layout = {.main = {.block_size = 16, .drops_last = true}, .sides = {}};
  rank->SetLayout(layout);
  Settle();
  EXPECT_EQ(leaf.LayoutOf("w"), layout);
}

// Against a set that is obviously right.
TEST_F(RelayRankTest, WhateverHappensTheLeafHoldsWhatTheWorkerSaid) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(SeedText(seed));
  std::mt19937 random(seed);
  HeldBlocks truth;
  bool degraded = false;
  Settle();
  for (int step = 0; step < 2000; ++step) {
    const int tier = static_cast<int>(random() % kTiers);
    const uint64_t block = 1 + random() % 200;
    switch (random() % 20) {
      case 0:
        rank->SetTrust((degraded = !degraded) ? Trust::kDegraded : Trust::kExact);
        break;
      case 1:
        EXPECT_TRUE(rank->Apply(Cleared()).ok());
        truth.clear();
        break;
      case 2:
        Pass(seconds(random() % 20), /*heard=*/false);
        Settle();
        break;
      case 3:
        Run();
        break;
      case 4:
      case 5:
      case 6:
      case 7:
      case 8:
        EXPECT_TRUE(
            rank->Apply(Removed{.tier = static_cast<Tier>(tier), .blocks = {SequenceHash{block}}})
                .ok());
        truth.erase({tier, block});
        break;
      default:
        EXPECT_TRUE(rank->Apply(RunOf(block, 5, static_cast<Tier>(tier))).ok());
        for (uint64_t i = 0; i < 5; ++i) truth.insert({tier, block + i});
    }
    if (random() % 5 != 0) continue;
    Run();
    ASSERT_EQ(leaf.HeldBy("w"), truth) << "step " << step;
    ASSERT_EQ(leaf.TrustOf("w"), degraded ? Trust::kDegraded : Trust::kExact) << "step " << step;
  }
}

}  // namespace
}  // namespace kvatlas
