#include "indexer/base/shard_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace kvatlas {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ShardMap Parsed(absl::string_view text) {
  absl::StatusOr<ShardMap> map = ShardMap::Parse(text);
  EXPECT_TRUE(map.ok()) << map.status();
  return map.ok() ? *std::move(map) : ShardMap();
}

std::vector<SequenceHash> Waypoints(size_t count) {
  std::mt19937_64 random(1);
  std::vector<SequenceHash> waypoints;
  for (size_t i = 0; i < count; ++i) waypoints.push_back(SequenceHash(random()));
  return waypoints;
}

TEST(ShardMapTest, NodesWithoutNamesAreReplicasThatKnowEverything) {
  const ShardMap map = Parsed("h1:1,h2:2");
  EXPECT_FALSE(map.split());
  ASSERT_EQ(map.shards().size(), 1u);
  EXPECT_THAT(map.shards()[0].addresses, ElementsAre("h1:1", "h2:2"));
  for (SequenceHash waypoint : Waypoints(10)) EXPECT_TRUE(map.Keeps(0, 1000, waypoint));
  EXPECT_TRUE(ShardMap::Parse("")->empty());
}

TEST(ShardMapTest, NamedShardsHaveReplicas) {
  const ShardMap map = Parsed("b=h3:3,a=h1:1|[::1]:2,b=h4:4");
  EXPECT_TRUE(map.split());
  ASSERT_EQ(map.shards().size(), 2u);
  EXPECT_EQ(map.shards()[0].name, "a");
  EXPECT_THAT(map.shards()[0].addresses, ElementsAre("h1:1", "[::1]:2"));
  EXPECT_THAT(map.shards()[1].addresses, ElementsAre("h3:3", "h4:4"));
  EXPECT_THAT(map.Addresses(), ElementsAre("h1:1", "[::1]:2", "h3:3", "h4:4"));
}

TEST(ShardMapTest, ToStringIsReadBack) {
  for (const char* text : {"", "h1:1", "h1:1,h2:2", "a=h1:1|h2:2,b=h3:3", "shallow=3,a=h1:1,b=h3:3",
                           "shallow=9,a=h1:1,b=h3:3"}) {
    EXPECT_EQ(Parsed(text).ToString(), text);
  }
}

TEST(ShardMapTest, WhatIsNoMapIsRefusedByName) {
  for (const char* text : {"x", ":1", "h:", "a=", "=h:1", "a=h:1,h:2", "h:2,a=h:1", "a=h:1||h:2",
                           "h:1,,h:2", "h:1,h:1", "a=h:1,b=h:1", "shallow=2", "shallow=0,a=h:1",
                           "shallow=x,a=h:1", "shallow=70000,a=h:1", "shallow=-1,a=h:1"}) {
    const absl::StatusOr<ShardMap> map = ShardMap::Parse(text);
    ASSERT_FALSE(map.ok()) << text;
    EXPECT_THAT(std::string(map.status().message()), HasSubstr("'")) << text;
  }
}

TEST(ShardMapTest, AShallowWaypointIsEverywhereAndADeepOneAtOneShard) {
  const ShardMap map = Parsed("shallow=2,a=h:1,b=h:2,c=h:3");
  for (SequenceHash waypoint : Waypoints(100)) {
    size_t shallow = 0, deep = 0;
    for (size_t shard = 0; shard < 3; ++shard) {
      shallow += map.Keeps(shard, 1, waypoint);
      deep += map.Keeps(shard, 2, waypoint);
    }
    EXPECT_EQ(shallow, 3u);
    EXPECT_EQ(deep, 1u);
  }
}

TEST(ShardMapTest, OwnersDependOnNamesOnly) {
  const ShardMap map = Parsed("a=h:1,b=h:2,c=h:3");
  const ShardMap moved = Parsed("c=other:9|other:10,b=h:2,a=h:7");
  for (SequenceHash waypoint : Waypoints(1000))
    EXPECT_EQ(map.OwnerOf(waypoint), moved.OwnerOf(waypoint));
}

// Standard deviations are 1.1 % and 0.9 % of a shard's share: the bounds are six of them.
TEST(ShardMapTest, SharesAreEvenAndANewShardMovesOnlyItsOwn) {
  const ShardMap four = Parsed("a=h:1,b=h:2,c=h:3,d=h:4");
  const ShardMap five = Parsed("a=h:1,b=h:2,c=h:3,d=h:4,e=h:5");
  constexpr size_t kWaypoints = 40000;
  size_t of_four[4] = {}, moved = 0;
  for (SequenceHash waypoint : Waypoints(kWaypoints)) {
    const size_t before = four.OwnerOf(waypoint), after = five.OwnerOf(waypoint);
    ++of_four[before];
    if (after == before) continue;
    EXPECT_EQ(after, 4u) << "nothing moves between those that were there";
    ++moved;
  }
  for (size_t of : of_four) EXPECT_NEAR(of, kWaypoints / 4, kWaypoints / 4 * 0.06);
  EXPECT_NEAR(moved, kWaypoints / 5, kWaypoints / 5 * 0.06);
}

}  // namespace
}  // namespace kvatlas
