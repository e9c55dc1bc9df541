// What vLLM's own coordinator found in caches filled at random (hybrid_vectors.txt), and what
// `Reusable` finds in the same.

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "indexer/base/cache_class.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/index/index.h"
#include "indexer/index/reusable.h"
#include "indexer/index/side_index.h"

namespace kvatlas {
namespace {

using Words = std::vector<std::string>;

uint32_t Number(const std::string& text) {
  uint32_t number = 0;
  EXPECT_TRUE(absl::SimpleAtoi(text, &number)) << text;
  return number;
}

// "window:16:64:0"
CacheClass ClassOf(const std::string& text) {
  const Words parts = absl::StrSplit(text, ':');
  CacheClass of{.block_size = Number(parts[1])};
  const uint32_t tokens = Number(parts[2]);
  if (parts[0] == "window") {
    of.kind = CacheKind::kWindow;
    of.window_tokens = tokens - 1;
  } else if (parts[0] == "state") {
    of.kind = CacheKind::kState;
  } else if (parts[0] == "chunk") {
    of.kind = CacheKind::kChunk;
    of.window_tokens = tokens;
  }
  of.drops_last = parts[3] == "1";
  return of;
}

// "0-9,12"
std::vector<uint32_t> BlocksOf(const std::string& text) {
  std::vector<uint32_t> blocks;
  if (text == "-") return blocks;
  for (const std::string& range : Words(absl::StrSplit(text, ','))) {
    const Words ends = absl::StrSplit(range, '-');
    for (uint32_t i = Number(ends.front()); i <= Number(ends.back()); ++i) blocks.push_back(i);
  }
  return blocks;
}

TEST(HybridVectorsTest, EqualsTheEnginesOwnSearch) {
  std::ifstream file("tests/interop/hybrid_vectors.txt");
  ASSERT_TRUE(file.is_open());
  std::string line;
  int compared = 0, not_expressed = 0;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    const Words fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    ASSERT_EQ(fields.size(), 4u) << line;
    const Words classes = absl::StrSplit(fields[0], ',');
    const Words held = absl::StrSplit(fields[2], '|');
    ASSERT_EQ(classes.size(), held.size()) << line;
    CacheLayout layout;
    layout.has_main = false;
    uint32_t main_held = 0;
    std::vector<const std::string*> of_side;
    bool expressed = true;
    for (size_t i = 0; i < classes.size(); ++i) {
      const CacheClass of = ClassOf(classes[i]);
      if (of.kind != CacheKind::kFull) {
        layout.sides.push_back(of);
        of_side.push_back(&held[i]);
        continue;
      }
      expressed = expressed && !layout.has_main;
      layout.has_main = true;
      layout.main = of;
      const std::vector<uint32_t> blocks = BlocksOf(held[i]);
      while (main_held < blocks.size() && blocks[main_held] == main_held) ++main_held;
    }
    const uint32_t block_size =
        layout.has_main ? layout.main.block_size : layout.sides[0].block_size;
    const uint32_t tokens = Number(fields[1]);
    if (!expressed || AlignmentOf(layout) % block_size != 0) {
      ++not_expressed;
      continue;
    }
    std::vector<SequenceHash> prompt;
    for (uint64_t i = 1; i <= tokens / block_size; ++i)
      prompt.push_back(SequenceHash{i * 0x9e3779b97f4a7c15});
    SideIndex index;
    for (size_t i = 0; i < layout.sides.size(); ++i) {
      for (uint32_t block : BlocksOf(*of_side[i])) {
        const auto name = Reusable::NameAt(layout.sides[i], prompt, block_size,
                                           (uint64_t{block} + 1) * layout.sides[i].block_size);
        if (!name.has_value()) continue;
        ASSERT_TRUE(index.Store(HolderIndex(0), Tier::kDevice, {&*name, 1}, nullptr, nullptr).ok());
      }
    }
    SideIndex::Reader reader(index);
    const std::vector<uint64_t> holders = {1};
    std::vector<Overlap> reused;
    Reusable().Find(layout, prompt, block_size, TierMask::All(), reader,
                    StepsOf({{HolderIndex(0), main_held}}), holders, &reused);
    ASSERT_EQ(reused.size(), 1u) << line;
    // A class that drops its last block looks at one behind the boundary; where that one ends
    // inside a main block that the prompt has not whole, it has no name.
    bool unnamed = false;
    for (const CacheClass& side : layout.sides)
      unnamed = unnamed || (side.drops_last && side.block_size % block_size != 0);
    const uint32_t expected = Number(fields[3]) / block_size;
    if (unnamed) {
      EXPECT_LE(reused[0].blocks, expected) << line;
    } else {
      EXPECT_EQ(reused[0].blocks, expected) << line;
    }
    ++compared;
  }
  EXPECT_GT(compared, 500);
  RecordProperty("not_expressed", not_expressed);
}

}  // namespace
}  // namespace kvatlas
