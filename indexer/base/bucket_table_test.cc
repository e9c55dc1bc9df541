// The table against a map: random keys, rows that come and go, cursors that go on meanwhile; the
// rows that one call moves; bytes.

#include "indexer/base/bucket_table.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "gtest/gtest.h"

namespace kvatlas {
namespace {

constexpr size_t kPayload = 4;
// Rows of a bucket when the table grows: half to two of the average, and ten standard deviations
// for chance.
constexpr uint64_t kBucketRowsMax = 2 * BucketTable::kRowsPerBucket + 110;

// Patterns of keys.
enum class Pattern { kRandom, kInOrder, kSameLowBits, kSameHighBits, kFewBits, kMultiples };
constexpr Pattern kPatterns[] = {Pattern::kRandom,       Pattern::kInOrder, Pattern::kSameLowBits,
                                 Pattern::kSameHighBits, Pattern::kFewBits, Pattern::kMultiples};

uint64_t KeyOf(Pattern pattern, uint64_t i) {
  switch (pattern) {
    case Pattern::kRandom:
      return (i + 1) * 0xd1342543de82ef95 ^ (i << 29) * 0x9e3779b97f4a7c15;
    case Pattern::kInOrder:
      return i;
    case Pattern::kSameLowBits:
      return i << 40 | 0x123456789a;
    case Pattern::kSameHighBits:
      return 0xabcdef1230000000 | i;
    case Pattern::kFewBits: {
      uint64_t key = 0;  // every third bit
      for (int bit = 0; bit < 21; ++bit) key |= (i >> bit & 1) << (3 * bit);
      return key;
    }
    case Pattern::kMultiples:
      return i * 0x100000001;
  }
  return 0;
}

class Twin {
 public:
  explicit Twin(uint64_t seed) : table_(kPayload, seed * 0x9e3779b97f4a7c15), random_(seed) {}

  void Put(uint64_t key) {
    const uint32_t value = static_cast<uint32_t>(random_());
    size_t row = table_.Find(key);
    ASSERT_EQ(row == BucketTable::kNone, !twin_.contains(key)) << key;
    if (row == BucketTable::kNone) row = table_.Insert(key);
    std::memcpy(table_.Payload(row), &value, sizeof(value));
    twin_[key] = value;
  }
  void Erase(uint64_t key) {
    const size_t row = table_.Find(key);
    ASSERT_EQ(row == BucketTable::kNone, !twin_.contains(key)) << key;
    if (row == BucketTable::kNone) return;
    table_.Erase(row);
    twin_.erase(key);
  }
  void Compare() const {
    ASSERT_EQ(table_.Check(), "");
    ASSERT_EQ(table_.size(), twin_.size());
    for (const auto& [key, value] : twin_) ASSERT_EQ(ValueOf(key), value) << key;
    size_t seen = 0;
    table_.ForEach([&](size_t row) {
      EXPECT_TRUE(twin_.contains(table_.KeyOf(row)));
      EXPECT_EQ(table_.Find(table_.KeyOf(row)), row);
      ++seen;
    });
    ASSERT_EQ(seen, twin_.size());
  }
  uint32_t ValueOf(uint64_t key) const {
    const size_t row = table_.Find(key);
    uint32_t value = 0;
    if (row != BucketTable::kNone) std::memcpy(&value, table_.Payload(row), sizeof(value));
    return value;
  }
  const BucketTable& table() const { return table_; }
  std::mt19937_64& random() { return random_; }

 private:
  BucketTable table_;
  std::mt19937_64 random_;
  std::unordered_map<uint64_t, uint32_t> twin_;
};

TEST(BucketTableTest, EqualsAMapWhileItGrowsAndShrinks) {
  for (Pattern pattern : kPatterns) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      SCOPED_TRACE("pattern " + std::to_string(static_cast<int>(pattern)) + " seed " +
                   std::to_string(seed));
      Twin twin(seed);
      // The share of stores in percent, and the number of keys.
      for (const auto& [puts, keys] :
           {std::pair{60, 200}, {90, 60000}, {50, 60000}, {15, 60000}, {70, 5}}) {
        for (int step = 0; step < 40000; ++step) {
          const uint64_t key = KeyOf(pattern, twin.random()() % static_cast<uint64_t>(keys));
          twin.random()() % 100 < static_cast<uint64_t>(puts) ? twin.Put(key) : twin.Erase(key);
          if (testing::Test::HasFatalFailure()) return;
        }
        twin.Compare();
        if (testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(BucketTableTest, RowsOfOneKeyAreToldApartByWhatMatches) {
  BucketTable table(kPayload);
  for (uint32_t i = 0; i < 1000; ++i) std::memcpy(table.Payload(table.Insert(7)), &i, sizeof(i));
  for (uint32_t i = 0; i < 1000; ++i) {
    const size_t row = table.Find(
        7, [&](const uint8_t* payload) { return std::memcmp(payload, &i, sizeof(i)) == 0; });
    ASSERT_NE(row, BucketTable::kNone);
    table.Erase(row);
  }
  EXPECT_EQ(table.size(), 0u);
  EXPECT_EQ(table.bytes(), 0u);
}

TEST(BucketTableTest, NoCallMovesMoreThanThreeBuckets) {
  for (Pattern pattern : kPatterns) {
    SCOPED_TRACE("pattern " + std::to_string(static_cast<int>(pattern)));
    BucketTable table(kPayload, 77);
    uint64_t most = 0;
    const auto note = [&](uint64_t before) { most = std::max(most, table.moved() - before); };
    constexpr uint64_t kKeys = 400000;
    for (uint64_t i = 0; i < kKeys; ++i) {
      const uint64_t before = table.moved();
      table.Insert(KeyOf(pattern, i));
      note(before);
    }
    EXPECT_LE(most, 2 * kBucketRowsMax);
    most = 0;
    for (uint64_t i = 0; i < kKeys; ++i) {
      const uint64_t before = table.moved();
      table.Erase(table.Find(KeyOf(pattern, i)));
      note(before);
    }
    EXPECT_LE(most, 3 * kBucketRowsMax);
    EXPECT_EQ(table.bytes(), 0u);
  }
}

TEST(BucketTableTest, TakesFewBytesBesideItsRowsAtAnySize) {
  BucketTable table(kPayload, 5);
  uint64_t i = 0;
  for (uint64_t size = 20000; size <= 1000000; size += size / 16) {
    while (i < size) table.Insert(KeyOf(Pattern::kRandom, i++));
    EXPECT_LE(static_cast<double>(table.bytes()) / static_cast<double>(size), kPayload + 7 + 2.5)
        << size << " rows";
  }
  for (; i > 300; --i) table.Erase(table.Find(KeyOf(Pattern::kRandom, i - 1)));
  EXPECT_EQ(table.Check(), "");
  EXPECT_LE(table.bytes(), 300 * 60 + 2 * 4200u);
}

// Buckets split and merge between the steps of a visit: nothing that is there all the time is left
// out.
TEST(BucketTableTest, ACursorMeetsWhatStaysOnce) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Twin twin(seed);
    const auto stays = [](uint64_t i) { return i % 4 == 0; };
    constexpr uint64_t kKeys = 60000;
    for (uint64_t i = 0; i < kKeys; ++i)
      if (stays(i) || seed % 2 == 0) twin.Put(KeyOf(Pattern::kRandom, i));
    std::multiset<uint64_t> seen;
    uint64_t cursor = 0;
    uint64_t next = 0;
    do {
      const size_t bucket = twin.table().BucketOfCursor(cursor);
      for (size_t at = 0; at < twin.table().RowsIn(bucket); ++at)
        if (const size_t row = BucketTable::RowAt(bucket, at); !twin.table().IsBefore(row, cursor))
          seen.insert(twin.table().KeyOf(row));
      cursor = twin.table().CursorBehind(bucket);
      for (int change = 0; change < 300; ++change, ++next) {
        if (stays(next % kKeys)) continue;
        const uint64_t key = KeyOf(Pattern::kRandom, next % kKeys);
        next / kKeys % 2 == seed % 2 ? twin.Erase(key) : twin.Put(key);
      }
      if (testing::Test::HasFatalFailure()) return;
    } while (cursor != 0);
    for (uint64_t i = 0; i < kKeys; i += 4)
      ASSERT_EQ(seen.count(KeyOf(Pattern::kRandom, i)), 1u) << i;
    twin.Compare();
  }
}

TEST(BucketTableTest, PrefetchTakesKeysThatAreThereAndOthers) {
  BucketTable table(kPayload);
  std::vector<uint64_t> keys(BucketTable::kPrefetchMax);
  for (size_t i = 0; i < keys.size(); ++i) keys[i] = i;
  table.Prefetch(keys);
  for (size_t i = 0; i < keys.size(); i += 2) table.Insert(keys[i]);
  table.Prefetch(keys);
  EXPECT_EQ(table.Check(), "");
}

}  // namespace
}  // namespace kvatlas
