#include "frontend/router/outlier_ejection.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/base/ids.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;

CellWorker Worker(int number) { return {"cell", {"w" + std::to_string(number), 0, ""}}; }
constexpr Time kNow{1'000'000'000'000};

TEST(SuspectsTest, ASuspicionPassesAndEachRenewalTakesTwiceAsLong) {
  OutlierEjection suspects({.ttl = seconds(2), .ttl_max = seconds(7)});
  EXPECT_FALSE(suspects.Contains(Worker(1), kNow));
  Time now = kNow;
  for (const seconds ttl : {seconds(2), seconds(4), seconds(7), seconds(7)}) {
    suspects.Suspect(Worker(1), now);
    EXPECT_TRUE(suspects.Contains(Worker(1), now + ttl - Duration(1)));
    EXPECT_FALSE(suspects.Contains(Worker(1), now + ttl));
    now += ttl;
  }
}

TEST(SuspectsTest, ManyFailuresAtOnceAreOneSuspicion) {
  OutlierEjection suspects({.ttl = seconds(2), .ttl_max = seconds(30)});
  for (int i = 0; i < 100; ++i) suspects.Suspect(Worker(1), kNow + std::chrono::milliseconds(i));
  EXPECT_FALSE(suspects.Contains(Worker(1), kNow + seconds(2)));
}

TEST(SuspectsTest, AWorkerThatTakesARequestIsClearedAndStartsOver) {
  OutlierEjection suspects({.ttl = seconds(2), .ttl_max = seconds(30)});
  suspects.Suspect(Worker(1), kNow);
  suspects.Suspect(Worker(1), kNow + seconds(2));
  suspects.Clear(Worker(1));
  EXPECT_FALSE(suspects.Contains(Worker(1), kNow + seconds(2)));
  EXPECT_TRUE(suspects.empty());
  suspects.Suspect(Worker(1), kNow + seconds(3));
  EXPECT_FALSE(suspects.Contains(Worker(1), kNow + seconds(5)));
}

TEST(SuspectsTest, WhoIsStillNotReachedStaysASuspectAndStartsNoOther) {
  OutlierEjection suspects({.ttl = seconds(2), .ttl_max = seconds(30)});
  suspects.Keep(Worker(1), kNow);
  EXPECT_TRUE(suspects.empty());
  suspects.Suspect(Worker(1), kNow);
  Time now = kNow;
  for (int i = 0; i < 10; ++i) suspects.Keep(Worker(1), now += seconds(1));
  EXPECT_TRUE(suspects.Contains(Worker(1), now + seconds(2) - Duration(1)));
  EXPECT_EQ(suspects.All(now), std::vector<CellWorker>{Worker(1)});
  EXPECT_FALSE(suspects.Contains(Worker(1), now + seconds(2)));
  suspects.Keep(Worker(1), now + seconds(2));
  EXPECT_FALSE(suspects.Contains(Worker(1), now + seconds(2)));
}

TEST(SuspectsTest, BeyondTheBoundTheNextToPassIsForgotten) {
  OutlierEjection suspects({.ttl = seconds(2), .suspects_max = 3});
  for (int i = 0; i < 3; ++i)
    suspects.Suspect(Worker(i), kNow + std::chrono::milliseconds(500 * i));
  suspects.Suspect(Worker(3), kNow + seconds(1));
  EXPECT_FALSE(suspects.Contains(Worker(0), kNow + seconds(1)));
  for (int i = 1; i < 4; ++i) EXPECT_TRUE(suspects.Contains(Worker(i), kNow + seconds(1)));
  EXPECT_EQ(suspects.Count(kNow + seconds(1)), 3u);
  // Suspicions that have passed go first, all at once.
  suspects.Suspect(Worker(4), kNow + std::chrono::milliseconds(2900));
  EXPECT_EQ(suspects.Count(kNow + std::chrono::milliseconds(2900)), 3u);
}

}  // namespace
}  // namespace kvatlas
