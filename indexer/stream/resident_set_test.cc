#include "indexer/stream/resident_set.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "indexer/base/cache_class.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"

namespace kvatlas {
namespace {

const CacheLayout kHybrid = {
    .main = {.block_size = 16},
    .sides = {{.kind = CacheKind::kWindow, .block_size = 16, .window_tokens = 100}}};

Stored SideBlocks(std::vector<SequenceHash> names, SideClass side = 1) {
  return Stored{.blocks = std::move(names), .side = side};
}

Stored RunOf(uint64_t first, size_t count) {
  Stored run{.blocks = {}};
  for (uint64_t i = 0; i < count; ++i) run.blocks.push_back(SequenceHash{first + i});
  return run;
}

TEST(ResidentSetTest, SideBlocksAreRunsOfTheirOwnByClassAndTier) {
  ResidentSet resident;
  EXPECT_TRUE(resident.SetLayout(kHybrid));
  EXPECT_FALSE(resident.SetLayout(kHybrid));
  resident.Apply(RunOf(1, 2));
  resident.Apply(SideBlocks({SequenceHash{8}, SequenceHash{7}}));
  EXPECT_EQ(resident.Apply(SideBlocks({SequenceHash{9}, SequenceHash{7}, SequenceHash{6}})),
            (std::vector<Event>{SideBlocks({SequenceHash{9}, SequenceHash{6}})}));
  Stored host = SideBlocks({SequenceHash{7}});
  host.tier = Tier::kHost;
  resident.Apply(host);
  resident.Apply(SideBlocks({SequenceHash{5}}, 2));
  const auto blocks = [](std::vector<uint64_t> names, SideClass side) {
    Stored run{.blocks = {}, .side = side};
    for (const uint64_t name : names) run.blocks.push_back(SequenceHash{name});
    return run;
  };
  EXPECT_EQ(resident.AsRuns(),
            (std::vector<Stored>{RunOf(1, 2), blocks({6, 7, 8, 9}, 1), host, blocks({5}, 2)}));
  EXPECT_EQ(resident.Apply(Removed{.blocks = {SequenceHash{8}, SequenceHash{99}}, .side = 1}),
            (std::vector<Event>{Removed{.blocks = {SequenceHash{8}}, .side = 1}}));
  resident.Apply(Cleared{Tier::kDevice});
  EXPECT_EQ(resident.AsRuns(), (std::vector<Stored>{host}));
  EXPECT_EQ(resident.layout(), kHybrid);
}

}  // namespace
}  // namespace kvatlas
