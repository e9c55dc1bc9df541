#include "tools/testing/mock_engine/hybrid.h"

#include <gtest/gtest.h>

namespace kvatlas {
namespace {

TEST(HybridTest, ReadsBothKindsAndNothing) {
  EXPECT_TRUE(ParseHybrid("")->plain());
  EXPECT_EQ(ParseHybrid("window:1024")->kind, CacheKind::kWindow);
  EXPECT_EQ(ParseHybrid("window:1024")->tokens, 1024u);
  EXPECT_EQ(ParseHybrid("mamba:2048")->kind, CacheKind::kState);
  for (const char* bad : {"window", "window:", "window:1", "mamba:x", "chunk:64", ":64", "64"}) {
    EXPECT_EQ(ParseHybrid(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(HybridTest, AWindowCountsTheNextTokenAmongItsOwn) {
  const HybridOptions window{.kind = CacheKind::kWindow, .tokens = 128};
  const CacheLayout layout = LayoutOf(window, 16);
  EXPECT_EQ(layout.main, (CacheClass{.kind = CacheKind::kFull, .block_size = 16}));
  ASSERT_EQ(layout.sides.size(), 1u);
  EXPECT_EQ(layout.sides[kMockSide - 1],
            (CacheClass{.kind = CacheKind::kWindow, .block_size = 16, .window_tokens = 127}));
  EXPECT_EQ(WindowBlocks(window, 16), 8u);
  EXPECT_EQ(WindowBlocks({.kind = CacheKind::kWindow, .tokens = 129}, 16), 8u);
  EXPECT_EQ(WindowBlocks({.kind = CacheKind::kWindow, .tokens = 130}, 16), 9u);
  EXPECT_EQ(WindowBlocks({.kind = CacheKind::kWindow, .tokens = 2}, 16), 1u);
}

TEST(HybridTest, AStateHasNoWindowAndFullAttentionNoSideClass) {
  const CacheLayout layout = LayoutOf({.kind = CacheKind::kState, .tokens = 2048}, 64);
  ASSERT_EQ(layout.sides.size(), 1u);
  EXPECT_EQ(layout.sides[0], (CacheClass{.kind = CacheKind::kState, .block_size = 64}));
  EXPECT_TRUE(LayoutOf({}, 64).plain());
}

TEST(HybridTest, TheLastTokenIsNeverReused) {
  EXPECT_EQ(ReuseLimit(4, 64, 16), 3u);
  EXPECT_EQ(ReuseLimit(4, 65, 16), 4u);
  EXPECT_EQ(ReuseLimit(4, 50, 16), 3u);  // a trace's last block counts as full
  EXPECT_EQ(ReuseLimit(4, 0, 16), 3u);
  EXPECT_EQ(ReuseLimit(0, 10, 16), 0u);
}

}  // namespace
}  // namespace kvatlas
