// Random calls: every structure answers as the reference does. A failure prints its seed and the
// shortest calls that still show it; paste those into a named test below.
//
// KVATLAS_SEEDS=N runs N seeds of each kind instead of a few (`index_random_long_test`).

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "indexer/index/index.h"
#include "indexer/index/random_ops.h"

namespace kvatlas {
namespace {

uint64_t Seeds(uint64_t usual) {
  const char* const seeds = std::getenv("KVATLAS_SEEDS");
  return seeds == nullptr ? usual : std::strtoull(seeds, nullptr, 10);
}

class IndexRandomTest : public ::testing::TestWithParam<std::string_view> {
 protected:
  static void Compare(const RandomOptions& options, uint64_t seeds) {
    const MakeTested make = [&] {
      return *MakeIndex(GetParam(), {.blocks_max = options.blocks_max});
    };
    for (uint64_t seed = 1; seed <= Seeds(seeds); ++seed) {
      const std::vector<Op> ops = RandomOps(seed, options);
      const std::string difference = FirstDifference(make, ops, options);
      if (difference.empty()) continue;
      const std::vector<Op> few = Shrink(make, ops, options);
      FAIL() << "seed " << seed << ", " << difference
             << "\nshortest: " << FirstDifference(make, few, options)
             << "\n  EXPECT_EQ(FirstDifference(make, " << ToCode(few) << ", options), \"\");";
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Structures, IndexRandomTest, ::testing::Values(WholeIndexNames().front()),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(IndexRandomTest, FewHoldersAndBlocks) {
  Compare({.ops = 200, .holders = 3, .blocks = 12}, 60);
}

TEST_P(IndexRandomTest, SmallHashes) { Compare({.blocks = 60, .spread = Spread::kSmall}, 30); }

TEST_P(IndexRandomTest, HashesThatDifferInHighBits) {
  Compare({.blocks = 60, .spread = Spread::kHighBits}, 30);
}

TEST_P(IndexRandomTest, ManyHolders) { Compare({.ops = 3'000, .holders = 150, .blocks = 40}, 6); }

TEST_P(IndexRandomTest, AtTheLimitOfBlocks) { Compare({.blocks = 40, .blocks_max = 15}, 30); }

// A structure that is wrong as soon as it has four blocks.
TEST(ShrinkTest, KeepsOnlyWhatDiffers) {
  const MakeTested wrong = [] { return *MakeIndex("reference", {.blocks_max = 3}); };
  const std::vector<Op> ops = RandomOps(1, {});
  ASSERT_NE(FirstDifference(wrong, ops, {}), "");
  const std::vector<Op> few = Shrink(wrong, ops, {});
  EXPECT_NE(FirstDifference(wrong, few, {}), "");
  size_t blocks = 0;
  for (const Op& op : few) blocks += op.blocks.size();
  EXPECT_EQ(blocks, 4u) << ToCode(few);
  EXPECT_LE(few.size(), 4u) << ToCode(few);
}

TEST(ShrinkTest, PrintsCodeToPaste) {
  EXPECT_EQ(ToCode({{Op::kAddHolder, 0, 0, 0, {}}, {Op::kStore, 0, 2, 5, {1, 2}}}),
            "{\n    {Op::kAddHolder, 0, 0, 0, {}},\n    {Op::kStore, 0, 2, 5, {1, 2}},\n}");
}

}  // namespace
}  // namespace kvatlas
