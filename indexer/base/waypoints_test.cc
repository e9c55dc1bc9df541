#include "indexer/base/waypoints.h"

#include <gtest/gtest.h>

namespace kvatlas {
namespace {

const WaypointSchedule* const kSchedules[] = {&WaypointSchedule::Standard(),
                                              new WaypointSchedule({}, 1),
                                              new WaypointSchedule({}, 32),
                                              new WaypointSchedule({0, 1, 3, 7}, 16),
                                              new WaypointSchedule({7, 15, 31, 47}, 32),
                                              new WaypointSchedule({99}, 32)};

TEST(WaypointsTest, CountsAndPositionsAgreeWithThePredicate) {
  for (const WaypointSchedule* schedule : kSchedules) {
    uint32_t ordinal = 0;
    for (Position position = 0; position < 300; ++position) {
      EXPECT_EQ(schedule->WaypointsIn(position), ordinal) << schedule->Name() << " " << position;
      if (!schedule->IsWaypoint(position)) continue;
      EXPECT_EQ(schedule->PositionOf(ordinal), position) << schedule->Name();
      ++ordinal;
    }
  }
}

TEST(WaypointsTest, CoverageReachesUpToAndWithTheWaypoint) {
  const WaypointSchedule schedule({15}, 32);
  EXPECT_EQ(schedule.BlocksCovered(0), 0u);
  EXPECT_EQ(schedule.BlocksCovered(1), 16u);
  EXPECT_EQ(schedule.BlocksCovered(3), 64u);
}

TEST(WaypointsTest, SelectsTheHashesAtWaypoints) {
  std::vector<SequenceHash> sequence;
  for (uint64_t i = 0; i < 70; ++i) sequence.push_back(SequenceHash{i});
  EXPECT_EQ(WaypointSchedule({15}, 32).Select(sequence),
            (std::vector<SequenceHash>{SequenceHash{15}, SequenceHash{31}, SequenceHash{63}}));
  EXPECT_TRUE(WaypointSchedule({}, 32).Select(std::span(sequence).first(31)).empty());
}

TEST(WaypointsTest, NamesTellSchedulesApart) {
  EXPECT_EQ(WaypointSchedule({15}, 32).Name(), "early:15;every:32");
  EXPECT_EQ(WaypointSchedule({}, 32).Name(), "every:32");
}

std::string Parsed(absl::string_view name) {
  const absl::StatusOr<WaypointSchedule> schedule = WaypointSchedule::Parse(name);
  return schedule.ok() ? schedule->Name() : std::string(schedule.status().message());
}

TEST(WaypointsTest, ANameIsReadBack) {
  for (const WaypointSchedule* schedule : kSchedules)
    EXPECT_EQ(Parsed(schedule->Name()), schedule->Name());
}

TEST(WaypointsTest, ShortNamesSayTheSame) {
  EXPECT_EQ(Parsed("dense:4;every:32"), "early:0,1,2,3;every:32");
  EXPECT_EQ(Parsed("powers:8;every:32"), "early:0,1,3,7;every:32");
  EXPECT_EQ(Parsed("powers:16;every:8"), "early:0,1,3;every:8");
  EXPECT_EQ(Parsed("every:8to32;every:16to64;every:32"), "early:7,15,23,31,47;every:32");
  EXPECT_EQ(Parsed("early:3;every:16to64;every:64"), "early:3,15,31,47;every:64");
  EXPECT_EQ(Parsed("early:31,63;every:32"), "every:32");
  EXPECT_EQ(Parsed("early:63;every:32"), "early:63;every:32") << "31 is not in it";
}

TEST(WaypointsTest, WhatIsNoNameIsRefused) {
  for (const char* name :
       {"", "every:", "every:0", "every:x", "early:3", "early:;every:8", "early:7,3;every:8",
        "early:-1;every:8", "early:3;;every:8", "dense:33;every:64", "every:1to40;every:64",
        "every:65537", "every:8to4;every:32", "early:99999999999;every:8", "every:8;every:32"}) {
    EXPECT_FALSE(WaypointSchedule::Parse(name).ok()) << name;
  }
}

// Every pair, against a look at every position.
TEST(WaypointsTest, AScheduleOverAnotherNamesTheSamePlacesByOrdinal) {
  std::vector<WaypointSchedule> schedules;
  for (const WaypointSchedule* schedule : kSchedules) schedules.push_back(*schedule);
  for (const char* name :
       {"every:512", "every:2", "every:64", "early:15,63;every:512", "early:31,127,255;every:1024",
        "early:127;every:256", "early:63;every:32", "early:0,3;every:48", "early:299;every:512"})
    schedules.push_back(*WaypointSchedule::Parse(name));
  int over = 0;
  for (const WaypointSchedule& above : schedules) {
    for (const WaypointSchedule& below : schedules) {
      bool subset = true;
      for (Position position = 0; position < 5000; ++position)
        subset &= !above.IsWaypoint(position) || below.IsWaypoint(position);
      const absl::StatusOr<WaypointSchedule> by_ordinal = above.Over(below);
      ASSERT_EQ(by_ordinal.ok(), subset) << above.Name() << " over " << below.Name();
      if (!subset) continue;
      ++over;
      for (uint32_t ordinal = 0; ordinal < 300; ++ordinal) {
        const Position position = below.PositionOf(ordinal);
        ASSERT_EQ(by_ordinal->IsWaypoint(ordinal), above.IsWaypoint(position))
            << above.Name() << " over " << below.Name() << " at " << ordinal;
        ASSERT_EQ(by_ordinal->WaypointsIn(ordinal), above.WaypointsIn(position));
        ASSERT_EQ(below.PositionOf(by_ordinal->PositionOf(ordinal)), above.PositionOf(ordinal));
      }
    }
  }
  EXPECT_GT(over, 30);
}

}  // namespace
}  // namespace kvatlas
