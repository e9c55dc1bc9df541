#include "frontend/router/fleet_memory.h"

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace kvatlas {
namespace {

HolderId Id(const std::string& name) { return {.name = name, .rank = 0, .replica = ""}; }

using std::chrono::seconds;

const Domain kDomain = {"m", ""};

std::shared_ptr<const WorkersAnswer> Workers(const std::vector<std::string>& names) {
  auto answer = std::make_shared<WorkersAnswer>();
  for (const std::string& name : names) answer->workers.push_back({.worker = Id(name), .load = {}});
  return answer;
}

CellFound Cell(const std::string& name) {
  return {.cell = name, .address = name + ":1", .load = {}, .labels = {}};
}

TEST(FleetMemoryTest, AWorkerThatItsCellNoLongerNamesIsForgotten) {
  FleetMemory memory({});
  memory.SawWorkers(kDomain, "a", Workers({"w0", "w1"}), seconds(1));
  memory.SawWorkers(kDomain, "b", Workers({"w0"}), seconds(2));
  memory.SawWorkers(kDomain, "a", Workers({"w1"}), seconds(3));
  const std::vector<KnownWorker> known = memory.Workers(kDomain);
  ASSERT_EQ(known.size(), 2u);
  EXPECT_EQ(known[0].cell, "a");
  EXPECT_EQ(known[0].worker.name, "w1");
  EXPECT_EQ(known[1].cell, "b");
}

TEST(FleetMemoryTest, WorkersThatAreNoMoreAreForgottenInAllDomains) {
  FleetMemory memory({});
  memory.SawWorkers(kDomain, "a", Workers({"w0", "w1"}), seconds(1));
  memory.SawWorkers({"n", ""}, "b", Workers({"w0"}), seconds(2));
  memory.Forget({"w0", "w2"});
  ASSERT_EQ(memory.Workers(kDomain).size(), 1u);
  EXPECT_EQ(memory.Workers(kDomain)[0].worker.name, "w1");
  EXPECT_TRUE(memory.Workers({"n", ""}).empty());
  EXPECT_EQ(memory.workers(), 1u);
}

TEST(FleetMemoryTest, CellsThatAnAnswerOmitsAreKeptAndComeLater) {
  FleetMemory memory({});
  memory.SawCells(kDomain, std::vector<CellFound>{Cell("a"), Cell("b")}, seconds(1));
  memory.SawCells(kDomain, std::vector<CellFound>{Cell("b")}, seconds(2));
  const std::vector<KnownCell> cells = memory.Cells(kDomain);
  ASSERT_EQ(cells.size(), 2u);
  EXPECT_EQ(cells[0].cell, "b");
  EXPECT_EQ(cells[1].cell, "a");
}

TEST(FleetMemoryTest, EveryBoundForgetsTheOldest) {
  FleetMemory memory({.domains_max = 2, .cells_max = 2, .workers_max = 3, .in_flight_max = 2});
  memory.SawCells(kDomain, std::vector<CellFound>{Cell("a")}, seconds(1));
  memory.SawCells(kDomain, std::vector<CellFound>{Cell("b"), Cell("c")}, seconds(2));
  EXPECT_EQ(memory.cells(), 2u);
  EXPECT_EQ(memory.FindCell(kDomain, "a"), nullptr);
  memory.SawWorkers(kDomain, "a", Workers({"w0", "w1"}), seconds(3));
  memory.SawWorkers(kDomain, "b", Workers({"w2", "w3"}), seconds(4));
  EXPECT_EQ(memory.Workers(kDomain).size(), 2u);
  EXPECT_EQ(memory.Workers(kDomain)[0].cell, "b");
  memory.SetBlockSize({"n", ""}, 32, seconds(5));
  memory.SetBlockSize({"o", ""}, 32, seconds(6));
  EXPECT_TRUE(memory.Workers(kDomain).empty());
  EXPECT_EQ(memory.BlockSize({"n", ""}), 32u);
  for (uint64_t id = 1; id <= 3; ++id)
    memory.choices().Choose(id, {.cell = "a", .worker = Id("w0"), .blocks = id}, seconds(7));
  EXPECT_EQ(memory.choices().size(), 2u);
  EXPECT_EQ(memory.choices().To("a").blocks, 5u);
}

TEST(FleetMemoryTest, TurnsAreThoseOfTheLatestChoice) {
  FleetMemory memory({});
  EXPECT_EQ(memory.TurnOf("a", Id("w0")), 0u);
  memory.TookTurn(kDomain, "a", Id("w0"), 4, 0);
  memory.TookTurn(kDomain, "b", Id("w0"), 5, 0);
  memory.TookTurn(kDomain, "a", Id("w0"), 6, 0);
  EXPECT_EQ(memory.TurnOf("a", Id("w0")), 6u);
  EXPECT_EQ(memory.TurnOf("b", Id("w0")), 5u);
}

TEST(FleetMemoryTest, WhatALeafHasShownIsNoLongerExpectedOfItsWorker) {
  FleetMemory memory({});
  const std::vector<SequenceHash> q = {SequenceHash(1), SequenceHash(2), SequenceHash(3)};
  memory.Sent(kDomain, q, "a", Id("w0"), seconds(0));
  EXPECT_EQ(memory.LastSentTo(kDomain, q, seconds(1)).worker.name, "w0");
  memory.SentIsShown(kDomain, {q.data(), 2}, Id("w0"));
  EXPECT_EQ(memory.LastSentTo(kDomain, q, seconds(1)).worker.name, "w0") << "the deepest is not";
  memory.SentIsShown(kDomain, q, Id("other"));
  memory.SentIsShown(kDomain, q, Id("w0"));
  EXPECT_EQ(memory.LastSentTo(kDomain, q, seconds(1)).cell, "a");
  EXPECT_EQ(memory.LastSentTo(kDomain, q, seconds(1)).worker.name, "");
}

TEST(FleetMemoryTest, TheDeepestWaypointSentLatelyNamesItsCell) {
  FleetMemory memory({.sent_max = 4, .sent_ttl = seconds(10)});
  const std::vector<SequenceHash> q = {SequenceHash(1), SequenceHash(2), SequenceHash(3)};
  EXPECT_EQ(memory.LastSentTo(kDomain, q, seconds(0)).cell, "");
  memory.Sent(kDomain, {q.data(), 3}, "a", Id("w0"), seconds(0));
  memory.Sent(kDomain, {q.data(), 1}, "b", Id("w0"), seconds(5));
  EXPECT_EQ(memory.LastSentTo(kDomain, q, seconds(6)).cell, "a");
  EXPECT_EQ(memory.LastSentTo(kDomain, q, seconds(6)).waypoints, 3u);
  EXPECT_EQ(memory.LastSentTo(kDomain, {q.data(), 1}, seconds(6)).cell, "b");
  EXPECT_EQ(memory.LastSentTo(kDomain, q, seconds(12)).cell, "b");  // the deeper ones are too old
  EXPECT_EQ(memory.LastSentTo(kDomain, q, seconds(12)).waypoints, 1u);
  EXPECT_EQ(memory.LastSentTo({"m", "tenant"}, q, seconds(6)).cell, "");
  const std::vector<SequenceHash> other = {SequenceHash(4), SequenceHash(5), SequenceHash(6),
                                           SequenceHash(7)};
  memory.Sent(kDomain, other, "c", Id("w0"), seconds(7));
  EXPECT_EQ(memory.LastSentTo(kDomain, q, seconds(7)).cell, "");  // beyond the bound
  EXPECT_EQ(memory.LastSentTo(kDomain, other, seconds(7)).waypoints, 4u);
}

TEST(FleetMemoryTest, DomainsAreApart) {
  FleetMemory memory({});
  memory.SawWorkers(kDomain, "a", Workers({"w0"}), seconds(1));
  EXPECT_TRUE(memory.Workers({"m", "tenant"}).empty());
  EXPECT_EQ(memory.BlockSize(kDomain), 0u);
}

TEST(FleetMemoryTest, ACellThatDoesNotDeliverIsBelievedLess) {
  FleetMemory memory({});
  for (int i = 0; i < 40; ++i) {
    EXPECT_LE(memory.Believed(kDomain, "liar", 100, seconds(i)), 100u);
    memory.Promised(kDomain, "liar", 100, 0, seconds(i));
    memory.Promised(kDomain, "good", 100, 120, seconds(i));
  }
  EXPECT_LT(memory.Believed(kDomain, "liar", 100, seconds(39)), 15u);
  EXPECT_EQ(memory.Believed(kDomain, "good", 100, seconds(39)), 100u);
  EXPECT_EQ(memory.Believed(kDomain, "unknown", 100, seconds(39)), 100u);
  EXPECT_EQ(memory.Believed({"other", ""}, "liar", 100, seconds(39)), 100u);
}

TEST(FleetMemoryTest, WhatChurnBreaksIsForgiven) {
  FleetMemory memory({});
  for (int i = 0; i < 100; ++i) {
    memory.Promised(kDomain, "a", 100, i % 10 == 0 ? 0 : 100, seconds(i));
    EXPECT_EQ(memory.Believed(kDomain, "a", 100, seconds(i)), 100u);
  }
  EXPECT_EQ(memory.Promises(1, seconds(100))[0].promises, 100u);
  EXPECT_EQ(memory.Promises(1, seconds(100))[0].broken, 10u);
}

TEST(FleetMemoryTest, DoubtFadesWithTimeAndWithKeptPromises) {
  FleetMemory memory({.doubt_half_life = seconds(30)});
  for (int i = 0; i < 100; ++i) memory.Promised(kDomain, "a", 100, 0, seconds(1));
  EXPECT_EQ(memory.Believed(kDomain, "a", 100, seconds(1)), 0u);
  EXPECT_EQ(memory.Believed(kDomain, "a", 100, seconds(31)), 50u);
  EXPECT_EQ(memory.Believed(kDomain, "a", 100, seconds(61)), 100u) << "three quarters are enough";
  for (int i = 0; i < 12; ++i) memory.Promised(kDomain, "a", 100, 100, seconds(1));
  EXPECT_EQ(memory.Believed(kDomain, "a", 100, seconds(1)), 100u);
}

TEST(FleetMemoryTest, WithoutAHalfLifeEverythingIsBelieved) {
  FleetMemory memory({.doubt_half_life = Duration(0)});
  for (int i = 0; i < 100; ++i) memory.Promised(kDomain, "a", 100, 0, seconds(1));
  EXPECT_EQ(memory.Believed(kDomain, "a", 100, seconds(1)), 100u);
  EXPECT_EQ(memory.Promises(8, seconds(1))[0].broken, 100u) << "and is counted all the same";
}

TEST(FleetMemoryTest, PromisesOfAsManyCellsAsAreRememberedTheWorstFirst) {
  FleetMemory memory({.cells_max = 3});
  memory.Promised(kDomain, "forgotten", 10, 0, seconds(1));
  memory.Promised(kDomain, "once", 10, 0, seconds(2));
  memory.Promised(kDomain, "good", 10, 10, seconds(2));
  for (int i = 0; i < 10; ++i) memory.Promised(kDomain, "liar", 10, 0, seconds(3));
  memory.Promised(kDomain, "nothing", 0, 0, seconds(3));
  std::vector<std::string> cells;
  for (const CellPromises& of : memory.Promises(8, seconds(3))) cells.push_back(of.cell);
  EXPECT_EQ(cells, (std::vector<std::string>{"liar", "once", "good"}));
  EXPECT_EQ(memory.Promises(1, seconds(3)).size(), 1u);
}

}  // namespace
}  // namespace kvatlas
