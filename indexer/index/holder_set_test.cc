#include "indexer/index/holder_set.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <utility>

namespace kvatlas {
namespace {

// The words that `ForEachWord` and `WordReader` should give, from the slow twin.
std::map<uint32_t, uint64_t> Words(const std::map<uint32_t, TierMask>& twin, TierMask tiers) {
  std::map<uint32_t, uint64_t> words;
  for (const auto& [holder, mask] : twin) {
    if (mask.Intersects(tiers)) words[holder / 64] |= uint64_t{1} << holder % 64;
  }
  return words;
}

void ExpectSame(const HolderSet& set, const std::map<uint32_t, TierMask>& twin, TierMask tiers) {
  ASSERT_TRUE(set.Check().ok()) << set.Check();
  ASSERT_EQ(set.size(), twin.size());
  const std::map<uint32_t, uint64_t> expected = Words(twin, tiers);
  std::map<uint32_t, uint64_t> visited;
  set.ForEachWord(tiers, [&](uint32_t word, uint64_t bits) { visited[word] = bits; });
  EXPECT_EQ(visited, expected);
  HolderSet::WordReader reader(set, tiers);
  for (uint32_t word = 0; word < 200; word += 3) {
    const auto at = expected.find(word);
    EXPECT_EQ(reader.Bits(word), at == expected.end() ? 0 : at->second) << word;
  }
}

// Grows to `most` holders with numbers below `bound`, then shrinks to none, in random order.
void Compare(uint32_t bound, size_t most, uint32_t seed) {
  std::mt19937 random(seed);
  HolderSet set;
  std::map<uint32_t, TierMask> twin;
  for (bool growing : {true, false, true, false}) {
    while (growing ? twin.size() < most : !twin.empty()) {
      const uint32_t holder = random() % bound;
      const bool add = random() % 8 < (growing ? 6 : 2);
      if (!add && !growing && twin.count(holder) == 0 && random() % 4 != 0) {
        set.Set(HolderIndex{twin.begin()->first}, TierMask());
        twin.erase(twin.begin());
        continue;
      }
      const TierMask mask(static_cast<uint8_t>(add ? 1 + random() % 15 : 0));
      set.Set(HolderIndex{holder}, mask);
      twin[holder] = mask;
      if (mask.empty()) twin.erase(holder);
      ASSERT_EQ(set.Get(HolderIndex{holder}), mask);
      if (random() % 16 == 0) ExpectSame(set, twin, TierMask(static_cast<uint8_t>(random())));
    }
    ExpectSame(set, twin, TierMask::All());
    HolderSet moved = std::move(set);
    EXPECT_TRUE(set.empty());  // NOLINT: a moved-from set is empty.
    set = std::move(moved);
    ExpectSame(set, twin, TierMask(Tier::kHost));
  }
  EXPECT_EQ(set.HeapBytes(), 0u);
}

TEST(HolderSetTest, SameAsAMapWithFewHolders) { Compare(6, 5, 1); }
TEST(HolderSetTest, SameAsAMapWithHundredHolders) { Compare(130, 100, 2); }
TEST(HolderSetTest, SameAsAMapWithSparseNumbers) { Compare(12'000, 60, 3); }
TEST(HolderSetTest, SameAsAMapWithManyHolders) { Compare(10'000, 4'000, 4); }

TEST(HolderSetTest, ManyHoldersAreBits) {
  HolderSet set;
  for (uint32_t i = 0; i < 10'000; ++i) set.Set(HolderIndex{i}, Tier::kDevice);
  EXPECT_LT(set.HeapBytes(), 3'000u);
}

TEST(HolderSetTest, OneFarHolderDoesNotCostItsNumber) {
  HolderSet set;
  for (uint32_t i = 0; i < 100; ++i) set.Set(HolderIndex{i}, Tier::kDevice);
  set.Set(HolderIndex{HolderSet::kHoldersMax - 1}, Tier::kHost);
  EXPECT_LT(set.HeapBytes(), 1'000u);
  EXPECT_EQ(set.Get(HolderIndex{HolderSet::kHoldersMax - 1}), TierMask(Tier::kHost));
}

}  // namespace
}  // namespace kvatlas
