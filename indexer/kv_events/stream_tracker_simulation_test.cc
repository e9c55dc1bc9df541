// Does a tracker ever claim more than it knows? Seeded histories of an engine with a ring for
// replays, restarts, dropped and repeated messages, broken connections, and replay servers that are
// slow, silent, or leave out the end.
//
// After every step: while no Lost stands, what was applied is exactly what one incarnation of the
// engine published, from its first batch on, each once and in order. After the faults stop: with a
// ring that still has everything nothing is missing and no Lost stands; and where something is
// missing, a Lost does.
//
// A failure prints its seed; KVATLAS_SIMULATION_SEED=n runs only that one,
// KVATLAS_SIMULATION_SEEDS=n that many.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "indexer/base/clock.h"
#include "indexer/kv_events/stream_tracker.h"

namespace kvatlas {
namespace {

using Kind = StreamTracker::Action::Kind;
using Message = std::pair<uint64_t, std::string>;

struct World {
  bool can_replay = true;
  size_t ring = 1000000;
  uint64_t first_number = 0;
  bool replay_faults = true;
};

class Simulation {
 public:
  Simulation(uint64_t seed, const World& world)
      : random_(seed), world_(world), tracker_(Options(world)) {
    next_ = world.first_number;
  }

  void Run() {
    Connect();
    for (int step = 0; step < 400 && !::testing::Test::HasFailure(); ++step) Step();
    if (!::testing::Test::HasFailure()) Quiesce();
    if (!::testing::Test::HasFailure()) return;
    constexpr size_t kShown = 100;
    const size_t begin = trace_.size() - std::min(trace_.size(), kShown);
    for (size_t i = begin; i < trace_.size(); ++i) std::cerr << trace_[i] << "\n";
  }

 private:
  static TrackerOptions Options(const World& world) {
    TrackerOptions options;
    options.can_replay = world.can_replay;
    options.held_messages_max = 64;
    return options;
  }

  bool Chance(double probability) {
    return std::uniform_real_distribution<>(0, 1)(random_) < probability;
  }
  uint64_t Below(uint64_t bound) { return random_() % bound; }

  void Trace(std::string what) { trace_.push_back(std::move(what)); }

  // ---- The engine ----

  void Publish(bool drop) {
    const Message message{next_, std::to_string(incarnation_) + ":" + std::to_string(next_) + ":" +
                                     std::to_string(random_() % 1000)};
    ++next_;
    history_.push_back(message);
    if (connected_ && !drop) {
      wire_.push_back(message);
      if (Chance(0.02)) wire_.push_back(message);
    }
  }

  void Disconnect() {
    connected_ = false;
    Trace("DISCONNECTED");
    tracker_.OnDisconnected(now_, &actions_);
    Perform();
    // Requests and replies on their way are gone.
    asked_.reset();
    if (Chance(0.5)) replies_.clear();
  }
  void Connect() {
    connected_ = true;
    wire_.push_back(std::nullopt);
  }
  void Restart() {
    Disconnect();
    replies_.clear();
    ++incarnation_;
    next_ = world_.first_number;
    history_.clear();
    const uint64_t unseen = Chance(0.5) ? Below(40) : 0;
    for (uint64_t i = 0; i < unseen; ++i) Publish(/*drop=*/true);
  }

  void Serve() {
    if (!asked_ || !connected_) return;
    const uint64_t from = *std::exchange(asked_, std::nullopt);
    const bool faults = world_.replay_faults && !calm_;
    if (faults && Chance(0.2)) return;  // silent
    const size_t begin = history_.size() - std::min(history_.size(), world_.ring);
    for (size_t i = begin; i < history_.size(); ++i) {
      if (history_[i].first >= from || (faults && Chance(0.1))) replies_.push_back(history_[i]);
    }
    if (faults && Chance(0.2)) replies_.resize(replies_.size() - Below(replies_.size() + 1));
    if (faults && Chance(0.1)) return;  // without an end
    replies_.push_back(std::nullopt);
  }

  // ---- Between engine and tracker ----

  void DeliverLive() {
    if (wire_.empty()) return;
    const std::optional<Message> message = wire_.front();
    wire_.pop_front();
    Trace("live " + (message ? message->second : "CONNECTED"));
    if (message) {
      tracker_.OnLive(message->first, message->second, now_, &actions_);
    } else {
      const bool current = connected_ && std::count(wire_.begin(), wire_.end(), std::nullopt) == 0;
      tracker_.OnConnected(current, now_, &actions_);
    }
    Perform();
  }
  void DeliverReply() {
    if (replies_.empty()) return;
    const std::optional<Message> message = replies_.front();
    replies_.pop_front();
    Trace("replayed " + (message ? message->second : "END"));
    if (message) {
      tracker_.OnReplayed(message->first, message->second, now_, &actions_);
    } else {
      tracker_.OnReplayEnd(now_, &actions_);
    }
    Perform();
  }
  void Advance(Duration by) {
    now_ += by;
    Trace("tick");
    tracker_.Tick(now_, &actions_);
    Perform();
  }

  void Step() {
    const double dice = std::uniform_real_distribution<>(0, 1)(random_);
    if (dice < 0.35) {
      Publish(/*drop=*/Chance(0.03));
    } else if (dice < 0.60) {
      DeliverLive();
    } else if (dice < 0.85) {
      DeliverReply();
    } else if (dice < 0.92) {
      Serve();
    } else if (dice < 0.97) {
      Advance(std::chrono::milliseconds(Below(3000)));
    } else if (dice < 0.98) {
      Disconnect();
      const uint64_t unseen = Below(5);
      for (uint64_t i = 0; i < unseen; ++i) Publish(/*drop=*/true);
      Connect();
    } else if (dice < 0.985) {
      Restart();
      Connect();
    }
    Check();
  }

  // Everything is delivered, the engine goes on, and replays are answered.
  void Quiesce() {
    calm_ = true;
    Disconnect();
    replies_.clear();
    Connect();
    for (int round = 0; round < 200 && !::testing::Test::HasFailure(); ++round) {
      if (round < 190) Publish(/*drop=*/false);
      Serve();
      while (!wire_.empty()) DeliverLive();
      while (!replies_.empty()) {
        DeliverReply();
        Check();
      }
      Advance(std::chrono::seconds(1));
      Check();
    }
    // Without number 0 it is whole too, unless this engine was ever seen to begin with it.
    const bool headless =
        !applied_.empty() && applied_[0].first == 1 && !zero_seen_ && world_.first_number == 0;
    const bool whole = headless ? std::equal(applied_.begin(), applied_.end(), history_.begin() + 1,
                                             history_.end())
                                : applied_ == history_;
    if (world_.can_replay && world_.ring >= history_.size()) {
      EXPECT_TRUE(whole) << applied_.size() << " of " << history_.size();
      EXPECT_EQ(losts_, 0);
    }
    if (!whole) {
      EXPECT_GT(losts_, 0);
    }
    EXPECT_FALSE(tracker_.stats().replaying);
    EXPECT_EQ(tracker_.stats().held_bytes, 0u);
  }

  // ---- The worker ----

  void Perform() {
    for (const StreamTracker::Action& action : actions_) {
      Trace("    action " + std::to_string(static_cast<int>(action.kind)) + " from " +
            std::to_string(action.from) + " " + std::string(action.payload));
      switch (action.kind) {
        case Kind::kApply:
          applied_.emplace_back(action.number, action.payload);
          zero_seen_ = zero_seen_ || action.number == 0;
          break;
        case Kind::kLost:
          ++losts_;
          break;
        case Kind::kRepaired:
          EXPECT_GT(losts_, 0);
          --losts_;
          break;
        case Kind::kRestarted:
          applied_.clear();
          losts_ = 0;
          break;
        case Kind::kAskReplay:
          EXPECT_TRUE(world_.can_replay);
          asked_ = action.from;
          replies_.clear();
          break;
        case Kind::kEndReplay:
          asked_.reset();
          replies_.clear();
          break;
      }
    }
    actions_.clear();
  }

  void Check() {
    if (losts_ > 0) return;
    for (size_t i = 0; i < applied_.size(); ++i) {
      // From a first number of 1 on nothing is known to be missing.
      const uint64_t first = applied_[0].first == 1 && !zero_seen_ ? 1 : 0;
      ASSERT_EQ(applied_[i].first, first + i);
      ASSERT_EQ(Incarnation(applied_[i].second), Incarnation(applied_[0].second));
    }
  }
  static std::string Incarnation(const std::string& payload) {
    return payload.substr(0, payload.find(':'));
  }

  std::mt19937_64 random_;
  const World world_;
  StreamTracker tracker_;
  Time now_{0};
  bool calm_ = false;
  std::vector<StreamTracker::Action> actions_;

  std::vector<std::string> trace_;  // what happened, for a failure's report
  int incarnation_ = 0;
  uint64_t next_ = 0;
  std::vector<Message> history_;  // of this incarnation
  bool connected_ = false;
  std::deque<std::optional<Message>> wire_;     // nothing: a connection
  std::deque<std::optional<Message>> replies_;  // nothing: the end
  std::optional<uint64_t> asked_;

  std::vector<Message> applied_;  // since the last Restarted
  bool zero_seen_ = false;
  int losts_ = 0;  // that stand
};

void RunSeeds(const World& world) {
  const char* one = std::getenv("KVATLAS_SIMULATION_SEED");
  const char* many = std::getenv("KVATLAS_SIMULATION_SEEDS");
  const uint64_t first = one != nullptr ? std::strtoull(one, nullptr, 10) : 1;
  const uint64_t count = one != nullptr    ? 1
                         : many != nullptr ? std::strtoull(many, nullptr, 10)
                                           : 400;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE("KVATLAS_SIMULATION_SEED=" + std::to_string(seed));
    Simulation(seed, world).Run();
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(StreamTrackerSimulationTest, AReplayThatReachesBackMakesEverythingWhole) { RunSeeds({}); }

TEST(StreamTrackerSimulationTest, NumbersMayBeginWithOne) { RunSeeds({.first_number = 1}); }

TEST(StreamTrackerSimulationTest, AShortRingIsNoticed) { RunSeeds({.ring = 7}); }

TEST(StreamTrackerSimulationTest, WithoutReplayEveryLossIsTold) { RunSeeds({.can_replay = false}); }

TEST(StreamTrackerSimulationTest, WithAReplayThatNeverFails) { RunSeeds({.replay_faults = false}); }

}  // namespace
}  // namespace kvatlas
