// Holders of hybrid models: what answers promise of them, and that it was true at some instant.

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "indexer/base/cache_class.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/tier.h"
#include "indexer/registry/holder_handle.h"
#include "indexer/registry/holder_registry.h"

namespace kvatlas {
namespace {

const Domain kDomain{"gemma", ""};
constexpr uint32_t kBlockSize = 16;

CacheLayout WindowLayout(uint32_t tokens) {
  CacheLayout layout{.main = {.kind = CacheKind::kFull, .block_size = kBlockSize}, .sides = {}};
  layout.sides.push_back(
      {.kind = CacheKind::kWindow, .block_size = kBlockSize, .window_tokens = tokens});
  return layout;
}

std::vector<SequenceHash> Sequence(uint64_t first, size_t blocks) {
  std::vector<SequenceHash> sequence;
  for (uint64_t i = 0; i < blocks; ++i) sequence.push_back(SequenceHash{first + i});
  return sequence;
}

class HybridHolderTest : public testing::Test {
 protected:
  HybridHolderTest() {
    HolderRegistryOptions options;
    options.contract_id = "xxh3-chain-1:1337";
    options.clock = &clock_;
    registry_ = std::make_unique<HolderRegistry>(options);
  }

  std::unique_ptr<HolderHandle> Add(const std::string& name) {
    return *registry_->AddLocal(kDomain, kBlockSize,
                                {.id = {name, 0, ""}, .address = "", .labels = {}});
  }
  static Stored Side(const CacheLayout& layout, const std::vector<SequenceHash>& blocks) {
    Stored stored{.blocks = {}, .side = 1};
    for (SequenceHash block : blocks)
      stored.blocks.push_back(SideName(SideTag(layout.sides[0]), block));
    return stored;
  }
  static Removed NoSide(const CacheLayout& layout, const std::vector<SequenceHash>& blocks) {
    return {.blocks = Side(layout, blocks).blocks, .side = 1};
  }
  HolderOverlap Only(const std::vector<SequenceHash>& blocks, bool held_only = false) {
    const auto answer = registry_->FindOverlaps(kDomain, {.blocks = blocks}, /*all_holders=*/true,
                                                /*by_tier=*/false, held_only);
    EXPECT_EQ(answer->holders.size(), 1u);
    return answer->holders.empty() ? HolderOverlap() : answer->holders[0];
  }

  ManualClock clock_;
  std::unique_ptr<HolderRegistry> registry_;
};

// A holder whose host memory loads four blocks together.
TEST_F(HybridHolderTest, BehindTheDeviceOnlyWholeChunksArePromised) {
  const std::vector<SequenceHash> blocks = Sequence(100, 7);
  const std::unique_ptr<HolderHandle> engine = Add("7");
  engine->SetLayout({.main = {.kind = CacheKind::kFull,
                              .block_size = kBlockSize,
                              .window_tokens = 4 * kBlockSize},
                     .sides = {}});
  ASSERT_TRUE(engine->Apply(Stored{.tier = Tier::kHost, .blocks = blocks}).ok());
  EXPECT_EQ(Only(blocks).blocks, 4u);
  EXPECT_EQ(Only(blocks).held, 7u);
  EXPECT_EQ(Only(Sequence(100, 3)).blocks, 0u);
  ASSERT_TRUE(engine->Apply(Stored{.blocks = Sequence(100, 2)}).ok());
  EXPECT_EQ(Only(Sequence(100, 3)).blocks, 2u);
  EXPECT_EQ(Only(blocks).blocks, 2u) << "less than a chunk is not loaded";
  ASSERT_TRUE(
      engine
          ->Apply(Stored{
              .position = 2, .parent = blocks[1], .blocks = {blocks[2], blocks[3], blocks[4]}})
          .ok());
  EXPECT_EQ(Only(blocks).blocks, 5u);
  // Another holder of the same domain loads block by block.
  const std::unique_ptr<HolderHandle> other = Add("8");
  ASSERT_TRUE(other->Apply(Stored{.tier = Tier::kHost, .blocks = blocks}).ok());
  const auto both = registry_->FindOverlaps(kDomain, {.blocks = blocks}, /*all_holders=*/true,
                                            /*by_tier=*/false, /*held_only=*/false);
  ASSERT_EQ(both->holders.size(), 2u);
  EXPECT_EQ(both->holders[0].blocks + both->holders[1].blocks, 12u);
}

TEST_F(HybridHolderTest, AnswersPromiseWhatCanBeReusedAndSayWhatIsHeld) {
  const CacheLayout layout = WindowLayout(2 * kBlockSize);
  const std::vector<SequenceHash> blocks = Sequence(100, 6);
  const std::unique_ptr<HolderHandle> engine = Add("7");
  engine->SetLayout(layout);
  ASSERT_TRUE(engine->Apply(Stored{.blocks = blocks}).ok());
  EXPECT_EQ(Only(blocks).blocks, 0u);
  EXPECT_EQ(Only(blocks).held, 6u);
  ASSERT_TRUE(engine->Apply(Side(layout, {blocks[2], blocks[3]})).ok());
  EXPECT_EQ(Only(blocks).blocks, 4u);
  EXPECT_EQ(Only(blocks, /*held_only=*/true).blocks, 6u);
  ASSERT_TRUE(engine->Apply(NoSide(layout, {blocks[2]})).ok());
  EXPECT_EQ(Only(blocks).blocks, 0u);
}

TEST_F(HybridHolderTest, PlainHoldersBesideHybridOnesAreAsBefore) {
  const CacheLayout layout = WindowLayout(kBlockSize);
  const std::vector<SequenceHash> blocks = Sequence(100, 4);
  const std::unique_ptr<HolderHandle> hybrid = Add("hybrid"), plain = Add("plain");
  hybrid->SetLayout(layout);
  ASSERT_TRUE(hybrid->Apply(Stored{.blocks = blocks}).ok());
  ASSERT_TRUE(plain->Apply(Stored{.blocks = blocks}).ok());
  const auto answer = registry_->FindOverlaps(kDomain, {.blocks = blocks});
  ASSERT_EQ(answer->holders.size(), 2u);
  for (const HolderOverlap& overlap : answer->holders) {
    EXPECT_EQ(overlap.held, 4u);
    EXPECT_EQ(overlap.blocks, overlap.holder->id.name == "plain" ? 4u : 0u);
  }
}

TEST_F(HybridHolderTest, AClearAndTheEndOfAHolderLeaveNoSideBlocks) {
  const CacheLayout layout = WindowLayout(kBlockSize);
  const std::vector<SequenceHash> blocks = Sequence(100, 50);
  std::unique_ptr<HolderHandle> engine = Add("7");
  engine->SetLayout(layout);
  ASSERT_TRUE(engine->Apply(Side(layout, blocks)).ok());
  EXPECT_EQ(registry_->StatsOf(kDomain)->sides.holdings, 50u);
  ASSERT_TRUE(engine->Apply(Cleared{}).ok());
  EXPECT_EQ(registry_->StatsOf(kDomain)->sides.holdings, 0u);
  ASSERT_TRUE(engine->Apply(Side(layout, blocks)).ok());
  engine.reset();
  registry_->Tick();
  EXPECT_EQ(registry_->StatsOf(kDomain)->sides.holdings, 0u);
}

TEST_F(HybridHolderTest, ADumpSaysOfWhichClassEachSideBlockIs) {
  CacheLayout layout = WindowLayout(2 * kBlockSize);
  layout.sides.push_back({.kind = CacheKind::kState, .block_size = kBlockSize});
  CacheLayout reversed = layout;
  std::swap(reversed.sides[0], reversed.sides[1]);
  const std::vector<SequenceHash> blocks = Sequence(100, 3);
  const auto names = [&](const CacheClass& of) {
    std::vector<SequenceHash> sides;
    for (const SequenceHash block : blocks) sides.push_back(SideName(SideTag(of), block));
    return sides;
  };
  const std::unique_ptr<HolderHandle> engine = Add("7"), other = Add("8");
  for (const auto& [holder, of] :
       {std::pair(engine.get(), layout), std::pair(other.get(), reversed)}) {
    holder->SetLayout(of);
    ASSERT_TRUE(holder->Apply(Stored{.blocks = blocks}).ok());
    for (SideClass side : {1, 2})
      ASSERT_TRUE(holder->Apply(Stored{.blocks = names(of.sides[side - 1]), .side = side}).ok());
  }
  for (const char* holder : {"7", "8"}) {
    const absl::StatusOr<HolderDump> dump = registry_->Dump(kDomain, {holder, 0, ""});
    ASSERT_TRUE(dump.ok());
    std::map<SideClass, std::set<SequenceHash>> told;
    for (const Stored& run : dump->runs)
      told[run.side].insert(run.blocks.begin(), run.blocks.end());
    ASSERT_EQ(told.size(), 3u);
    for (SideClass side : {1, 2}) {
      const std::vector<SequenceHash> expected = names(dump->layout.sides[side - 1]);
      EXPECT_EQ(told[side], std::set<SequenceHash>(expected.begin(), expected.end())) << holder;
    }
  }
}

TEST_F(HybridHolderTest, WithoutAMainClassTheSideClassDecides) {
  CacheLayout layout = WindowLayout(2 * kBlockSize);
  layout.has_main = false;
  layout.main = {};
  const std::vector<SequenceHash> blocks = Sequence(100, 5);
  const std::unique_ptr<HolderHandle> engine = Add("7");
  engine->SetLayout(layout);
  ASSERT_TRUE(engine->Apply(Side(layout, {blocks[3], blocks[4]})).ok());
  EXPECT_EQ(Only(blocks).blocks, 5u);
  engine->SetMasked(true);
  EXPECT_TRUE(registry_->FindOverlaps(kDomain, {.blocks = blocks})->holders.empty());
}

// Main and side blocks are never there together, so that no instant had anything to reuse.
TEST_F(HybridHolderTest, AnExactAnswerWasTrueAtSomeInstant) {
  const CacheLayout layout = WindowLayout(kBlockSize);
  const std::vector<SequenceHash> blocks = Sequence(100, 8);
  const std::unique_ptr<HolderHandle> engine = Add("7");
  engine->SetLayout(layout);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (int round = 0; round < 3000; ++round) {
      EXPECT_TRUE(engine->Apply(Stored{.blocks = blocks}).ok());
      EXPECT_TRUE(engine->Apply(Removed{.blocks = blocks}).ok());
      EXPECT_TRUE(engine->Apply(Side(layout, blocks)).ok());
      EXPECT_TRUE(engine->Apply(NoSide(layout, blocks)).ok());
    }
    stop.store(true);
  });
  uint64_t wrong = 0;
  while (!stop.load()) {
    const auto answer = registry_->FindOverlaps(kDomain, {.blocks = blocks});
    for (const HolderOverlap& overlap : answer->holders)
      wrong += overlap.blocks > 0 && overlap.trust == Trust::kExact;
  }
  writer.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace kvatlas
