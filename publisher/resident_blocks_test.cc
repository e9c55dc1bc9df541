#include "publisher/resident_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvatlas {
namespace {

constexpr uint32_t kBlockSize = 4;

// Token ids of a run of blocks; block `name` has the same tokens wherever it is named.
std::vector<TokenId> TokensOf(const std::vector<uint64_t>& names) {
  std::vector<TokenId> tokens;
  for (uint64_t name : names) tokens.insert(tokens.end(), kBlockSize, static_cast<TokenId>(name));
  return tokens;
}

class ContentsTest : public testing::Test {
 protected:
  std::vector<Event> Store(const std::vector<uint64_t>& names, std::optional<uint64_t> parent = {},
                           Tier tier = Tier::kDevice) {
    const std::vector<TokenId> tokens = TokensOf(names);
    Record record{.kind = Record::kStored, .tier = tier};
    record.has_parent = parent.has_value();
    record.parent = parent.value_or(0);
    record.hashes = names;
    record.tokens = tokens;
    return Apply(record);
  }
  std::vector<Event> StoreKnown(const std::vector<uint64_t>& names, Tier tier) {
    Record record{.kind = Record::kStored, .tier = tier};
    record.hashes = names;
    return Apply(record);
  }
  std::vector<Event> Remove(const std::vector<uint64_t>& names, Tier tier = Tier::kDevice) {
    Record record{.kind = Record::kRemoved, .tier = tier};
    record.hashes = names;
    return Apply(record);
  }
  std::vector<Event> Clear(TierMask tiers) {
    Record record{.kind = Record::kCleared};
    record.tiers = tiers;
    return Apply(record);
  }
  std::vector<Event> Apply(const Record& record) {
    std::vector<Event> changes;
    status_ = contents_.Apply(record, &changes);
    return changes;
  }
  static std::vector<SequenceHash> Chain(const std::vector<uint64_t>& names) {
    return SequenceHashes(LocalHashes(TokensOf(names), {.block_size = kBlockSize}, BlockSeed({})));
  }

  Contents contents_{kBlockSize, HashContract()};
  absl::Status status_;
};

TEST_F(ContentsTest, HashesByTheContract) {
  const std::vector<SequenceHash> chain = Chain({1, 2, 3});
  EXPECT_EQ(Store({1, 2}), (std::vector<Event>{Stored{.blocks = {chain[0], chain[1]}}}));
  EXPECT_EQ(Store({3}, 2),
            (std::vector<Event>{Stored{.position = 2, .parent = chain[1], .blocks = {chain[2]}}}));
  EXPECT_EQ(Remove({2}), (std::vector<Event>{Removed{.blocks = {chain[1]}}}));
  EXPECT_EQ(contents_.resident().size(), 2);
}

TEST_F(ContentsTest, NamespacesSeparateEqualTokens) {
  const std::vector<uint64_t> names = {1};
  const std::vector<TokenId> tokens = TokensOf(names);
  Record record{.kind = Record::kStored};
  record.hashes = names;
  record.tokens = tokens;
  record.lora_name = "adapter";
  const std::vector<Event> changes = Apply(record);
  const std::vector<LocalHash> locals = LocalHashes(
      tokens, {.block_size = kBlockSize}, BlockSeed({.lora_name = "adapter", .cache_salt = ""}));
  EXPECT_EQ(changes, (std::vector<Event>{Stored{.blocks = SequenceHashes(locals)}}));
}

TEST_F(ContentsTest, OnlyTheFirstCopyAndTheLastRemovalPass) {
  Store({1});
  EXPECT_TRUE(Store({1}).empty());
  EXPECT_TRUE(Remove({1}).empty());
  EXPECT_EQ(Remove({1}).size(), 1);
  EXPECT_TRUE(Remove({1}).empty());
  EXPECT_EQ(contents_.stats().unknown_removed, 1);
  EXPECT_EQ(Store({1}).size(), 1);  // the floor is zero: no debt
  EXPECT_EQ(Remove({1}).size(), 1);
}

TEST_F(ContentsTest, TiersAreIndependent) {
  Store({1, 2});
  EXPECT_EQ(StoreKnown({1, 2}, Tier::kHost),
            (std::vector<Event>{Stored{.tier = Tier::kHost, .blocks = Chain({1, 2})}}));
  EXPECT_EQ(Remove({1, 2}).size(), 1);
  EXPECT_EQ(contents_.resident().size(), 2);
  EXPECT_TRUE(Remove({1}).empty());
  EXPECT_EQ(Remove({1}, Tier::kHost).size(), 1);
}

TEST_F(ContentsTest, AClearForgetsAllCopiesOfItsTiers) {
  Store({1});
  Store({1});
  StoreKnown({1}, Tier::kHost);
  EXPECT_EQ(Clear(Tier::kDevice), (std::vector<Event>{Cleared{Tier::kDevice}}));
  EXPECT_TRUE(Remove({1}).empty());
  EXPECT_EQ(contents_.resident().size(), 1);
  Store({1});
  EXPECT_EQ(Remove({1}).size(), 1);
}

TEST_F(ContentsTest, AnUnknownParentIsCountedAndItsBlocksDropped) {
  EXPECT_TRUE(Store({2, 3}, 1).empty());
  EXPECT_EQ(status_.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(contents_.stats().unknown_parents, 2);
  EXPECT_TRUE(StoreKnown({9}, Tier::kHost).empty());
  EXPECT_EQ(contents_.stats().unknown_parents, 3);
}

TEST_F(ContentsTest, ANameGivenToOtherTokensMovesToThem) {
  Store({1});
  const std::vector<uint64_t> names = {1};
  const std::vector<TokenId> tokens = TokensOf({7});
  Record record{.kind = Record::kStored};
  record.hashes = names;
  record.tokens = tokens;
  EXPECT_EQ(Apply(record),
            (std::vector<Event>{Removed{.blocks = Chain({1})}, Stored{.blocks = Chain({7})}}));
  EXPECT_EQ(contents_.stats().renamed, 1);
}

TEST_F(ContentsTest, TwoNamesOfOneBlockAreTwoCopies) {
  const std::vector<TokenId> tokens = TokensOf({1});
  for (uint64_t name : {11, 12}) {
    Record record{.kind = Record::kStored};
    record.hashes = {&name, 1};
    record.tokens = tokens;
    Apply(record);
  }
  EXPECT_TRUE(Remove({11}).empty());
  EXPECT_TRUE(Remove({11}).empty());
  EXPECT_EQ(Remove({12}).size(), 1);
}

// The slow twin counts copies in a map; what passes is applied to a plain set.
TEST_F(ContentsTest, RandomCallsEqualTheTwin) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    Contents contents(kBlockSize, HashContract());
    std::map<std::pair<uint64_t, int>, uint32_t> copies;
    std::set<std::pair<uint64_t, int>> passed;
    for (int step = 0; step < 3000; ++step) {
      const Tier tier = static_cast<Tier>(random() % 2);
      const uint64_t from = random() % 8, count = 1 + random() % 8;
      std::vector<uint64_t> blocks;  // sequence hashes: a chain 1, 2, …
      for (uint64_t i = from; i < from + count; ++i) blocks.push_back(i + 1);
      Record record{.kind = Record::kStoredHashed, .tier = tier};
      record.position = static_cast<Position>(from);
      record.parent = from;
      record.hashes = blocks;
      const uint64_t what = random() % 100;
      if (what == 0) {
        record.kind = Record::kCleared;
        record.tiers = tier;
      } else if (what < 50) {
        record.kind = Record::kRemovedHashed;
        std::shuffle(blocks.begin(), blocks.end(), random);
      }
      for (uint64_t block : blocks) {
        uint32_t& n = copies[{block, static_cast<int>(tier)}];
        if (record.kind == Record::kStoredHashed) ++n;
        if (record.kind == Record::kRemovedHashed && n > 0) --n;
      }
      if (record.kind == Record::kCleared) {
        for (auto& [key, n] : copies) {
          if (key.second == static_cast<int>(tier)) n = 0;
        }
      }
      std::vector<Event> changes;
      ASSERT_TRUE(contents.Apply(record, &changes).ok());
      for (const Event& change : changes) {
        if (const Stored* stored = std::get_if<Stored>(&change)) {
          for (size_t i = 0; i < stored->blocks.size(); ++i) {
            ASSERT_EQ(Raw(stored->blocks[i]), stored->position + i + 1) << "seed " << seed;
            ASSERT_TRUE(
                passed.insert({Raw(stored->blocks[i]), static_cast<int>(stored->tier)}).second);
          }
        } else if (const Removed* removed = std::get_if<Removed>(&change)) {
          for (SequenceHash block : removed->blocks) {
            ASSERT_EQ(passed.erase({Raw(block), static_cast<int>(removed->tier)}), 1u)
                << "seed " << seed;
          }
        } else {
          std::erase_if(passed, [&](const auto& key) {
            return std::get<Cleared>(change).tiers.Has(static_cast<Tier>(key.second));
          });
        }
      }
      std::set<std::pair<uint64_t, int>> held;
      for (const auto& [key, n] : copies) {
        if (n > 0) held.insert(key);
      }
      ASSERT_EQ(passed, held) << "seed " << seed << " step " << step;
    }
  }
}

}  // namespace
}  // namespace kvatlas
