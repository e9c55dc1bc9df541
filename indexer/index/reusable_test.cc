#include "indexer/index/reusable.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/index/index.h"
#include "indexer/index/side_index.h"

namespace kvatlas {
namespace {

constexpr CacheClass kMain{.kind = CacheKind::kFull, .block_size = 16};

CacheClass Window(uint32_t tokens, uint32_t block_size = 16) {
  // As an engine that counts the next token in.
  return {.kind = CacheKind::kWindow, .block_size = block_size, .window_tokens = tokens - 1};
}
CacheClass State(uint32_t block_size = 16) {
  return {.kind = CacheKind::kState, .block_size = block_size};
}
CacheClass Chunk(uint32_t tokens) {
  return {.kind = CacheKind::kChunk, .block_size = 16, .window_tokens = tokens};
}

std::vector<SequenceHash> Prompt(size_t blocks, uint64_t salt = 1) {
  std::vector<SequenceHash> hashes;
  for (size_t i = 1; i <= blocks; ++i)
    hashes.push_back(SequenceHash{(i + salt * 1000003) * 0x9e3779b97f4a7c15});
  return hashes;
}

// Numbers of side blocks held, for each side class.
using Held = std::vector<std::set<uint32_t>>;

class Worker {
 public:
  explicit Worker(CacheLayout layout, size_t blocks = 10)
      : layout_(std::move(layout)), prompt_(Prompt(blocks)) {}

  void Hold(const Held& held, HolderIndex holder = HolderIndex(0)) {
    for (size_t i = 0; i < held.size(); ++i) {
      const CacheClass& side = layout_.sides[i];
      for (uint32_t block : held[i]) {
        const std::optional<SequenceHash> name =
            Reusable::NameAt(side, prompt_, 16, uint64_t{block + 1} * EndsEvery(layout_, side));
        if (name.has_value()) {
          ASSERT_TRUE(index_.Store(holder, Tier::kDevice, {&*name, 1}, nullptr, nullptr).ok());
        }
      }
    }
  }

  uint32_t Blocks(uint32_t main) {
    std::vector<Overlap> overlaps = {{HolderIndex(0), main}};
    Find(&overlaps);
    return overlaps[0].blocks;
  }
  // From what the main classes hold to what is reused. REQUIRES: holders 0, 1, …, in order.
  void Find(std::vector<Overlap>* overlaps) {
    SideIndex::Reader reader(index_);
    std::vector<uint64_t> holders(overlaps->size() / 64 + 1, ~uint64_t{0});
    holders.back() = (uint64_t{1} << overlaps->size() % 64) - 1;
    std::vector<Overlap> found;
    reusable_.Find(layout_, prompt_, 16, TierMask::All(), reader, StepsOf(*overlaps), holders,
                   &found);
    ASSERT_EQ(found.size(), overlaps->size());
    for (const Overlap& overlap : found) (*overlaps)[Raw(overlap.holder)].blocks = overlap.blocks;
  }

 private:
  const CacheLayout layout_;
  const std::vector<SequenceHash> prompt_;
  SideIndex index_;
  Reusable reusable_;
};

uint32_t BlocksOf(const std::vector<CacheClass>& sides, const Held& held, uint32_t main = 10) {
  Worker worker({.main = kMain, .sides = sides});
  worker.Hold(held);
  return worker.Blocks(main);
}

std::set<uint32_t> Range(uint32_t first, uint32_t end) {
  std::set<uint32_t> numbers;
  for (uint32_t i = first; i < end; ++i) numbers.insert(i);
  return numbers;
}

TEST(ReusableTest, AWindowNeedsTheBlocksBeforeTheBoundary) {
  EXPECT_EQ(BlocksOf({Window(128)}, {Range(2, 10)}), 10u);
  EXPECT_EQ(BlocksOf({Window(128)}, {Range(2, 9)}), 0u);  // seven, and none from the head
  EXPECT_EQ(BlocksOf({Window(128)}, {Range(0, 5)}), 5u);  // from the head, shorter than a window
  EXPECT_EQ(BlocksOf({Window(128)}, {Range(1, 9)}), 9u);
  EXPECT_EQ(BlocksOf({Window(128)}, {Range(2, 10)}, 9), 0u);
}

TEST(ReusableTest, AWindowOfOneTokenNeedsTheLastBlock) {
  EXPECT_EQ(BlocksOf({Window(1)}, {{9}}), 10u);
  EXPECT_EQ(BlocksOf({Window(1)}, {{4}}), 5u);
  EXPECT_EQ(BlocksOf({Window(1)}, {{}}), 0u);
}

TEST(ReusableTest, AStateServesItsOwnBoundaryAlone) {
  EXPECT_EQ(BlocksOf({State()}, {{3, 7}}), 8u);
  EXPECT_EQ(BlocksOf({State()}, {{3, 7}}, 7), 4u);
  EXPECT_EQ(BlocksOf({State()}, {{9}}, 9), 0u);
}

TEST(ReusableTest, ClassesMustAgreeOnOneBoundary) {
  EXPECT_EQ(BlocksOf({State(), Window(33)}, {{3, 7}, {0, 1, 2, 3, 8, 9}}), 4u);
}

TEST(ReusableTest, AChunkNeedsItsOwnBlocksAlone) {
  EXPECT_EQ(BlocksOf({Chunk(64)}, {{}}), 8u);  // 128 tokens: nothing of the chunk begun
  EXPECT_EQ(BlocksOf({Chunk(64)}, {{8}}), 9u);
  EXPECT_EQ(BlocksOf({Chunk(64)}, {{9}}), 8u);
  EXPECT_EQ(BlocksOf({Chunk(64)}, {{8, 9}}), 10u);
}

TEST(ReusableTest, LengthsAreMultiplesOfEveryBlockSize) {
  EXPECT_EQ(BlocksOf({State(64), Window(1)}, {{0, 1}, Range(0, 10)}), 8u);
  EXPECT_EQ(BlocksOf({State(64), Window(1)}, {{0, 1}, Range(0, 10)}, 7), 4u);
  // A window of smaller blocks: its inner blocks count too.
  EXPECT_EQ(BlocksOf({Window(17, 8)}, {{18, 19}}), 10u);
  EXPECT_EQ(BlocksOf({Window(17, 8)}, {{17, 19}}), 0u);
}

TEST(ReusableTest, AStateBesideFullAttentionAloneMayEndInsideABlockOfItsClass) {
  // By the main class's blocks: those that end at 96 and 128 tokens.
  EXPECT_EQ(BlocksOf({State(64)}, {{5, 7}}), 8u);
  EXPECT_EQ(BlocksOf({State(64)}, {{5, 7}}, 7), 6u);
  EXPECT_EQ(BlocksOf({State(64), State(32)}, {{5, 7}, {5, 6}}), 6u);
  CacheLayout layout{.main = kMain, .sides = {State(64)}};
  EXPECT_EQ(EndsEvery(layout, layout.sides[0]), 16u);
  EXPECT_EQ(AlignmentOf(layout), 16u);
  layout.main.drops_last = true;
  EXPECT_EQ(EndsEvery(layout, layout.sides[0]), 64u);
  layout.main.drops_last = false;
  layout.sides.push_back(Window(33));
  EXPECT_EQ(EndsEvery(layout, layout.sides[0]), 64u);
  EXPECT_EQ(AlignmentOf(layout), 64u);
  layout.sides[1] = State(24);
  EXPECT_EQ(EndsEvery(layout, layout.sides[0]), 64u) << "not of whole blocks of the main class";
}

TEST(ReusableTest, WithoutAMainClassTheSideClassesDecide) {
  Worker worker({.main = {}, .has_main = false, .sides = {Window(33)}});
  worker.Hold({{5, 6}});
  EXPECT_EQ(worker.Blocks(0), 7u);
}

TEST(ReusableTest, ADroppedLastBlockIsMatchedAndNotReused) {
  CacheClass main = kMain;
  main.drops_last = true;
  Worker plain({.main = main, .sides = {}});
  EXPECT_EQ(plain.Blocks(6), 5u);
  EXPECT_EQ(plain.Blocks(0), 0u);
  CacheClass window = Window(33);
  window.drops_last = true;
  Worker worker({.main = kMain, .sides = {window}});
  worker.Hold({{3, 4, 5}});
  EXPECT_EQ(worker.Blocks(10), 5u);  // blocks 3 to 5 are matched, and 5 is dropped
}

// The slow twin: by the definition, for each holder and length.
bool Accepts(const CacheLayout& layout, CacheClass side, const std::set<uint32_t>& held,
             uint64_t length) {
  side.block_size = EndsEvery(layout, side);
  if (length % side.block_size != 0) return false;
  const int64_t end = static_cast<int64_t>(length / side.block_size);
  int64_t first = end - 1;
  if (side.kind == CacheKind::kWindow) {
    const int64_t needed = (side.window_tokens + side.block_size - 1) / side.block_size;
    first = std::max<int64_t>(0, end - std::max<int64_t>(1, needed));
  } else if (side.kind == CacheKind::kChunk) {
    first =
        static_cast<int64_t>(length / side.window_tokens * side.window_tokens / side.block_size);
  }
  for (int64_t i = first; i < end; ++i)
    if (!held.contains(static_cast<uint32_t>(i))) return false;
  return true;
}

TEST(ReusableTest, RandomHoldersEqualTheDefinition) {
  for (uint64_t seed = 1; seed <= 600; ++seed) {
    std::mt19937_64 random(seed);
    const uint32_t blocks = 1 + random() % 60;
    CacheLayout layout{.main = kMain, .sides = {}};
    layout.has_main = random() % 8 != 0;
    const size_t sides = random() % 3 + !layout.has_main;
    for (size_t i = 0; i < sides; ++i) {
      const uint32_t sizes[] = {16, 16, 16, 32, 48, 8, 4, 24, 12};
      const uint32_t size = layout.has_main ? sizes[random() % 9] : 16;
      const uint64_t kind = random() % 3;
      CacheClass side = kind == 0   ? State(size)
                        : kind == 1 ? Window(1 + random() % 200, size)
                                    : Chunk(16 * (1 + random() % 6));
      // Equal classes are one.
      if (std::count(layout.sides.begin(), layout.sides.end(), side) == 0)
        layout.sides.push_back(side);
    }
    Worker worker(layout, blocks);
    const uint32_t holders = 1 + random() % 150;
    const uint64_t density = random() % 10;
    std::vector<Overlap> overlaps;
    std::vector<uint32_t> expected;
    for (uint32_t h = 0; h < holders; ++h) {
      Held held(layout.sides.size());
      for (size_t i = 0; i < held.size(); ++i) {
        const uint32_t count = blocks * 16 / EndsEvery(layout, layout.sides[i]);
        for (uint32_t b = 0; b < count; ++b)
          if (random() % 10 >= density) held[i].insert(b);
      }
      worker.Hold(held, HolderIndex(h));
      const uint32_t main = static_cast<uint32_t>(random() % (blocks + 1));
      overlaps.push_back({HolderIndex(h), main});
      uint32_t best = 0;
      for (uint32_t d = 1; d <= (layout.has_main ? main : blocks); ++d) {
        bool all = true;
        for (size_t i = 0; i < held.size(); ++i)
          all = all && Accepts(layout, layout.sides[i], held[i], uint64_t{d} * 16);
        if (all) best = d;
      }
      expected.push_back(best);
    }
    worker.Find(&overlaps);
    for (uint32_t h = 0; h < holders; ++h)
      ASSERT_EQ(overlaps[h].blocks, expected[h]) << "seed " << seed << " holder " << h;
  }
}

}  // namespace
}  // namespace kvatlas
