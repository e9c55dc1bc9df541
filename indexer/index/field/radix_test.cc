// The trees: what is cut off and grown anew, what is refused, and nodes without holders. Their
// answers: //indexer/index:conformance_test.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "indexer/index/index_test_util.h"

namespace kvatlas {
namespace {

constexpr HolderIndex kA{0}, kB{1};

TEST(RadixTest, WhatLiesBehindAHoleIsCutOffUntilItIsStoredAgain) {
  Tested original("radix", {}, 1), exact("radix_exact", {}, 1);
  const Contents prompt = {1, 2, 3, 4, 5};
  for (Tested* index : {&original, &exact}) {
    index->Store(kA, prompt);
    index->Remove(kA, prompt, {2});
    index->Store(kA, prompt, 2, 3);
  }
  EXPECT_EQ(original.Shape("cut_off"), 1u);
  EXPECT_EQ(exact.Shape("cut_off"), 0u);
  original.Store(kA, prompt, 2, 4);
  EXPECT_EQ(original.Find(prompt), (Scores{{0, 5}}));
  EXPECT_EQ(original.Shape("nodes"), 5u);
}

TEST(RadixTest, AStoreAfterABlockThatTheHolderLacksIsRefused) {
  Tested original("radix", {}, 2), exact("radix_exact", {}, 2);
  const Contents prompt = {1, 2, 3, 4, 5};
  for (Tested* index : {&original, &exact}) {
    index->Store(kA, prompt);
    index->Store(kB, prompt, 0, 1);
  }
  EXPECT_EQ(original.Apply(kB, StoredOf(prompt, 2)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(exact.Apply(kB, StoredOf(prompt, 2)).ok());
  EXPECT_EQ(original->Stats().refused_blocks, 3u);
  EXPECT_EQ(exact->Stats().refused_blocks, 0u);
  for (Tested* index : {&original, &exact}) index->Store(kB, prompt, 1, 2);
  EXPECT_EQ(original.Find(prompt), (Scores{{0, 5}, {1, 2}}));
  EXPECT_EQ(exact.Find(prompt), (Scores{{0, 5}, {1, 5}}));
}

TEST(RadixTest, ATailWithoutAParentIsRefused) {
  Tested original("radix", {}, 2), exact("radix_exact", {}, 2);
  const Contents prompt = {1, 2, 3};
  Stored tail = StoredOf(prompt, 2);
  tail.parent = kNoParent;
  EXPECT_EQ(original.Apply(kA, tail).code(), absl::StatusCode::kFailedPrecondition);
  exact.Do(kA, tail);
  exact.Store(kA, prompt, 0, 2);
  EXPECT_EQ(exact.Find(prompt), (Scores{{0, 2}}));
  exact.Store(kB, prompt);  // says what the tail follows
  EXPECT_EQ(exact.Find(prompt), (Scores{{0, 3}, {1, 3}}));
}

// Two copies of one place: one cut off and still held, one grown anew.
TEST(RadixTest, AHolderMovesFromTheCutOffCopyToTheLiveOne) {
  Tested index("radix", {}, 2);
  const Contents prompt = {1, 2, 3, 4};
  for (HolderIndex holder : {kA, kB}) index.Store(holder, prompt);
  for (HolderIndex holder : {kA, kB}) index.Remove(holder, prompt, {1});
  // 3 and 4 are cut off, held by both.
  index.Remove(kA, prompt, {2});
  index.Remove(kA, prompt, {3});
  index.Store(kA, prompt);  // grown anew
  EXPECT_EQ(index.Find(prompt), (Scores{{0, 4}, {1, 1}}));
  index.Store(kB, prompt);
  EXPECT_EQ(index.Find(prompt), (Scores{{0, 4}, {1, 4}}));
  EXPECT_EQ(index.Shape("nodes"), 4u);
}

TEST(RadixTest, ACutOffCopyNeverSpeaksForAHolderThatLeftIt) {
  Tested index("radix", {}, 2);
  const Contents prompt = {1, 2, 3};
  for (HolderIndex holder : {kA, kB}) index.Store(holder, prompt);
  for (HolderIndex holder : {kA, kB}) index.Remove(holder, prompt, {1});
  index.Store(kA, prompt, 1, 2);
  index.Store(kA, prompt);
  index.Remove(kA, prompt, {2});
  index.Store(kB, prompt, 1, 2);
  index.Store(kB, prompt);
  EXPECT_EQ(index.Find(prompt), (Scores{{0, 2}, {1, 3}}));
}

TEST(RadixTest, OtherNamesForEqualContentShareANode) {
  Tested index("radix", {}, 2);
  const Contents prompt = {1, 2, 3};
  index.Store(kA, prompt);
  Stored own_names = StoredOf(prompt);
  own_names.blocks = {SequenceHash{101}, SequenceHash{102}, SequenceHash{103}};
  index.Do(kB, own_names);
  EXPECT_EQ(index.Find(prompt), (Scores{{0, 3}, {1, 3}}));
  EXPECT_EQ(index->Stats().blocks, 3u);
  index.Do(kB, Removed{.blocks = {SequenceHash{102}}});
  EXPECT_EQ(index.Find(prompt), (Scores{{0, 3}, {1, 1}}));
}

TEST(RadixTest, TwoNamesOfOneHolderForOneBlockAreRefused) {
  Tested index("radix", {}, 1);
  index.Store(kA, {1, 2});
  Stored again = StoredOf({1, 2});
  again.blocks[1] = SequenceHash{99};
  EXPECT_EQ(index.Apply(kA, again).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(index.Find({1, 2}), (Scores{{0, 2}}));
}

TEST(RadixTest, ABlockTwiceInOneEventKeepsItsFirstPlace) {
  for (std::string_view name : {"radix", "radix_exact"}) {
    Tested index(name, {}, 1);
    const SequenceHash a{1}, b{2};
    index.Do(kA, Stored{.blocks = {a, a, b, a}});
    EXPECT_EQ(index.Holdings(kA), 2u) << name;
    const std::vector<SequenceHash> first = {a};
    std::vector<Overlap> overlaps;
    index->FindOverlaps({.blocks = first}, &overlaps);
    EXPECT_EQ(ToScores(overlaps), (Scores{{0, 1}})) << name;
  }
}

TEST(RadixTest, AWrongParentHidesABlockFromEverybodyInTheExactTree) {
  Tested original("radix", {}, 2), exact("radix_exact", {}, 2);
  const Contents prompt = {1, 2, 3};
  Stored wrong = StoredOf(prompt, 2);
  wrong.position = 1;
  wrong.parent = Chain({1, 2})[0];
  for (Tested* index : {&original, &exact}) {
    index->Store(kA, {1});
    index->Do(kA, wrong);
    index->Store(kB, prompt);
  }
  EXPECT_EQ(original.Find(prompt), (Scores{{0, 1}, {1, 3}}));
  EXPECT_EQ(exact.Find(prompt), (Scores{{0, 1}, {1, 2}}));
  exact->RemoveHolder(kA);
  exact.Clear(kB);
  exact.Store(kB, prompt);
  EXPECT_EQ(exact.Find(prompt), (Scores{{1, 3}}));
}

TEST(RadixTest, EmptyNodesGoWithWhatHungBelow) {
  const Contents prompt = {1, 2, 3, 4, 5};
  Tested original("radix", {}, 1), exact("radix_exact", {}, 1);
  for (Tested* index : {&original, &exact}) {
    index->Store(kA, prompt);
    for (size_t position : {0, 1, 2}) index->Remove(kA, prompt, {position});
    EXPECT_EQ((*index)->Stats().blocks, 2u);
    if (index == &exact) {
      EXPECT_EQ(exact.Shape("empty_nodes"), 3u);
    }
    for (size_t position : {4, 3}) index->Remove(kA, prompt, {position});
    EXPECT_EQ(index->Shape("nodes"), 0u);
  }
}

TEST(RadixTest, ARefusedStoreLeavesNoParentBehind) {
  Tested exact("radix_exact", {.blocks_max = 2}, 1);
  exact.Store(kA, {1, 2});
  EXPECT_EQ(exact.Apply(kA, StoredOf({5, 6, 7}, 2)).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(exact.Shape("nodes"), 2u);
}

TEST(RadixTest, QueriesAreCountedWhereTheyPass) {
  Tested index("radix", {}, 1);
  index.Store(kA, {1, 2, 3});
  index.Find({1, 2, 9});
  index.Find({1});
  EXPECT_EQ(index.Shape("uses"), 3u);
  index.Remove(kA, {1, 2, 3}, {0});
  EXPECT_EQ(index.Shape("uses"), 1u);
}

}  // namespace
}  // namespace kvatlas
