#include "indexer/coverage/coverage.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace kvatlas {
namespace {

constexpr TierMask kNone;
constexpr TierMask kDevice(Tier::kDevice);
constexpr TierMask kDisk(Tier::kDisk);
constexpr HolderIndex kOne{1};
constexpr HolderIndex kTwo{2};

class CoverageTest : public testing::Test {
 protected:
  CoverageOptions Options(uint64_t waypoints_max = 1000) {
    return {.schedule = &schedule_,
            .tiers = TierMask::Routed(),
            .withdraw_delay = std::chrono::seconds(1),
            .waypoints_max = waypoints_max,
            .clock = &clock_};
  }

  // Applies news to the picture that the level above has.
  void Take(Coverage* coverage) {
    for (const Event& event : coverage->Take().events) {
      if (const auto* stored = std::get_if<Stored>(&event)) {
        for (size_t i = 0; i < stored->blocks.size(); ++i) {
          EXPECT_TRUE(above_.emplace(stored->blocks[i], stored->position + i).second);
        }
      } else {
        for (SequenceHash block : std::get<Removed>(event).blocks)
          EXPECT_EQ(above_.erase(block), 1u);
      }
    }
  }

  const WaypointSchedule schedule_{{1}, 4};  // positions 1, 3, 7, 11 …
  ManualClock clock_;
  std::map<SequenceHash, Position> above_;
};

TEST_F(CoverageTest, FirstInIsAnnouncedByItsOrdinal) {
  Coverage coverage(Options());
  coverage.OnChanged(kOne, SequenceHash{70}, 7, kNone, kDevice);
  coverage.OnChanged(kTwo, SequenceHash{70}, 7, kNone, kDevice);
  EXPECT_FALSE(coverage.AtRest());
  Take(&coverage);
  EXPECT_EQ(above_, (std::map<SequenceHash, Position>{{SequenceHash{70}, 2}}));
  EXPECT_TRUE(coverage.AtRest());
  EXPECT_TRUE(coverage.Take().events.empty());
}

TEST_F(CoverageTest, BlocksBetweenWaypointsAreNoNews) {
  Coverage coverage(Options());
  for (Position position : {0, 2, 4, 5, 6}) {
    coverage.OnChanged(kOne, SequenceHash{position + 1}, position, kNone, kDevice);
  }
  EXPECT_TRUE(coverage.Take().events.empty());
}

TEST_F(CoverageTest, LastOutIsWithdrawnAfterTheDelay) {
  Coverage coverage(Options());
  coverage.OnChanged(kOne, SequenceHash{30}, 3, kNone, kDevice);
  coverage.OnChanged(kTwo, SequenceHash{30}, 3, kNone, kDevice);
  Take(&coverage);
  coverage.OnChanged(kOne, SequenceHash{30}, 3, kDevice, kNone);
  clock_.Advance(std::chrono::seconds(5));
  Take(&coverage);
  EXPECT_EQ(above_.size(), 1u);
  coverage.OnChanged(kTwo, SequenceHash{30}, 3, kDevice, kNone);
  Take(&coverage);
  EXPECT_EQ(above_.size(), 1u);
  EXPECT_FALSE(coverage.AtRest());
  clock_.Advance(std::chrono::seconds(1));
  Take(&coverage);
  EXPECT_TRUE(above_.empty());
  EXPECT_TRUE(coverage.AtRest());
}

TEST_F(CoverageTest, WhatComesBackWithinTheDelayWasNeverGone) {
  Coverage coverage(Options());
  coverage.OnChanged(kOne, SequenceHash{30}, 3, kNone, kDevice);
  Take(&coverage);
  coverage.OnChanged(kOne, SequenceHash{30}, 3, kDevice, kNone);
  coverage.OnChanged(kTwo, SequenceHash{30}, 3, kNone, kDevice);
  clock_.Advance(std::chrono::seconds(2));
  EXPECT_TRUE(coverage.Take().events.empty());
}

TEST_F(CoverageTest, OnlyRoutedTiersCount) {
  Coverage coverage(Options());
  coverage.OnChanged(kOne, SequenceHash{30}, 3, kNone, kDisk);
  EXPECT_TRUE(coverage.Take().events.empty());
  coverage.OnChanged(kOne, SequenceHash{30}, 3, kDisk, kDisk | kDevice);
  coverage.OnChanged(kOne, SequenceHash{30}, 3, kDisk | kDevice, kDisk | TierMask(Tier::kHost));
  Take(&coverage);
  EXPECT_EQ(above_.size(), 1u);
}

TEST_F(CoverageTest, TheBudgetLetsNewOnesWait) {
  Coverage coverage(Options(/*waypoints_max=*/1));
  coverage.OnChanged(kOne, SequenceHash{30}, 3, kNone, kDevice);
  coverage.OnChanged(kOne, SequenceHash{31}, 3, kNone, kDevice);
  Take(&coverage);
  EXPECT_EQ(above_.count(SequenceHash{30}), 1u);
  EXPECT_EQ(coverage.stats().waiting, 1u);
  coverage.OnChanged(kOne, SequenceHash{30}, 3, kDevice, kNone);
  clock_.Advance(std::chrono::seconds(1));
  Take(&coverage);
  EXPECT_EQ(above_, (std::map<SequenceHash, Position>{{SequenceHash{31}, 1}}));
  EXPECT_EQ(coverage.stats().waiting, 0u);
}

TEST_F(CoverageTest, LoadIsTheSumOverHoldersAndOnlyWhenItChanged) {
  Coverage coverage(Options());
  coverage.OnLoad(kOne, Load{.running_requests = 2, .free_blocks = 10});
  coverage.OnLoad(kTwo, Load{.running_requests = 3, .free_blocks = 20});
  const Coverage::News news = coverage.Take();
  ASSERT_TRUE(news.load.has_value());
  EXPECT_EQ(news.load->running_requests, 5u);
  EXPECT_EQ(news.load->free_blocks, 30u);
  EXPECT_EQ(news.load->workers, 2u);
  EXPECT_FALSE(coverage.Take().load.has_value());
  coverage.OnLoad(kTwo, std::nullopt);
  EXPECT_EQ(coverage.Take().load->workers, 1u);
}

// Random gains, losses and time against a slow recount.
TEST_F(CoverageTest, EqualsARecountAtRest) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    above_.clear();
    std::mt19937 random(seed);
    Coverage coverage(Options());
    std::set<std::pair<uint32_t, uint64_t>> held;
    for (int step = 0; step < 2000; ++step) {
      const uint32_t holder = random() % 4;
      const uint64_t block = random() % 24;
      const Position position = static_cast<Position>(block);
      const bool had = held.contains({holder, block});
      coverage.OnChanged(HolderIndex{holder}, SequenceHash{block}, position, had ? kDevice : kNone,
                         had ? kNone : kDevice);
      had ? held.erase({holder, block}) : held.emplace(holder, block).second;
      if (random() % 3 == 0) clock_.Advance(std::chrono::milliseconds(random() % 900));
      if (random() % 2 == 0) Take(&coverage);
      if (step % 100 != 99) continue;
      Take(&coverage);
      clock_.Advance(std::chrono::seconds(2));
      Take(&coverage);
      EXPECT_TRUE(coverage.AtRest());
      std::map<SequenceHash, Position> truth;
      for (const auto& [_, b] : held) {
        const auto at = static_cast<Position>(b);
        if (schedule_.IsWaypoint(at)) truth[SequenceHash{b}] = schedule_.WaypointsIn(at);
      }
      ASSERT_EQ(above_, truth);
      ASSERT_EQ(coverage.stats().covered, truth.size());
    }
  }
}

}  // namespace
}  // namespace kvatlas
