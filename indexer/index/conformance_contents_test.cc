// What an index knows besides overlaps: holdings that can be dumped and restored, digests, counts, changes as
// they happen, holders that come and go, and bounds. Run over every structure that claims the whole interface.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "indexer/base/hash.h"
#include "indexer/index/conformance_test_util.h"
#include "indexer/index/random_trie.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ContentsTest : public ConformanceTest {
 protected:
  // Says all holdings of a holder to another index, as a dump does: parents first, a chain an event.
  static void Restore(const Index& from, HolderIndex holder, Index* to, HolderIndex as) {
    std::vector<Holding> holdings = from.HoldingsOf(holder);
    std::sort(holdings.begin(), holdings.end(),
              [](const Holding& a, const Holding& b) { return a.position < b.position; });
    for (const Holding& holding : holdings) {
      for (int tier = 0; tier < kTiers; ++tier) {
        if (!holding.tiers.Has(static_cast<Tier>(tier))) continue;
        const Stored stored = {.tier = static_cast<Tier>(tier),
                               .position = holding.position,
                               .parent = holding.parent,
                               .blocks = {holding.block}};
        ASSERT_TRUE(to->Apply(as, stored, nullptr).ok());
      }
    }
  }

  static Digest DigestOf(const std::map<uint64_t, Holding>& holdings) {
    Digest digest;
    for (const auto& [block, holding] : holdings) {
      for (int tier = 0; tier < kTiers; ++tier) {
        if (holding.tiers.Has(static_cast<Tier>(tier)))
          digest.Add(static_cast<Tier>(tier), holding.block);
      }
    }
    return digest;
  }
};

INSTANTIATE_TEST_SUITE_P(Structures, ContentsTest, ::testing::ValuesIn(WholeIndexKinds()),
                         KindName);

// ---- Dumps ----

TEST_P(ContentsTest, ADumpRestoresToEqualAnswersAndAnEqualDump) {
  const HolderIndex a = Add(), b = Add();
  Store(a, Count(1, 10));
  Store(a, Head(Count(1, 10), 4) + Count(100, 5));
  StoreAll(a, Count(1, 3), Tier::kHost);
  Store(b, Count(1, 7));
  RemoveAt(b, Count(1, 7), {2, 5});
  const std::unique_ptr<Index> copy = *MakeIndex(GetParam().name, {});
  for (HolderIndex holder : {a, b}) {
    ASSERT_EQ(*copy->AddHolder(), holder);
    EXPECT_NE(Holdings(holder), 0u);
    Restore(*index_, holder, copy.get(), holder);
    EXPECT_EQ(copy->DigestOf(holder), index_->DigestOf(holder));
  }
  for (HolderIndex holder : {a, b}) {
    const auto original = HoldingsByBlock(holder);
    std::swap(index_, const_cast<std::unique_ptr<Index>&>(copy));
    EXPECT_EQ(HoldingsByBlock(holder), original);
    EXPECT_EQ(Find(Count(1, 10)), (Scores{{0, 10}, {1, 2}}));
    EXPECT_EQ(Find(Head(Count(1, 10), 4) + Count(100, 5)), (Scores{{0, 9}, {1, 2}}));
    std::swap(index_, const_cast<std::unique_ptr<Index>&>(copy));
  }
}

TEST_P(ContentsTest, AStoreThatBeginsInTheMiddleKeepsItsPlace) {
  const HolderIndex holder = Add();
  const Contents prompt = Count(1, 12);
  const std::vector<SequenceHash> chain = Chain(prompt);
  Store(holder, prompt, 10);
  const auto holdings = HoldingsByBlock(holder);
  ASSERT_EQ(holdings.size(), 2u);
  EXPECT_EQ(holdings.at(Raw(chain[10])).position, 10u);
  EXPECT_EQ(holdings.at(Raw(chain[10])).parent, chain[9]);
  EXPECT_EQ(holdings.at(Raw(chain[11])).position, 11u);
  EXPECT_EQ(holdings.at(Raw(chain[11])).parent, chain[10]);
  EXPECT_EQ(Find(prompt), Scores());
}

TEST_P(ContentsTest, ABlocksPlaceIsForgottenWithItsLastHolder) {
  const HolderIndex a = Add(), b = Add();
  Store(a, Count(1, 5));
  Store(b, Count(1, 5), 3);
  Clear(a);
  EXPECT_EQ(index_->Stats().blocks, 2u);
  EXPECT_EQ(Holdings(b), 2u);
  Clear(b);
  EXPECT_EQ(index_->Stats().blocks, 0u);
  EXPECT_EQ(Holdings(b), 0u);
}

TEST_P(ContentsTest, LocalHashesAreKeptWhereTheDomainAsksForThem) {
  Limit({.keep_local_hashes = true});
  const HolderIndex a = Add(), b = Add();
  const Contents prompt = Count(40, 100);
  Store(a, prompt);
  const std::vector<SequenceHash> chain = Chain(prompt);
  if (HoldingsByBlock(a).at(Raw(chain[0])).local == LocalHash{0})
    GTEST_SKIP() << GetParam().name << " does not keep local hashes";
  Store(b, prompt, 50, 60);
  Store(b, Head(prompt, 30) + Count(9000, 3));
  Clear(a);
  const auto holdings = HoldingsByBlock(b);
  for (size_t at : {0, 29, 50, 59})
    EXPECT_EQ(holdings.at(Raw(chain[at])).local, LocalHash{40 + at}) << at;
  EXPECT_EQ(holdings.at(Raw(Chain(Head(prompt, 30) + Count(9000, 3))[32])).local, LocalHash{9002});
}

// ---- Counts and digests ----

TEST_P(ContentsTest, CountsFollowEveryEventDownToNothing) {
  const HolderIndex holder = Add();
  const Contents prompt = Count(1, 5);
  Store(holder, prompt);
  EXPECT_EQ(Holdings(holder), 5u);
  Store(holder, prompt);
  EXPECT_EQ(Holdings(holder), 5u);
  RemoveAt(holder, prompt, {2, 3, 4});
  EXPECT_EQ(Holdings(holder), 2u);
  Store(holder, prompt, 2, 3);
  EXPECT_EQ(Holdings(holder), 3u);
  StoreAfter(holder, {1, 2, 3}, {4, 5});
  EXPECT_EQ(Holdings(holder), 5u);
  EXPECT_EQ(Find(prompt), (Scores{{0, 5}}));
  Remove(holder, prompt);
  Remove(holder, prompt);
  EXPECT_EQ(Holdings(holder), 0u);
  EXPECT_EQ(index_->DigestOf(holder), Digest());
  EXPECT_EQ(index_->Stats().holdings, 0u);
  EXPECT_EQ(index_->Stats().blocks, 0u);
}

TEST_P(ContentsTest, LateRemovalsAfterASplitBringEveryCountToNothing) {
  const HolderIndex a = Add(), b = Add();
  const Contents left = Count(1, 8), right = Head(left, 4) + Count(100, 4);
  Store(a, left);
  Store(b, right);
  for (HolderIndex holder : {a, b}) Remove(holder, Head(left, 4));
  EXPECT_EQ(Find(left), Scores());
  EXPECT_EQ(Holdings(a), 4u);
  EXPECT_EQ(Holdings(b), 4u);
  Remove(a, left, 4);
  Remove(b, right, 4);
  EXPECT_EQ(index_->Stats().holdings, 0u);
  EXPECT_EQ(index_->Stats().blocks, 0u);
}

TEST_P(ContentsTest, AClearAcrossSplitRunsTakesOnlyItsHolder) {
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

TEST_P(ContentsTest, TheDigestIsThatOfTheHoldings) {
  const HolderIndex holder = Add();
  Store(holder, Count(1, 300));
  StoreAll(holder, Count(1, 100), Tier::kHost);
  Store(holder, Count(900, 20), 5, 12, Tier::kDisk);
  for (size_t at = 1; at < 300; at += 3) RemoveAt(holder, Count(1, 300), {at});
  EXPECT_EQ(index_->DigestOf(holder), DigestOf(HoldingsByBlock(holder)));
  Clear(holder, Tier::kDevice);
  EXPECT_EQ(index_->DigestOf(holder), DigestOf(HoldingsByBlock(holder)));
}

TEST_P(ContentsTest, QuestionsChangeNoCount) {
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

// ---- Changes ----

TEST_P(ContentsTest, FirstAndLastHoldersAreTheDifferenceOfTwoDumps) {
  const HolderIndex a = Add(), b = Add();
  Store(a, Count(1, 20));
  Store(b, Count(1, 10));
  std::set<std::pair<uint32_t, uint64_t>> before, after;
  const auto dump = [&](std::set<std::pair<uint32_t, uint64_t>>* into) {
    for (HolderIndex holder : {a, b}) {
      for (const auto& [block, holding] : HoldingsByBlock(holder))
        into->emplace(Raw(holder), block);
    }
  };
  dump(&before);
  sink_.changes.clear();
  Remove(a, Count(1, 20), 5, 15);
  Store(b, Count(1, 30));
  Clear(a);
  Store(a, Count(1, 30), 25);
  dump(&after);
  for (const auto& [holder, block, position, was, is] : sink_.changes) {
    if (is == 0) before.erase({holder, block});
    if (was == 0 && is != 0) before.emplace(holder, block);
  }
  EXPECT_EQ(before, after);
}

TEST_P(ContentsTest, AReplayIsHeardByNobody) {
  const HolderIndex holder = Add();
  Store(holder, Count(1, 50));
  Store(holder, Head(Count(1, 50), 20) + Count(100, 3));
  RemoveAt(holder, Count(1, 50), {7, 8});
  sink_.changes.clear();
  Store(holder, Count(1, 50), 9);
  Store(holder, Count(1, 50), 0, 7);
  RemoveAt(holder, Count(1, 50), {8, 7});
  Remove(holder, Count(1, 50), 0, 50, Tier::kHost);
  EXPECT_THAT(sink_.changes, IsEmpty());
}

// ---- Holders ----

TEST_P(ContentsTest, EventsAfterAClearSurviveIt) {
  const HolderIndex a = Add(), b = Add();
  for (int round = 0; round < 5; ++round) {
    Store(a, Count(1, 200));
    Store(b, Count(1, 150));
    Clear(a);
    Store(a, Count(1, 20), 0, 20);
    EXPECT_EQ(Find(Count(1, 200)), (Scores{{0, 20}, {1, 150}}));
  }
}

TEST_P(ContentsTest, ARemovedHoldersNumberInheritsNothing) {
  const HolderIndex stays = Add();
  Store(stays, Count(1, 100));
  for (int round = 0; round < 20; ++round) {
    const HolderIndex holder = Add();
    ASSERT_EQ(Raw(holder), 1u);
    EXPECT_EQ(Find(Count(1, 100)), (Scores{{0, 100}}));
    EXPECT_EQ(Holdings(holder), 0u);
    Store(holder, Count(1, 100), round, 60 + round);
    RemoveAt(holder, Count(1, 100), {static_cast<size_t>(round + 10)});
    StoreAll(holder, Count(50, 10), Tier::kHost);
    index_->SetMasked(holder, true);
    index_->RemoveHolder(holder);
    EXPECT_EQ(index_->Stats().holdings, 100u);
  }
}

TEST_P(ContentsTest, ASweepTakesAHolderInStepsAndTellsOfEach) {
  const HolderIndex holder = Add(), other = Add();
  Store(holder, Count(1, 500));
  StoreAll(holder, Count(1, 200), Tier::kHost);
  for (size_t at = 1; at < 500; at += 2) RemoveAt(holder, Count(1, 500), {at});
  Store(other, Count(1, 500));
  const uint64_t held = Holdings(holder);
  index_->SetMasked(holder, true);
  sink_.changes.clear();
  size_t heard = 0;
  while (index_->Sweep(holder, 64, &sink_)) {
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
  EXPECT_FALSE(index_->Sweep(holder, 64, &sink_));
  index_->SetMasked(holder, false);
  EXPECT_EQ(Find(Count(1, 500)), (Scores{{1, 500}}));
  EXPECT_FALSE(index_->Sweep(HolderIndex{77}, 64, &sink_));
}

TEST_P(ContentsTest, EveryQuestionLeavesMaskedHoldersOut) {
  const HolderIndex a = Add(), b = Add();
  Store(a, Count(1, 10));
  Store(b, Count(1, 5));
  index_->SetMasked(a, true);
  const std::vector<SequenceHash> chain = Chain(Count(1, 10));
  const std::vector<LocalHash> locals = Locals(Count(1, 10));
  const OverlapQuery query = {.blocks = chain, .local_hashes = locals};
  std::vector<Overlap> overlaps;
  index_->FindOverlaps(query, &overlaps);
  EXPECT_THAT(overlaps, ElementsAre(Overlap{b, 5}));
  std::vector<TierOverlap> tiers;
  index_->FindTierOverlaps(query, &tiers);
  EXPECT_THAT(tiers, ElementsAre(TierOverlap{b, 5, {5, 0, 0, 0}}));
  OverlapSteps steps;
  index_->FindSteps(query, &steps);
  for (size_t step = 0; step < steps.depths.size(); ++step) {
    EXPECT_EQ(steps.holders(step)[0] & 1, 0u);
    if (steps.depths[step] == 5) {
      EXPECT_EQ(steps.holders(step)[0], 2u);
    }
  }
  index_->SetMasked(a, false);
  EXPECT_EQ(Find(Count(1, 10)), (Scores{{0, 10}, {1, 5}}));
}

// ---- Questions of other forms ----

TEST_P(ContentsTest, OnlyTheHoldersNamedAnswer) {
  for (uint32_t i = 0; i < 130; ++i) Store(Add(), Head(Count(1, 10), 1 + i % 10));
  const std::vector<SequenceHash> chain = Chain(Count(1, 10));
  const std::vector<uint64_t> only = {1u << 3, 0};  // number 129 is beyond the words: not asked for
  std::vector<Overlap> overlaps;
  index_->FindOverlaps({.blocks = chain, .only = only}, &overlaps);
  EXPECT_THAT(overlaps, ElementsAre(Overlap{HolderIndex{3}, 4}));
  const std::vector<uint64_t> nobody = {0};
  overlaps.clear();
  index_->FindOverlaps({.blocks = chain, .only = nobody}, &overlaps);
  EXPECT_THAT(overlaps, IsEmpty());
  const std::vector<uint64_t> more = {0, 0, 2, ~0ull, ~0ull};
  index_->FindOverlaps({.blocks = chain, .only = more}, &overlaps);
  EXPECT_THAT(overlaps, ElementsAre(Overlap{HolderIndex{129}, 10}));
}

TEST_P(ContentsTest, StepsSayWhoDropsOutWhere) {
  for (uint32_t i = 0; i < 200; ++i) Store(Add(), Head(Count(1, 20), 5 * (1 + i % 3)));
  const std::vector<SequenceHash> chain = Chain(Count(1, 20));
  OverlapSteps steps;
  for (int again = 0; again < 2; ++again) {
    index_->FindSteps({.blocks = chain}, &steps);
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

// ---- Senders that break the rules ----

// A holder that says anything at all never crashes the index, and never changes what is said of another.
TEST_P(ContentsTest, ASenderThatBreaksTheNamesHarmsOnlyItself) {
  const RandomTrie trie({.seed = 5, .blocks = 200});
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Limit({});
    const std::unique_ptr<Index> reference = *MakeIndex("reference", {});
    const HolderIndex honest = Add(), liar = Add();
    ASSERT_EQ(*reference->AddHolder(), honest);
    uint64_t random = seed;
    const auto draw = [&random](uint64_t below) { return (random = MixBits(random + 1)) % below; };
    for (int i = 0; i < 300; ++i) {
      std::vector<SequenceHash> lies;
      for (uint64_t left = draw(12); left > 0; --left)
        lies.push_back(trie.hash(static_cast<uint32_t>(draw(200))));
      const Stored stored = {.tier = Tier::kDevice,
                             .position = static_cast<Position>(draw(40)),
                             .parent = trie.hash(static_cast<uint32_t>(draw(200))),
                             .blocks = lies};
      index_->Apply(liar, stored, nullptr).IgnoreError();
      if (draw(3) == 0) index_->Apply(liar, Removed{.blocks = lies}, nullptr).IgnoreError();
      if (draw(40) == 0) index_->Apply(liar, Cleared{}, nullptr).IgnoreError();

      const std::vector<uint32_t> path = trie.PathTo(static_cast<uint32_t>(draw(200)));
      const size_t from = draw(path.size());
      const std::vector<SequenceHash> chain = trie.hashes(path);
      Event event = Stored{.position = static_cast<Position>(from),
                           .parent = from == 0 ? kNoParent : chain[from - 1],
                           .blocks = {chain.begin() + from, chain.end()}};
      if (draw(3) == 0) event = Removed{.blocks = {chain.begin() + from, chain.end()}};
      ASSERT_TRUE(index_->Apply(honest, event, nullptr).ok());
      ASSERT_TRUE(reference->Apply(honest, event, nullptr).ok());
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

}  // namespace
}  // namespace kvatlas
