// What the field's older structures get wrong, one test a mistake, and that their exact variants do not.
//
// Contents are small numbers that stand for local hashes: {1, 2, 3} is a prompt of three blocks, its sequence
// hashes are the real chain.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <tuple>
#include <utility>

#include "indexer/base/hash.h"
#include "indexer/index/compare_ops.h"
#include "indexer/index/field/field_structures_test_util.h"
#include "indexer/index/index.h"
#include "indexer/index/random_ops.h"
#include "indexer/index/random_trie.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

// ---- nested_map ----

TEST(NestedMapTest, TakesEqualContentElsewhereForTheSame) {
  Tested original("nested_map"), exact("nested_map_exact");
  for (Tested* index : {&original, &exact}) {
    index->Store(0, {1, 2, 3, 4});
    index->Store(0, {5, 9});
  }
  EXPECT_THAT(original.Find({1, 9, 3}), ElementsAre(Pair(0, 3)));
  EXPECT_THAT(exact.Find({1, 9, 3}), ElementsAre(Pair(0, 1)));
}

TEST(NestedMapTest, CountsARepeatedBlockAsOftenAsThePromptRepeatsIt) {
  Tested original("nested_map"), exact("nested_map_exact");
  for (Tested* index : {&original, &exact}) index->Store(0, {7});
  EXPECT_THAT(original.Find({7, 7, 7}), ElementsAre(Pair(0, 3)));
  EXPECT_THAT(exact.Find({7, 7, 7}), ElementsAre(Pair(0, 1)));
}

TEST(NestedMapTest, OverlooksAHoleThatOtherContentFills) {
  Tested original("nested_map"), exact("nested_map_exact");
  for (Tested* index : {&original, &exact}) {
    index->Store(0, {1, 2, 3});
    index->Store(0, {8, 2});
    index->Remove(0, {1, 2, 3}, 1);
  }
  EXPECT_THAT(original.Find({1, 2, 3}), ElementsAre(Pair(0, 3)));
  EXPECT_THAT(exact.Find({1, 2, 3}), ElementsAre(Pair(0, 1)));
}

TEST(NestedMapTest, StopsAtAHoleAndGoesOnWhenItIsFilled) {
  Tested original("nested_map");
  const Contents prompt = {1, 2, 3, 4, 5};
  original.Store(0, prompt);
  original.Remove(0, prompt, 2);
  EXPECT_THAT(original.Find(prompt), ElementsAre(Pair(0, 2)));
  original.Store(0, Head(prompt, 3), 2);
  EXPECT_THAT(original.Find(prompt), ElementsAre(Pair(0, 5)));
}

// ---- inverted ----

TEST(InvertedTest, UnitesTheHoldersOfAllSequencesWithThisContent) {
  Tested original("inverted"), exact("inverted_exact");
  for (Tested* index : {&original, &exact}) {
    index->Store(0, {1, 2});
    index->Store(1, {1, 3});
    index->Store(1, {4, 2});
  }
  EXPECT_THAT(original.Find({1, 2}), ElementsAre(Pair(0, 2), Pair(1, 2)));
  EXPECT_THAT(exact.Find({1, 2}), ElementsAre(Pair(0, 2), Pair(1, 1)));
}

TEST(InvertedTest, FindsAFirstBlockThatStandsInTheMiddle) {
  Tested original("inverted"), exact("inverted_exact");
  for (Tested* index : {&original, &exact}) index->Store(0, {1, 2, 3});
  EXPECT_THAT(original.Find({2, 3}), ElementsAre(Pair(0, 2)));
  EXPECT_THAT(exact.Find({2, 3}), IsEmpty());
}

TEST(InvertedTest, ReconvergingSequencesAreTakenForOne) {
  Tested original("inverted"), exact("inverted_exact");
  for (Tested* index : {&original, &exact}) {
    index->Store(0, {1, 2, 3, 4});
    index->Store(1, {1, 9, 3, 4});
    index->Store(1, {2});
  }
  EXPECT_THAT(original.Find({1, 2, 3, 4}), ElementsAre(Pair(0, 4), Pair(1, 4)));
  EXPECT_THAT(exact.Find({1, 2, 3, 4}), ElementsAre(Pair(0, 4), Pair(1, 1)));
}

TEST(InvertedTest, HolesAreExact) {
  Tested original("inverted");
  const Contents prompt = {1, 2, 3, 4, 5};
  original.Store(0, prompt);
  original.Store(1, prompt);
  original.Remove(0, prompt, 2);
  EXPECT_THAT(original.Find(prompt), ElementsAre(Pair(0, 2), Pair(1, 5)));
  original.Store(0, Head(prompt, 3), 2);
  EXPECT_THAT(original.Find(prompt), ElementsAre(Pair(0, 5), Pair(1, 5)));
}

// ---- radix ----

TEST(RadixTest, RadixForgetsWhatLayBehindAHole) {
  Tested original("radix"), exact("radix_exact");
  const Contents prompt = {1, 2, 3, 4, 5};
  for (Tested* index : {&original, &exact}) {
    index->Store(0, prompt);
    index->Remove(0, prompt, 2);
    EXPECT_THAT(index->Find(prompt), ElementsAre(Pair(0, 2)));
    index->Store(0, Head(prompt, 3), 2);
    EXPECT_EQ((*index)->HoldingsOf(HolderIndex{0}).size(), 5u);
  }
  EXPECT_THAT(original.Find(prompt), ElementsAre(Pair(0, 3)));
  EXPECT_THAT(exact.Find(prompt), ElementsAre(Pair(0, 5)));
  EXPECT_EQ(ShapeOf(*original, "cut_off"), 1u);
  EXPECT_EQ(ShapeOf(*exact, "cut_off"), 0u);
}

TEST(RadixTest, WhatIsStoredAgainBehindTheHoleComesBackWithAllBelow) {
  Tested original("radix");
  const Contents prompt = {1, 2, 3, 4, 5};
  original.Store(0, prompt);
  original.Remove(0, prompt, 2);
  original.Store(0, Head(prompt, 4), 2);
  EXPECT_THAT(original.Find(prompt), ElementsAre(Pair(0, 5)));
  EXPECT_EQ(ShapeOf(*original, "nodes"), 5u);
}

TEST(RadixTest, ABlockThatAnotherHolderKeepsIsNoHoleForGood) {
  Tested original("radix");
  const Contents prompt = {1, 2, 3, 4, 5};
  original.Store(0, prompt);
  original.Store(1, prompt);
  original.Remove(0, prompt, 2);
  EXPECT_THAT(original.Find(prompt), ElementsAre(Pair(0, 2), Pair(1, 5)));
  original.Store(0, Head(prompt, 3), 2);
  EXPECT_THAT(original.Find(prompt), ElementsAre(Pair(0, 5), Pair(1, 5)));
}

TEST(RadixTest, AStoreBehindAHoleIsKeptWhereNoQueryReaches) {
  Tested original("radix"), exact("radix_exact");
  const Contents prompt = {1, 2, 3, 4, 5, 6};
  for (Tested* index : {&original, &exact}) {
    index->Store(0, Head(prompt, 5));
    index->Remove(0, prompt, 2);
    index->Store(0, prompt, 5);
    index->Store(0, Head(prompt, 3), 2);
    EXPECT_EQ((*index)->HoldingsOf(HolderIndex{0}).size(), 6u);
  }
  EXPECT_THAT(original.Find(prompt), ElementsAre(Pair(0, 3)));
  EXPECT_THAT(exact.Find(prompt), ElementsAre(Pair(0, 6)));
}

TEST(RadixTest, AStoreAfterABlockThatTheHolderLacksIsRefused) {
  Tested original("radix"), exact("radix_exact");
  const Contents prompt = {1, 2, 3, 4, 5};
  for (Tested* index : {&original, &exact}) {
    index->Store(0, prompt);
    index->Store(1, Head(prompt, 1));
  }
  EXPECT_EQ(original.TryStore(1, prompt, 2).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(exact.TryStore(1, prompt, 2).ok());
  EXPECT_EQ(original->Stats().refused_blocks, 3u);
  EXPECT_EQ(exact->Stats().refused_blocks, 0u);
  for (Tested* index : {&original, &exact}) index->Store(1, Head(prompt, 2), 1);
  EXPECT_THAT(original.Find(prompt), ElementsAre(Pair(0, 5), Pair(1, 2)));
  EXPECT_THAT(exact.Find(prompt), ElementsAre(Pair(0, 5), Pair(1, 5)));
}

TEST(RadixTest, ATailWithoutAParentIsRefused) {
  Tested original("radix"), exact("radix_exact");
  const Contents prompt = {1, 2, 3};
  Stored tail = StoredFrom(prompt, 2);
  tail.parent = kNoParent;
  EXPECT_EQ(original->Apply(HolderIndex{0}, tail, nullptr).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(exact->Apply(HolderIndex{0}, tail, nullptr).ok());
  exact.Store(0, Head(prompt, 2));
  EXPECT_THAT(exact.Find(prompt), ElementsAre(Pair(0, 2)));
  exact.Store(1, prompt);  // says what the tail follows
  EXPECT_THAT(exact.Find(prompt), ElementsAre(Pair(0, 3), Pair(1, 3)));
}

TEST(RadixTest, ChildrenRemovedAfterTheirParentAreStillFoundByName) {
  Tested original("radix");
  const Contents prompt = {1, 2, 3, 4, 5};
  original.Store(0, prompt);
  for (size_t position : {1, 2, 0, 4, 3}) original.Remove(0, prompt, position);
  EXPECT_THAT(original.Find(prompt), IsEmpty());
  EXPECT_EQ(original->Stats().blocks, 0u);
  EXPECT_EQ(ShapeOf(*original, "nodes"), 0u);
}

// Two copies of one place: one cut off and still held, one grown anew.
TEST(RadixTest, AHolderMovesFromTheCutOffCopyToTheLiveOne) {
  Tested original("radix");
  const Contents prompt = {1, 2, 3, 4};
  original.Store(0, prompt);
  original.Store(1, prompt);
  original.Remove(0, prompt, 1);
  original.Remove(1, prompt, 1);  // 3 and 4 are cut off, held by both
  original.Remove(0, prompt, 2);
  original.Remove(0, prompt, 3);
  original.Store(0, prompt);  // grown anew
  EXPECT_THAT(original.Find(prompt), ElementsAre(Pair(0, 4), Pair(1, 1)));
  original.Store(1, prompt);
  EXPECT_THAT(original.Find(prompt), ElementsAre(Pair(0, 4), Pair(1, 4)));
  EXPECT_EQ(ShapeOf(*original, "nodes"), 4u);
}

TEST(RadixTest, ACutOffCopyNeverSpeaksForAHolderThatLeftIt) {
  Tested original("radix");
  const Contents prompt = {1, 2, 3};
  for (uint32_t holder : {0, 1}) original.Store(holder, prompt);
  for (uint32_t holder : {0, 1}) original.Remove(holder, prompt, 1);
  original.Store(0, Head(prompt, 2), 1);
  original.Store(0, prompt);
  original.Remove(0, prompt, 2);
  original.Store(1, Head(prompt, 2), 1);
  original.Store(1, prompt);
  EXPECT_THAT(original.Find(prompt), ElementsAre(Pair(0, 2), Pair(1, 3)));
}

TEST(RadixTest, OtherNamesForEqualContentShareANode) {
  Tested original("radix");
  const Contents prompt = {1, 2, 3};
  original.Store(0, prompt);
  Stored own_names = StoredFrom(prompt, 0);
  own_names.blocks = {SequenceHash{101}, SequenceHash{102}, SequenceHash{103}};
  ASSERT_TRUE(original->Apply(HolderIndex{1}, own_names, nullptr).ok());
  EXPECT_THAT(original.Find(prompt), ElementsAre(Pair(0, 3), Pair(1, 3)));
  EXPECT_EQ(original->Stats().blocks, 3u);
  ASSERT_TRUE(
      original->Apply(HolderIndex{1}, Removed{.blocks = {SequenceHash{102}}}, nullptr).ok());
  EXPECT_THAT(original.Find(prompt), ElementsAre(Pair(0, 3), Pair(1, 1)));
}

TEST(RadixTest, TwoNamesOfOneHolderForOneBlockAreRefused) {
  Tested original("radix");
  original.Store(0, {1, 2});
  Stored again = StoredFrom({1, 2}, 0);
  again.blocks[1] = SequenceHash{99};
  EXPECT_EQ(original->Apply(HolderIndex{0}, again, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(original.Find({1, 2}), ElementsAre(Pair(0, 2)));
}

TEST(RadixTest, ABlockTwiceInOneEventKeepsItsFirstPlace) {
  for (std::string_view name : {"radix", "radix_exact"}) {
    Tested index(name);
    const SequenceHash a{1}, b{2};
    ASSERT_TRUE(index->Apply(HolderIndex{0}, Stored{.blocks = {a, a, b, a}}, nullptr).ok());
    EXPECT_EQ(index->HoldingsOf(HolderIndex{0}).size(), 2u) << name;
    std::vector<Overlap> overlaps;
    index->FindOverlaps({.blocks = std::vector<SequenceHash>{a}}, &overlaps);
    EXPECT_THAT(overlaps, ElementsAre(Overlap{HolderIndex{0}, 1})) << name;
  }
}

TEST(RadixTest, AWrongParentHidesABlockFromEverybodyInTheExactTree) {
  Tested original("radix"), exact("radix_exact");
  const Contents prompt = {1, 2, 3};
  Stored wrong = StoredFrom(prompt, 2);
  wrong.position = 1;
  wrong.parent = Chain({1, 2})[0];
  for (Tested* index : {&original, &exact}) {
    index->Store(0, {1});
    ASSERT_TRUE((*index)->Apply(HolderIndex{0}, wrong, nullptr).ok());
    index->Store(1, prompt);
  }
  EXPECT_THAT(original.Find(prompt), ElementsAre(Pair(0, 1), Pair(1, 3)));
  EXPECT_THAT(exact.Find(prompt), ElementsAre(Pair(0, 1), Pair(1, 2)));
  exact->RemoveHolder(HolderIndex{0});
  exact->Apply(HolderIndex{1}, Cleared{}, nullptr).IgnoreError();
  exact.Store(1, prompt);
  EXPECT_THAT(exact.Find(prompt), ElementsAre(Pair(1, 3)));
}

TEST(RadixTest, EmptyNodesGoWithWhatHungBelow) {
  Tested exact("radix_exact");
  const Contents prompt = {1, 2, 3, 4, 5};
  exact.Store(0, prompt);
  for (size_t position : {0, 1, 2}) exact.Remove(0, prompt, position);
  EXPECT_EQ(ShapeOf(*exact, "empty_nodes"), 3u);
  EXPECT_EQ(exact->Stats().blocks, 2u);
  for (size_t position : {4, 3}) exact.Remove(0, prompt, position);
  EXPECT_EQ(ShapeOf(*exact, "nodes"), 0u);
}

TEST(RadixTest, ARefusedStoreLeavesNoParentBehind) {
  Tested exact("radix_exact", {.blocks_max = 2});
  exact.Store(0, {1, 2});
  EXPECT_EQ(exact.TryStore(0, {5, 6, 7}, 2).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ShapeOf(*exact, "nodes"), 2u);
}

TEST(RadixTest, QueriesAreCountedWhereTheyPass) {
  Tested original("radix");
  original.Store(0, {1, 2, 3});
  original.Find({1, 2, 9});
  original.Find({1});
  EXPECT_EQ(ShapeOf(*original, "uses"), 3u);
  original.Remove(0, {1, 2, 3}, 0);
  EXPECT_EQ(ShapeOf(*original, "uses"), 1u);
}

TEST(RadixTest, AHundredThousandBlocksDeepAndGone) {
  for (std::string_view name : {"radix", "radix_exact"}) {
    Contents prompt(100'000);
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = i + 1;
    {
      Tested dropped(name);
      dropped.Store(0, prompt);
    }
    Tested index(name);
    index.Store(0, prompt);
    EXPECT_THAT(index.Find(prompt), ElementsAre(Pair(0, 100'000)));
    index.Remove(0, prompt, 0);
    index.Store(1, prompt);
    EXPECT_THAT(index.Find(prompt), ElementsAre(Pair(1, 100'000)));
    for (uint32_t holder : {0, 1}) index->RemoveHolder(HolderIndex{holder});
    EXPECT_EQ(ShapeOf(*index, "nodes"), 0u);
  }
}

// ---- All of them ----

class FieldTest : public ::testing::TestWithParam<std::string_view> {};

INSTANTIATE_TEST_SUITE_P(Structures, FieldTest,
                         ::testing::Values("nested_map", "nested_map_exact", "inverted",
                                           "inverted_exact", "radix", "radix_exact", "actor"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(FieldTest, IsKnownByItsName) {
  ASSERT_NE(FindIndexKind(GetParam()), nullptr);
  EXPECT_EQ(Tested(GetParam())->Name(), GetParam());
}

TEST_P(FieldTest, SharedHeadsAndOwnTails) {
  Tested index(GetParam());
  index.Store(0, {1, 2, 3, 4, 5, 6});
  index.Store(1, {1, 2, 3});
  index.Store(1, {1, 2, 3, 7, 8}, 3);
  EXPECT_THAT(index.Find({1, 2, 3, 4, 5, 6}), ElementsAre(Pair(0, 6), Pair(1, 3)));
  EXPECT_THAT(index.Find({1, 2, 3, 7, 8}), ElementsAre(Pair(0, 3), Pair(1, 5)));
  EXPECT_THAT(index.Find({9, 8}), IsEmpty());
  EXPECT_THAT(index.Find({}), IsEmpty());
}

TEST_P(FieldTest, AHeadThatIsGoneIsGone) {
  Tested index(GetParam());
  index.Store(0, {1, 2, 3, 4});
  index.Store(1, {1, 2});
  index.Remove(0, {1, 2}, 1);
  EXPECT_THAT(index.Find({1, 2, 3, 4}), ElementsAre(Pair(0, 1), Pair(1, 2)));
}

TEST_P(FieldTest, AnswersWithoutLocalHashes) {
  Tested index(GetParam());
  const std::vector<SequenceHash> chain = Chain({1, 1, 1, 1});
  ASSERT_TRUE(index->Apply(HolderIndex{0}, Stored{.blocks = chain}, nullptr).ok());
  ASSERT_TRUE(index->Apply(HolderIndex{1}, Stored{.blocks = {chain[0], chain[1]}}, nullptr).ok());
  std::vector<Overlap> overlaps;
  index->FindOverlaps({.blocks = chain}, &overlaps);
  EXPECT_THAT(ToScores(overlaps), ElementsAre(Pair(0, 4), Pair(1, 2)));
}

TEST_P(FieldTest, OnlyThoseAskedForAnswer) {
  Tested index(GetParam());
  index.Store(0, {1, 2});
  index.Store(1, {1, 2});
  const std::vector<SequenceHash> chain = Chain({1, 2});
  const std::vector<LocalHash> locals = Locals({1, 2});
  const std::vector<uint64_t> only = {0b10};
  std::vector<Overlap> overlaps;
  index->FindOverlaps({.blocks = chain, .only = only, .local_hashes = locals}, &overlaps);
  EXPECT_THAT(ToScores(overlaps), ElementsAre(Pair(1, 2)));
  index->SetMasked(HolderIndex{0}, true);
  EXPECT_THAT(index.Find({1, 2}), ElementsAre(Pair(1, 2)));
  index->SetMasked(HolderIndex{0}, false);
  EXPECT_THAT(index.Find({1, 2}), ElementsAre(Pair(0, 2), Pair(1, 2)));
}

TEST_P(FieldTest, TiersAreKeptApart) {
  Tested index(GetParam());
  Stored stored = StoredFrom({1, 2, 3, 4}, 0);
  index.Store(0, {1, 2});
  stored.tier = Tier::kHost;
  ASSERT_TRUE(index->Apply(HolderIndex{0}, stored, nullptr).ok());
  const std::vector<LocalHash> locals = Locals({1, 2, 3, 4});
  std::vector<TierOverlap> overlaps;
  index->FindTierOverlaps({.blocks = stored.blocks, .local_hashes = locals}, &overlaps);
  EXPECT_THAT(overlaps, ElementsAre(TierOverlap{HolderIndex{0}, 4, {2, 4, 0, 0}}));
  index->Apply(HolderIndex{0}, Cleared{.tiers = Tier::kHost}, nullptr).IgnoreError();
  EXPECT_THAT(index.Find({1, 2, 3, 4}), ElementsAre(Pair(0, 2)));
  EXPECT_EQ(index->HoldingsOf(HolderIndex{0}).size(), 2u);
}

TEST_P(FieldTest, EveryChangeIsLoggedWithItsPlace) {
  Tested index(GetParam());
  std::vector<std::tuple<uint64_t, Position, int, int>> changes;
  const SequenceHash a{11}, b{12}, c{13};
  const HolderIndex holder{1};
  const auto apply = [&](const Event& event) {
    ChangeLog log;
    EXPECT_TRUE(index->Apply(holder, event, &log).ok());
    changes.clear();
    log.ForEachBlock([&](SequenceHash block, Position position, TierMask before, TierMask after) {
      changes.emplace_back(Raw(block), position, before.bits(), after.bits());
    });
  };
  apply(Stored{.blocks = {a, b}});
  EXPECT_THAT(changes, ElementsAre(std::tuple(11, 0, 0, 1), std::tuple(12, 1, 0, 1)));
  apply(Stored{.tier = Tier::kHost, .position = 1, .parent = a, .blocks = {b, c}});
  EXPECT_THAT(changes, ElementsAre(std::tuple(12, 1, 1, 3), std::tuple(13, 2, 0, 2)));
  apply(Stored{.blocks = {a}});
  EXPECT_THAT(changes, IsEmpty());
  apply(Removed{.blocks = {b, c}});
  EXPECT_THAT(changes, ElementsAre(std::tuple(12, 1, 3, 2)));
  apply(Cleared{});
  EXPECT_THAT(changes, UnorderedElementsAre(std::tuple(11, 0, 1, 0), std::tuple(12, 1, 2, 0),
                                            std::tuple(13, 2, 2, 0)));
  EXPECT_EQ(index->DigestOf(holder), Digest());
}

TEST_P(FieldTest, RemovedHoldersLeaveNothing) {
  Tested index(GetParam());
  const uint64_t empty = index->Stats().bytes;
  for (uint64_t i = 0; i < 50; ++i) {
    index.Store(0, {i * 3 + 1, i * 3 + 2, i * 3 + 3});
    index.Store(1, {i * 3 + 1, i * 3 + 2});
  }
  EXPECT_EQ(index->Stats().holdings, 250u);
  EXPECT_EQ(index->Stats().blocks, 150u);
  EXPECT_GT(index->Stats().bytes, empty + 250 * 8);
  for (uint32_t holder : {0, 1}) index->RemoveHolder(HolderIndex{holder});
  EXPECT_EQ(index->Stats().blocks, 0u);
  EXPECT_EQ(index->Stats().holders, 0u);
  EXPECT_LE(index->Stats().bytes, empty);
  EXPECT_EQ(*index->AddHolder(), HolderIndex{0});
  EXPECT_THAT(index->HoldingsOf(HolderIndex{0}), IsEmpty());
}

TEST_P(FieldTest, SweepsInSteps) {
  Tested index(GetParam());
  Contents prompt;
  for (uint64_t i = 0; i < 10; ++i) prompt.push_back(i + 1);
  index.Store(0, prompt);
  index.Store(1, prompt);
  EXPECT_TRUE(index->Sweep(HolderIndex{0}, 4, nullptr));
  EXPECT_EQ(index->HoldingsOf(HolderIndex{0}).size(), 6u);
  EXPECT_TRUE(index->Sweep(HolderIndex{0}, 0, nullptr));
  EXPECT_FALSE(index->Sweep(HolderIndex{0}, 5, nullptr));
  EXPECT_FALSE(index->Sweep(HolderIndex{0}, 5, nullptr));
  EXPECT_FALSE(index->Sweep(HolderIndex{7}, 5, nullptr));
  EXPECT_THAT(index.Find(prompt), ElementsAre(Pair(1, 10)));
}

// ---- Random ----

// Runs of a trie whose contents repeat, holes everywhere; says after each event what the structure answers more
// or less than the reference.
class RandomRun {
 public:
  RandomRun(std::string_view name, uint64_t seed)
      : trie_({.seed = seed, .blocks = 60, .spread = Spread::kChained}),
        random_(seed),
        reference_(*MakeIndex("reference", {})),
        tested_(*MakeIndex(name, {})) {
    for (int i = 0; i < kHolders; ++i) {
      EXPECT_TRUE(reference_->AddHolder().ok());
      EXPECT_TRUE(tested_->AddHolder().ok());
    }
  }

  void Step() {
    const HolderIndex holder{Draw(kHolders)};
    const std::vector<uint32_t> path = trie_.PathTo(Draw(trie_.size()));
    const uint32_t from = Draw(2) == 0 ? 0 : Draw(static_cast<uint32_t>(path.size()));
    const std::span<const uint32_t> run = std::span(path).subspan(from);
    if (Draw(3) != 0) {
      Apply(holder, Stored{.position = from,
                           .parent = trie_.parent_hash(run[0]),
                           .blocks = trie_.hashes(run),
                           .local_hashes = trie_.locals(run)});
    } else if (Draw(20) != 0) {
      Apply(holder, Removed{.blocks = trie_.hashes(run.first(1 + Draw(2) % run.size()))});
    } else {
      Apply(holder, Cleared{});
    }
    Ask(trie_.PathTo(Draw(trie_.size())));
  }

  uint64_t over() const { return over_; }
  uint64_t under() const { return under_; }
  absl::Status Check() const { return tested_->Check(); }

 private:
  static constexpr int kHolders = 4;

  uint32_t Draw(uint32_t below) { return static_cast<uint32_t>(random_() % below); }

  void Apply(HolderIndex holder, const Event& event) {
    EXPECT_TRUE(reference_->Apply(holder, event, nullptr).ok());
    tested_->Apply(holder, event, nullptr).IgnoreError();
  }

  void Ask(const std::vector<uint32_t>& path) {
    const std::vector<SequenceHash> blocks = trie_.hashes(path);
    const std::vector<LocalHash> locals = trie_.locals(path);
    std::vector<Overlap> truth, answer;
    reference_->FindOverlaps({.blocks = blocks}, &truth);
    tested_->FindOverlaps({.blocks = blocks, .local_hashes = locals}, &answer);
    Scores expected = ToScores(truth), actual = ToScores(answer);
    for (uint32_t holder = 0; holder < kHolders; ++holder) {
      if (actual[holder] > expected[holder]) ++over_;
      if (actual[holder] < expected[holder]) ++under_;
    }
  }

  const RandomTrie trie_;
  std::mt19937_64 random_;
  const std::unique_ptr<Index> reference_;
  const std::unique_ptr<Index> tested_;
  uint64_t over_ = 0;
  uint64_t under_ = 0;
};

// {over, under} of many runs.
std::pair<uint64_t, uint64_t> Wrong(std::string_view name) {
  uint64_t over = 0, under = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    RandomRun run(name, seed);
    for (int i = 0; i < 300; ++i) run.Step();
    EXPECT_TRUE(run.Check().ok()) << name << ", seed " << seed << ": " << run.Check();
    over += run.over();
    under += run.under();
  }
  return {over, under};
}

TEST(RandomContentTest, NestedMapAndInvertedOverCountAndNeverUnderCount) {
  for (std::string_view name : {"nested_map", "inverted"}) {
    const auto [over, under] = Wrong(name);
    EXPECT_GT(over, 0u) << name;
    EXPECT_EQ(under, 0u) << name;
  }
}

TEST(RandomContentTest, RadixUnderCountsAndNeverOverCounts) {
  for (std::string_view name : {"radix", "actor"}) {
    const auto [over, under] = Wrong(name);
    EXPECT_EQ(over, 0u) << name;
    EXPECT_GT(under, 0u) << name;
  }
}

TEST(RandomContentTest, ExactVariantsAreNeverWrong) {
  for (std::string_view name : {"nested_map_exact", "inverted_exact", "radix_exact"}) {
    EXPECT_EQ(Wrong(name), std::pair(uint64_t{0}, uint64_t{0})) << name;
  }
}

// The tree is compared as though it claimed the whole interface: among senders that say the truth it has it.
TEST(RandomOpsTest, TheExactTreeDoesAllThatTheReferenceDoes) {
  const MakeTested make = [](const IndexOptions& options) {
    return *MakeIndex("radix_exact", options);
  };
  for (Shape shape : {Shape::kMixed, Shape::kLongRuns, Shape::kBushy, Shape::kRoots}) {
    for (Spread spread : {Spread::kSmall, Spread::kMixed, Spread::kChained}) {
      for (uint64_t seed = 1; seed <= 12; ++seed) {
        RandomOptions options = {.trie = {.seed = seed, .shape = shape, .spread = spread}};
        if (seed % 3 == 0) options.blocks_max = 12;
        options.keep_local_hashes = seed % 2 == 0;
        ASSERT_EQ(FirstDifferenceToPaste(make, RandomOps(seed, options), options), "")
            << "seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace kvatlas
