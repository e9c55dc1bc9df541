#include "indexer/base/waypoints.h"

#include <gtest/gtest.h>

namespace kvatlas {
namespace {

const WaypointSchedule* const kSchedules[] = {
    &WaypointSchedule::Standard(), new WaypointSchedule({}, 1), new WaypointSchedule({}, 32),
    new WaypointSchedule({0, 1, 3, 7}, 16)};

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

}  // namespace
}  // namespace kvatlas
