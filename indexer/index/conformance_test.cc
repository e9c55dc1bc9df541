// The promises of every structure to its callers, as far as a script (conformance_cases.h) cannot
// express them; the sizes at which the field's indexes break are in weaknesses_test.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "indexer/index/index_test_util.h"
#include "indexer/index/random_trie.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// ---- Overlaps ----

class AnyKindTest : public KindTest {};
class WholeKindTest : public KindTest {};

INSTANTIATE_TEST_SUITE_P(Kinds, AnyKindTest, ::testing::ValuesIn(KindsThatClaim(0)), KindName);
INSTANTIATE_TEST_SUITE_P(Kinds, WholeKindTest, ::testing::ValuesIn(KindsThatClaim(kWhole)),
                         KindName);

TEST_P(AnyKindTest, AnswersAreAppended) {
  const HolderIndex holder = Add();
  Store(holder, {1, 2});
  const std::vector<SequenceHash> chain = Chain({1, 2});
  const std::vector<LocalHash> locals = Locals({1, 2});
  std::vector<Overlap> overlaps = {{.holder = HolderIndex{7}, .blocks = 9}};
  index_->FindOverlaps({.blocks = chain, .local_hashes = locals}, &overlaps);
  EXPECT_THAT(overlaps, ElementsAre(Overlap{HolderIndex{7}, 9}, Overlap{holder, 2}));
}

// Local hashes need not be said.
TEST_P(AnyKindTest, AnswersByNamesAlone) {
  const std::vector<SequenceHash> chain = Chain({1, 1, 1, 1});
  Do(Add(), Stored{.blocks = chain});
  Do(Add(), Stored{.blocks = {chain[0], chain[1]}});
  std::vector<Overlap> overlaps;
  index_->FindOverlaps({.blocks = chain}, &overlaps);
  EXPECT_EQ(ToScores(overlaps), (Scores{{0, 4}, {1, 2}}));
}

TEST_P(AnyKindTest, APromptByTokensFindsWhatIsStoredByHash) {
  std::vector<TokenId> tokens(96);
  for (uint32_t i = 0; i < 96; ++i) tokens[i] = i + 1;
  const std::vector<LocalHash> locals = LocalHashes(tokens, {.block_size = 32}, BlockSeed({}));
  ASSERT_EQ(locals.size(), 3u);
  Contents contents;
  for (LocalHash local : locals) contents.push_back(Raw(local));
  Store(Add(), contents);
  EXPECT_EQ(Find(contents), (Scores{{0, 3}}));
}

// A structure that is keyed by content; a first block has the same hash under both names.
TEST(PositionalTest, FindsNothingStoredWithContentWhenAskedWithoutIt) {
  for (std::string_view name : {"positional_verified", "concurrent_radix"}) {
    Tested index(name, {}, 1);
    index.Store(HolderIndex{0}, {11, 12, 13});
    const std::vector<SequenceHash> chain = Chain({11, 12, 13});
    std::vector<Overlap> overlaps;
    index->FindOverlaps({.blocks = chain}, &overlaps);
    EXPECT_EQ(ToScores(overlaps), (Scores{{0, 1}})) << name;
  }
}

// No prompt does: a sequence hash names one prefix.
TEST_P(WholeKindTest, AQueryThatNamesABlockTwiceEnds) {
  const HolderIndex holder = Add();
  const std::vector<SequenceHash> two = Chain({1, 2});
  Do(holder, Stored{.blocks = two});
  const std::vector<SequenceHash> prompt = {two[0], two[0], two[1], two[0]};
  std::vector<Overlap> overlaps;
  index_->FindOverlaps({.blocks = prompt}, &overlaps);
  ASSERT_EQ(overlaps.size(), 1u);
  EXPECT_GE(overlaps[0].blocks, 1u);
  EXPECT_LE(overlaps[0].blocks, 4u);
}

TEST_P(AnyKindTest, SequencesOfAnyLengthAndPromptsThatLeaveThemAnywhere) {
  const HolderIndex holder = Add();
  for (size_t blocks : {1, 2, 31, 32, 33, 63, 64, 65, 96, 97, 127, 128, 129, 255, 256, 257, 600}) {
    const Contents prompt = Count(1000 * blocks, blocks);
    Store(holder, prompt);
    EXPECT_EQ(Depth(holder, prompt + Count(7, 40)), blocks);
    for (size_t at = 0; at < blocks; at += blocks > 130 ? 17 : 1) {
      Contents other = prompt;
      other[at] = 9;
      ASSERT_EQ(Depth(holder, other), at) << "of " << blocks;
      ASSERT_EQ(Depth(holder, Head(prompt, at) + Count(9'000'000, 40)), at) << "of " << blocks;
    }
  }
}

TEST_P(AnyKindTest, OneBlockStoresMakeTheSameSequence) {
  const HolderIndex a = Add(), b = Add();
  for (size_t at = 0; at < 50; ++at) {
    Store(a, Count(1, 50), at, at + 1);
    if (at % 2 == 0) Store(b, Count(1, 50), at, at + 2);
  }
  EXPECT_EQ(Find(Count(1, 50)), (Scores{{0, 50}, {1, 50}}));
}

TEST_P(AnyKindTest, EvictingFromTheEndAndStoringAgainGivesTheSame) {
  const HolderIndex a = Add(), b = Add();
  const Contents prompt = Count(1, 20);
  Store(a, prompt);
  Store(b, prompt);
  for (size_t depth = 20; depth > 10; --depth) {
    Remove(a, prompt, {depth - 1});
    ASSERT_EQ(Find(prompt), (Scores{{0, depth - 1}, {1, 20}}));
  }
  for (size_t depth = 10; depth < 20; ++depth) {
    Store(a, prompt, depth, depth + 1);
    ASSERT_EQ(Find(prompt), (Scores{{0, depth + 1}, {1, 20}}));
  }
}

TEST_P(WholeKindTest, OneRemovalOfManyBlocksIsManyRemovalsOfOne) {
  const HolderIndex batched = Add(), single = Add();
  const Contents left = Count(1, 10), right = {1, 2, 3, 50, 51};
  for (HolderIndex holder : {batched, single}) {
    for (const Contents& each : {left, right, {90}}) Store(holder, each);
  }
  std::vector<SequenceHash> blocks = {SequenceHash{404}};  // unknown, and first
  for (size_t at : {9u, 4u, 4u, 6u}) blocks.push_back(Chain(left)[at]);
  blocks.push_back(Chain({90})[0]);
  blocks.push_back(Chain(right)[3]);
  Do(batched, Removed{.blocks = blocks});
  for (SequenceHash block : blocks) Do(single, Removed{.blocks = {block}});
  EXPECT_EQ(Find(left), (Scores{{0, 4}, {1, 4}}));
  EXPECT_EQ(Find(right), (Scores{{0, 3}, {1, 3}}));
  EXPECT_EQ(Find({90}), Scores());
  EXPECT_EQ(index_->DigestOf(batched), index_->DigestOf(single));
}

// In one tier, and in another that fills the holes.
TEST_P(WholeKindTest, AHoleAtAnyPosition) {
  if ((ClaimsOf(GetParam()) & kHoles) == 0) GTEST_SKIP() << GetParam().about;
  const Contents prompt = Count(1, 300);
  const HolderIndex holder = Add(), other = Add();
  Store(holder, prompt);
  Store(other, prompt);
  for (size_t hole = 0; hole < prompt.size(); ++hole) {
    Remove(holder, prompt, {hole});
    const Scores expected = hole == 0 ? Scores{{1, 300}} : Scores{{0, hole}, {1, 300}};
    ASSERT_EQ(Find(prompt), expected);
    Store(holder, prompt, hole, hole + 1, hole % 10 == 9 ? Tier::kHost : Tier::kDevice);
    ASSERT_EQ(Find(prompt), (Scores{{0, 300}, {1, 300}}));
  }
  EXPECT_EQ(Find(prompt, Tier::kDevice), (Scores{{0, 9}, {1, 300}}));
  Do(holder, RemovedOf(prompt, {49}, Tier::kHost));
  EXPECT_EQ(Find(prompt), (Scores{{0, 49}, {1, 300}}));
}

TEST_P(WholeKindTest, MasksAreUnitedBlockByBlockForEveryMask) {
  // Block i is in the tiers whose bits are those of i % 16; so block 16 is missing, and 32, …
  const HolderIndex holder = Add();
  const Contents prompt = Count(1, 60);
  for (size_t at = 0; at < prompt.size(); ++at) {
    for (int tier = 0; tier < kTiers; ++tier) {
      if (at == 0 || (at % 16 >> tier & 1) != 0)
        Store(holder, prompt, at, at + 1, static_cast<Tier>(tier));
    }
  }
  for (uint8_t mask = 1; mask < 16; ++mask) {
    uint32_t depth = 1;
    while (depth < 60 && (depth % 16 & mask) != 0) ++depth;
    EXPECT_EQ(Find(prompt, TierMask(mask)), (Scores{{0, depth}})) << int{mask};
  }
}

// ---- Questions of other forms ----

TEST_P(AnyKindTest, OnlyTheHoldersNamedAnswer) {
  for (uint32_t i = 0; i < 130; ++i) Store(Add(), Head(Count(1, 10), 1 + i % 10));
  const std::vector<SequenceHash> chain = Chain(Count(1, 10));
  const std::vector<LocalHash> locals = Locals(Count(1, 10));
  const auto ask = [&](const std::vector<uint64_t>& only) {
    std::vector<Overlap> overlaps;
    index_->FindOverlaps({.blocks = chain, .only = only, .local_hashes = locals}, &overlaps);
    return ToScores(overlaps);
  };
  EXPECT_EQ(ask({1u << 3, 0}), (Scores{{3, 4}}));  // number 129 is beyond the words: not asked for
  EXPECT_EQ(ask({0}), Scores());
  EXPECT_EQ(ask({0, 0, 2, ~0ull, ~0ull}), (Scores{{129, 10}}));
}

TEST_P(AnyKindTest, StepsSayWhoDropsOutWhere) {
  for (uint32_t i = 0; i < 200; ++i) Store(Add(), Head(Count(1, 20), 5 * (1 + i % 3)));
  const std::vector<SequenceHash> chain = Chain(Count(1, 20));
  const std::vector<LocalHash> locals = Locals(Count(1, 20));
  OverlapSteps steps;
  for (int again = 0; again < 2; ++again) {
    index_->FindSteps({.blocks = chain, .local_hashes = locals}, &steps);
    std::map<uint32_t, uint32_t> sizes;
    for (size_t step = 0; step < steps.depths.size(); ++step) {
      for (uint64_t word : steps.holders(step))
        sizes[steps.depths[step]] += static_cast<uint32_t>(__builtin_popcountll(word));
    }
    EXPECT_EQ(sizes[5], 67u);
    EXPECT_EQ(sizes[10], 67u);
    EXPECT_EQ(sizes[15], 66u);
  }
  index_->FindSteps({.blocks = {}}, &steps);
  EXPECT_THAT(steps.depths, IsEmpty());
  EXPECT_THAT(steps.words, IsEmpty());
}

TEST_P(AnyKindTest, EveryQuestionLeavesMaskedHoldersOut) {
  const HolderIndex a = Add(), b = Add();
  Store(a, Count(1, 10));
  Store(b, Count(1, 5));
  index_->SetMasked(a, true);
  const std::vector<SequenceHash> chain = Chain(Count(1, 10));
  const std::vector<LocalHash> locals = Locals(Count(1, 10));
  const OverlapQuery query = {.blocks = chain, .local_hashes = locals};
  EXPECT_EQ(Find(Count(1, 10)), (Scores{{1, 5}}));
  std::vector<TierOverlap> tiers;
  index_->FindTierOverlaps(query, &tiers);
  EXPECT_THAT(tiers, ElementsAre(TierOverlap{b, 5, {5, 0, 0, 0}}));
  OverlapSteps steps;
  index_->FindSteps(query, &steps);
  for (size_t step = 0; step < steps.depths.size(); ++step) {
    EXPECT_EQ(steps.holders(step)[0], steps.depths[step] == 5 ? 2u : 0u);
  }
  index_->SetMasked(a, false);
  EXPECT_EQ(Find(Count(1, 10)), (Scores{{0, 10}, {1, 5}}));
}

TEST_P(WholeKindTest, QuestionsChangeNoCount) {
  Store(Add(), Count(1, 100));
  const IndexStats before = index_->Stats();
  for (int i = 0; i < 1000; ++i) {
    Find(Count(1, 120));
    Find(Count(500 + i, 3));
  }
  const IndexStats after = index_->Stats();
  EXPECT_EQ(after.blocks, before.blocks);
  EXPECT_EQ(after.holdings, before.holdings);
  EXPECT_EQ(after.bytes, before.bytes);
}

// ---- Holders ----

TEST_P(WholeKindTest, NumbersAreTheSmallestFreeAndBounded) {
  for (uint32_t i = 0; i < 200; ++i) EXPECT_EQ(Add(), HolderIndex{i});
  index_->RemoveHolder(HolderIndex{70});
  index_->RemoveHolder(HolderIndex{3});
  EXPECT_EQ(index_->Stats().holders, 198u);
  EXPECT_EQ(Add(), HolderIndex{3});
  EXPECT_EQ(Add(), HolderIndex{70});
  EXPECT_EQ(Add(), HolderIndex{200});
  Limit({.holders_max = 3});
  for (int i = 0; i < 3; ++i) Add();
  EXPECT_EQ(index_->AddHolder().status().code(), absl::StatusCode::kResourceExhausted);
  index_->RemoveHolder(HolderIndex{1});
  EXPECT_EQ(Add(), HolderIndex{1});
}

TEST(HostBitmapTest, HasNoRoomForAHolderMoreThan256) {
  for (std::string_view name : {"host_bitmap", "host_bitmap_exact"}) {
    EXPECT_EQ(FindIndexKind(name)->holders_max, 256u);
    Tested index(name);
    for (uint32_t i = 0; i < 256; ++i) {
      EXPECT_EQ(index.Add(), HolderIndex{i});
      index.Store(HolderIndex{i}, {1, 2});
    }
    EXPECT_EQ(index->AddHolder().status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(index.Find({1, 2}).size(), 256u);
    index->RemoveHolder(HolderIndex{77});
    EXPECT_EQ(index.Add(), HolderIndex{77});
    EXPECT_EQ(index.Find({1, 2}).size(), 255u);
  }
}

TEST_P(AnyKindTest, AnUnknownHolderIsNotFound) {
  const HolderIndex gone = Add();
  index_->RemoveHolder(gone);
  for (HolderIndex unknown : {gone, HolderIndex{12345}, HolderIndex{~0u}}) {
    EXPECT_EQ(Apply(unknown, StoredOf({1, 2})).code(), absl::StatusCode::kNotFound);
    index_->RemoveHolder(unknown);
    index_->SetMasked(unknown, true);
    EXPECT_THAT(index_->HoldingsOf(unknown), IsEmpty());
    EXPECT_EQ(index_->DigestOf(unknown), Digest());
    EXPECT_FALSE(Sweep(unknown, 64));
  }
  EXPECT_EQ(index_->Stats().blocks, 0u);
}

TEST_P(WholeKindTest, ABlockOfAMaskedHolderMayBeHeldAndOneThatIsGoneNeedNot) {
  const HolderIndex a = Add(), b = Add();
  const Contents prompt = {1, 2, 3};
  const std::vector<SequenceHash> chain = Chain(prompt);
  Store(a, prompt);
  Store(b, prompt, 0, 2);
  index_->SetMasked(a, true);
  for (SequenceHash block : chain) EXPECT_TRUE(index_->MayHold(block));
  Remove(a, prompt, {1, 2});
  EXPECT_TRUE(index_->MayHold(chain[0]));
  EXPECT_TRUE(index_->MayHold(chain[1]));
  if (GetParam().name != "atlas") return;  // others cannot tell
  EXPECT_FALSE(index_->MayHold(chain[2]));
  index_->RemoveHolder(a);
  index_->RemoveHolder(b);
  for (SequenceHash block : chain) EXPECT_FALSE(index_->MayHold(block));
  EXPECT_FALSE(index_->MayHold(Chain({4})[0]));
}

TEST_P(WholeKindTest, ASweepTakesAMaskedHolderInStepsAndTellsOfEach) {
  const HolderIndex holder = Add(), other = Add();
  const Contents prompt = Count(1, 500);
  Store(holder, prompt);
  Store(holder, prompt, 0, 200, Tier::kHost);
  for (size_t at = 1; at < 500; at += 2) Remove(holder, prompt, {at});
  Store(other, prompt);
  const uint64_t held = Holdings(holder);
  index_->SetMasked(holder, true);
  sink_.changes.clear();
  size_t heard = 0;
  while (Sweep(holder, 64)) {
    ASSERT_GT(sink_.changes.size(), heard);
    heard = sink_.changes.size();
    ASSERT_EQ(Holdings(holder), held - heard);
  }
  EXPECT_EQ(sink_.changes.size(), held);
  for (const Change& change : sink_.changes) {
    EXPECT_EQ(std::get<0>(change), Raw(holder));
    EXPECT_EQ(std::get<4>(change), 0);
  }
  EXPECT_EQ(Holdings(holder), 0u);
  EXPECT_FALSE(Sweep(holder, 64));
  index_->SetMasked(holder, false);
  EXPECT_EQ(Find(prompt), (Scores{{1, 500}}));
}

TEST_P(AnyKindTest, ASweepIsBounded) {
  const HolderIndex dead = Add(), other = Add();
  const Contents prompt = Count(1, 1000);
  Store(dead, prompt);
  Store(other, prompt, 0, 300);
  index_->SetMasked(dead, true);
  EXPECT_EQ(Find(prompt), (Scores{{1, 300}}));
  size_t steps = 1, left = 1000;
  for (; index_->Sweep(dead, 64, nullptr); ++steps) {
    ASSERT_LT(Holdings(dead), left);
    left = Holdings(dead);
  }
  // These take a whole run, or all.
  if (GetParam().name != "atlas" && GetParam().name != "reference") {
    EXPECT_EQ(steps, 16u);
    Store(dead, prompt, 0, 10);
    EXPECT_TRUE(index_->Sweep(dead, 0, nullptr));  // one at least
    EXPECT_EQ(Holdings(dead), 9u);
    EXPECT_FALSE(index_->Sweep(dead, 64, nullptr));
  }
  EXPECT_EQ(index_->Stats().blocks, 300u);
  EXPECT_FALSE(index_->Sweep(dead, 64, nullptr));
  index_->RemoveHolder(dead);
  EXPECT_EQ(Add(), dead);
  EXPECT_EQ(Find(prompt), (Scores{{1, 300}}));
}

// ---- Extreme hashes ----

TEST_P(WholeKindTest, HashZeroIsAHash) {
  const HolderIndex holder = Add();
  const std::vector<SequenceHash> odd = {SequenceHash{0}, SequenceHash{~0ull}};
  const auto depth = [&] {
    std::vector<Overlap> overlaps;
    index_->FindOverlaps({.blocks = odd}, &overlaps);
    return ToScores(overlaps);
  };
  Do(holder, Stored{.blocks = odd});
  EXPECT_EQ(depth(), (Scores{{0, 2}}));
  Do(holder, Removed{.blocks = {odd[0]}});
  EXPECT_EQ(depth(), Scores());
  EXPECT_EQ(Holdings(holder), 1u);
}

TEST_P(WholeKindTest, HashesThatDifferInFewBits) {
  std::set<SequenceHash> distinct;
  for (int shift = 0; shift < 64; shift += 7) {
    for (uint64_t i = 0; i < 500; ++i) distinct.insert(SequenceHash{i << shift});
  }
  const std::vector<SequenceHash> blocks(distinct.begin(), distinct.end());
  Do(Add(), Stored{.blocks = blocks});
  std::vector<Overlap> overlaps;
  index_->FindOverlaps({.blocks = blocks}, &overlaps);
  EXPECT_THAT(overlaps, ElementsAre(Overlap{HolderIndex{0}, static_cast<uint32_t>(blocks.size())}));
  EXPECT_EQ(index_->Stats().blocks, blocks.size());
}

// ---- Memory ----

// A twentieth may stay: tables that shrink in steps, pages that are not quite empty.
TEST_P(AnyKindTest, MemoryGoesBack) {
  Limit({.retained_bytes = 0});
  const uint64_t sequences = GetParam().name == "atlas" ? 200 : 20;
  const HolderIndex a = Add(), b = Add();
  const uint64_t empty = index_->Stats().bytes;
  for (uint64_t i = 0; i < sequences; ++i) {
    Store(a, Count(i << 20, 1000));
    Store(b, Count(i << 20, 500));
  }
  const uint64_t full = index_->Stats().bytes;
  EXPECT_EQ(index_->Stats().blocks, sequences * 1000);
  EXPECT_EQ(index_->Stats().holdings, sequences * 1500);
  EXPECT_GT(full, empty + sequences * 1000 * 8);
  Clear(a);
  index_->Maintain(1'000'000);
  EXPECT_LT(index_->Stats().bytes, empty + (full - empty) * 9 / 10);
  index_->RemoveHolder(b);
  index_->Maintain(1'000'000);
  EXPECT_LE(index_->Stats().bytes, empty + (full - empty) / 20);
  EXPECT_EQ(index_->Stats().blocks, 0u);
}

TEST_P(WholeKindTest, MemoryGoesBackBlockByBlock) {
  Limit({.retained_bytes = 0});
  const uint64_t sequences = GetParam().name == "atlas" ? 200 : 20;
  const HolderIndex holder = Add();
  const uint64_t empty = index_->Stats().bytes;
  for (uint64_t i = 0; i < sequences; ++i) Store(holder, Count(i << 20, 1000));
  const uint64_t full = index_->Stats().bytes;
  for (uint64_t i = 0; i < sequences * 19 / 20; ++i)
    Remove(holder, Count(i << 20, 1000), Positions(0, 1000));
  index_->Maintain(1'000'000);
  EXPECT_LT(index_->Stats().bytes - empty, (full - empty) / 4);
  for (uint64_t i = sequences * 19 / 20; i < sequences; ++i)
    Remove(holder, Count(i << 20, 1000), Positions(0, 1000));
  index_->Maintain(1'000'000);
  EXPECT_LE(index_->Stats().bytes, empty + (full - empty) / 20);
}

// Trees must not be taken apart by recursion.
TEST_P(AnyKindTest, ASequenceOf100000BlocksIsStoredAskedAndTakenApart) {
  const bool is_tree = GetParam().name.find("radix") != std::string_view::npos;
  const uint32_t blocks = is_tree ? 100'000 : 10'000;
  const Contents prompt = Count(1, blocks);
  const HolderIndex holder = Add(), other = Add();
  Store(holder, prompt);
  Store(other, prompt);
  EXPECT_EQ(Find(prompt), (Scores{{0, blocks}, {1, blocks}}));
  // From the first block on: what is left hangs below nothing.
  Remove(other, prompt, Positions(0, blocks / 2));
  EXPECT_EQ(Depth(other, prompt), 0u);
  index_->RemoveHolder(holder);
  EXPECT_EQ(index_->Stats().blocks, blocks / 2);
  index_->RemoveHolder(other);
  EXPECT_EQ(index_->Stats().blocks, 0u);
  // And once more, to be taken apart by the destructor.
  Store(Add(), prompt);
}

// ---- Cuts and changes ----

TEST_P(WholeKindTest, HoldingsSayTheirPlaceWhichIsForgottenWithTheLastHolder) {
  const HolderIndex a = Add(), b = Add();
  const SequenceHash five{5}, six{6};
  Do(a, Stored{.position = 3, .parent = SequenceHash{4}, .blocks = {five, six}});
  Do(b, Stored{.tier = Tier::kHost, .position = 4, .parent = five, .blocks = {six}});
  EXPECT_THAT(
      index_->HoldingsOf(a),
      UnorderedElementsAre(
          Holding{.block = five, .position = 3, .parent = SequenceHash{4}, .tiers = Tier::kDevice},
          Holding{.block = six, .position = 4, .parent = five, .tiers = Tier::kDevice}));
  EXPECT_THAT(
      index_->HoldingsOf(b),
      ElementsAre(Holding{.block = six, .position = 4, .parent = five, .tiers = Tier::kHost}));
  Do(a, Removed{.blocks = {six}});
  Do(b, Removed{.tier = Tier::kHost, .blocks = {six}});
  // A hash that all holders lost may come back anywhere.
  Do(b, Stored{.tier = Tier::kHost, .position = 9, .parent = SequenceHash{8}, .blocks = {six}});
  EXPECT_THAT(index_->HoldingsOf(b),
              ElementsAre(Holding{
                  .block = six, .position = 9, .parent = SequenceHash{8}, .tiers = Tier::kHost}));
}

TEST_P(AnyKindTest, EveryRealChangeIsToldWithItsPlace) {
  const HolderIndex holder = Add();
  const SequenceHash a{11}, b{12}, c{13};
  const auto told = [&](const Event& event) {
    sink_.changes.clear();
    Do(holder, event);
    return sink_.changes;
  };
  EXPECT_THAT(told(Stored{.blocks = {a, b}}),
              ElementsAre(Change{0, 11, 0, 0, 1}, Change{0, 12, 1, 0, 1}));
  EXPECT_THAT(told(Stored{.tier = Tier::kHost, .position = 1, .parent = a, .blocks = {b, c}}),
              ElementsAre(Change{0, 12, 1, 1, 3}, Change{0, 13, 2, 0, 2}));
  EXPECT_THAT(told(Stored{.blocks = {a}}), IsEmpty());
  EXPECT_THAT(told(Removed{.blocks = {c, b}}), ElementsAre(Change{0, 12, 1, 3, 2}));
  EXPECT_THAT(told(Stored{.position = 1, .parent = a, .blocks = {b}}),
              ElementsAre(Change{0, 12, 1, 2, 3}));
  EXPECT_THAT(told(Cleared{.tiers = Tier::kHost}),
              UnorderedElementsAre(Change{0, 12, 1, 3, 1}, Change{0, 13, 2, 2, 0}));
  EXPECT_THAT(told(Cleared{}),
              UnorderedElementsAre(Change{0, 11, 0, 1, 0}, Change{0, 12, 1, 1, 0}));
}

TEST_P(WholeKindTest, ADumpRestoresToEqualAnswersAndAnEqualDump) {
  const HolderIndex a = Add(), b = Add();
  const Contents left = Count(1, 10), right = Head(left, 4) + Count(100, 5);
  Store(a, left);
  Store(a, right);
  Store(a, left, 0, 3, Tier::kHost);
  Store(b, left, 0, 7);
  Remove(b, left, {2, 5});
  Tested copy(GetParam().name, {}, 2);
  for (HolderIndex holder : {a, b}) {
    const auto sorted = [holder](Index* index) {
      std::vector<Holding> holdings = index->HoldingsOf(holder);
      std::sort(holdings.begin(), holdings.end(), [](const Holding& x, const Holding& y) {
        return std::tie(x.position, x.block) < std::tie(y.position, y.block);
      });
      return holdings;
    };
    const std::vector<Holding> holdings = sorted(index_.get());
    EXPECT_FALSE(holdings.empty());
    // Parents first, a block an event.
    for (const Holding& each : holdings) {
      for (int tier = 0; tier < kTiers; ++tier) {
        if (!each.tiers.Has(static_cast<Tier>(tier))) continue;
        copy.Do(holder, Stored{.tier = static_cast<Tier>(tier),
                               .position = each.position,
                               .parent = each.parent,
                               .blocks = {each.block}});
      }
    }
    EXPECT_EQ(copy->DigestOf(holder), index_->DigestOf(holder));
    EXPECT_EQ(sorted(copy.operator->()), holdings);
  }
  for (const Tested* each : {static_cast<const Tested*>(this), static_cast<const Tested*>(&copy)}) {
    EXPECT_EQ(each->Find(left), (Scores{{0, 10}, {1, 2}}));
    EXPECT_EQ(each->Find(right), (Scores{{0, 9}, {1, 2}}));
  }
}

TEST_P(WholeKindTest, LocalHashesAreKeptWhereTheDomainAsksForThem) {
  Limit({.keep_local_hashes = true});
  const HolderIndex a = Add(), b = Add();
  const Contents prompt = Count(40, 100), fork = Head(prompt, 30) + Count(9000, 3);
  Store(a, prompt);
  Store(b, prompt, 50, 60);
  Store(b, fork);
  Clear(a);
  std::map<SequenceHash, LocalHash> locals;
  for (const Holding& holding : index_->HoldingsOf(b)) locals[holding.block] = holding.local;
  for (size_t at : {0, 29, 50, 59})
    EXPECT_EQ(locals.at(Chain(prompt)[at]), LocalHash{40 + at}) << at;
  EXPECT_EQ(locals.at(Chain(fork)[32]), LocalHash{9002});
}

TEST_P(WholeKindTest, AClearAcrossSplitRunsTakesOnlyItsHolder) {
  const HolderIndex a = Add(), b = Add(), c = Add();
  const Contents trunk = Count(1, 60);
  for (HolderIndex holder : {a, b, c}) Store(holder, trunk);
  for (uint64_t fork = 5; fork < 60; fork += 5) {
    Store(b, Head(trunk, fork) + Count(fork * 1000, 3));
    Store(c, Head(trunk, fork) + Count(fork * 1000, 2));
  }
  const Digest of_c = index_->DigestOf(c);
  Clear(b);
  EXPECT_EQ(index_->DigestOf(b), Digest());
  EXPECT_EQ(index_->DigestOf(c), of_c);
  EXPECT_EQ(Find(trunk), (Scores{{0, 60}, {2, 60}}));
  EXPECT_EQ(Find(Head(trunk, 15) + Count(15'000, 3)), (Scores{{0, 15}, {2, 17}}));
  index_->RemoveHolder(a);
  EXPECT_EQ(index_->DigestOf(c), of_c);
}

// ---- Senders that break the rules ----

// A holder that says anything at all never crashes the index, and never changes what is said of
// another.
TEST_P(WholeKindTest, ASenderThatBreaksTheNamesHarmsOnlyItself) {
  const RandomTrie trie({.seed = 5, .blocks = 200});
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Limit({});
    Tested reference("reference", {}, 1);
    const HolderIndex honest = Add(), liar = Add();
    uint64_t random = seed;
    const auto draw = [&random](uint64_t below) { return (random = MixBits(random + 1)) % below; };
    const auto block = [&] { return static_cast<uint32_t>(draw(200)); };
    for (int i = 0; i < 300; ++i) {
      std::vector<SequenceHash> lies;
      for (uint64_t left = draw(12); left > 0; --left) lies.push_back(trie.hash(block()));
      const Position position = static_cast<Position>(draw(40));
      Apply(liar, Stored{.position = position, .parent = trie.hash(block()), .blocks = lies})
          .IgnoreError();
      if (draw(3) == 0) Apply(liar, Removed{.blocks = lies}).IgnoreError();
      if (draw(40) == 0) Apply(liar, Cleared{}).IgnoreError();

      const std::vector<SequenceHash> chain = trie.hashes(trie.PathTo(block()));
      const size_t from = draw(chain.size());
      Event event = Stored{.position = static_cast<Position>(from),
                           .parent = from == 0 ? kNoParent : chain[from - 1],
                           .blocks = {chain.begin() + from, chain.end()}};
      if (draw(3) == 0) event = Removed{.blocks = {chain.begin() + from, chain.end()}};
      for (Tested* each : {static_cast<Tested*>(this), &reference}) each->Do(honest, event);
      std::vector<Overlap> expected, actual;
      reference->FindOverlaps({.blocks = chain}, &expected);
      index_->FindOverlaps({.blocks = chain}, &actual);
      std::erase_if(actual, [&](const Overlap& overlap) { return overlap.holder == liar; });
      ASSERT_EQ(actual, expected) << "seed " << seed << ", event " << i;
      ASSERT_EQ(index_->DigestOf(honest), reference->DigestOf(honest));
    }
    EXPECT_TRUE(index_->Check().ok()) << index_->Check();
    index_->RemoveHolder(liar);
    EXPECT_EQ(index_->Stats().holdings, reference->Stats().holdings);
  }
}

// ---- Kinds ----

TEST(MakeIndexTest, AnUnknownNameIsInvalidAndNamesTheKnown) {
  const absl::Status status = MakeIndex("tree", {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const IndexKind& kind : IndexKinds())
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(std::string(kind.name)));
  EXPECT_EQ(FindIndexKind("tree"), nullptr);
}

TEST(MakeIndexTest, EveryKindHasItsNameAndALineAndTheDefaultIsWholeAndExact) {
  for (const IndexKind& kind : IndexKinds()) {
    EXPECT_FALSE(kind.about.empty()) << kind.name;
    EXPECT_EQ(FindIndexKind(kind.name), &kind);
  }
  EXPECT_TRUE(IndexKinds().front().whole);
  EXPECT_TRUE(IndexKinds().front().exact);
  EXPECT_EQ(WholeIndexNames().front(), IndexKinds().front().name);
}

}  // namespace
}  // namespace kvatlas
