#include "indexer/base/cache_class_text.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace kvatlas {
namespace {

TEST(CacheClassTextTest, PeopleAreToldItsKindAndWindow) {
  EXPECT_EQ(ToString(CacheClass{.block_size = 4}), "main");
  EXPECT_EQ(ToString({.kind = CacheKind::kWindow, .block_size = 4, .window_tokens = 7}),
            "window:7");
  EXPECT_EQ(ToString({.kind = CacheKind::kWindow, .window_tokens = UINT32_MAX}), "window:all");
  EXPECT_EQ(ToString({.kind = CacheKind::kState}), "state");
  EXPECT_EQ(ToString({.kind = CacheKind::kChunk, .window_tokens = 8192}), "chunk:8192");
}

}  // namespace
}  // namespace kvatlas
