// Actions of a tracker when numbers go on, jump, go back, or come again.

#include "indexer/kv_events/stream_tracker.h"

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class StreamTrackerTest : public ::testing::Test {
 protected:
  static TrackerOptions WithReplay() {
    TrackerOptions options;
    options.can_replay = true;
    return options;
  }

  void UseReplay(const TrackerOptions& options = WithReplay()) {
    tracker_ = std::make_unique<StreamTracker>(options);
  }
  // A payload is "n" or "n:tag"; its number is n.
  std::vector<std::string> Live(const std::string& payload) {
    tracker_->OnLive(std::stoull(payload), payload, now_, &actions_);
    return Take();
  }
  std::vector<std::string> Replayed(const std::string& payload) {
    tracker_->OnReplayed(std::stoull(payload), payload, now_, &actions_);
    return Take();
  }
  std::vector<std::string> ReplayEnd() {
    tracker_->OnReplayEnd(now_, &actions_);
    return Take();
  }
  std::vector<std::string> Connected(bool current = true) {
    tracker_->OnConnected(current, now_, &actions_);
    return Take();
  }
  std::vector<std::string> Disconnected() {
    tracker_->OnDisconnected(now_, &actions_);
    return Take();
  }
  std::vector<std::string> After(Duration by) {
    now_ += by;
    tracker_->Tick(now_, &actions_);
    return Take();
  }
  // Connected, nothing published before, numbers 0 to `last` applied.
  void StartAndApply(int last) {
    Connected();
    for (int i = 0; i <= last; ++i) Live(std::to_string(i));
  }
  const TrackerStats& stats() { return tracker_->stats(); }

  std::unique_ptr<StreamTracker> tracker_ = std::make_unique<StreamTracker>(TrackerOptions());
  Time now_{0};

 private:
  std::vector<std::string> Take() {
    using Kind = StreamTracker::Action::Kind;
    std::vector<std::string> said;
    for (const StreamTracker::Action& action : actions_) {
      switch (action.kind) {
        case Kind::kApply:
          EXPECT_EQ(action.number, std::stoull(std::string(action.payload)));
          said.emplace_back(action.payload);
          break;
        case Kind::kLost:
          said.push_back("LOST");
          break;
        case Kind::kRepaired:
          said.push_back("REPAIRED");
          break;
        case Kind::kRestarted:
          said.push_back("RESTARTED");
          break;
        case Kind::kAskReplay:
          said.push_back("ASK " + std::to_string(action.from));
          break;
        case Kind::kEndReplay:
          said.push_back("END");
          break;
      }
    }
    actions_.clear();
    return said;
  }

  std::vector<StreamTracker::Action> actions_;
};

// ---- Without replay ----

TEST_F(StreamTrackerTest, NumbersInOrderAreApplied) {
  EXPECT_THAT(Live("0"), ElementsAre("0"));
  EXPECT_THAT(Live("1"), ElementsAre("1"));
  EXPECT_EQ(stats().last, 1u);
  EXPECT_EQ(stats().gaps, 0u);
}

TEST_F(StreamTrackerTest, EnginesMayNumberFromOne) {
  EXPECT_THAT(Live("1"), ElementsAre("1"));
  EXPECT_EQ(stats().gaps, 0u);
}

TEST_F(StreamTrackerTest, WithoutReplayAGapIsLostAtOnce) {
  Live("0");
  EXPECT_THAT(Live("3"), ElementsAre("LOST", "3"));
  EXPECT_THAT(Live("4"), ElementsAre("4"));
  EXPECT_EQ(stats().gaps, 1u);
  EXPECT_EQ(stats().messages_lost, 2u);
}

TEST_F(StreamTrackerTest, JoiningLateIsALoss) {
  EXPECT_THAT(Live("500"), ElementsAre("LOST", "500"));
}

TEST_F(StreamTrackerTest, ANumberThatGoesBackIsARestart) {
  for (const char* payload : {"0", "1", "2"}) Live(payload);
  EXPECT_THAT(Live("0:new"), ElementsAre("RESTARTED", "0:new"));
  EXPECT_THAT(Live("1:new"), ElementsAre("1:new"));
  EXPECT_THAT(Live("1:newer"), ElementsAre("RESTARTED", "LOST", "1:newer"));
  EXPECT_EQ(stats().restarts, 2u);
}

TEST_F(StreamTrackerTest, TheSameMessageTwiceIsNoRestart) {
  Live("0");
  EXPECT_THAT(Live("0"), IsEmpty());
  EXPECT_EQ(stats().duplicates, 1u);
}

TEST_F(StreamTrackerTest, AfterAReconnectionNothingIsCertainUnlessTheNumbersAreFarOn) {
  StartAndApply(3);
  Disconnected();
  EXPECT_THAT(Connected(), ElementsAre("LOST"));
  EXPECT_THAT(Live("4"), ElementsAre("4"));
  EXPECT_THAT(Live("100000"), ElementsAre("LOST", "100000"));
  Disconnected();
  EXPECT_THAT(Connected(), ElementsAre("LOST"));
  EXPECT_THAT(Live("100001"), ElementsAre("REPAIRED", "100001"));
}

// ---- Replay ----

TEST_F(StreamTrackerTest, AConnectionAsksForWhatWasBeforeIt) {
  UseReplay();
  EXPECT_THAT(Connected(), ElementsAre("ASK 0"));
  EXPECT_THAT(Replayed("0"), ElementsAre("0"));
  EXPECT_THAT(Replayed("1"), ElementsAre("1"));
  EXPECT_THAT(ReplayEnd(), ElementsAre("END"));
  EXPECT_THAT(Live("1"), IsEmpty());
  EXPECT_THAT(Live("2"), ElementsAre("2"));
  EXPECT_EQ(stats().duplicates, 1u);
  EXPECT_EQ(stats().replays_complete, 1u);
}

TEST_F(StreamTrackerTest, TheFirstMessageOfAllWaitsForNoReplay) {
  UseReplay();
  Connected();
  EXPECT_THAT(Live("0"), ElementsAre("END", "0"));
  EXPECT_THAT(Replayed("0"), IsEmpty());
}

TEST_F(StreamTrackerTest, LiveMessagesWaitForTheReplayOfAGap) {
  UseReplay();
  StartAndApply(0);
  EXPECT_THAT(Live("3"), ElementsAre("LOST", "ASK 1"));
  EXPECT_THAT(Live("4"), IsEmpty());
  EXPECT_THAT(Replayed("1"), ElementsAre("1"));
  EXPECT_THAT(Live("5"), IsEmpty());
  // The rest need not be waited for.
  EXPECT_THAT(Replayed("2"), ElementsAre("2", "END", "REPAIRED", "3", "4", "5"));
  EXPECT_THAT(Live("6"), ElementsAre("6"));
  EXPECT_EQ(stats().held_bytes, 0u);
  EXPECT_EQ(stats().messages_lost, 0u);
}

TEST_F(StreamTrackerTest, AReplayThatBeginsLateIsALoss) {
  UseReplay();
  StartAndApply(0);
  Live("9");
  EXPECT_THAT(Replayed("7"), ElementsAre("LOST", "7"));
  EXPECT_THAT(Replayed("8"), ElementsAre("8", "END", "9"));
  EXPECT_EQ(stats().messages_lost, 6u);
  EXPECT_EQ(stats().replays_incomplete, 1u);
  // Messages that rolled over do not come back: they are not asked for again.
  EXPECT_THAT(After(seconds(100)), IsEmpty());
}

TEST_F(StreamTrackerTest, AReplayThatEndsEarlyIsALossAndEverythingIsAskedForLater) {
  UseReplay();
  StartAndApply(0);
  Live("4");
  Replayed("1");
  EXPECT_THAT(ReplayEnd(), ElementsAre("LOST", "4", "END"));
  EXPECT_THAT(After(seconds(1)), ElementsAre("ASK 0"));
  EXPECT_THAT(Live("5"), ElementsAre("5"));
  EXPECT_THAT(Replayed("0"), ElementsAre("RESTARTED", "LOST", "0"));
  EXPECT_THAT(Live("6"), IsEmpty());
  for (const char* payload : {"1", "2", "3", "4"}) Replayed(payload);
  EXPECT_THAT(Replayed("5"), ElementsAre("5", "END", "REPAIRED", "6"));
  EXPECT_EQ(stats().restarts, 0u);
}

TEST_F(StreamTrackerTest, AnEmptyReplayIsALoss) {
  UseReplay();
  StartAndApply(0);
  Live("4");
  EXPECT_THAT(ReplayEnd(), ElementsAre("LOST", "4", "END"));
}

TEST_F(StreamTrackerTest, ASilentServerIsNotWaitedForTwice) {
  UseReplay();
  StartAndApply(0);
  Live("4");
  EXPECT_THAT(After(seconds(4)), IsEmpty());
  EXPECT_THAT(After(seconds(2)), ElementsAre("END", "LOST", "4"));
  EXPECT_THAT(Live("9"), ElementsAre("LOST", "9"));
  int asked = 0;
  for (int i = 0; i < 1000; ++i) {
    for (const std::string& said : After(seconds(1))) asked += said == "ASK 0";
    EXPECT_THAT(Live(std::to_string(10 + i)), ElementsAre(std::to_string(10 + i)));
  }
  EXPECT_EQ(asked, 5);
}

TEST_F(StreamTrackerTest, AReplayWithoutEndIsGivenUp) {
  UseReplay();
  StartAndApply(5);
  Live("9");
  for (int i = 0; i < 20; ++i) {
    Replayed("3");
    if (!stats().replaying) break;
    After(seconds(4));
  }
  EXPECT_FALSE(stats().replaying);
  EXPECT_EQ(stats().last, 9u);
}

TEST_F(StreamTrackerTest, WhatMayBeHeldBackIsBounded) {
  TrackerOptions options = WithReplay();
  options.held_messages_max = 2;
  UseReplay(options);
  StartAndApply(0);
  Live("4");
  Live("5");
  EXPECT_THAT(Live("6"), ElementsAre("END", "LOST", "4", "5", "6"));
}

TEST_F(StreamTrackerTest, SilenceWhileNobodyListenedIsNotTheServers) {
  UseReplay();
  StartAndApply(0);
  Live("4");
  now_ += seconds(1000);
  tracker_->OnResumed(now_);
  EXPECT_THAT(After(seconds(1)), IsEmpty());
}

TEST_F(StreamTrackerTest, ARestartInTheMiddleOfAReplayEndsIt) {
  UseReplay();
  StartAndApply(5);
  Live("9");
  EXPECT_THAT(Live("0:new"), ElementsAre("END", "RESTARTED", "0:new"));
  EXPECT_THAT(Live("1:new"), ElementsAre("1:new"));
}

TEST_F(StreamTrackerTest, ARestartSeenLateIsReplayedFromTheBeginning) {
  UseReplay();
  StartAndApply(5);
  EXPECT_THAT(Live("2:new"), ElementsAre("RESTARTED", "LOST", "ASK 0"));
  Replayed("0:new");
  EXPECT_THAT(Replayed("1:new"), ElementsAre("1:new", "END", "REPAIRED", "2:new"));
}

TEST_F(StreamTrackerTest, EnginesThatRestartAllTheTimeAreNotAskedAllTheTime) {
  UseReplay();
  StartAndApply(5);
  EXPECT_THAT(Live("2:a"), ElementsAre("RESTARTED", "LOST", "ASK 0"));
  EXPECT_THAT(Live("2:b"), ElementsAre("END", "RESTARTED", "LOST", "2:b"));
  EXPECT_THAT(Live("2:c"), ElementsAre("RESTARTED", "LOST", "2:c"));
  EXPECT_THAT(After(seconds(1)), ElementsAre("ASK 0"));
}

TEST_F(StreamTrackerTest, TheSameEngineGoesOnAfterAReconnection) {
  UseReplay();
  StartAndApply(5);
  Disconnected();
  EXPECT_THAT(Connected(), ElementsAre("LOST", "ASK 5"));
  EXPECT_THAT(Live("8"), IsEmpty());
  EXPECT_THAT(Replayed("5"), IsEmpty());
  EXPECT_THAT(Replayed("6"), ElementsAre("6"));
  EXPECT_THAT(Replayed("7"), ElementsAre("7", "END", "REPAIRED", "8"));
}

TEST_F(StreamTrackerTest, AnotherEngineThatIsFurtherIsFoundOutAfterAReconnection) {
  UseReplay();
  StartAndApply(5);
  Disconnected();
  Connected();
  EXPECT_THAT(Live("8:new"), IsEmpty());
  EXPECT_THAT(Replayed("5:new"), ElementsAre("RESTARTED", "LOST", "ASK 0"));
  for (int i = 0; i < 7; ++i) Replayed(std::to_string(i) + ":new");
  EXPECT_THAT(Replayed("7:new"), ElementsAre("7:new", "END", "REPAIRED", "8:new"));
}

TEST_F(StreamTrackerTest, AnEngineThatNeverGotThatFarIsAnotherOne) {
  UseReplay();
  StartAndApply(5);
  Disconnected();
  Connected();
  EXPECT_THAT(ReplayEnd(), ElementsAre("RESTARTED", "LOST", "ASK 0"));
  EXPECT_THAT(Replayed("0:new"), ElementsAre("0:new"));
  EXPECT_THAT(ReplayEnd(), ElementsAre("END", "REPAIRED"));
}

TEST_F(StreamTrackerTest, AGapInWhatABrokenConnectionLeftIsAskedForOnTheNextOne) {
  UseReplay();
  StartAndApply(5);
  Disconnected();
  EXPECT_THAT(Live("8"), ElementsAre("LOST"));
  EXPECT_THAT(Live("9"), IsEmpty());
  EXPECT_THAT(Connected(), ElementsAre("ASK 5"));
  // Another engine: what was held back is the old one's.
  EXPECT_THAT(Replayed("5:new"), ElementsAre("RESTARTED", "LOST", "ASK 0"));
  for (int i = 0; i < 9; ++i) Replayed(std::to_string(i) + ":new");
  EXPECT_THAT(ReplayEnd(), ElementsAre("END", "REPAIRED"));
  EXPECT_THAT(Live("9:new"), ElementsAre("9:new"));
}

TEST_F(StreamTrackerTest, AnswersOfABrokenConnectionAreNotTrusted) {
  UseReplay();
  StartAndApply(5);
  Live("8");
  EXPECT_THAT(Disconnected(), ElementsAre("END"));
  EXPECT_THAT(Replayed("6:whose"), IsEmpty());
  EXPECT_THAT(Connected(/*current=*/false), IsEmpty());
  EXPECT_THAT(Connected(), ElementsAre("ASK 5"));
}

// ---- Positions ----

TEST_F(StreamTrackerTest, GoesOnFromAPosition) {
  StartAndApply(5);
  const std::optional<StreamPosition> position = tracker_->position();
  ASSERT_TRUE(position.has_value());
  EXPECT_EQ(position->last, 5u);

  tracker_ = std::make_unique<StreamTracker>(TrackerOptions());
  tracker_->Resume(*position);
  EXPECT_THAT(Connected(), IsEmpty());
  EXPECT_THAT(Live("4"), IsEmpty());
  EXPECT_THAT(Live("5"), IsEmpty());
  EXPECT_THAT(Live("6"), ElementsAre("6"));

  tracker_ = std::make_unique<StreamTracker>(TrackerOptions());
  tracker_->Resume(*position);
  EXPECT_THAT(Live("4:new"), IsEmpty());
  EXPECT_THAT(Live("5:new"), ElementsAre("RESTARTED", "LOST", "5:new"));

  // It never heard the engine itself, and the engine is another when it comes back.
  tracker_ = std::make_unique<StreamTracker>(TrackerOptions());
  tracker_->Resume(*position);
  EXPECT_THAT(Connected(), IsEmpty());
  EXPECT_THAT(Connected(), ElementsAre("LOST"));
  EXPECT_THAT(Live("0:new"), ElementsAre("RESTARTED", "0:new"));

  UseReplay();
  tracker_->Resume(*position);
  EXPECT_THAT(Connected(), ElementsAre("ASK 5"));
  EXPECT_THAT(Replayed("5"), IsEmpty());
  EXPECT_THAT(Replayed("6"), ElementsAre("6"));
  EXPECT_THAT(ReplayEnd(), ElementsAre("END"));
}

}  // namespace
}  // namespace kvatlas
