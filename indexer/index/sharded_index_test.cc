// Several indexes answer as one: compared with one index, under random calls.

#include "indexer/index/sharded_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "indexer/base/event.h"
#include "indexer/index/index.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

SequenceHash NameOf(uint32_t path, uint32_t position) {
  // Paths of two have their first 20 blocks in common.
  const uint64_t owner = position < 20 ? path / 2 : path + 1000;
  return SequenceHash{(owner << 20 | (position + 1)) * 0x9E3779B97F4A7C15u};
}

std::vector<SequenceHash> Blocks(uint32_t path, uint32_t from, uint32_t to) {
  std::vector<SequenceHash> blocks;
  for (uint32_t at = from; at < to; ++at) blocks.push_back(NameOf(path, at));
  return blocks;
}

std::vector<std::tuple<uint32_t, uint32_t>> Sorted(const std::vector<Overlap>& overlaps) {
  std::vector<std::tuple<uint32_t, uint32_t>> sorted;
  for (const Overlap& each : overlaps) sorted.emplace_back(Raw(each.holder), each.blocks);
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

std::vector<TierOverlap> Sorted(std::vector<TierOverlap> overlaps) {
  std::sort(overlaps.begin(), overlaps.end(),
            [](const TierOverlap& a, const TierOverlap& b) { return a.holder < b.holder; });
  return overlaps;
}

std::vector<Holding> Sorted(std::vector<Holding> holdings) {
  std::sort(holdings.begin(), holdings.end(),
            [](const Holding& a, const Holding& b) { return a.block < b.block; });
  return holdings;
}

TEST(ShardedIndexTest, AnswersAsOne) {
  constexpr uint32_t kPaths = 12;
  constexpr uint32_t kDepth = 60;
  for (const uint32_t shards : {2u, 3u, 7u}) {
    for (uint64_t seed = 1; seed <= 8; ++seed) {
      SCOPED_TRACE("shards " + std::to_string(shards) + ", seed " + std::to_string(seed));
      std::mt19937_64 random(seed);
      const auto below = [&](uint64_t end) { return static_cast<uint32_t>(random() % end); };
      const std::unique_ptr<Index> one = *MakeIndex("atlas", {});
      const std::unique_ptr<Index> many = *MakeIndex("atlas*" + std::to_string(shards), {});
      std::vector<bool> exists;
      for (int op = 0; op < 400; ++op) {
        const uint32_t what = below(20);
        if (exists.empty() || what == 0) {
          const HolderIndex added = *one->AddHolder();
          ASSERT_EQ(*many->AddHolder(), added);
          exists.resize(std::max<size_t>(exists.size(), Raw(added) + 1));
          exists[Raw(added)] = true;
          continue;
        }
        const HolderIndex holder{below(exists.size() + 1)};
        const uint32_t path = below(kPaths);
        const uint32_t from = below(kDepth);
        const uint32_t to = from + 1 + below(kDepth - from);
        const Tier tier = static_cast<Tier>(below(2));
        Event event = Stored{.tier = tier,
                             .position = from,
                             .parent = from == 0 ? kNoParent : NameOf(path, from - 1),
                             .blocks = Blocks(path, from, to)};
        if (what == 1) {
          one->RemoveHolder(holder);
          many->RemoveHolder(holder);
          if (Raw(holder) < exists.size()) exists[Raw(holder)] = false;
        } else if (what == 2) {
          const bool masked = below(2) != 0;
          one->SetMasked(holder, masked);
          many->SetMasked(holder, masked);
        } else {
          if (what == 3) event = Cleared{.tiers = TierMask(tier)};
          if (what > 3 && what < 9) event = Removed{.tier = tier, .blocks = Blocks(path, from, to)};
          ChangeLog of_one, of_many;
          ASSERT_EQ(many->Apply(holder, event, &of_many).code(),
                    one->Apply(holder, event, &of_one).code());
          ASSERT_EQ(of_many.blocks(), of_one.blocks());
        }
        const std::vector<SequenceHash> prompt = Blocks(below(kPaths), 0, 1 + below(kDepth));
        std::vector<uint64_t> only;
        if (below(2) != 0) only.push_back(random());
        const OverlapQuery query = {.blocks = prompt,
                                    .tiers = below(2) != 0 ? TierMask::All() : TierMask(tier),
                                    .only = only};
        std::vector<Overlap> found, expected;
        one->FindOverlaps(query, &expected);
        many->FindOverlaps(query, &found);
        ASSERT_EQ(Sorted(found), Sorted(expected));
        std::vector<TierOverlap> tiers, expected_tiers;
        one->FindTierOverlaps(query, &expected_tiers);
        many->FindTierOverlaps(query, &tiers);
        ASSERT_EQ(Sorted(tiers), Sorted(expected_tiers));
        OverlapSteps steps;
        many->FindSteps(query, &steps);
        const OverlapSteps expected_steps = StepsOf(expected);
        ASSERT_EQ(steps.depths, expected_steps.depths);
        ASSERT_EQ(steps.words, expected_steps.words);
        ASSERT_EQ(many->DigestOf(holder), one->DigestOf(holder));
        ASSERT_EQ(Sorted(many->HoldingsOf(holder)), Sorted(one->HoldingsOf(holder)));
        ASSERT_EQ(many->MayHold(prompt.back()), one->MayHold(prompt.back()));
        ASSERT_EQ(many->Stats().holdings, one->Stats().holdings);
        ASSERT_EQ(many->Stats().holders, one->Stats().holders);
        if (op % 50 == 0) {
          many->Maintain(1000);
          ASSERT_TRUE(many->Check().ok()) << many->Check();
        }
      }
    }
  }
}

TEST(ShardedIndexTest, AMaskOfHoldersOfOneShardLeavesTheOthersOut) {
  const std::unique_ptr<Index> index = *MakeIndex("atlas*4", {});
  for (uint32_t i = 0; i < 300; ++i) {
    const HolderIndex holder = *index->AddHolder();
    ASSERT_TRUE(index->Apply(holder, Stored{.blocks = Blocks(0, 0, 5)}, nullptr).ok());
  }
  std::vector<uint64_t> only(5);
  only[4] = 1u << 1;  // holder 257, of shard 1
  std::vector<Overlap> overlaps;
  index->FindOverlaps({.blocks = Blocks(0, 0, 5), .only = only}, &overlaps);
  EXPECT_THAT(Sorted(overlaps), ElementsAre(std::tuple(257u, 5u)));
  overlaps.clear();
  only[4] = 0;
  index->FindOverlaps({.blocks = Blocks(0, 0, 5), .only = only}, &overlaps);
  EXPECT_THAT(overlaps, IsEmpty());
}

TEST(ShardedIndexTest, BoundsAreDivided) {
  const std::unique_ptr<Index> index = *MakeIndex("atlas*2", {.holders_max = 3, .blocks_max = 20});
  const HolderIndex first = *index->AddHolder(), second = *index->AddHolder();
  EXPECT_EQ(index->Apply(first, Stored{.blocks = Blocks(0, 0, 12)}, nullptr).code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(index->Apply(second, Stored{.blocks = Blocks(0, 0, 10)}, nullptr).ok());
  EXPECT_EQ(index->HoldingsOf(first).size(), 10u);
  EXPECT_EQ(index->Stats().blocks, 20u);
  EXPECT_TRUE(index->AddHolder().ok());
  EXPECT_EQ(index->AddHolder().status().code(), absl::StatusCode::kResourceExhausted);
  index->RemoveHolder(second);
  EXPECT_EQ(*index->AddHolder(), second);
}

TEST(ShardedIndexTest, OnlySensibleNumbersOfShardsAreMade) {
  for (const std::string name :
       {"atlas*", "atlas*0", "atlas*65", "atlas*x", "atlas*2*2", "*2", "tree*2"})
    EXPECT_EQ(MakeIndex(name, {}).status().code(), absl::StatusCode::kInvalidArgument) << name;
  EXPECT_TRUE(MakeIndex("atlas*1", {}).ok());
  EXPECT_TRUE(MakeIndex("reference*64", {}).ok());
}

}  // namespace
}  // namespace kvatlas
