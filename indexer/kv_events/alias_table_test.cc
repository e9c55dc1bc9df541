// The table of names beside a map: random names, copies, losses and drops.

#include "indexer/kv_events/alias_table.h"

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "indexer/base/big_endian.h"

namespace kvatlas {
namespace {

EngineBlockHash NameOf(const std::string& bytes) {
  return {.value = FromBigEndian(bytes), .bytes = bytes};
}

struct Twin {
  BlockPlace place;
  TierCopies copies = {};
  TierCopies certain = {};
};

// A table of one width of names and its twin.
class AliasTableTwin {
 public:
  AliasTableTwin(size_t name_bytes, uint64_t seed) : table_(name_bytes, seed), random_(seed) {}

  // Names are drawn from `names` many.
  void Step(uint64_t names) {
    const std::string key = Draw(names);
    const EngineBlockHash name = Name(key);
    const uint64_t dice = random_() % 1000;
    if (dice < 550) {
      Store(key, name);
    } else if (dice < 996) {
      Remove(key, name);
    } else if (dice < 998) {
      table_.Lose();
      for (auto& [other, twin] : twins_) twin.certain = {};
      dropping_ = false;
    } else if (dice < 999) {
      if (dropping_) return;
      table_.Confirm();
      for (auto& [other, twin] : twins_) twin.certain = twin.copies;
    } else {
      Drop();
    }
  }

  void Compare() {
    ASSERT_EQ(table_.Check(), "");
    ASSERT_EQ(table_.size(), twins_.size());
    size_t seen = 0;
    table_.ForEach([&](const EngineBlockHash& name, size_t slot) {
      const std::string key =
          name.bytes.empty() ? std::to_string(name.value) : std::string(name.bytes);
      const auto found = twins_.find(key);
      ASSERT_NE(found, twins_.end());
      EXPECT_EQ(table_.place(slot), found->second.place);
      EXPECT_EQ(table_.copies(slot), found->second.copies);
      EXPECT_EQ(table_.certain(slot), found->second.certain);
      EXPECT_EQ(table_.Find(name), slot);
      EXPECT_EQ(name.value, Name(key).value);
      ++seen;
    });
    EXPECT_EQ(seen, twins_.size());
  }

  size_t size() const { return twins_.size(); }
  const AliasTable& table() const { return table_; }

 private:
  std::string Draw(uint64_t names) {
    const uint64_t number = random_() % names;
    if (table_.name_bytes() == 0) return std::to_string(number * 0x10000000001);
    std::string bytes(table_.name_bytes(), 'n');
    // Many share their last 8 bytes.
    for (size_t i = 0; i < std::min<size_t>(4, bytes.size()); ++i)
      bytes[i] = static_cast<char>(number >> (8 * i));
    return bytes;
  }
  EngineBlockHash Name(const std::string& key) const {
    if (table_.name_bytes() == 0) return {.value = std::stoull(key), .bytes = {}};
    return NameOf(key);
  }

  void Store(const std::string& key, const EngineBlockHash& name) {
    const BlockPlace place{SequenceHash{random_()},
                           random_() % 50 == 0 ? 70000 + static_cast<Position>(random_() % 9)
                                               : static_cast<Position>(random_() % 65535),
                           random_() % 50 == 0 ? 63 + static_cast<uint32_t>(random_() % 9)
                                               : static_cast<uint32_t>(random_() % 63)};
    const int tier = random_() % 4 == 0 ? 1 + static_cast<int>(random_() % 3) : 0;
    bool inserted;
    const size_t slot = table_.FindOrInsert(name, place, &inserted);
    ASSERT_EQ(inserted, !twins_.contains(key));
    Twin& twin = twins_[key];
    if (inserted) twin.place = place;
    using Copies = AliasTable::Copies;
    const Copies copies = random_() % 4 != 0   ? Copies::kOneMore
                          : random_() % 2 != 0 ? Copies::kSome
                                               : Copies::kOne;
    ASSERT_EQ(table_.Store(slot, static_cast<Tier>(tier), copies), twin.copies[tier] == 0);
    for (uint16_t* count : {&twin.copies[tier], &twin.certain[tier]}) {
      if (copies == Copies::kOneMore) ++*count;
      if (copies == Copies::kSome && *count == 0) *count = 1;
      if (copies == Copies::kOne) *count = 1;
    }
  }

  void Remove(const std::string& key, const EngineBlockHash& name) {
    const size_t slot = table_.Find(name);
    const auto found = twins_.find(key);
    ASSERT_EQ(slot == AliasTable::kNone, found == twins_.end());
    if (found == twins_.end()) return;
    Twin& twin = found->second;
    const int tier = static_cast<int>(random_() % kTiers);
    const AliasTable::Gone gone = table_.Remove(slot, static_cast<Tier>(tier));
    if (twin.copies[tier] == 0) {
      ASSERT_EQ(gone, AliasTable::Gone::kNotHeld);
      return;
    }
    --twin.copies[tier];
    if (twin.certain[tier] != 0) --twin.certain[tier];
    ASSERT_EQ(gone, twin.copies[tier] == 0 ? AliasTable::Gone::kLast : AliasTable::Gone::kCopy);
    ASSERT_EQ(table_.tiers(slot).empty(), twin.copies == TierCopies{});
    if (twin.copies != TierCopies{}) return;
    table_.Erase(slot);
    twins_.erase(found);
  }

  void Drop() {
    std::map<uint64_t, uint8_t> dropped;
    while (!table_.DropUnconfirmed(1000, [&](size_t slot, TierMask tiers, bool) {
      dropped[Raw(table_.block(slot))] = tiers.bits();
    })) {
    }
    std::map<uint64_t, uint8_t> expected;
    for (auto it = twins_.begin(); it != twins_.end();) {
      Twin& twin = it->second;
      uint8_t tiers = 0;
      for (int tier = 0; tier < kTiers; ++tier)
        if (twin.copies[tier] != 0 && twin.certain[tier] == 0) tiers |= 1u << tier;
      if (tiers != 0) expected[Raw(twin.place.block)] = tiers;
      twin.copies = twin.certain;
      it = twin.copies == TierCopies{} ? twins_.erase(it) : std::next(it);
    }
    EXPECT_EQ(dropped, expected);
  }

  AliasTable table_;
  std::mt19937_64 random_;
  std::map<std::string, Twin> twins_;
  bool dropping_ = false;
};

TEST(AliasTableTest, EqualsAMapUnderRandomCalls) {
  for (size_t name_bytes : {0, 5, 8, 16, 32}) {
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      SCOPED_TRACE("name_bytes " + std::to_string(name_bytes) + " seed " + std::to_string(seed));
      AliasTableTwin twin(name_bytes, seed);
      for (uint64_t names : {10, 300, 3000, 300, 3}) {
        for (int step = 0; step < 6000; ++step) {
          twin.Step(names);
          if (testing::Test::HasFatalFailure()) return;
        }
        twin.Compare();
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// Names in order, of few bits, multiples of powers of two: what engines under test use.
TEST(AliasTableTest, TakesNamesOfAnyPattern) {
  for (uint64_t step : {uint64_t{1}, uint64_t{1} << 20, uint64_t{1} << 44, uint64_t{0x100000001}}) {
    AliasTable table(0, 7);
    bool inserted;
    for (uint64_t i = 0; i < 100000; ++i)
      table.Store(
          table.FindOrInsert({.value = i * step, .bytes = {}}, {SequenceHash{i}, 0, 0}, &inserted),
          Tier::kDevice);
    ASSERT_EQ(table.Check(), "");
    for (uint64_t i = 0; i < 100000; ++i)
      ASSERT_EQ(table.block(table.Find({.value = i * step, .bytes = {}})), SequenceHash{i});
    for (uint64_t i = 0; i < 100000; ++i) table.Erase(table.Find({.value = i * step, .bytes = {}}));
    EXPECT_EQ(table.bytes(), 0);
  }
}

TEST(AliasTableTest, HasNoMoreThan20BytesANameAndGivesMemoryBack) {
  AliasTable table(0, 11);
  bool inserted;
  const auto name = [](uint64_t i) {
    return EngineBlockHash{.value = i * 0x9e3779b97f4a7c15, .bytes = {}};
  };
  double worst = 0;
  double sum = 0;
  int samples = 0;
  for (uint64_t i = 0; i < 1000000; ++i) {
    table.Store(table.FindOrInsert(name(i), {SequenceHash{i}, 5, 1}, &inserted), Tier::kDevice);
    if (i < 20000 || i % 1000 != 0) continue;
    const double bytes = static_cast<double>(table.bytes()) / static_cast<double>(table.size());
    worst = std::max(worst, bytes);
    sum += bytes;
    ++samples;
  }
  EXPECT_LT(worst, 20);
  EXPECT_LT(sum / samples, 19.6);
  // The oldest go, as many new ones come.
  for (uint64_t i = 0; i < 2000000; ++i) {
    table.Erase(table.Find(name(i)));
    table.Store(table.FindOrInsert(name(1000000 + i), {SequenceHash{i}, 5, 1}, &inserted),
                Tier::kDevice);
  }
  EXPECT_LT(static_cast<double>(table.bytes()) / static_cast<double>(table.size()), 20);
  for (uint64_t i = 0; i < 990000; ++i) table.Erase(table.Find(name(2000000 + i)));
  EXPECT_LT(table.bytes(), 10000 * 25);
  ASSERT_EQ(table.Check(), "");
}

TEST(AliasTableTest, NoStoreOrRemovalMovesMoreThanThreeBuckets) {
  AliasTable table(0, 12);
  bool inserted;
  uint64_t most = 0;
  for (uint64_t i = 0; i < 600000; ++i) {
    const uint64_t before = table.moved();
    const bool grows = i < 300000;
    const EngineBlockHash name{.value = grows ? i : i - 300000, .bytes = {}};
    if (grows) {
      table.Store(table.FindOrInsert(name, {SequenceHash{i}, 5, 1}, &inserted), Tier::kDevice);
    } else {
      const size_t slot = table.Find(name);
      table.Remove(slot, Tier::kDevice);
      table.Erase(slot);
    }
    most = std::max(most, table.moved() - before);
  }
  EXPECT_LT(most, 3 * 240);
  EXPECT_EQ(table.size(), 0);
}

// More kinds of states than codes: the rest has records, and codes come free again.
TEST(AliasTableTest, NamesOfManyNamespacesAreAllKept) {
  AliasTable table(0, 13);
  bool inserted;
  for (int round = 0; round < 2; ++round) {
    for (uint64_t i = 0; i < 3000; ++i)
      ASSERT_TRUE(table.Store(
          table.FindOrInsert(
              {.value = i, .bytes = {}},
              {SequenceHash{i}, 70000u * (i % 5 == 0), static_cast<uint32_t>(i % 1000)}, &inserted),
          Tier::kDevice));
    ASSERT_EQ(table.Check(), "");
    table.Lose();
    EXPECT_EQ(table.Unconfirmed(), 3000);
    EXPECT_TRUE(table.AnyUnconfirmed());
    for (uint64_t i = 0; i < 3000; i += 3)
      table.Store(table.Find({.value = i, .bytes = {}}), Tier::kDevice);
    EXPECT_EQ(table.Unconfirmed(), 2000);
    ASSERT_EQ(table.Check(), "");
    uint64_t dropped = 0;
    while (!table.DropUnconfirmed(100, [&](size_t, TierMask, bool erased) { dropped += erased; })) {
    }
    EXPECT_EQ(dropped, 2000);
    ASSERT_EQ(table.Check(), "");
    for (uint64_t i = 0; i < 3000; i += 3) {
      const size_t slot = table.Find({.value = i, .bytes = {}});
      ASSERT_NE(slot, AliasTable::kNone);
      EXPECT_EQ(table.place(slot).space, i % 1000);
      EXPECT_EQ(table.certain(slot)[0], 1);
      table.Erase(slot);
    }
    EXPECT_EQ(table.size(), 0);
  }
}

// A visit in steps while names come and go: those that stay are all visited.
TEST(AliasTableTest, AVisitInStepsMissesNothingThatStays) {
  AliasTable table(0, 14);
  bool inserted;
  const auto store = [&](uint64_t i) {
    table.Store(table.FindOrInsert({.value = i, .bytes = {}}, {SequenceHash{i}, 0, 0}, &inserted),
                Tier::kDevice);
  };
  for (uint64_t i = 0; i < 40000; ++i) store(i);
  std::vector<bool> seen(40000);
  uint64_t cursor = 0;
  bool through = false;
  for (uint64_t next = 40000; !through; next += 200) {
    size_t slots = 500;
    bool stopped = false;
    through = table.ForEachFrom(&cursor, &slots, [&](const EngineBlockHash& name, size_t slot) {
      EXPECT_EQ(Raw(table.block(slot)), name.value);
      if (name.value < 40000) seen[name.value] = true;
      // Now and then there is no room, once a step.
      return stopped || !(stopped = name.value % 1000 == 7 && next % 400 == 0);
    });
    for (uint64_t i = next; i < next + 200; ++i) store(i);
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 40000);
}

}  // namespace
}  // namespace kvatlas
