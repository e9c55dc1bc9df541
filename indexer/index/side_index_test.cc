#include "indexer/index/side_index.h"

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"

namespace kvatlas {
namespace {

SequenceHash Name(uint64_t value) { return SequenceHash{value * 0x9e3779b97f4a7c15}; }

std::vector<uint64_t> RowOf(const SideIndex& index, SequenceHash name, TierMask tiers,
                            size_t words) {
  std::vector<uint64_t> row(words, ~uint64_t{0});
  SideIndex::Reader(index).Rows({&name, 1}, tiers, row.size(), row.data());
  return row;
}

TEST(SideIndexTest, StoringTwiceAndRemovingTheUnknownChangeNothing) {
  SideIndex index;
  const std::vector<SequenceHash> names = {Name(1), Name(2)};
  int changes = 0;
  const auto count = [&](SequenceHash, TierMask, TierMask) { ++changes; };
  ASSERT_TRUE(index.Store(HolderIndex(3), Tier::kDevice, names, nullptr, count).ok());
  ASSERT_TRUE(index.Store(HolderIndex(3), Tier::kDevice, names, nullptr, count).ok());
  EXPECT_EQ(changes, 2);
  index.Remove(HolderIndex(4), Tier::kDevice, names, count);
  index.Remove(HolderIndex(3), Tier::kHost, names, count);
  EXPECT_EQ(changes, 2);
  EXPECT_TRUE(index.Get(HolderIndex(3), Name(1)).Has(Tier::kDevice));
  EXPECT_EQ(RowOf(index, Name(1), TierMask::All(), 1)[0], uint64_t{1} << 3);
  EXPECT_EQ(RowOf(index, Name(1), TierMask(Tier::kHost), 1)[0], 0u);
}

TEST(SideIndexTest, BytesReturnWhenEverythingIsRemoved) {
  SideIndex index;
  std::vector<SequenceHash> names;
  for (uint64_t i = 1; i <= 100000; ++i) names.push_back(Name(i));
  ASSERT_TRUE(index.Store(HolderIndex(0), Tier::kDevice, names, nullptr, nullptr).ok());
  const double a_name = static_cast<double>(index.GetStats().bytes) / names.size();
  EXPECT_LT(a_name, 13.6) << "bytes for a name of one holder";
  index.Clear(HolderIndex(0), TierMask::All(), nullptr);
  EXPECT_EQ(index.GetStats().names, 0u);
  EXPECT_EQ(index.GetStats().bytes, 0u);
}

// Beside the 20 of `AliasTable`: an announced side block takes 32.
TEST(SideIndexTest, ANameOfOneHolderTakesAbout12BytesAtAnySizeAndAfterEvictions) {
  SideIndex index;
  std::vector<SequenceHash> names;
  double sum = 0;
  int samples = 0;
  const auto sample = [&] {
    const double bytes =
        static_cast<double>(index.GetStats().bytes) / static_cast<double>(index.GetStats().names);
    EXPECT_LT(bytes, 13.2) << index.GetStats().names << " names";
    sum += bytes;
    ++samples;
  };
  for (uint64_t size = 30000; size < 300000; size += size / 10) {
    while (names.size() < size) {
      names.push_back(Name(names.size() + 1));
      ASSERT_TRUE(
          index.Store(HolderIndex(0), Tier::kDevice, std::span(names).last(1), nullptr, nullptr)
              .ok());
    }
    sample();
  }
  EXPECT_LT(sum / samples, 12.5) << "as it grows";
  sum = samples = 0;
  // The oldest go, as many new ones come.
  for (uint64_t gone = 0; gone < 300000; ++gone) {
    index.Remove(HolderIndex(0), Tier::kDevice, {&names[gone], 1}, nullptr);
    names.push_back(Name(names.size() + 1));
    ASSERT_TRUE(
        index.Store(HolderIndex(0), Tier::kDevice, std::span(names).last(1), nullptr, nullptr)
            .ok());
    if (gone % 10000 == 0) sample();
  }
  EXPECT_LT(sum / samples, 12.5) << "with evictions";
  ASSERT_TRUE(index.Check().ok());
}

TEST(SideIndexTest, BeyondItsBytesNewNamesAreRefusedAndKnownOnesAreNot) {
  SideIndex index(64 << 10);
  std::vector<SequenceHash> names;
  for (uint64_t i = 1; i <= 20000; ++i) names.push_back(Name(i));
  EXPECT_EQ(index.Store(HolderIndex(0), Tier::kDevice, names, nullptr, nullptr).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(
      index.Store(HolderIndex(0), Tier::kDevice, std::span(names).first(1), nullptr, nullptr).ok());
  EXPECT_GT(index.GetStats().refused, 0u);
  EXPECT_LT(index.GetStats().bytes, 96u << 10);
}

TEST(SideIndexTest, AVersionIsOddWhileItsHolderIsWritten) {
  SideIndex index;
  EXPECT_EQ(index.VersionOf(HolderIndex(5000)), 0u);
  index.BeginWrite(HolderIndex(5000));
  EXPECT_EQ(index.VersionOf(HolderIndex(5000)) % 2, 1u);
  index.EndWrite(HolderIndex(5000));
  EXPECT_EQ(index.VersionOf(HolderIndex(5000)), 2u);
  EXPECT_EQ(index.VersionOf(HolderIndex(1)), 0u);
}

TEST(SideIndexTest, AClassThatWasNotKnownIsLearned) {
  const CacheClass window{.kind = CacheKind::kWindow, .block_size = 16, .window_tokens = 127};
  const CacheClass state{.kind = CacheKind::kState, .block_size = 16};
  SideIndex index;
  const SequenceHash name = Name(1);
  const auto tag_of = [&](uint32_t holder) {
    uint64_t found = 1;
    index.ForEachOf(HolderIndex(holder),
                    [&](SequenceHash, TierMask, uint64_t tag) { found = tag; });
    return found;
  };
  ASSERT_TRUE(index.Store(HolderIndex(0), Tier::kDevice, {&name, 1}, nullptr, nullptr).ok());
  EXPECT_EQ(tag_of(0), 0u);
  ASSERT_TRUE(index.Store(HolderIndex(0), Tier::kDevice, {&name, 1}, &window, nullptr).ok());
  EXPECT_EQ(tag_of(0), SideTag(window));
  // Through the pool and back; a name keeps its class.
  ASSERT_TRUE(index.Store(HolderIndex(1), Tier::kDevice, {&name, 1}, &state, nullptr).ok());
  EXPECT_EQ(tag_of(0), SideTag(window));
  EXPECT_EQ(tag_of(1), SideTag(window));
  index.Remove(HolderIndex(0), Tier::kDevice, {&name, 1}, nullptr);
  EXPECT_EQ(tag_of(1), SideTag(window));
  EXPECT_TRUE(index.Check().ok()) << index.Check();
}

// The slow twin: a map from (name, holder) to tiers.
TEST(SideIndexTest, RandomOperationsEqualAMap) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    SideIndex index;
    std::map<std::pair<uint64_t, uint32_t>, TierMask> twin;
    // More classes than are told apart, each name always of the same.
    std::vector<CacheClass> classes(SideIndex::kClassesMax + 2);
    for (uint32_t i = 0; i < classes.size(); ++i)
      classes[i] = {.kind = CacheKind::kWindow, .block_size = 16, .window_tokens = i + 1};
    std::map<uint64_t, uint64_t> numbered;  // tags, in the order in which they came
    const uint32_t holders = seed % 3 == 0 ? 3 : 150;
    const uint64_t names = seed % 2 == 0 ? 40 : 3000;
    // Few upper bits, so that segments fill and wrap.
    const auto name_of = [&](uint64_t i) {
      return SequenceHash{seed % 4 == 0 ? i << 58 | i : Raw(Name(i))};
    };
    for (int step = 0; step < 4000; ++step) {
      const HolderIndex holder{static_cast<uint32_t>(random() % holders)};
      const Tier tier = static_cast<Tier>(random() % (seed % 5 == 0 ? kTiers : 1));
      std::vector<SequenceHash> some;
      const size_t of = random() % (seed % 7 == 0 ? classes.size() : 3);
      for (uint64_t i = random() % 12; i-- > 0;)
        some.push_back(name_of(1 + random() % names / classes.size() * classes.size() + of));
      const bool stores = random() % 5 < (step < 2000 ? 3 : 2);
      std::set<uint64_t> changed, expected;
      const auto note = [&](SequenceHash name, TierMask before, TierMask after) {
        EXPECT_NE(before, after);
        changed.insert(Raw(name));
      };
      if (random() % 300 == 0) {
        index.Clear(holder, TierMask(tier), nullptr);
        for (auto it = twin.begin(); it != twin.end();) {
          if (it->first.second == Raw(holder))
            it->second = TierMask(it->second.bits() & ~TierMask(tier).bits());
          it = it->second.empty() ? twin.erase(it) : std::next(it);
        }
        continue;
      }
      if (stores) {
        if (!some.empty()) numbered.try_emplace(SideTag(classes[of]), numbered.size());
        ASSERT_TRUE(index.Store(holder, tier, some, &classes[of], note).ok());
      } else {
        index.Remove(holder, tier, some, note);
      }
      for (SequenceHash name : some) {
        const auto key = std::make_pair(Raw(name), Raw(holder));
        const bool has = twin.contains(key) && twin[key].Has(tier);
        if (has == stores) continue;
        expected.insert(Raw(name));
        const uint8_t bits = twin.contains(key) ? twin[key].bits() : 0;
        const TierMask after(stores ? bits | TierMask(tier).bits() : bits & ~TierMask(tier).bits());
        if (after.empty()) {
          twin.erase(key);
        } else {
          twin[key] = after;
        }
      }
      ASSERT_EQ(changed, expected) << "seed " << seed << " step " << step;
      if (step % 500 != 0) continue;
      ASSERT_TRUE(index.Check().ok()) << index.Check() << " seed " << seed << " step " << step;
      ASSERT_EQ(index.GetStats().holdings, twin.size());
      for (uint64_t i = 1; i <= names + classes.size(); i += 1 + names / 50) {
        const std::vector<uint64_t> row = RowOf(index, name_of(i), TierMask(tier), 3);
        for (uint32_t h = 0; h < holders; ++h) {
          const auto it = twin.find({Raw(name_of(i)), h});
          const TierMask tiers = it == twin.end() ? TierMask() : it->second;
          ASSERT_EQ(row[h / 64] >> (h % 64) & 1, tiers.Has(tier)) << "seed " << seed;
          ASSERT_EQ(index.Get(HolderIndex(h), name_of(i)), tiers);
        }
      }
      std::map<std::pair<uint64_t, uint32_t>, TierMask> visited;
      std::map<uint64_t, uint64_t> tags;
      index.ForEachOf(holder, [&](SequenceHash name, TierMask tiers, uint64_t tag) {
        visited[{Raw(name), Raw(holder)}] = tiers;
        tags[Raw(name)] = tag;
      });
      for (uint64_t i = 1; i <= names + classes.size(); ++i) {
        const auto tag = tags.find(Raw(name_of(i)));
        if (tag == tags.end()) continue;
        const uint64_t expected_tag = SideTag(classes[(i - 1) % classes.size()]);
        const bool told_apart = numbered.at(expected_tag) < SideIndex::kClassesMax;
        ASSERT_EQ(tag->second, told_apart ? expected_tag : 0) << "seed " << seed;
      }
      for (const auto& [key, tiers] : twin)
        if (key.second == Raw(holder)) {
          ASSERT_EQ(visited[key], tiers);
        }
    }
  }
}

}  // namespace
}  // namespace kvatlas
