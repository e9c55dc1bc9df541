#include "frontend/router/recently_stored.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvatlas {
namespace {

constexpr size_t kWorkers = 8;
constexpr double kRoom = RecentlyStored::kRoomBlocks;

TEST(RecentlyStoredTest, NothingStoredIsNotCrowded) {
  RecentlyStored fleet;
  EXPECT_EQ(fleet.CrowdingAmong(kWorkers)({}), 0);
}

TEST(RecentlyStoredTest, AFleetThatStoredLittleHasNoCrowdedWorker) {
  RecentlyStored fleet;
  RecentlyStored::Sum one;
  fleet.Store(kRoom * RecentlyStored::kSpareRooms, kWorkers, &one);
  EXPECT_EQ(fleet.CrowdingAmong(kWorkers)(one), 0);
  fleet.Store(kRoom * RecentlyStored::kSpareRooms, kWorkers, &one);
  EXPECT_GT(fleet.CrowdingAmong(kWorkers)(one), 0);
}

TEST(RecentlyStoredTest, EqualSharesAreNotCrowded) {
  RecentlyStored fleet;
  std::vector<RecentlyStored::Sum> workers(kWorkers);
  for (int turn = 0; turn < 1000; ++turn) {
    for (RecentlyStored::Sum& worker : workers) fleet.Store(64, kWorkers, &worker);
  }
  for (const RecentlyStored::Sum& worker : workers)
    EXPECT_EQ(fleet.CrowdingAmong(kWorkers)(worker), 0);
}

// All of a fleet's blocks at one worker of eight: its sum is that of eight rooms, the average one
// room.
TEST(RecentlyStoredTest, OneWorkerThatStoresAllIsCrowdedBySevenRooms) {
  RecentlyStored fleet;
  RecentlyStored::Sum one;
  for (int i = 0; i < 10000; ++i) fleet.Store(64, kWorkers, &one);
  EXPECT_NEAR(fleet.CrowdingAmong(kWorkers)(one), 7 - RecentlyStored::kSpareRooms, 0.1);
}

TEST(RecentlyStoredTest, CrowdingFadesAsOthersStore) {
  RecentlyStored fleet;
  std::vector<RecentlyStored::Sum> workers(kWorkers);
  fleet.Store(4 * kRoom, kWorkers, &workers[0]);
  double before = fleet.CrowdingAmong(kWorkers)(workers[0]);
  EXPECT_GT(before, 1);
  while (before > 0) {
    for (size_t i = 1; i < kWorkers; ++i) fleet.Store(kRoom / 8, kWorkers, &workers[i]);
    const double now = fleet.CrowdingAmong(kWorkers)(workers[0]);
    EXPECT_LT(now, before);
    before = now;
  }
}

}  // namespace
}  // namespace kvatlas
