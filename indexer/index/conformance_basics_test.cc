// The behaviours that the field's own suites ask of an index: storing, finding, removing, long sequences.
// Run over every structure; those that claim less skip what they do not claim.

#include <gtest/gtest.h>

#include "indexer/index/conformance_test_util.h"

namespace kvatlas {
namespace {

class BasicsTest : public ConformanceTest {};

INSTANTIATE_TEST_SUITE_P(Structures, BasicsTest, ::testing::ValuesIn(AllIndexKinds()), KindName);

// ---- Storing and finding ----

TEST_P(BasicsTest, AStoredSequenceIsFoundWhole) {
  const HolderIndex holder = Add();
  Store(holder, {1, 2, 3});
  EXPECT_EQ(Find({1, 2, 3}), (Scores{{0, 3}}));
  EXPECT_EQ(index_->Name(), GetParam().name);
}

TEST_P(BasicsTest, APromptThatLeavesTheSequenceCountsUpToThere) {
  Store(Add(), {1, 2, 3});
  EXPECT_EQ(Find({1, 2, 999}), (Scores{{0, 2}}));
}

TEST_P(BasicsTest, APromptThatIsLongerThanWhatIsHeldCountsWhatIsHeld) {
  Store(Add(), {1, 2, 3});
  EXPECT_EQ(Find({1, 2, 3, 4, 5, 6}), (Scores{{0, 3}}));
}

TEST_P(BasicsTest, AnUnknownOrEmptyPromptFindsNobody) {
  EXPECT_EQ(Find({1, 2}), Scores());
  Store(Add(), {1, 2, 3});
  EXPECT_EQ(Find({999, 998}), Scores());
  EXPECT_EQ(Find({}), Scores());
}

TEST_P(BasicsTest, APromptThatBeginsInTheMiddleOfASequenceFindsNobody) {
  NEEDS_EXACT;
  const HolderIndex holder = Add();
  Store(holder, {1, 2, 3});
  EXPECT_EQ(Find({2, 3}), Scores());
  StoreAfter(holder, {1, 2, 3}, {4, 5});
  EXPECT_EQ(Find({4, 5}), Scores());
}

TEST_P(BasicsTest, RemovingEverythingLeavesNothing) {
  const HolderIndex holder = Add();
  Store(holder, {1, 2, 3});
  Remove(holder, {1, 2, 3});
  EXPECT_EQ(Find({1, 2, 3}), Scores());
}

TEST_P(BasicsTest, HoldersThatShareAHeadPartWhereTheyDiffer) {
  const HolderIndex a = Add(), b = Add();
  Store(a, {1, 2});
  Store(b, {1, 3});
  EXPECT_EQ(Find({1}), (Scores{{0, 1}, {1, 1}}));
  EXPECT_EQ(Find({1, 2}), (Scores{{0, 2}, {1, 1}}));
  EXPECT_EQ(Find({1, 3}), (Scores{{0, 1}, {1, 2}}));
}

TEST_P(BasicsTest, RemovingAHolderLeavesTheOthers) {
  const HolderIndex a = Add(), b = Add();
  Store(a, {1, 2, 3});
  Store(b, {1, 2, 3});
  index_->RemoveHolder(a);
  EXPECT_EQ(Find({1, 2, 3}), (Scores{{Raw(b), 3}}));
  index_->RemoveHolder(HolderIndex{999});
  RemoveHashes(b, {SequenceHash{12345}, SequenceHash{67890}});
  EXPECT_EQ(Find({1, 2, 3}), (Scores{{Raw(b), 3}}));
}

TEST_P(BasicsTest, AClearedHolderCanStoreAgain) {
  const HolderIndex a = Add(), b = Add();
  Store(a, {1, 2, 3});
  Store(b, {1, 2, 3});
  Clear(a);
  EXPECT_EQ(Find({1, 2, 3}), (Scores{{1, 3}}));
  Store(a, {4, 5});
  EXPECT_EQ(Find({4, 5}), (Scores{{0, 2}}));
  EXPECT_EQ(Find({1, 2, 3}), (Scores{{1, 3}}));
}

TEST_P(BasicsTest, SequencesOfAHolderDoNotMix) {
  NEEDS_EXACT;
  const HolderIndex holder = Add();
  Store(holder, {1, 2, 3});
  Store(holder, {100, 101});
  EXPECT_EQ(Find({1, 2, 3}), (Scores{{0, 3}}));
  EXPECT_EQ(Find({100, 101}), (Scores{{0, 2}}));
  EXPECT_EQ(Find({1, 100}), (Scores{{0, 1}}));
  EXPECT_EQ(Find({100, 2}), (Scores{{0, 1}}));
}

TEST_P(BasicsTest, ASequenceGoesOnBehindItsParent) {
  const HolderIndex holder = Add();
  Store(holder, {1, 2, 3});
  StoreAfter(holder, {1, 2, 3}, {4, 5});
  EXPECT_EQ(Find({1, 2, 3, 4, 5}), (Scores{{0, 5}}));
  EXPECT_EQ(Find({1, 2, 3}), (Scores{{0, 3}}));
}

TEST_P(BasicsTest, APromptByTokensFindsWhatIsStoredByHash) {
  std::vector<TokenId> tokens(96);
  for (uint32_t i = 0; i < 96; ++i) tokens[i] = i + 1;
  const std::vector<LocalHash> locals = LocalHashes(tokens, {.block_size = 32}, BlockSeed({}));
  ASSERT_EQ(locals.size(), 3u);
  const Stored stored = {.blocks = SequenceHashes(locals), .local_hashes = locals};
  ASSERT_TRUE(index_->Apply(Add(), stored, nullptr).ok());
  std::vector<Overlap> overlaps;
  index_->FindOverlaps({.blocks = stored.blocks, .local_hashes = locals}, &overlaps);
  ASSERT_EQ(overlaps.size(), 1u);
  EXPECT_EQ(overlaps[0], (Overlap{HolderIndex{0}, 3}));
}

TEST_P(BasicsTest, AnIndexMayGoAsItIs) {
  Store(Add(), Count(1, 300));
  Store(Add(), Count(1, 100));
}

// ---- The same event again ----

TEST_P(BasicsTest, AReplayedStoreChangesNothing) {
  const HolderIndex a = Add(), b = Add();
  for (int time = 0; time < 3; ++time) {
    Store(a, {1, 2, 3});
    Store(b, {1, 2, 4});
    StoreAfter(a, {1, 2, 3}, {5});
  }
  EXPECT_EQ(Find({1, 2, 3, 5}), (Scores{{0, 4}, {1, 2}}));
  Remove(a, {1, 2, 3, 5});
  EXPECT_EQ(Find({1, 2, 3, 5}), (Scores{{1, 2}}));
}

TEST_P(BasicsTest, AReplayedRemovalChangesNothing) {
  const HolderIndex a = Add(), b = Add();
  Store(a, {1, 2, 3});
  Store(b, {1, 2, 3});
  for (int time = 0; time < 3; ++time) {
    Remove(a, {1, 2, 3}, 2);
    EXPECT_EQ(Find({1, 2, 3}), (Scores{{0, 2}, {1, 3}}));
  }
}

TEST_P(BasicsTest, RemovingWhatAnotherHoldsTakesNothingFromAnybody) {
  const HolderIndex a = Add(), b = Add();
  Store(a, {1, 2, 3});
  Store(b, {7, 8});
  Remove(b, {1, 2, 3});
  EXPECT_EQ(Find({1, 2, 3}), (Scores{{0, 3}}));
  EXPECT_EQ(Find({7, 8}), (Scores{{1, 2}}));
}

// ---- Removal ----

TEST_P(BasicsTest, RemovingTheLastBlockShortensTheOverlap) {
  const HolderIndex holder = Add();
  Store(holder, {1, 2, 3});
  Remove(holder, {1, 2, 3}, 2);
  EXPECT_EQ(Find({1, 2, 3}), (Scores{{0, 2}}));
  EXPECT_EQ(Find({1, 2}), (Scores{{0, 2}}));
}

TEST_P(BasicsTest, ABlockMissingInTheMiddleEndsTheOverlap) {
  NEEDS_EXACT;
  const HolderIndex holder = Add();
  Store(holder, {1, 2, 3, 4, 5});
  RemoveAt(holder, {1, 2, 3}, {2});
  EXPECT_EQ(Find({1, 2, 3, 4, 5}), (Scores{{0, 2}}));
  // The deeper ones are still there, and count again.
  Store(holder, {1, 2, 3}, 2);
  EXPECT_EQ(Find({1, 2, 3, 4, 5}), (Scores{{0, 5}}));
}

TEST_P(BasicsTest, EvictingFromTheEndAndStoringAgainGivesTheSame) {
  const HolderIndex a = Add(), b = Add();
  Store(a, Count(1, 20));
  Store(b, Count(1, 20));
  for (size_t depth = 20; depth > 10; --depth) {
    Remove(a, Count(1, 20), depth - 1, depth);
    ASSERT_EQ(Find(Count(1, 20)), (Scores{{0, depth - 1}, {1, 20}}));
  }
  for (size_t depth = 10; depth < 20; ++depth) {
    Store(a, Count(1, 20), depth, depth + 1);
    ASSERT_EQ(Find(Count(1, 20)), (Scores{{0, depth + 1}, {1, 20}}));
  }
}

TEST_P(BasicsTest, AnAncestorMayGoBeforeItsDescendants) {
  NEEDS_EXACT;
  const HolderIndex a = Add(), b = Add();
  Store(a, {1, 2, 3, 4});
  StoreAfter(a, {1, 2, 3, 4}, {5, 6});
  Store(b, {1, 2, 3, 4, 5, 6});
  for (size_t block = 0; block < 6; ++block) {
    RemoveAt(a, {1, 2, 3, 4, 5, 6}, {block});
    EXPECT_EQ(Find({1, 2, 3, 4, 5, 6}), (Scores{{1, 6}}));
  }
}

TEST_P(BasicsTest, TheOrderInsideOneRemovalDoesNotMatter) {
  const HolderIndex a = Add(), b = Add(), c = Add();
  for (HolderIndex holder : {a, b, c}) Store(holder, Count(1, 8));
  RemoveAt(a, Count(1, 8), {3, 4, 5, 6, 7});
  RemoveAt(b, Count(1, 8), {7, 6, 5, 4, 3});
  RemoveAt(c, Count(1, 8), {5, 3, 7, 4, 6});
  EXPECT_EQ(Find(Count(1, 8)), (Scores{{0, 3}, {1, 3}, {2, 3}}));
}

TEST_P(BasicsTest, OneRemovalOfManyBlocksIsManyRemovalsOfOne) {
  NEEDS_EXACT;
  const HolderIndex batched = Add(), single = Add();
  for (HolderIndex holder : {batched, single}) {
    Store(holder, Count(1, 10));
    Store(holder, {1, 2, 3, 50, 51});
    Store(holder, {90});
  }
  std::vector<SequenceHash> blocks = {SequenceHash{404}};  // unknown, and first
  for (size_t at : {9u, 4u, 4u, 6u}) blocks.push_back(Chain(Count(1, 10))[at]);
  blocks.push_back(Chain({90})[0]);
  blocks.push_back(Chain({1, 2, 3, 50})[3]);
  RemoveHashes(batched, blocks);
  for (SequenceHash block : blocks) RemoveHashes(single, {block});
  EXPECT_EQ(Find(Count(1, 10)), (Scores{{0, 4}, {1, 4}}));
  EXPECT_EQ(Find({1, 2, 3, 50, 51}), (Scores{{0, 3}, {1, 3}}));
  EXPECT_EQ(Find({90}), Scores());
  NEEDS_WHOLE;
  EXPECT_EQ(index_->DigestOf(batched), index_->DigestOf(single));
}

// ---- Several holders of one head ----

TEST_P(BasicsTest, TwoTailsBehindASharedHead) {
  const HolderIndex a = Add(), b = Add();
  Store(a, {1, 2, 3});
  Store(b, {1, 2, 3});
  StoreAfter(a, {1, 2, 3}, {4, 5, 6});
  StoreAfter(b, {1, 2, 3}, {7, 8});
  EXPECT_EQ(Find({1, 2, 3, 4, 5, 6}), (Scores{{0, 6}, {1, 3}}));
  EXPECT_EQ(Find({1, 2, 3, 7, 8}), (Scores{{0, 3}, {1, 5}}));
}

TEST_P(BasicsTest, ASecondHolderJoinsAndGoesFurther) {
  const HolderIndex a = Add(), b = Add();
  Store(a, {1, 2, 3});
  StoreAfter(a, {1, 2, 3}, {4, 5, 6});
  Store(b, {1, 2, 3});
  StoreAfter(b, {1, 2, 3}, {4, 5, 6});
  StoreAfter(b, {1, 2, 3, 4, 5, 6}, {7, 8, 9});
  EXPECT_EQ(Find(Count(1, 9)), (Scores{{0, 6}, {1, 9}}));
}

TEST_P(BasicsTest, TailsUnderAParentTheHolderLacksAreKeptAndCountOnceTheHeadComes) {
  NEEDS_EXACT;
  const HolderIndex a = Add(), b = Add();
  Store(a, Count(1, 6));
  Store(b, Count(1, 8), 6);
  EXPECT_EQ(Find(Count(1, 8)), (Scores{{0, 6}}));
  Store(b, Count(1, 8), 0, 6);
  EXPECT_EQ(Find(Count(1, 8)), (Scores{{0, 6}, {1, 8}}));
}

TEST_P(BasicsTest, TailsUnderAParentNobodyHasAreKeptAndCountOnceTheHeadComes) {
  NEEDS_EXACT;
  const HolderIndex a = Add(), b = Add();
  Store(a, Count(1, 12), 8);
  Store(a, Count(1, 12), 4, 6);
  Store(b, Count(1, 12), 6, 10);
  EXPECT_EQ(Find(Count(1, 12)), Scores());
  Store(b, Count(1, 12), 0, 6);
  EXPECT_EQ(Find(Count(1, 12)), (Scores{{1, 10}}));
  Store(a, Count(1, 12), 0, 4);
  EXPECT_EQ(Find(Count(1, 12)), (Scores{{0, 6}, {1, 10}}));
  Store(a, Count(1, 12), 6, 8);
  EXPECT_EQ(Find(Count(1, 12)), (Scores{{0, 12}, {1, 10}}));
}

TEST_P(BasicsTest, LosingASharedBlockTouchesOnlyTheHolderThatLostIt) {
  NEEDS_EXACT;
  const HolderIndex a = Add(), b = Add();
  Store(a, {1, 2});
  Store(b, {1, 2, 3, 4});
  // As many hold the first block as the second, but not the same.
  Remove(a, {1, 2}, 1);
  EXPECT_EQ(Find({1, 2, 3, 4}), (Scores{{0, 1}, {1, 4}}));
}

TEST_P(BasicsTest, AsManyHoldersAreNotTheSameHolders) {
  NEEDS_EXACT;
  const HolderIndex a = Add(), b = Add();
  Store(a, {1, 2, 3, 4});
  Store(b, {1, 2});
  Remove(b, {1, 2}, 1);
  EXPECT_EQ(Find({1, 2, 3, 4}), (Scores{{0, 4}, {1, 1}}));
  Remove(a, {1, 2}, 1);
  EXPECT_EQ(Find({1, 2, 3, 4}), (Scores{{0, 1}, {1, 1}}));
  Store(b, {1, 2, 3, 4}, 1, 3);
  EXPECT_EQ(Find({1, 2, 3, 4}), (Scores{{0, 1}, {1, 3}}));
}

// ---- Long sequences ----

TEST_P(BasicsTest, LengthsAroundEveryStrideMatchWhole) {
  for (size_t length : {31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 255, 256, 257, 600}) {
    const HolderIndex holder = Add();
    const Contents prompt = Count(1000 * length, length);
    Store(holder, prompt);
    EXPECT_EQ(Find(prompt), (Scores{{Raw(holder), length}})) << length;
  }
}

TEST_P(BasicsTest, APromptMayLeaveALongSequenceAnywhere) {
  const Contents stored = Count(1, 128);
  Store(Add(), stored);
  for (size_t at = 0; at <= 128; ++at) {
    const Contents prompt = Head(stored, at) + Count(9000, 140 - at);
    EXPECT_EQ(Find(prompt), at == 0 ? Scores() : (Scores{{0, at}})) << at;
  }
}

TEST_P(BasicsTest, TheLastFifthOfALongSequenceGoes) {
  const HolderIndex holder = Add();
  Store(holder, Count(1, 100));
  Remove(holder, Count(1, 100), 79);
  EXPECT_EQ(Find(Count(1, 100)), (Scores{{0, 79}}));
}

TEST_P(BasicsTest, TwentyContinuationsMakeOneSequence) {
  const HolderIndex holder = Add();
  const Contents prompt = Count(1, 200);
  for (size_t from = 0; from < 200; from += 10) Store(holder, prompt, from, from + 10);
  EXPECT_EQ(Find(prompt), (Scores{{0, 200}}));
  EXPECT_EQ(Find(Head(prompt, 75)), (Scores{{0, 75}}));
}

TEST_P(BasicsTest, AThousandBlocks) {
  const Contents prompt = Count(1, 1000);
  Store(Add(), prompt);
  EXPECT_EQ(Find(prompt), (Scores{{0, 1000}}));
  EXPECT_EQ(Find(Head(prompt, 500)), (Scores{{0, 500}}));
  EXPECT_EQ(Find(Head(prompt, 499) + Count(5000, 501)), (Scores{{0, 499}}));
}

TEST_P(BasicsTest, AStaircaseOfHolders) {
  const Contents prompt = Count(1, 100);
  Scores expected;
  for (size_t depth : {10, 20, 35, 64, 100}) {
    const HolderIndex holder = Add();
    Store(holder, Head(prompt, depth));
    expected[Raw(holder)] = static_cast<uint32_t>(depth);
  }
  EXPECT_EQ(Find(prompt), expected);
}

TEST_P(BasicsTest, ThreeHoldersPartAfterFortyBlocks) {
  const Contents head = Count(1, 40);
  const Contents sequences[] = {head + Count(100, 60), head + Count(200, 60),
                                head + Count(300, 60)};
  for (const Contents& sequence : sequences) Store(Add(), sequence);
  EXPECT_EQ(Find(sequences[0]), (Scores{{0, 100}, {1, 40}, {2, 40}}));
  EXPECT_EQ(Find(sequences[1]), (Scores{{0, 40}, {1, 100}, {2, 40}}));
  EXPECT_EQ(Find(sequences[2]), (Scores{{0, 40}, {1, 40}, {2, 100}}));
}

TEST_P(BasicsTest, AnotherSequenceAfterAClear) {
  const HolderIndex holder = Add();
  Store(holder, Count(1, 100));
  Clear(holder);
  Store(holder, Count(1000, 100));
  EXPECT_EQ(Find(Count(1, 100)), Scores());
  EXPECT_EQ(Find(Count(1000, 100)), (Scores{{0, 100}}));
}

TEST_P(BasicsTest, SequencesThatMeetAgainInContentDoNotMeetInOverlap) {
  const HolderIndex a = Add(), b = Add();
  Store(a, {1, 2, 3, 4});
  Store(b, {1, 9, 3, 4});
  EXPECT_EQ(Find({1, 2, 3, 4}), (Scores{{0, 4}, {1, 1}}));
  EXPECT_EQ(Find({1, 9, 3, 4}), (Scores{{0, 1}, {1, 4}}));
}

TEST_P(BasicsTest, TheSameContentMayStandAnywhereAndRepeat) {
  NEEDS_EXACT;
  const HolderIndex a = Add(), b = Add();
  Store(a, Contents(200, 7));
  Store(b, {8, 7, 7, 7});
  EXPECT_EQ(Find(Contents(250, 7)), (Scores{{0, 200}}));
  EXPECT_EQ(Find({8, 7, 7, 7, 7}), (Scores{{1, 4}}));
}

TEST_P(BasicsTest, AHoleBeforeALaterBlockStopsThere) {
  NEEDS_EXACT;
  const HolderIndex holder = Add(), other = Add();
  Store(holder, Count(1, 128));
  Store(other, Count(1, 128));
  for (size_t hole : {20, 1, 63, 64, 65, 127}) {
    RemoveAt(holder, Count(1, 128), {hole});
    EXPECT_EQ(Find(Count(1, 128)), (Scores{{0, hole}, {1, 128}}));
    Store(holder, Count(1, 128), hole, hole + 1);
    EXPECT_EQ(Find(Count(1, 128)), (Scores{{0, 128}, {1, 128}}));
  }
}

TEST_P(BasicsTest, HolesHealIndependently) {
  NEEDS_EXACT;
  const HolderIndex holder = Add(), sibling = Add();
  Store(holder, Count(1, 40));
  Store(sibling, Head(Count(1, 40), 15) + Count(500, 5));
  RemoveAt(holder, Count(1, 40), {10, 20});
  EXPECT_EQ(Find(Count(1, 40)), (Scores{{0, 10}, {1, 15}}));
  Store(holder, Count(1, 40), 20, 21);
  EXPECT_EQ(Find(Count(1, 40)), (Scores{{0, 10}, {1, 15}}));
  Store(holder, Count(1, 40), 10, 11);
  EXPECT_EQ(Find(Count(1, 40)), (Scores{{0, 40}, {1, 15}}));
  RemoveAt(holder, Count(1, 40), {20, 10});
  Store(holder, Count(1, 40), 10, 11);
  EXPECT_EQ(Find(Count(1, 40)), (Scores{{0, 20}, {1, 15}}));
}

TEST_P(BasicsTest, OneBlockStoresMakeTheSameSequence) {
  const HolderIndex a = Add(), b = Add();
  for (size_t at = 0; at < 50; ++at) {
    Store(a, Count(1, 50), at, at + 1);
    if (at % 2 == 0) Store(b, Count(1, 50), at, at + 2);
  }
  EXPECT_EQ(Find(Count(1, 50)), (Scores{{0, 50}, {1, 50}}));
}

// ---- Ranks ----

TEST_P(BasicsTest, RanksOfAWorkerAreHoldersOfTheirOwn) {
  const HolderIndex rank0 = Add(), rank1 = Add(), rank2 = Add();
  for (HolderIndex rank : {rank0, rank1, rank2}) Store(rank, {1, 2, 3});
  Clear(rank0);
  EXPECT_EQ(Find({1, 2, 3}), (Scores{{1, 3}, {2, 3}}));
  index_->RemoveHolder(rank1);
  EXPECT_EQ(Find({1, 2, 3}), (Scores{{2, 3}}));
  Store(rank0, {1, 2});
  EXPECT_EQ(Find({1, 2, 3}), (Scores{{0, 2}, {2, 3}}));
}

}  // namespace
}  // namespace kvatlas
