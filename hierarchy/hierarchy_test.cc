#include "hierarchy/hierarchy.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "indexer/base/hash.h"
#include "indexer/base/tier.h"
#include "indexer/stream/link.h"
#include "indexer/stream/messages.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using testing::IsEmpty;

const Domain kDomain = {"m", ""};

// Waypoint hashes 1000, 1001, …
std::vector<SequenceHash> Waypoints(size_t count) {
  std::vector<SequenceHash> hashes;
  for (size_t i = 0; i < count; ++i) hashes.push_back(SequenceHash(1000 + i));
  return hashes;
}

// A leaf's stream upward, spoken by hand.
class Cell {
 public:
  Cell(Hierarchy* hierarchy, const std::string& name, const std::string& replica = "r0")
      : replica_(replica), session_(hierarchy->registry().Accept([this](ReceiverMessage message) {
          replies.push_back(message);
        })) {
    hello_.holder = {.name = name, .rank = 0, .replica = replica};
    hello_.domain = kDomain;
    hello_.block_size = 16;
    hello_.contract_id = HashContract().Id();
    hello_.schedule = WaypointSchedule::Standard().Name();
    hello_.epoch = 1;
    hello_.instance_id = 7;
    hello_.starting = true;
    hello_.address = name + "." + replica + ":7410";
    hello_.labels = {{"zone", "z-" + name}};
  }

  absl::Status SayHello() { return session_->OnMessage(hello_); }
  Hello& hello() { return hello_; }

  // Covers the first `waypoints` of `Waypoints`.
  void Cover(size_t waypoints, Load load = {}) {
    Batch batch{.number = ++number_, .events = {}, .load = load, .digest = {}};
    if (waypoints > 0) {
      Stored stored;
      stored.blocks = Waypoints(waypoints);
      batch.events.push_back(stored);
    }
    ASSERT_TRUE(session_->OnMessage(batch).ok());
  }
  // Covers these, each as a run of its own, from `position` on.
  void CoverOnly(const std::vector<SequenceHash>& waypoints, Position position = 0) {
    Batch batch{.number = ++number_, .events = {}, .load = {}, .digest = {}};
    for (SequenceHash waypoint : waypoints)
      batch.events.push_back(Stored{.tier = Tier::kDevice,
                                    .position = position++,
                                    .parent = kNoParent,
                                    .blocks = {waypoint}});
    ASSERT_TRUE(session_->OnMessage(batch).ok());
  }
  absl::Status Say(SenderMessage message) { return session_->OnMessage(std::move(message)); }
  void Heartbeat() {
    ASSERT_TRUE(session_->OnMessage(kvatlas::Heartbeat{.last_sent = number_}).ok());
  }

  std::vector<ReceiverMessage> replies;

 private:
  const std::string replica_;
  Hello hello_;
  BatchNumber number_ = 0;
  std::unique_ptr<ReceiverSession> session_;
};

class HierarchyTest : public testing::Test {
 protected:
  HierarchyTest() : hierarchy_(Options()) {}

  HierarchyOptions Options() {
    HierarchyOptions options;
    options.registry.clock = &clock_;
    return options;
  }
  std::unique_ptr<Cell> AddCell(const std::string& name, size_t waypoints, Load load = {},
                                const std::string& replica = "r0") {
    auto cell = std::make_unique<Cell>(&hierarchy_, name, replica);
    EXPECT_TRUE(cell->SayHello().ok());
    cell->Cover(waypoints, load);
    return cell;
  }
  absl::StatusOr<FoundCells> Find(uint32_t blocks, uint32_t best = 0) {
    const std::vector<SequenceHash> waypoints =
        Waypoints(WaypointSchedule::Standard().WaypointsIn(blocks));
    return hierarchy_.FindCells({.domain = kDomain,
                                 .waypoints = waypoints,
                                 .blocks = blocks,
                                 .schedule = hierarchy_.schedule_name(),
                                 .best = best});
  }
  std::vector<std::string> Names(uint32_t blocks, uint32_t best = 0) {
    std::vector<std::string> names;
    const absl::StatusOr<FoundCells> found = Find(blocks, best);
    EXPECT_TRUE(found.ok()) << found.status();
    if (found.ok()) {
      for (const FoundCell& cell : found->cells) names.push_back(cell.cell->id.name);
    }
    return names;
  }

  ManualClock clock_;
  Hierarchy hierarchy_;
};

TEST_F(HierarchyTest, BoundsAreTheLastWaypointCoveredAndTheNext) {
  const WaypointSchedule& schedule = WaypointSchedule::Standard();
  auto cell = AddCell("a", 3);
  const absl::StatusOr<FoundCells> found = Find(190);
  ASSERT_TRUE(found.ok());
  EXPECT_EQ(found->block_size, 16u);
  ASSERT_EQ(found->cells.size(), 1u);
  EXPECT_EQ(found->cells[0].blocks_at_least, schedule.BlocksCovered(3));
  EXPECT_EQ(found->cells[0].blocks_below, schedule.BlocksCovered(4));
  EXPECT_EQ(found->cells[0].trust, Trust::kExact);
  EXPECT_EQ(found->cells[0].cell->address, "a.r0:7410");
  EXPECT_THAT(found->cells[0].cell->labels,
              ElementsAre(std::pair<std::string, std::string>("zone", "z-a")));
}

TEST_F(HierarchyTest, TheUpperBoundEndsWithThePrompt) {
  auto cell = AddCell("a", 3);
  const uint32_t covered = WaypointSchedule::Standard().BlocksCovered(3);
  EXPECT_EQ(Find(covered + 5)->cells[0].blocks_below, covered + 6);
  EXPECT_EQ(Find(covered)->cells[0].blocks_at_least, covered);
  EXPECT_EQ(Find(covered)->cells[0].blocks_below, covered + 1);
  EXPECT_EQ(Find(3)->cells[0].blocks_at_least, 0u);
  EXPECT_EQ(Find(3)->cells[0].blocks_below, 4u);
  EXPECT_EQ(Find(0)->cells[0].blocks_below, 1u);
}

TEST_F(HierarchyTest, DeepestThenLeastLoadedPerWorkerThenByName) {
  auto a = AddCell("a", 0);
  auto b = AddCell("b", 2, {.waiting_prefill_blocks = 80, .workers = 8});  // 10 a worker
  auto c = AddCell("c", 2, {.waiting_prefill_blocks = 40, .workers = 2});  // 20 a worker
  auto d = AddCell("d", 4, {.waiting_prefill_blocks = 9000});
  auto e = AddCell("e", 0);
  EXPECT_THAT(Names(190), ElementsAre("d", "b", "c", "a", "e"));
  EXPECT_THAT(Names(190, 2), ElementsAre("d", "b"));
  EXPECT_EQ(Find(190)->cells[1].load->workers, 8u);
}

TEST_F(HierarchyTest, TheFreshestReplicaSpeaksForItsCell) {
  auto first = AddCell("a", 4, {}, "r0");
  clock_.Advance(seconds(2));
  auto second = AddCell("a", 2, {}, "r1");
  EXPECT_THAT(Names(190), ElementsAre("a"));
  EXPECT_EQ(Find(190)->cells[0].cell->id.replica, "r1");
  EXPECT_EQ(Find(190)->cells[0].blocks_at_least, WaypointSchedule::Standard().BlocksCovered(2));
  clock_.Advance(seconds(1));
  first->Heartbeat();
  EXPECT_EQ(Find(190)->cells[0].cell->id.replica, "r0");
}

TEST_F(HierarchyTest, AReplicaThatMissesSomethingDoesNotSpeakWhileAnotherIsExact) {
  auto whole = AddCell("a", 2, {}, "r0");
  auto torn = AddCell("a", 4, {}, "r1");
  clock_.Advance(seconds(1));
  (void)torn->SayHello();
  Hello& hello = torn->hello();
  hello.last_sent = 9;  // sent without a listener
  hello.first_kept = 8;
  EXPECT_TRUE(torn->SayHello().ok());
  ASSERT_TRUE(Find(190).ok());
  EXPECT_EQ(Find(190)->cells[0].cell->id.replica, "r0");
}

TEST_F(HierarchyTest, ACellWhoseLeaseRanOutIsInNoAnswerAndComesBackAsItWas) {
  auto a = AddCell("a", 3);
  auto b = AddCell("b", 1);
  clock_.Advance(seconds(9));
  b->Heartbeat();
  clock_.Advance(seconds(2));
  EXPECT_THAT(Names(190), ElementsAre("b"));  // at once, before any tick
  hierarchy_.registry().Tick();
  EXPECT_THAT(Names(190), ElementsAre("b"));
  a->Heartbeat();
  EXPECT_THAT(Names(190), ElementsAre("a", "b"));
  EXPECT_EQ(Find(190)->cells[0].blocks_at_least, WaypointSchedule::Standard().BlocksCovered(3));
}

TEST_F(HierarchyTest, QuestionsThatNoCorrectAskerWouldAskAreRefused) {
  auto a = AddCell("a", 3);
  const auto code = [&](FindCellsQuery query) {
    return hierarchy_.FindCells(query).status().code();
  };
  const std::string schedule = hierarchy_.schedule_name();
  const std::vector<SequenceHash> three = Waypoints(3);
  EXPECT_EQ(code({.domain = Domain(), .waypoints = {}, .schedule = schedule}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.domain = kDomain, .waypoints = three, .blocks = 190, .schedule = schedule}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.domain = kDomain, .waypoints = three, .blocks = 2, .schedule = schedule}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({.domain = kDomain,
                  .waypoints = {},
                  .blocks = kFindCellsBlocksMax + 1,
                  .schedule = schedule}),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(code({.domain = kDomain, .waypoints = {}, .schedule = "every:7"}),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(code({.domain = {"other", ""}, .waypoints = {}, .schedule = schedule}),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(code({.domain = {"m", "tenant"}, .waypoints = {}, .schedule = schedule}),
            absl::StatusCode::kNotFound);
}

TEST_F(HierarchyTest, APositionThatIsNoWaypointIsAnotherScheduleOrNonsense) {
  auto a = AddCell("a", 3);
  const std::vector<SequenceHash> one = Waypoints(1);
  const std::vector<Position> position = {WaypointSchedule::Standard().PositionOf(0) + 1};
  const auto ask = [&](const std::string& schedule) {
    return hierarchy_
        .FindCells({.domain = kDomain,
                    .waypoints = one,
                    .blocks = 190,
                    .schedule = schedule,
                    .positions = position})
        .status();
  };
  const absl::Status other = ask("every:9");
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(other.message().find("'every:9' is not ours, '" + hierarchy_.schedule_name() + "'"),
            std::string::npos)
      << other;
  EXPECT_EQ(ask(hierarchy_.schedule_name()).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(HierarchyTest, ALeafWithAnotherScheduleIsRefusedWithAReason) {
  Cell cell(&hierarchy_, "a");
  cell.hello().schedule = "every:7";
  (void)cell.SayHello();
  ASSERT_EQ(cell.replies.size(), 1u);
  ASSERT_TRUE(std::holds_alternative<Refuse>(cell.replies[0]));
  EXPECT_EQ(std::get<Refuse>(cell.replies[0]).code, absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(std::get<Refuse>(cell.replies[0]).reason, "");
}

TEST_F(HierarchyTest, ThousandsOfCellsAreAllAnsweredBestFirst) {
  constexpr int kCells = 4096;
  std::mt19937 random(1);
  std::vector<std::unique_ptr<Cell>> cells;
  std::vector<size_t> depths;
  for (int i = 0; i < kCells; ++i) {
    depths.push_back(random() % 7);
    cells.push_back(AddCell("cell-" + std::to_string(i), depths.back()));
  }
  std::sort(depths.rbegin(), depths.rend());
  const absl::StatusOr<FoundCells> found = Find(900);
  ASSERT_TRUE(found.ok());
  ASSERT_EQ(found->cells.size(), static_cast<size_t>(kCells));
  for (size_t i = 0; i < found->cells.size(); ++i) {
    EXPECT_EQ(found->cells[i].blocks_at_least,
              WaypointSchedule::Standard().BlocksCovered(static_cast<uint32_t>(depths[i])));
  }
  EXPECT_EQ(Names(190, 64).size(), 64u);
}

// ---- Levels ----

TEST_F(HierarchyTest, ANodeWithFewerWaypointsPicksItsOwnFromAFinerQuestion) {
  const WaypointSchedule& fine = WaypointSchedule::Standard();
  const WaypointSchedule coarse({fine.PositionOf(1), fine.PositionOf(3)}, 512);
  HierarchyOptions options = Options();
  options.schedule = &coarse;
  Hierarchy world(options);
  Cell region(&world, "east");
  region.hello().schedule = coarse.Name();
  region.hello().labels.emplace_back(kKindLabel, kKindNode);
  ASSERT_TRUE(region.SayHello().ok());
  const std::vector<SequenceHash> waypoints = Waypoints(fine.WaypointsIn(400));
  region.CoverOnly({waypoints[1], waypoints[3]});
  const absl::StatusOr<FoundCells> found = world.FindCells(
      {.domain = kDomain, .waypoints = waypoints, .blocks = 400, .schedule = fine.Name()});
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_EQ(found->cells.size(), 1u);
  EXPECT_TRUE(found->cells[0].is_node);
  EXPECT_EQ(found->cells[0].blocks_at_least, fine.PositionOf(3) + 1);
  EXPECT_EQ(found->cells[0].blocks_below, 401u);
  // The other way round there is nothing to pick from.
  EXPECT_EQ(hierarchy_
                .FindCells({.domain = kDomain,
                            .waypoints = Waypoints(coarse.WaypointsIn(400)),
                            .blocks = 400,
                            .schedule = coarse.Name()})
                .status()
                .code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(HierarchyTest, AQuestionAboutSomeWaypointsHasBoundsByThose) {
  const WaypointSchedule& schedule = WaypointSchedule::Standard();
  Cell cell(&hierarchy_, "a");
  ASSERT_TRUE(cell.SayHello().ok());
  const std::vector<SequenceHash> all = Waypoints(6);
  cell.CoverOnly({all[0], all[2], all[3]});  // of a shard: the others are elsewhere
  const uint32_t blocks = schedule.BlocksCovered(6);
  const auto ask = [&](std::vector<uint32_t> ordinals) {
    std::vector<SequenceHash> waypoints;
    std::vector<Position> positions;
    for (uint32_t ordinal : ordinals) {
      waypoints.push_back(all[ordinal]);
      positions.push_back(schedule.PositionOf(ordinal));
    }
    return hierarchy_.FindCells({.domain = kDomain,
                                 .waypoints = waypoints,
                                 .blocks = blocks,
                                 .schedule = schedule.Name(),
                                 .positions = positions});
  };
  EXPECT_EQ(ask({0, 2, 3})->cells[0].blocks_at_least, schedule.BlocksCovered(4));
  EXPECT_EQ(ask({0, 2, 3})->cells[0].blocks_below, blocks + 1);
  EXPECT_EQ(ask({0, 2, 5})->cells[0].blocks_at_least, schedule.BlocksCovered(3));
  EXPECT_EQ(ask({0, 2, 5})->cells[0].blocks_below, schedule.BlocksCovered(6));
  EXPECT_EQ(ask({1, 2})->cells[0].blocks_at_least, 0u);
  EXPECT_EQ(ask({1, 2})->cells[0].blocks_below, schedule.BlocksCovered(2));
  EXPECT_EQ(ask({2, 1}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ask({6}).status().code(), absl::StatusCode::kInvalidArgument) << "behind the prompt";
  const std::vector<Position> beside = {schedule.PositionOf(0) + 1};
  EXPECT_EQ(hierarchy_
                .FindCells({.domain = kDomain,
                            .waypoints = std::span(all).first(1),
                            .blocks = blocks,
                            .schedule = schedule.Name(),
                            .positions = beside})
                .status()
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(HierarchyTest, OtherLiveReplicasOfACellAreNamedFreshestFirst) {
  auto oldest = AddCell("a", 2, {}, "r0");
  clock_.Advance(seconds(1));
  auto middle = AddCell("a", 2, {}, "r1");
  clock_.Advance(seconds(1));
  auto newest = AddCell("a", 2, {}, "r2");
  EXPECT_EQ(Find(190)->cells[0].cell->address, "a.r2:7410");
  EXPECT_THAT(Find(190)->cells[0].other_addresses, ElementsAre("a.r1:7410", "a.r0:7410"));
  clock_.Advance(seconds(9));
  newest->Heartbeat();
  EXPECT_THAT(Find(190)->cells[0].other_addresses, IsEmpty()) << "their leases ran out";
  EXPECT_FALSE(Find(190)->cells[0].is_node);
}

// ---- Bad cells ----

TEST_F(HierarchyTest, OfTwoClaimsOfOneCellTheYoungerWinsAndTheOlderIsTold) {
  Cell older(&hierarchy_, "a");
  older.hello().epoch = 10;
  ASSERT_TRUE(older.SayHello().ok());
  older.Cover(2);
  Cell younger(&hierarchy_, "a");
  younger.hello().epoch = 20;
  younger.hello().instance_id = 8;
  ASSERT_TRUE(younger.SayHello().ok());
  ASSERT_TRUE(std::holds_alternative<Welcome>(younger.replies.back()));
  (void)older.SayHello();
  ASSERT_TRUE(std::holds_alternative<Refuse>(older.replies.back()));
  const Refuse& told = std::get<Refuse>(older.replies.back());
  EXPECT_EQ(told.code, absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(told.epoch, 20u);
  EXPECT_EQ(told.instance_id, 8u);
  EXPECT_THAT(Names(190), ElementsAre("a"));
}

TEST_F(HierarchyTest, WhoRepeatsTheIdOfALiveCellIsRefusedAndTheLiveOneGoesOn) {
  Cell live(&hierarchy_, "a");
  ASSERT_TRUE(live.SayHello().ok());
  live.Cover(3);
  Cell copy(&hierarchy_, "a");
  copy.hello().instance_id = 8;
  (void)copy.SayHello();
  ASSERT_TRUE(std::holds_alternative<Refuse>(copy.replies.back()));
  live.Heartbeat();
  EXPECT_EQ(Find(190)->cells[0].blocks_at_least, WaypointSchedule::Standard().BlocksCovered(3));
  EXPECT_EQ(Find(190)->cells[0].trust, Trust::kExact);
}

TEST_F(HierarchyTest, ACellThatFloodsIsDegradedAndTakesNoMoreThanItsShare) {
  HierarchyOptions options = Options();
  options.registry.receiver.blocks_max = 100;
  Hierarchy bounded(options);
  Cell honest(&bounded, "honest"), flooding(&bounded, "flooding");
  ASSERT_TRUE(honest.SayHello().ok());
  ASSERT_TRUE(flooding.SayHello().ok());
  honest.Cover(3);
  for (uint64_t i = 0; i < 50; ++i) {
    std::vector<SequenceHash> flood;
    for (uint64_t j = 0; j < 40; ++j) flood.push_back(SequenceHash(1000000 + i * 100 + j));
    flooding.CoverOnly(flood);
  }
  honest.Cover(4);
  const absl::StatusOr<DomainStats> stats = bounded.registry().StatsOf(kDomain);
  ASSERT_TRUE(stats.ok());
  for (const HolderStats& cell : stats->holders) {
    const bool floods = cell.holder->id.name == "flooding";
    EXPECT_EQ(cell.blocks, floods ? 100u : 4u);
    EXPECT_EQ(cell.trust, floods ? Trust::kDegraded : Trust::kExact);
    EXPECT_EQ(cell.receiver.sheds, floods ? 1u : 0u);
  }
}

TEST_F(HierarchyTest, ACellThatLiesAboutItsWaypointsMisleadsAboutItselfOnly) {
  auto honest = AddCell("honest", 3);
  Cell liar(&hierarchy_, "liar");
  ASSERT_TRUE(liar.SayHello().ok());
  std::vector<SequenceHash> shuffled = Waypoints(6);
  std::mt19937 random(1);
  for (int i = 0; i < 50; ++i) {
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    liar.CoverOnly(shuffled, /*position=*/random() % 5);
    const absl::StatusOr<FoundCells> found = Find(190);
    ASSERT_TRUE(found.ok());
    for (const FoundCell& cell : found->cells) {
      if (cell.cell->id.name != "honest") continue;
      EXPECT_EQ(cell.blocks_at_least, WaypointSchedule::Standard().BlocksCovered(3));
    }
  }
}

TEST_F(HierarchyTest, ACellThatNeverRepairsWhatItOwesIsEmptyAfterItsTimeAndOthersAreAsTheyWere) {
  auto honest = AddCell("honest", 2);
  auto torn = AddCell("torn", 4);
  Hello& hello = torn->hello();
  hello.last_sent = 9;  // and never sends what it says that it sent
  hello.first_kept = 8;
  ASSERT_TRUE(torn->SayHello().ok());
  for (int second = 0; second < 40; ++second) {
    clock_.Advance(seconds(1));
    honest->Heartbeat();
    ASSERT_TRUE(torn->Say(kvatlas::Heartbeat{.last_sent = 9}).ok());
    hierarchy_.registry().Tick();
    EXPECT_EQ(Find(190)->cells.size(), 2u);
  }
  EXPECT_THAT(Names(190), ElementsAre("honest", "torn"));
  EXPECT_EQ(Find(190)->cells[0].trust, Trust::kExact);
  EXPECT_EQ(Find(190)->cells[1].blocks_at_least, 0u);
  EXPECT_NE(Find(190)->cells[1].trust, Trust::kExact);
}

// `FindBest` answers after a tick with a query before it.
TEST_F(HierarchyTest, TheBestOfManyAreTheFirstOfAll) {
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<std::unique_ptr<Cell>> cells;
    std::vector<uint64_t> loads(400);
    for (size_t i = 0; i < loads.size(); ++i) loads[i] = i;
    std::shuffle(loads.begin(), loads.end(), random);
    for (size_t i = 0; i < loads.size(); ++i) {
      const size_t depth = random() % 3 == 0 ? random() % 6 : 0;
      cells.push_back(AddCell("cell-" + std::to_string(i), depth,
                              {.waiting_prefill_blocks = loads[i], .workers = 1}));
    }
    for (const uint32_t blocks : {190u, 40u, 3u}) {
      for (const uint32_t best : {1u, 2u, 16u, 64u, 100u}) {
        std::vector<std::string> expected = Names(blocks);
        expected.resize(best);
        EXPECT_EQ(Names(blocks, best), expected);
        hierarchy_.registry().Tick();
        EXPECT_EQ(Names(blocks, best), expected);
      }
    }
    // Cells that came, left or were masked between ticks are seen as they are now.
    cells[0].reset();
    cells.push_back(AddCell("deepest", 6));
    EXPECT_EQ(Names(900, 2)[0], "deepest");
    cells.clear();
    clock_.Advance(std::chrono::minutes(1));
    EXPECT_TRUE(Names(190, 16).empty());
    clock_.Advance(std::chrono::hours(1));
    for (int i = 0; i < 4; ++i) hierarchy_.registry().Tick();
  }
}

}  // namespace
}  // namespace kvatlas
