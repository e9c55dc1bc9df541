#include "indexer/base/assert.h"

#include <gtest/gtest.h>

namespace kvatlas {
namespace {

TEST(AssertDeathTest, SaysWhereAndWhat) {
  const int blocks = 3;
  KVATLAS_ASSERT(blocks == 3);
  EXPECT_DEATH(KVATLAS_ASSERT(blocks < 3), "assert_test.cc:[0-9]+: assertion failed: blocks < 3");
}

}  // namespace
}  // namespace kvatlas
