#include "indexer/base/durations.h"

#include "gtest/gtest.h"

namespace kvatlas {
namespace {

TEST(DurationsTest, MillisecondsFitTheirType) {
  EXPECT_EQ(Milliseconds(Duration(1'999'999)), 1u);
  EXPECT_EQ(Milliseconds(std::chrono::hours(-1)), 0u);
  EXPECT_EQ(Milliseconds(std::chrono::hours(24 * 365)), ~uint32_t{0});
  EXPECT_EQ(Milliseconds<int>(std::chrono::hours(24 * 365)), 0x7fffffff);
  EXPECT_EQ(Milliseconds<int64_t>(std::chrono::hours(24 * 365)), int64_t{31'536'000'000});
}

TEST(DurationsTest, SecondsKeepTheirFraction) {
  EXPECT_EQ(Seconds(std::chrono::milliseconds(1500)), 1.5);
}

}  // namespace
}  // namespace kvatlas
