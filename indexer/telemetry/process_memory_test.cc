#include "indexer/telemetry/process_memory.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvatlas {
namespace {

TEST(ProcessMemoryTest, TheSystemSaysWhatThereIs) {
  EXPECT_GT(MemoryLimitBytes(), uint64_t{1} << 26);
  const uint64_t before = ResidentBytes();
  EXPECT_GT(before, 0u);
  std::vector<char> much(64 << 20, 'x');
  EXPECT_GT(ResidentBytes(), before + (48 << 20)) << much[7];
}

}  // namespace
}  // namespace kvatlas
