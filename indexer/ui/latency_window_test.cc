#include "indexer/ui/latency_window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace kvatlas {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

TEST(LatencyWindowTest, NothingObservedIsNotKnown) {
  LatencyWindow window;
  EXPECT_TRUE(std::isnan(window.Take({0.5})[0]));
}

TEST(LatencyWindowTest, EachTakeIsOfWhatCameSince) {
  LatencyWindow window;
  for (int i = 0; i < 100; ++i) window.Observe(1000);
  EXPECT_THAT(window.Take({0.5, 0.99}), ElementsAre(DoubleNear(1, 0.1), DoubleNear(1, 0.1)));
  window.Observe(100000);
  EXPECT_THAT(window.Take({0.5, 1}), ElementsAre(DoubleNear(100, 9), DoubleNear(100, 9)));
  EXPECT_TRUE(std::isnan(window.Take({0.5})[0]));
}

TEST(LatencyWindowTest, SeveralTakesAreLookedBackOn) {
  LatencyWindow window(/*takes=*/3);
  for (int i = 0; i < 10; ++i) window.Observe(1000);
  EXPECT_THAT(window.Take({0.5}), ElementsAre(DoubleNear(1, 0.1)));
  EXPECT_THAT(window.Take({0.5}), ElementsAre(DoubleNear(1, 0.1)));
  for (int i = 0; i < 30; ++i) window.Observe(4000);
  EXPECT_THAT(window.Take({0.1, 0.5}), ElementsAre(DoubleNear(1, 0.1), DoubleNear(4, 0.4)));
  EXPECT_THAT(window.Take({0.1}), ElementsAre(DoubleNear(4, 0.4)));
}

TEST(LatencyWindowTest, ExtremesAreCounted) {
  LatencyWindow window;
  window.Observe(0);
  EXPECT_EQ(window.Take({0.5})[0], 0);
  window.Observe(~uint64_t{0});
  EXPECT_GT(window.Take({0.5})[0], 1e6);
}

// Against sorted values, whatever their spread.
TEST(LatencyWindowTest, PercentilesAreWithinATwelfth) {
  for (uint32_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::lognormal_distribution<double> times(6, 2);
    std::vector<uint64_t> all;
    LatencyWindow window;
    for (int i = 0; i < 5000; ++i) {
      all.push_back(static_cast<uint64_t>(times(random)) + 8);
      window.Observe(all.back());
    }
    std::sort(all.begin(), all.end());
    const std::vector<double> found = window.Take({0.5, 0.99});
    const double half = static_cast<double>(all[2500]) / 1000;
    const double most = static_cast<double>(all[4950]) / 1000;
    EXPECT_NEAR(found[0], half, half / 12);
    EXPECT_NEAR(found[1], most, most / 12);
  }
}

}  // namespace
}  // namespace kvatlas
