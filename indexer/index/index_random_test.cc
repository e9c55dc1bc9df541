// Random calls: every structure answers as the reference does. A failure prints the shortest calls that still
// show it as code; paste that into a named test below.
//
// KVATLAS_SEEDS=N runs N seeds of each kind instead of a few (`index_random_long_test`), from KVATLAS_FIRST_SEED on.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>

#include "indexer/base/event.h"
#include "indexer/index/compare_ops.h"
#include "indexer/index/index.h"
#include "indexer/index/random_ops.h"
#include "indexer/index/random_trie.h"

namespace kvatlas {

void PrintTo(const IndexKind& kind, std::ostream* out) { *out << kind.name; }

namespace {

uint64_t FromEnvironment(const char* name, uint64_t usual) {
  const char* const text = std::getenv(name);
  return text == nullptr ? usual : std::strtoull(text, nullptr, 10);
}

std::vector<IndexKind> ExactKinds() {
  std::vector<IndexKind> kinds;
  for (const IndexKind& kind : IndexKinds()) {
    if (kind.exact && kind.name != "reference") kinds.push_back(kind);
  }
  return kinds;
}

class IndexRandomTest : public ::testing::TestWithParam<IndexKind> {
 protected:
  static std::unique_ptr<Index> Make(const IndexOptions& options) {
    return *MakeIndex(GetParam().name, options);
  }

  // The usual number of seeds is for a test of a second or two.
  static void Compare(RandomOptions options, uint64_t usual_seeds) {
    const IndexKind& kind = GetParam();
    options.whole = kind.whole;
    if (kind.holders_max != 0) options.holders = std::min(options.holders, kind.holders_max);
    // The default is compared at full length, the others as far as a second or two goes.
    const bool is_default = kind.name == IndexKinds().front().name || kind.name == "atlas";
    const bool is_long = std::getenv("KVATLAS_SEEDS") != nullptr;
    if (!is_default && !is_long) {
      options.ops = std::min<size_t>(options.ops, 300);
      usual_seeds = (usual_seeds + 3) / 4;
    }
    const uint64_t first = FromEnvironment("KVATLAS_FIRST_SEED", 1);
    const uint64_t seeds = FromEnvironment("KVATLAS_SEEDS", usual_seeds);
    for (uint64_t seed = first; seed < first + seeds; ++seed) {
      options.trie.seed = seed;
      const std::string difference =
          FirstDifferenceToPaste(Make, RandomOps(seed, options), options);
      ASSERT_TRUE(difference.empty()) << "seed " << seed << ", " << difference;
    }
  }

  static bool KeepsLocalHashes() {
    const std::unique_ptr<Index> index = Make({.keep_local_hashes = true});
    const Stored stored = {.blocks = {SequenceHash{5}}, .local_hashes = {LocalHash{5}}};
    if (!index->Apply(*index->AddHolder(), stored, nullptr).ok()) return false;
    const std::vector<Holding> holdings = index->HoldingsOf(HolderIndex{0});
    return holdings.size() == 1 && holdings[0].local == LocalHash{5};
  }
};

INSTANTIATE_TEST_SUITE_P(Structures, IndexRandomTest, ::testing::ValuesIn(ExactKinds()),
                         [](const auto& info) { return std::string(info.param.name); });

// ---- Small: every call meets others ----

TEST_P(IndexRandomTest, FewHoldersAndBlocks) {
  Compare({.trie = {.blocks = 12}, .ops = 200, .holders = 3, .run_max = 6}, 200);
}

TEST_P(IndexRandomTest, OneSequence) {
  Compare({.trie = {.blocks = 20, .shape = Shape::kChain}, .holders = 4, .run_max = 20}, 150);
}

TEST_P(IndexRandomTest, OneLongSequence) {
  Compare({.trie = {.blocks = 300, .shape = Shape::kChain}, .holders = 6, .run_max = 300}, 40);
}

TEST_P(IndexRandomTest, ForksEverywhere) { Compare({.trie = {.blocks = 60}}, 100); }

TEST_P(IndexRandomTest, ManyChildren) {
  Compare({.trie = {.blocks = 100, .shape = Shape::kBushy}, .ops = 600}, 40);
}

TEST_P(IndexRandomTest, ManyFirstBlocks) {
  Compare({.trie = {.blocks = 100, .shape = Shape::kRoots}, .ops = 600}, 40);
}

// ---- Hashes nobody would choose ----

TEST_P(IndexRandomTest, SmallHashes) {
  Compare({.trie = {.blocks = 60, .spread = Spread::kSmall}}, 40);
}

TEST_P(IndexRandomTest, HashesThatDifferInHighBits) {
  Compare({.trie = {.blocks = 60, .spread = Spread::kHighBits}}, 40);
}

TEST_P(IndexRandomTest, HashesWithEqualLowBits) {
  Compare({.trie = {.blocks = 60, .spread = Spread::kSameLowBits}}, 40);
}

TEST_P(IndexRandomTest, HashesWithEqualHighBits) {
  Compare({.trie = {.blocks = 60, .spread = Spread::kSameHighBits}}, 40);
}

TEST_P(IndexRandomTest, HashesThatFibonacciHashingDoesNotSpread) {
  Compare({.trie = {.blocks = 60, .spread = Spread::kFibonacci}}, 40);
}

TEST_P(IndexRandomTest, RealChains) {
  Compare({.trie = {.blocks = 60, .spread = Spread::kChained}}, 40);
}

TEST_P(IndexRandomTest, LocalHashesAreKept) {
  if (!KeepsLocalHashes()) GTEST_SKIP() << "does not keep local hashes";
  Compare({.trie = {.blocks = 60, .spread = Spread::kChained}, .keep_local_hashes = true}, 40);
}

// ---- Bounds ----

TEST_P(IndexRandomTest, AtTheLimitOfBlocks) {
  if (!GetParam().whole) GTEST_SKIP() << "the limit belongs to the whole interface";
  Compare({.trie = {.blocks = 40}, .blocks_max = 15}, 60);
  Compare({.trie = {.blocks = 200, .shape = Shape::kLongRuns}, .run_max = 150, .blocks_max = 120},
          20);
}

// ---- Large ----

TEST_P(IndexRandomTest, ManyHolders) {
  Compare({.trie = {.blocks = 60}, .ops = 3'000, .holders = 150, .state_every = 500}, 4);
}

TEST_P(IndexRandomTest, ManyHoldersOfOneSequence) {
  Compare({.trie = {.blocks = 100, .shape = Shape::kChain},
           .ops = 3'000,
           .holders = 200,
           .run_max = 100,
           .state_every = 500},
          2);
}

// Sets of holders take other forms where numbers are large.
TEST_P(IndexRandomTest, ThousandsOfHolders) {
  Compare({.trie = {.blocks = 60}, .ops = 3'000, .holders = 2'500, .state_every = 300}, 2);
}

TEST_P(IndexRandomTest, ThousandsOfHoldersOfOneSequence) {
  Compare({.trie = {.blocks = 700, .shape = Shape::kChain},
           .ops = 2'500,
           .holders = 1'300,
           .run_max = 700,
           .state_every = 300},
          1);
}

TEST_P(IndexRandomTest, LongRunsOfManyHolders) {
  Compare({.trie = {.blocks = 5'000, .shape = Shape::kLongRuns},
           .ops = 2'000,
           .holders = 300,
           .run_max = 600,
           .state_every = 500},
          1);
}

TEST_P(IndexRandomTest, LongRunsOfFewHolders) {
  Compare({.trie = {.blocks = 5'000, .shape = Shape::kLongRuns, .spread = Spread::kChained},
           .ops = 1'500,
           .holders = 8,
           .run_max = 600,
           .state_every = 200},
          2);
}

TEST_P(IndexRandomTest, AWideTrie) {
  Compare({.trie = {.blocks = 5'000, .shape = Shape::kBushy},
           .ops = 4'000,
           .holders = 20,
           .state_every = 500},
          2);
}

// ---- The test's own tools ----

// A structure that is wrong as soon as it has four blocks.
TEST(ShrinkTest, KeepsOnlyWhatDiffers) {
  const MakeTested wrong = [](const IndexOptions&) {
    return *MakeIndex("reference", {.blocks_max = 3});
  };
  const RandomOptions options = {.state_every = 1};
  const std::vector<Op> ops = RandomOps(1, options);
  ASSERT_NE(FirstDifference(wrong, ops, options), "");
  const std::vector<Op> few = Shrink(wrong, ops, options);
  EXPECT_NE(FirstDifference(wrong, few, options), "");
  size_t blocks = 0;
  for (const Op& op : few) blocks += op.blocks.size();
  EXPECT_EQ(blocks, 4u) << ToCode(few);
  EXPECT_LE(few.size(), 5u) << ToCode(few);
}

TEST(ShrinkTest, PrintsCodeToPaste) {
  EXPECT_EQ(ToCode({{Op::kAddHolder, 0, 0, 0, {}}, {Op::kStore, 0, 2, 5, {1, 2}}}),
            "{\n      {Op::kAddHolder, 0, 0, 0, {}},\n      {Op::kStore, 0, 2, 5, {1, 2}},\n  }");
}

}  // namespace
}  // namespace kvatlas
