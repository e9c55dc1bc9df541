#include "indexer/coverage/coverage.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/waypoints.h"

namespace kvatlas {
namespace {

constexpr TierMask kNone;
constexpr TierMask kDevice(Tier::kDevice);
constexpr TierMask kDisk(Tier::kDisk);
constexpr HolderIndex kOne{1};
constexpr HolderIndex kTwo{2};
constexpr size_t kAll = 1 << 20;

class CoverageTest : public testing::Test {
 protected:
  static CoverageOptions Options(uint64_t waypoints_max = 1000) {
    return {.withdraw_delay = std::chrono::seconds(1),
            .waypoints_max = waypoints_max,
            .tiers = TierMask::Routed()};
  }

  // Applies news to the picture that the level above has.
  void Take(Coverage* coverage) {
    for (const Event& event : coverage->Take(kAll)) {
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
  Coverage coverage(&schedule_, Options(), &clock_);
  coverage.OnChanged(kOne, SequenceHash{70}, 7, kNone, kDevice);
  coverage.OnChanged(kTwo, SequenceHash{70}, 7, kNone, kDevice);
  EXPECT_FALSE(coverage.AtRest());
  Take(&coverage);
  EXPECT_EQ(above_, (std::map<SequenceHash, Position>{{SequenceHash{70}, 2}}));
  EXPECT_TRUE(coverage.AtRest());
  EXPECT_TRUE(coverage.Take(kAll).empty());
}

TEST_F(CoverageTest, BlocksBetweenWaypointsAreNoNews) {
  Coverage coverage(&schedule_, Options(), &clock_);
  for (Position position : {0, 2, 4, 5, 6}) {
    coverage.OnChanged(kOne, SequenceHash{position + 1}, position, kNone, kDevice);
  }
  EXPECT_TRUE(coverage.Take(kAll).empty());
}

TEST_F(CoverageTest, LastOutIsWithdrawnAfterTheDelay) {
  Coverage coverage(&schedule_, Options(), &clock_);
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
  Coverage coverage(&schedule_, Options(), &clock_);
  coverage.OnChanged(kOne, SequenceHash{30}, 3, kNone, kDevice);
  Take(&coverage);
  coverage.OnChanged(kOne, SequenceHash{30}, 3, kDevice, kNone);
  coverage.OnChanged(kTwo, SequenceHash{30}, 3, kNone, kDevice);
  clock_.Advance(std::chrono::seconds(2));
  EXPECT_TRUE(coverage.Take(kAll).empty());
}

TEST_F(CoverageTest, OnlyRoutedTiersCount) {
  Coverage coverage(&schedule_, Options(), &clock_);
  coverage.OnChanged(kOne, SequenceHash{30}, 3, kNone, kDisk);
  EXPECT_TRUE(coverage.Take(kAll).empty());
  coverage.OnChanged(kOne, SequenceHash{30}, 3, kDisk, kDisk | kDevice);
  coverage.OnChanged(kOne, SequenceHash{30}, 3, kDisk | kDevice, kDisk | TierMask(Tier::kHost));
  Take(&coverage);
  EXPECT_EQ(above_.size(), 1u);
}

TEST_F(CoverageTest, TheBudgetLetsNewOnesWait) {
  Coverage coverage(&schedule_, Options(/*waypoints_max=*/1), &clock_);
  coverage.OnChanged(kOne, SequenceHash{30}, 3, kNone, kDevice);
  coverage.OnChanged(kOne, SequenceHash{31}, 3, kNone, kDevice);
  Take(&coverage);
  EXPECT_EQ(above_.count(SequenceHash{30}), 1u);
  EXPECT_EQ(coverage.Stats().waiting, 1u);
  coverage.OnChanged(kOne, SequenceHash{30}, 3, kDevice, kNone);
  clock_.Advance(std::chrono::seconds(1));
  Take(&coverage);
  EXPECT_EQ(above_, (std::map<SequenceHash, Position>{{SequenceHash{31}, 1}}));
  EXPECT_EQ(coverage.Stats().waiting, 0u);
}

TEST_F(CoverageTest, LoadIsTheSumOverHoldersAndOnlyWhenItChanged) {
  Coverage coverage(&schedule_, Options(), &clock_);
  coverage.OnLoad(kOne, Load{.running_requests = 2, .free_blocks = 10});
  coverage.OnLoad(kTwo, Load{.running_requests = 3, .free_blocks = 20});
  const std::optional<Load> load = coverage.TakeLoad();
  ASSERT_TRUE(load.has_value());
  EXPECT_EQ(load->running_requests, 5u);
  EXPECT_EQ(load->free_blocks, 30u);
  EXPECT_EQ(load->workers, 2u);
  EXPECT_FALSE(coverage.TakeLoad().has_value());
  coverage.OnLoad(kTwo, std::nullopt);
  EXPECT_EQ(coverage.TakeLoad()->workers, 1u);
}

TEST_F(CoverageTest, AmongThoseWaitingForTheBudgetTheShallowestGoFirst) {
  Coverage coverage(&schedule_, Options(1), &clock_);
  coverage.OnChanged(kOne, SequenceHash{70}, 7, kNone, kDevice);
  Take(&coverage);
  coverage.OnChanged(kOne, SequenceHash{110}, 11, kNone, kDevice);
  coverage.OnChanged(kOne, SequenceHash{30}, 3, kNone, kDevice);
  Take(&coverage);
  EXPECT_TRUE(coverage.AtRest()) << "the budget is full: nothing is due";
  coverage.OnChanged(kOne, SequenceHash{70}, 7, kDevice, kNone);
  clock_.Advance(std::chrono::seconds(1));
  Take(&coverage);
  EXPECT_EQ(above_, (std::map<SequenceHash, Position>{{SequenceHash{30}, 1}}));
}

TEST_F(CoverageTest, WhatWaitsForTheBudgetAndIsLostIsNeverAnnounced) {
  Coverage coverage(&schedule_, Options(1), &clock_);
  coverage.OnChanged(kOne, SequenceHash{30}, 3, kNone, kDevice);
  coverage.OnChanged(kOne, SequenceHash{31}, 3, kNone, kDevice);
  Take(&coverage);
  coverage.OnChanged(kOne, SequenceHash{31}, 3, kDevice, kNone);
  coverage.OnChanged(kOne, SequenceHash{30}, 3, kDevice, kNone);
  clock_.Advance(std::chrono::seconds(1));
  Take(&coverage);
  EXPECT_TRUE(above_.empty());
  EXPECT_EQ(coverage.Stats().announced, 1u);
}

TEST_F(CoverageTest, ABoundedTakeLeavesTheRestForTheNext) {
  Coverage coverage(&schedule_, Options(), &clock_);
  for (uint64_t i = 1; i <= 10; ++i) coverage.OnChanged(kOne, SequenceHash{i}, 3, kNone, kDevice);
  EXPECT_EQ(coverage.Take(4).size(), 4u);
  EXPECT_FALSE(coverage.AtRest());
  EXPECT_EQ(coverage.Take(4).size(), 4u);
  EXPECT_EQ(coverage.Take(4).size(), 2u);
  EXPECT_TRUE(coverage.AtRest());
}

TEST_F(CoverageTest, LostAgainStartsTheDelayAnew) {
  Coverage coverage(&schedule_, Options(), &clock_);
  coverage.OnChanged(kOne, SequenceHash{30}, 3, kNone, kDevice);
  Take(&coverage);
  coverage.OnChanged(kOne, SequenceHash{30}, 3, kDevice, kNone);
  clock_.Advance(std::chrono::milliseconds(600));
  coverage.OnChanged(kOne, SequenceHash{30}, 3, kNone, kDevice);
  coverage.OnChanged(kOne, SequenceHash{30}, 3, kDevice, kNone);
  clock_.Advance(std::chrono::milliseconds(600));
  Take(&coverage);
  EXPECT_EQ(above_.size(), 1u);
  clock_.Advance(std::chrono::milliseconds(400));
  Take(&coverage);
  EXPECT_TRUE(above_.empty());
}

TEST_F(CoverageTest, WritersInParallelAndATakerAgreeInTheEnd) {
  Coverage coverage(&schedule_, Options(), &clock_);
  std::vector<std::thread> writers;
  for (uint32_t writer = 0; writer < 4; ++writer) {
    writers.emplace_back([&coverage, writer] {
      for (int round = 0; round < 500; ++round) {
        for (uint64_t block = 1; block <= 8; ++block) {
          const bool gains = round % 2 == 0;
          coverage.OnChanged(HolderIndex{writer}, SequenceHash{block}, 3, gains ? kNone : kDevice,
                             gains ? kDevice : kNone);
        }
      }
      coverage.OnChanged(HolderIndex{writer}, SequenceHash{writer + 1}, 3, kNone, kDevice);
    });
  }
  for (int i = 0; i < 100; ++i) {
    Take(&coverage);
    clock_.Advance(std::chrono::milliseconds(300));
  }
  for (std::thread& writer : writers) writer.join();
  Take(&coverage);
  clock_.Advance(std::chrono::seconds(2));
  Take(&coverage);
  EXPECT_TRUE(coverage.AtRest());
  EXPECT_EQ(
      above_,
      (std::map<SequenceHash, Position>{
          {SequenceHash{1}, 1}, {SequenceHash{2}, 1}, {SequenceHash{3}, 1}, {SequenceHash{4}, 1}}));
}

// Random gains, losses and time against a slow recount.
TEST_F(CoverageTest, EqualsARecountAtRest) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    above_.clear();
    std::mt19937 random(seed);
    Coverage coverage(&schedule_, Options(), &clock_);
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
      ASSERT_EQ(coverage.Stats().covered, truth.size());
    }
  }
}

}  // namespace
}  // namespace kvatlas
