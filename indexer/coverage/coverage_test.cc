#include "indexer/coverage/coverage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/waypoints.h"
#include "indexer/coverage/coverage_test_util.h"

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
  static CoverageOptions Options(uint64_t waypoints_max = 0) {
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
  Tell(coverage, kOne, SequenceHash{70}, 7, kNone, kDevice, nullptr);
  Tell(coverage, kTwo, SequenceHash{70}, 7, kNone, kDevice, nullptr);
  EXPECT_FALSE(coverage.AtRest());
  Take(&coverage);
  EXPECT_EQ(above_, (std::map<SequenceHash, Position>{{SequenceHash{70}, 2}}));
  EXPECT_TRUE(coverage.AtRest());
  EXPECT_TRUE(coverage.Take(kAll).empty());
}

TEST_F(CoverageTest, BlocksBetweenWaypointsAreNoNews) {
  Coverage coverage(&schedule_, Options(), &clock_);
  for (Position position : {0, 2, 4, 5, 6}) {
    Tell(coverage, kOne, SequenceHash{position + 1}, position, kNone, kDevice, nullptr);
  }
  EXPECT_TRUE(coverage.Take(kAll).empty());
}

TEST_F(CoverageTest, LastOutIsWithdrawnAfterTheDelay) {
  Coverage coverage(&schedule_, Options(), &clock_);
  Tell(coverage, kOne, SequenceHash{30}, 3, kNone, kDevice, nullptr);
  Tell(coverage, kTwo, SequenceHash{30}, 3, kNone, kDevice, nullptr);
  Take(&coverage);
  Tell(coverage, kOne, SequenceHash{30}, 3, kDevice, kNone, nullptr);
  clock_.Advance(std::chrono::seconds(5));
  Take(&coverage);
  EXPECT_EQ(above_.size(), 1u);
  Tell(coverage, kTwo, SequenceHash{30}, 3, kDevice, kNone, nullptr);
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
  Tell(coverage, kOne, SequenceHash{30}, 3, kNone, kDevice, nullptr);
  Take(&coverage);
  Tell(coverage, kOne, SequenceHash{30}, 3, kDevice, kNone, nullptr);
  Tell(coverage, kTwo, SequenceHash{30}, 3, kNone, kDevice, nullptr);
  clock_.Advance(std::chrono::seconds(2));
  EXPECT_TRUE(coverage.Take(kAll).empty());
}

TEST_F(CoverageTest, OnlyRoutedTiersCount) {
  Coverage coverage(&schedule_, Options(), &clock_);
  Tell(coverage, kOne, SequenceHash{30}, 3, kNone, kDisk, nullptr);
  EXPECT_TRUE(coverage.Take(kAll).empty());
  Tell(coverage, kOne, SequenceHash{30}, 3, kDisk, kDisk | kDevice, nullptr);
  Tell(coverage, kOne, SequenceHash{30}, 3, kDisk | kDevice, kDisk | TierMask(Tier::kHost),
       nullptr);
  Take(&coverage);
  EXPECT_EQ(above_.size(), 1u);
}

TEST_F(CoverageTest, TheBudgetLetsNewOnesWait) {
  Coverage coverage(&schedule_, Options(/*waypoints_max=*/1), &clock_);
  Tell(coverage, kOne, SequenceHash{30}, 3, kNone, kDevice, nullptr);
  Tell(coverage, kOne, SequenceHash{31}, 3, kNone, kDevice, nullptr);
  Take(&coverage);
  EXPECT_EQ(above_.count(SequenceHash{30}), 1u);
  EXPECT_EQ(coverage.Stats().waiting, 1u);
  Tell(coverage, kOne, SequenceHash{30}, 3, kDevice, kNone, nullptr);
  clock_.Advance(std::chrono::seconds(1));
  Take(&coverage);
  EXPECT_EQ(above_, (std::map<SequenceHash, Position>{{SequenceHash{31}, 1}}));
  EXPECT_EQ(coverage.Stats().waiting, 0u);
}

TEST_F(CoverageTest, ABudgetOfBytesIsOneOfWaypoints) {
  for (uint64_t waypoints_max : {0, 2, 9}) {
    above_.clear();
    CoverageOptions options = Options(waypoints_max);
    options.bytes_max = 3 * kCoverageBytesPerWaypoint + 1;
    Coverage coverage(&schedule_, options, &clock_);
    for (uint64_t block = 1; block <= 5; ++block)
      Tell(coverage, kOne, SequenceHash{block}, 3, kNone, kDevice, nullptr);
    EXPECT_EQ(coverage.Stats().waiting, 5u);
    Take(&coverage);
    EXPECT_EQ(above_.size(), waypoints_max == 2 ? 2u : 3u) << "the tighter one binds";
    EXPECT_EQ(coverage.Stats().waiting, 5 - above_.size());
    EXPECT_EQ(coverage.Stats().covered, 5u);
  }
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

TEST_F(CoverageTest, WithABudgetTheShallowerDisplacesTheDeeper) {
  Coverage coverage(&schedule_, Options(1), &clock_);
  Tell(coverage, kOne, SequenceHash{70}, 7, kNone, kDevice, nullptr);
  Take(&coverage);
  Tell(coverage, kOne, SequenceHash{110}, 11, kNone, kDevice, nullptr);
  EXPECT_TRUE(coverage.AtRest()) << "the budget is full of better ones: nothing is due";
  Tell(coverage, kOne, SequenceHash{30}, 3, kNone, kDevice, nullptr);
  EXPECT_FALSE(coverage.AtRest());
  Take(&coverage);
  EXPECT_EQ(above_, (std::map<SequenceHash, Position>{{SequenceHash{30}, 1}}));
  EXPECT_EQ(coverage.Stats().waiting, 2u);
  Tell(coverage, kOne, SequenceHash{30}, 3, kDevice, kNone, nullptr);
  Take(&coverage);
  EXPECT_EQ(above_, (std::map<SequenceHash, Position>{{SequenceHash{70}, 2}}))
      << "what is held takes the place of what only awaits its withdrawal";
}

TEST_F(CoverageTest, AtEqualDepthTheLatestWrittenIsKept) {
  Coverage coverage(&schedule_, Options(2), &clock_);
  for (uint64_t block : {30, 31, 32}) {
    Tell(coverage, kOne, SequenceHash{block}, 3, kNone, kDevice, nullptr);
    clock_.Advance(std::chrono::seconds(1));
  }
  Tell(coverage, kTwo, SequenceHash{30}, 3, kNone, kDevice, nullptr);  // written again
  Take(&coverage);
  EXPECT_EQ(above_,
            (std::map<SequenceHash, Position>{{SequenceHash{30}, 1}, {SequenceHash{32}, 1}}));
}

TEST_F(CoverageTest, TheColdGoesBeforeTheDeep) {
  Coverage coverage(&schedule_, Options(1), &clock_);
  Tell(coverage, kOne, SequenceHash{30}, 3, kNone, kDevice, nullptr);
  clock_.Advance(std::chrono::minutes(6));
  Tell(coverage, kOne, SequenceHash{110}, 11, kNone, kDevice, nullptr);
  Take(&coverage);
  EXPECT_EQ(above_.count(SequenceHash{30}), 1u);
  EXPECT_EQ(coverage.NextDue(), clock_.Now() + std::chrono::minutes(4));
  clock_.Advance(std::chrono::minutes(4));
  Take(&coverage);
  EXPECT_EQ(above_, (std::map<SequenceHash, Position>{{SequenceHash{110}, 3}}));
}

// A head is never written again, but prompts that continue behind it are looked for there.
TEST_F(CoverageTest, AHeadIsWarmWhileItsTailIsWritten) {
  Coverage coverage(&schedule_, Options(1), &clock_);
  const Stored first{.tier = Tier::kDevice,
                     .position = 0,
                     .parent = kNoParent,
                     .blocks = {SequenceHash{10}, SequenceHash{11}, SequenceHash{12}}};
  for (Position at = 0; at < 3; ++at)
    Tell(coverage, kOne, first.blocks[at], at, kNone, kDevice, &first);
  clock_.Advance(std::chrono::minutes(9));
  Tell(coverage, kOne, SequenceHash{99}, 7, kNone, kDevice, nullptr);  // of another sequence
  const Stored next{.tier = Tier::kDevice,
                    .position = 3,
                    .parent = SequenceHash{12},
                    .blocks = {SequenceHash{13}}};
  Tell(coverage, kOne, SequenceHash{13}, 3, kNone, kDevice, &next);
  clock_.Advance(std::chrono::minutes(2));
  Take(&coverage);
  EXPECT_EQ(above_, (std::map<SequenceHash, Position>{{SequenceHash{11}, 0}}));
}

TEST_F(CoverageTest, NoMoreUpdatesASecondThanAllowed) {
  CoverageOptions options = Options();
  options.updates_per_s = 10;
  options.withdraw_delay = Duration(0);
  Coverage coverage(&schedule_, options, &clock_);
  const auto updates = [&coverage] {
    return coverage.Stats().announced + coverage.Stats().withdrawn;
  };
  for (uint64_t i = 1; i <= 100; ++i)
    Tell(coverage, kOne, SequenceHash{i}, 3, kNone, kDevice, nullptr);
  Take(&coverage);
  EXPECT_EQ(updates(), 10u) << "a second's worth at once";
  for (int i = 0; i < 20; ++i) {
    clock_.Advance(std::chrono::milliseconds(100));
    Take(&coverage);
  }
  EXPECT_EQ(updates(), 30u);
  clock_.Advance(std::chrono::minutes(1));
  Take(&coverage);
  EXPECT_EQ(updates(), 40u) << "what was not used is not saved";
}

TEST_F(CoverageTest, WhatWaitsForTheBudgetAndIsLostIsNeverAnnounced) {
  Coverage coverage(&schedule_, Options(1), &clock_);
  Tell(coverage, kOne, SequenceHash{30}, 3, kNone, kDevice, nullptr);
  Tell(coverage, kOne, SequenceHash{31}, 3, kNone, kDevice, nullptr);
  Take(&coverage);
  Tell(coverage, kOne, SequenceHash{31}, 3, kDevice, kNone, nullptr);
  Tell(coverage, kOne, SequenceHash{30}, 3, kDevice, kNone, nullptr);
  clock_.Advance(std::chrono::seconds(1));
  Take(&coverage);
  EXPECT_TRUE(above_.empty());
  EXPECT_EQ(coverage.Stats().announced, 1u);
}

TEST_F(CoverageTest, ABoundedTakeLeavesTheRestForTheNext) {
  Coverage coverage(&schedule_, Options(), &clock_);
  for (uint64_t i = 1; i <= 10; ++i)
    Tell(coverage, kOne, SequenceHash{i}, 3, kNone, kDevice, nullptr);
  EXPECT_EQ(coverage.Take(4).size(), 4u);
  EXPECT_FALSE(coverage.AtRest());
  EXPECT_EQ(coverage.Take(4).size(), 4u);
  EXPECT_EQ(coverage.Take(4).size(), 2u);
  EXPECT_TRUE(coverage.AtRest());
}

TEST_F(CoverageTest, LostAgainStartsTheDelayAnew) {
  Coverage coverage(&schedule_, Options(), &clock_);
  Tell(coverage, kOne, SequenceHash{30}, 3, kNone, kDevice, nullptr);
  Take(&coverage);
  Tell(coverage, kOne, SequenceHash{30}, 3, kDevice, kNone, nullptr);
  clock_.Advance(std::chrono::milliseconds(600));
  Tell(coverage, kOne, SequenceHash{30}, 3, kNone, kDevice, nullptr);
  Tell(coverage, kOne, SequenceHash{30}, 3, kDevice, kNone, nullptr);
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
          Tell(coverage, HolderIndex{writer}, SequenceHash{block}, 3, gains ? kNone : kDevice,
               gains ? kDevice : kNone, nullptr);
        }
      }
      Tell(coverage, HolderIndex{writer}, SequenceHash{writer + 1}, 3, kNone, kDevice, nullptr);
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

// A run of eight blocks from position 0 has waypoints at 1, 3 and 7.
class CoverageRunTest : public CoverageTest {
 protected:
  // Blocks are named 100, 101, … by position, or as `name` says.
  static Stored Run(Position from, Position to, uint64_t name = 100) {
    Stored run{.tier = Tier::kDevice, .position = from, .parent = kNoParent, .blocks = {}};
    for (Position at = from; at < to; ++at) run.blocks.push_back(SequenceHash{name + at});
    return run;
  }
  static void Store(Coverage* coverage, HolderIndex holder, const Stored& run, Position skip = 0) {
    for (size_t i = skip; i < run.blocks.size(); ++i) {
      Tell(*coverage, holder, run.blocks[i], run.position + static_cast<Position>(i), kNone,
           kDevice, &run);
    }
  }
  static Stored Announced(Position ordinal, std::vector<SequenceHash> blocks) {
    return {.tier = Tier::kDevice,
            .position = ordinal,
            .parent = kNoParent,
            .blocks = std::move(blocks)};
  }
};

TEST_F(CoverageRunTest, WaypointsOfARunAreAnnouncedAsOne) {
  Coverage coverage(&schedule_, Options(), &clock_);
  Store(&coverage, kOne, Run(0, 8));
  EXPECT_EQ(
      coverage.Take(kAll),
      std::vector<Event>{Announced(0, {SequenceHash{101}, SequenceHash{103}, SequenceHash{107}})});
}

TEST_F(CoverageRunTest, RunsOfSeveralHoldersInterleave) {
  Coverage coverage(&schedule_, Options(), &clock_);
  const Stored a = Run(0, 4, 100), b = Run(0, 4, 200);
  for (Position at = 0; at < 4; ++at) {
    Tell(coverage, kOne, a.blocks[at], at, kNone, kDevice, &a);
    Tell(coverage, kTwo, b.blocks[at], at, kNone, kDevice, &b);
  }
  EXPECT_EQ(coverage.Take(kAll),
            (std::vector<Event>{Announced(0, {SequenceHash{101}, SequenceHash{103}}),
                                Announced(0, {SequenceHash{201}, SequenceHash{203}})}));
}

TEST_F(CoverageRunTest, ABranchAndAPartStandAlone) {
  Coverage coverage(&schedule_, Options(), &clock_);
  Store(&coverage, kOne, Run(0, 4));
  Stored branch = Run(0, 4, 200);
  branch.blocks[0] = SequenceHash{100};
  branch.blocks[1] = SequenceHash{101};  // shared with the first up to here
  Store(&coverage, kOne, branch, /*skip=*/2);
  Store(&coverage, kOne, Run(4, 8, 300));  // nothing before it is in the run
  EXPECT_EQ(
      coverage.Take(kAll),
      (std::vector<Event>{Announced(0, {SequenceHash{101}, SequenceHash{103}}),
                          Announced(1, {SequenceHash{203}}), Announced(2, {SequenceHash{307}})}));
}

TEST_F(CoverageRunTest, WhatWasAnnouncedBeforeIsNotContinued) {
  Coverage coverage(&schedule_, Options(), &clock_);
  const Stored run = Run(0, 8);
  Tell(coverage, kOne, run.blocks[1], 1, kNone, kDevice, &run);
  EXPECT_EQ(coverage.Take(kAll), std::vector<Event>{Announced(0, {SequenceHash{101}})});
  Tell(coverage, kOne, run.blocks[3], 3, kNone, kDevice, &run);
  Tell(coverage, kOne, run.blocks[7], 7, kNone, kDevice, &run);
  EXPECT_EQ(coverage.Take(kAll),
            std::vector<Event>{Announced(1, {SequenceHash{103}, SequenceHash{107}})});
}

// A sender gives one block two positions.
TEST_F(CoverageRunTest, ARunThatContradictsItsPositionsIsNotJoined) {
  Coverage coverage(&schedule_, Options(), &clock_);
  const Stored first = Run(0, 4), second = Run(4, 12);
  Tell(coverage, kOne, first.blocks[3], 3, kNone, kDevice, &second);  // not in that run
  Tell(coverage, kOne, second.blocks[3], 11, kNone, kDevice,
       &second);                                                        // at another place of it
  Tell(coverage, kOne, SequenceHash{900}, 1, kNone, kDevice, &second);  // before it
  EXPECT_EQ(coverage.Take(kAll), (std::vector<Event>{Announced(1, {SequenceHash{103}}),
                                                     Announced(3, {SequenceHash{107}}),
                                                     Announced(0, {SequenceHash{900}})}));
}

// Random gains, losses and time against a slow recount.
TEST_F(CoverageTest, EqualsARecountAtRest) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    SCOPED_TRACE(seed);
    above_.clear();
    std::mt19937 random(seed);
    // With a budget that is never reached as without one.
    Coverage coverage(&schedule_, Options(seed % 2 == 0 ? 0 : 1000), &clock_);
    std::set<std::pair<uint32_t, uint64_t>> held;
    for (int step = 0; step < 2000; ++step) {
      const uint32_t holder = random() % 4;
      const uint64_t block = random() % 24;
      const Position position = static_cast<Position>(block);
      const bool had = held.contains({holder, block});
      Tell(coverage, HolderIndex{holder}, SequenceHash{block}, position, had ? kDevice : kNone,
           had ? kNone : kDevice, nullptr);
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

// ---- The budget beside a slow twin ----

// Kind, ordinal, and how long ago it was written: the policy's order, the best first.
using Worth = std::tuple<int, uint32_t, int64_t>;

// Sequences are paths of a binary tree of segments, five blocks each; a holder stores a path down
// to some depth in one run and loses single blocks. The twin keeps sets and sorts.
class BudgetTwin {
 public:
  static constexpr Position kSegment = 5, kDepth = 20;

  BudgetTwin(const WaypointSchedule* schedule, const CoverageOptions& options)
      : schedule_(*schedule), options_(options) {}

  // The block of `path` (a bit for each segment) at `at`.
  static SequenceHash Block(uint32_t path, Position at) {
    const uint32_t segments = at / kSegment + 1;
    return SequenceHash{((path & ((1u << segments) - 1)) << 8 | at) + 1};
  }

  void Gained(uint32_t holder, uint32_t path, Position at, Time now) {
    holders_[Block(path, at)].insert(holder);
    if (!schedule_.IsWaypoint(at)) return;
    lost_at_.erase(Block(path, at));
    for (uint32_t ordinal = schedule_.WaypointsIn(at + 1); ordinal-- > 0;) {
      const SequenceHash waypoint = Block(path, schedule_.PositionOf(ordinal));
      if (holders_[waypoint].empty()) break;
      written_at_[waypoint] = now;
      ordinals_[waypoint] = ordinal;
    }
  }
  void Lost(uint32_t holder, SequenceHash block, Time now) {
    holders_[block].erase(holder);
    if (holders_[block].empty()) lost_at_[block] = now;
  }
  bool Holds(uint32_t holder, SequenceHash block) { return holders_[block].contains(holder); }

  Worth WorthOf(SequenceHash waypoint, Time now) {
    const Time written = written_at_[waypoint];
    const int kind = holders_[waypoint].empty() ? 2 : now - written >= options_.cold_after ? 1 : 0;
    return {kind, ordinals_[waypoint], -written.count()};
  }

  // The worth of the best waypoints, given what was announced before.
  std::vector<Worth> Best(const std::set<SequenceHash>& announced, Time now) {
    std::vector<Worth> best;
    for (const auto& [waypoint, ordinal] : ordinals_) {
      const bool covered = !holders_[waypoint].empty();
      const bool awaits = announced.contains(waypoint) && lost_at_.contains(waypoint) &&
                          now - lost_at_[waypoint] < options_.withdraw_delay;
      if (covered || awaits) best.push_back(WorthOf(waypoint, now));
    }
    std::sort(best.begin(), best.end());
    if (best.size() > options_.waypoints_max) best.resize(options_.waypoints_max);
    return best;
  }

 private:
  const WaypointSchedule& schedule_;
  const CoverageOptions options_;
  std::map<SequenceHash, std::set<uint32_t>> holders_;
  std::map<SequenceHash, Time> written_at_, lost_at_;
  std::map<SequenceHash, uint32_t> ordinals_;
};

TEST_F(CoverageTest, UnderABudgetIsWhatThePolicyChooses) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    above_.clear();
    std::mt19937 random(seed);
    CoverageOptions options = Options(/*waypoints_max=*/1 + random() % 20);
    options.cold_after = std::chrono::seconds(20);
    Coverage coverage(&schedule_, options, &clock_);
    BudgetTwin twin(&schedule_, options);
    for (int step = 0; step < 600; ++step) {
      SCOPED_TRACE(step);
      const uint32_t holder = random() % 3, path = random() % 16;
      const Position depth = 1 + random() % BudgetTwin::kDepth;
      if (random() % 2 == 0) {
        Stored run{.tier = Tier::kDevice, .position = 0, .parent = kNoParent, .blocks = {}};
        for (Position at = 0; at < depth; ++at) run.blocks.push_back(BudgetTwin::Block(path, at));
        for (Position at = 0; at < depth; ++at) {
          if (twin.Holds(holder, run.blocks[at])) continue;
          twin.Gained(holder, path, at, clock_.Now());
          Tell(coverage, HolderIndex{holder}, run.blocks[at], at, kNone, kDevice, &run);
        }
      } else {
        const SequenceHash block = BudgetTwin::Block(path, depth - 1);
        if (twin.Holds(holder, block)) {
          twin.Lost(holder, block, clock_.Now());
          Tell(coverage, HolderIndex{holder}, block, depth - 1, kDevice, kNone, nullptr);
        }
      }
      if (random() % 2 == 0) clock_.Advance(std::chrono::milliseconds(random() % 2000));
      if (random() % 3 != 0) continue;
      std::set<SequenceHash> before, after;
      for (const auto& [waypoint, ordinal] : above_) before.insert(waypoint);
      const std::vector<Worth> best = twin.Best(before, clock_.Now());
      Take(&coverage);
      std::vector<Worth> announced;
      for (const auto& [waypoint, ordinal] : above_)
        announced.push_back(twin.WorthOf(waypoint, clock_.Now()));
      std::sort(announced.begin(), announced.end());
      ASSERT_EQ(announced, best);
      ASSERT_EQ(coverage.Stats().held, above_.size());
    }
  }
}

}  // namespace
}  // namespace kvatlas
