// Tiers: a block may be in several of a holder's at once, they evict by themselves, and an overlap is of one
// tier, of a mask, or of each. Run over every structure that claims the whole interface.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "indexer/index/conformance_test_util.h"

namespace kvatlas {
namespace {

constexpr TierMask kRouted = TierMask::Routed();

class TiersTest : public ConformanceTest {
 protected:
  // By holder number.
  std::map<uint32_t, TierOverlap> FindTiers(const Contents& contents,
                                            TierMask tiers = TierMask::All()) const {
    const std::vector<SequenceHash> chain = Chain(contents);
    std::vector<TierOverlap> overlaps;
    index_->FindTierOverlaps({.blocks = chain, .tiers = tiers}, &overlaps);
    std::map<uint32_t, TierOverlap> by_holder;
    for (const TierOverlap& overlap : overlaps) {
      EXPECT_TRUE(by_holder.emplace(Raw(overlap.holder), overlap).second) << "twice";
    }
    return by_holder;
  }
};

INSTANTIATE_TEST_SUITE_P(Structures, TiersTest, ::testing::ValuesIn(WholeIndexKinds()), KindName);

TEST_P(TiersTest, InterleavedTiersMakeOneOverlap) {
  const HolderIndex holder = Add();
  const Contents prompt = {1, 2, 3, 4};
  Store(holder, prompt, 0, 2, Tier::kDevice);
  Store(holder, prompt, 2, 3, Tier::kHost);
  Store(holder, prompt, 3, 4, Tier::kDevice);
  EXPECT_EQ(Find(prompt), (Scores{{0, 4}}));
  EXPECT_EQ(Find(prompt, Tier::kDevice), (Scores{{0, 2}}));
  EXPECT_EQ(FindTiers(prompt).at(0), (TierOverlap{holder, 4, {2, 0, 0, 0}}));
}

TEST_P(TiersTest, AnyOrderOfTiersAlongASequence) {
  const HolderIndex holder = Add();
  const Contents prompt = {1, 2, 3, 4};
  Store(holder, prompt, 0, 1, Tier::kHost);
  Store(holder, prompt, 1, 2, Tier::kDevice);
  Store(holder, prompt, 2, 3, Tier::kHost);
  Store(holder, prompt, 3, 4, Tier::kExternal);
  EXPECT_EQ(Find(prompt), (Scores{{0, 4}}));
  EXPECT_EQ(Find(prompt, kRouted), (Scores{{0, 3}}));
  EXPECT_EQ(Find(prompt, Tier::kHost), (Scores{{0, 1}}));
  EXPECT_EQ(Find(prompt, TierMask(Tier::kDevice) | Tier::kExternal), Scores());
  EXPECT_EQ(FindTiers(prompt).at(0), (TierOverlap{holder, 4, {0, 1, 0, 0}}));
}

TEST_P(TiersTest, AHostTailGoesOnBehindADeviceHeadThatTheHostLacks) {
  const HolderIndex holder = Add();
  const Contents prompt = Count(1, 6);
  Store(holder, prompt, 3, 6, Tier::kHost);
  Store(holder, prompt, 0, 3, Tier::kDevice);
  EXPECT_EQ(Find(prompt), (Scores{{0, 6}}));
  EXPECT_EQ(Find(prompt, Tier::kHost), Scores());
  // The parent leaves the device; what is behind it stays in the host.
  Store(holder, prompt, 2, 3, Tier::kHost);
  Remove(holder, prompt, 2, 3, Tier::kDevice);
  EXPECT_EQ(Find(prompt), (Scores{{0, 6}}));
  EXPECT_EQ(Find(prompt, Tier::kDevice), (Scores{{0, 2}}));
  Remove(holder, prompt, 0, 2, Tier::kDevice);
  EXPECT_EQ(Find(prompt), Scores());
  EXPECT_EQ(Holdings(holder), 4u);
}

TEST_P(TiersTest, AHolderWithNothingOnTheDeviceAnswersFromItsOtherTiers) {
  const HolderIndex device = Add(), host = Add();
  const Contents prompt = Count(1, 4);
  StoreAll(device, prompt, Tier::kDevice);
  StoreAll(host, Head(prompt, 3), Tier::kHost);
  const auto found = FindTiers(prompt);
  EXPECT_EQ(found.at(0), (TierOverlap{device, 4, {4, 0, 0, 0}}));
  EXPECT_EQ(found.at(1), (TierOverlap{host, 3, {0, 3, 0, 0}}));
  EXPECT_EQ(Find(prompt, Tier::kDevice), (Scores{{0, 4}}));
}

TEST_P(TiersTest, ATierByItselfIsAnsweredForThoseWhoAnswerTheMask) {
  const HolderIndex a = Add(), b = Add();
  const Contents prompt = Count(1, 5);
  StoreAll(a, prompt, Tier::kDisk);
  StoreAll(a, Head(prompt, 2), Tier::kDevice);
  StoreAll(b, prompt, Tier::kDisk);
  const auto found = FindTiers(prompt, Tier::kDevice);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found.at(0), (TierOverlap{a, 2, {2, 0, 5, 0}}));
}

TEST_P(TiersTest, ACopyInAnotherTierOutlivesTheFirst) {
  const HolderIndex holder = Add();
  const Contents prompt = Count(1, 3);
  StoreAll(holder, prompt, Tier::kDevice);
  StoreAll(holder, prompt, Tier::kHost);
  StoreAll(holder, prompt, Tier::kHost);
  Remove(holder, prompt, 0, 3, Tier::kDevice);
  EXPECT_EQ(Find(prompt), (Scores{{0, 3}}));
  EXPECT_EQ(Find(prompt, Tier::kDevice), Scores());
  Remove(holder, prompt, 1, 2, Tier::kHost);
  EXPECT_EQ(Find(prompt), (Scores{{0, 1}}));
}

TEST_P(TiersTest, ARemovalFromATierThatLacksTheBlockTakesNothing) {
  const HolderIndex holder = Add();
  const Contents prompt = Count(1, 3);
  StoreAll(holder, prompt, Tier::kHost);
  for (Tier tier : {Tier::kDevice, Tier::kDisk, Tier::kExternal})
    Remove(holder, prompt, 0, 3, tier);
  EXPECT_EQ(Find(prompt), (Scores{{0, 3}}));
  EXPECT_EQ(sink_.changes.size(), 3u);
}

TEST_P(TiersTest, AClearOfSomeTiersLeavesTheOthers) {
  const HolderIndex a = Add(), b = Add();
  const Contents prompt = Count(1, 100);
  for (Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk, Tier::kExternal}) {
    Store(a, prompt, 0, 100 - 10 * static_cast<size_t>(tier), tier);
    StoreAll(b, prompt, tier);
  }
  Clear(a, TierMask(Tier::kDevice) | Tier::kDisk);
  EXPECT_EQ(FindTiers(prompt).at(0), (TierOverlap{a, 90, {0, 90, 0, 70}}));
  Clear(a, Tier::kHost);
  EXPECT_EQ(FindTiers(prompt).at(0), (TierOverlap{a, 70, {0, 0, 0, 70}}));
  EXPECT_EQ(FindTiers(prompt).at(1), (TierOverlap{b, 100, {100, 100, 100, 100}}));
  Clear(a);
  EXPECT_EQ(FindTiers(prompt).count(0), 0u);
}

TEST_P(TiersTest, AClearReachesEveryTierOfEverySequence) {
  const HolderIndex holder = Add();
  for (uint64_t sequence = 0; sequence < 20; ++sequence) {
    const Contents prompt = Count(sequence * 1000, 30);
    for (int tier = 0; tier < kTiers; ++tier)
      Store(holder, prompt, sequence, 30, static_cast<Tier>(tier));
  }
  Clear(holder);
  EXPECT_EQ(index_->DigestOf(holder), Digest());
  EXPECT_EQ(index_->Stats().blocks, 0u);
}

TEST_P(TiersTest, HolesInOneTierAreFilledByAnother) {
  const HolderIndex holder = Add(), other = Add();
  const Contents prompt = Count(1, 200);
  StoreAll(holder, prompt, Tier::kDevice);
  StoreAll(other, prompt, Tier::kDevice);
  for (size_t at = 10; at < 200; at += 10) {
    Store(holder, prompt, at, at + 1, Tier::kHost);
    RemoveAt(holder, prompt, {at}, Tier::kDevice);
  }
  const auto found = FindTiers(prompt);
  EXPECT_EQ(found.at(0), (TierOverlap{holder, 200, {10, 0, 0, 0}}));
  EXPECT_EQ(found.at(1), (TierOverlap{other, 200, {200, 0, 0, 0}}));
  RemoveAt(holder, prompt, {50}, Tier::kHost);
  EXPECT_EQ(FindTiers(prompt).at(0), (TierOverlap{holder, 50, {10, 0, 0, 0}}));
}

TEST_P(TiersTest, MasksAreUnitedBlockByBlockForEveryMask) {
  // Block i is in the tiers whose bits are those of i % 16; so block 0 is missing, and 16, …
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

}  // namespace
}  // namespace kvatlas
