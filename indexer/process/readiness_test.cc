#include "indexer/process/readiness.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>

namespace kvatlas {
namespace {

class ReadinessTest : public ::testing::Test {
 protected:
  ReadinessGate Gate(uint32_t workers_min) {
    return ReadinessGate({.workers_min = workers_min,
                          .workers = [this] { return workers_; },
                          .unsettled = [this] { return unsettled_; },
                          .ready_after = std::chrono::seconds(30),
                          .clock = &clock_});
  }

  ManualClock clock_;
  uint64_t workers_ = 0;
  uint64_t unsettled_ = 0;
};

TEST_F(ReadinessTest, RecoveryComesFirst) {
  ReadinessGate gate = Gate(0);
  EXPECT_EQ(gate.Get().reason, "starting");
  gate.Recovering("restoring a checkpoint");
  clock_.Advance(std::chrono::hours(1));
  EXPECT_EQ(gate.Get().reason, "restoring a checkpoint");
  gate.Recovered();
  EXPECT_TRUE(gate.Get().ready);
}

TEST_F(ReadinessTest, WorkersAreWaitedForHoweverLongThatTakes) {
  ReadinessGate gate = Gate(2);
  gate.Recovered();
  workers_ = 1;
  clock_.Advance(std::chrono::hours(1));
  EXPECT_EQ(gate.Get().reason, "1 of 2 workers");
  workers_ = 2;
  EXPECT_TRUE(gate.Get().ready);
}

TEST_F(ReadinessTest, RestoredWorkersAreToBeCaughtUpWith) {
  ReadinessGate gate = Gate(0);
  gate.Recovered();
  unsettled_ = 3;
  EXPECT_EQ(gate.Get().reason, "3 workers are not caught up with");
  unsettled_ = 0;
  EXPECT_TRUE(gate.Get().ready);
}

TEST_F(ReadinessTest, WorkersThatNeverAreHoldItBackForSoLongOnly) {
  ReadinessGate gate = Gate(0);
  clock_.Advance(std::chrono::minutes(5));  // of recovery
  gate.Recovered();
  unsettled_ = 1;
  clock_.Advance(std::chrono::seconds(29));
  EXPECT_FALSE(gate.Get().ready);
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_TRUE(gate.Get().ready);
}

TEST_F(ReadinessTest, WhereWhatItKnewIsLostWorkersHaveSoLongToCome) {
  ReadinessGate gate = Gate(0);
  gate.Lost("no checkpoint could be read");
  gate.Recovered();
  EXPECT_EQ(gate.Get().reason, "no checkpoint could be read");
  EXPECT_FALSE(gate.MayReport()) << "it would say that its cell holds nothing";
  clock_.Advance(std::chrono::seconds(30));
  EXPECT_TRUE(gate.Get().ready);
  EXPECT_TRUE(gate.MayReport());
}

TEST_F(ReadinessTest, ReadyItStays) {
  ReadinessGate gate = Gate(1);
  gate.Recovered();
  workers_ = 1;
  EXPECT_TRUE(gate.Get().ready);
  workers_ = 0;
  unsettled_ = 5;
  EXPECT_TRUE(gate.Get().ready);
}

TEST_F(ReadinessTest, ParentsHearOfALeafOnceItsWorkersAreThereAndCaughtUpWith) {
  ReadinessGate gate = Gate(2);
  EXPECT_FALSE(gate.MayReport()) << "starting";
  gate.Recovered();
  workers_ = 1;
  EXPECT_FALSE(gate.MayReport()) << "a worker is missing";
  workers_ = 2;
  unsettled_ = 1;
  EXPECT_FALSE(gate.MayReport()) << "a snapshot is under way";
  unsettled_ = 0;
  EXPECT_TRUE(gate.MayReport());
}

TEST_F(ReadinessTest, ParentsHearOfALeafThatMissesAWorkerAfterAWhile) {
  ReadinessGate gate = Gate(2);
  gate.Recovered();
  workers_ = 1;
  clock_.Advance(std::chrono::seconds(30));
  EXPECT_FALSE(gate.Get().ready);
  EXPECT_TRUE(gate.MayReport());
}

TEST_F(ReadinessTest, ParentsHearAtOnceOfALeafThatWaitsForPublishersOfItsCheckpointAlone) {
  ReadinessGate gate = Gate(0);
  EXPECT_FALSE(gate.MayReport());
  gate.Recovered();
  unsettled_ = 1;
  EXPECT_FALSE(gate.Get().ready);
  EXPECT_TRUE(gate.MayReport());
}

}  // namespace
}  // namespace kvatlas
