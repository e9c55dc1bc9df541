#include "indexer/ui/fleet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "indexer/base/version.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::HolderStats* AddHolder(const std::string& name, v1::DomainStats* domain) {
  v1::HolderStats* holder = domain->add_holder_stats();
  holder->mutable_holder()->set_name(name);
  holder->set_trust(v1::TRUST_EXACT);
  holder->set_connected(true);
  holder->set_state("connected");
  holder->set_blocks(100);
  return holder;
}

v1::StatsResponse Leaf(const std::string& cell, int workers) {
  v1::StatsResponse leaf;
  leaf.set_cell(cell);
  leaf.mutable_process()->set_version("0.1.0");
  v1::DomainStats* domain = leaf.add_domains();
  domain->mutable_domain()->set_model("m");
  domain->set_blocks(150);
  for (int i = 0; i < workers; ++i) {
    v1::HolderStats* worker = AddHolder("w" + std::to_string(i), domain);
    worker->mutable_load()->set_used_blocks(30);
    worker->mutable_load()->set_free_blocks(70);
    worker->mutable_load()->set_running_requests(2);
  }
  return leaf;
}

FleetPage FleetOf(std::vector<FleetCell> cells) {
  FleetPage fleet;
  fleet.program = "kvatlas-frontend";
  fleet.kind = "frontend";
  fleet.now_ms = 100000;
  fleet.cells = std::move(cells);
  return fleet;
}

FleetCell Cell(const std::string& name, FleetHealth health, uint32_t age_ms = 0) {
  FleetCell cell;
  cell.name = name;
  cell.health = health;
  cell.age_ms = age_ms;
  return cell;
}

TEST(FleetTest, ALeafsWorkersAreSummedAndCounted) {
  v1::StatsResponse leaf = Leaf("a", 3);
  leaf.mutable_domains(0)->mutable_holder_stats(1)->set_connected(false);
  leaf.mutable_domains(0)->mutable_holder_stats(2)->set_masked(true);
  const FleetCell cell = CellOf(leaf);
  EXPECT_EQ(cell.name, "a");
  EXPECT_EQ(cell.health, FleetHealth::kExact);
  EXPECT_EQ(cell.workers_count, 3u);
  EXPECT_EQ(cell.workers_silent, 2u);
  EXPECT_EQ(cell.blocks, 150u);
  EXPECT_EQ(cell.load.used_blocks, 90u);
  EXPECT_EQ(cell.load.running, 6u);
}

TEST(FleetTest, AWorkerOfTwoModelsIsOneAndAsBadAsTheWorse) {
  v1::StatsResponse leaf = Leaf("a", 1);
  v1::DomainStats* other = leaf.add_domains();
  other->mutable_domain()->set_model("n");
  AddHolder("w0", other)->set_trust(v1::TRUST_DEGRADED);
  const FleetCell cell = CellOf(leaf);
  ASSERT_EQ(cell.workers.size(), 1u);
  EXPECT_EQ(cell.workers[0].trust, FleetHealth::kDegraded);
  EXPECT_EQ(cell.workers[0].blocks, 200u);
  EXPECT_EQ(cell.load.used_blocks, 30u);
  EXPECT_EQ(cell.health, FleetHealth::kDegraded);
}

TEST(FleetTest, OfACellsReplicasTheFreshestSpeaks) {
  v1::StatsResponse node;
  v1::DomainStats* domain = node.add_domains();
  v1::HolderStats* old = AddHolder("a", domain);
  old->mutable_holder()->set_replica("r0");
  old->set_masked(true);
  old->set_address("old:1");
  v1::HolderStats* live = AddHolder("a", domain);
  live->mutable_holder()->set_replica("r1");
  live->set_address("live:1");
  (*live->mutable_labels())["zone"] = "eu";
  v1::HolderStats* lower = AddHolder("row-1", domain);
  (*lower->mutable_labels())["kvatlas.kind"] = "node";
  const std::vector<ReportedCell> cells = ReportedBy(node);
  ASSERT_EQ(cells.size(), 2u);
  EXPECT_EQ(cells[0].cell.address, "live:1");
  EXPECT_EQ(cells[0].cell.health, FleetHealth::kExact);
  EXPECT_EQ(cells[0].cell.replicas, 2u);
  EXPECT_EQ(cells[0].cell.region, "eu");
  EXPECT_FALSE(cells[0].is_node);
  EXPECT_TRUE(cells[1].is_node);
}

TEST(FleetTest, ACellNamedByItsClusterIsInThatRegion) {
  v1::StatsResponse node;
  AddHolder("paris/a", node.add_domains());
  EXPECT_EQ(ReportedBy(node)[0].cell.region, "paris");
}

TEST(FleetTest, TheVerdictIsASentence) {
  FleetPage fleet = FleetOf({Cell("a", FleetHealth::kExact), Cell("b", FleetHealth::kStale, 12300),
                             Cell("c", FleetHealth::kExact), Cell("d", FleetHealth::kExact)});
  EXPECT_EQ(Judge(fleet).text, "3 of 4 cells exact; cell b 12 s stale");
  EXPECT_EQ(Judge(fleet).level, "warning");
  fleet.cells[1].health = FleetHealth::kExact;
  for (FleetCell& cell : fleet.cells) cell.workers_count = 8;
  EXPECT_EQ(Judge(fleet).text, "all 4 cells exact, 32 workers heard");
  EXPECT_EQ(Judge(fleet).level, "good");
  for (FleetCell& cell : fleet.cells) cell.health = FleetHealth::kUnreachable;
  EXPECT_EQ(Judge(fleet).level, "bad");
}

TEST(FleetTest, AWorkerThatIsGoneIsNamedThoughItsCellIsExact) {
  v1::StatsResponse leaf = Leaf("a", 2);
  leaf.mutable_domains(0)->mutable_holder_stats(1)->set_masked(true);
  leaf.mutable_domains(0)->mutable_holder_stats(1)->set_age_ms(15000);
  const FleetVerdict verdict = Judge(FleetOf({CellOf(leaf)}));
  EXPECT_EQ(verdict.text, "cell a exact; worker w1 of cell a silent for 15 s");
  EXPECT_EQ(verdict.level, "warning");
}

TEST(FleetTest, WhereAllWorkersAreSilentNothingIsCalledExact) {
  v1::StatsResponse leaf = Leaf("a", 2);
  for (v1::HolderStats& holder : *leaf.mutable_domains(0)->mutable_holder_stats()) {
    holder.set_masked(true);
    holder.set_age_ms(15000);
  }
  const FleetVerdict verdict = Judge(FleetOf({CellOf(leaf)}));
  EXPECT_EQ(verdict.text,
            "all 2 workers are silent, and in no answer; worker w0 of cell a silent for 15 s; "
            "worker w1 of cell a silent for 15 s");
  EXPECT_EQ(verdict.level, "bad");
}

// With leaf and frontend in one process, neither the cell's name nor a second process is shown.
TEST(FleetTest, OneProcessIsOne) {
  FleetPage fleet = FleetOf({CellOf(Leaf("cell", 2))});
  fleet.peers = {{.kind = "leaf", .version = kVersion, .state = "fresh", .is_self = true}};
  EXPECT_EQ(Judge(fleet).text, "all is exact, 2 workers heard");
  EXPECT_EQ(nlohmann::json::parse(FleetJson(fleet))["versions"][0]["processes"], 1);
  fleet.cells[0].workers_count = 0;
  fleet.cells[0].workers.clear();
  EXPECT_EQ(Judge(fleet).text, "no engine's events are heard");
  EXPECT_EQ(Judge(fleet).level, "unknown");
  fleet.peers.push_back({.kind = "leaf", .version = kVersion, .state = "fresh"});
  EXPECT_EQ(nlohmann::json::parse(FleetJson(fleet))["versions"][0]["processes"], 2);
}

TEST(FleetTest, WithoutCellsNothingIsSaidToBeWell) {
  FleetPage fleet = FleetOf({});
  EXPECT_EQ(Judge(fleet).level, "unknown");
  EXPECT_EQ(Judge(fleet).text, "no cell is known");
  fleet.fresh = false;
  EXPECT_EQ(Judge(fleet).text, "asking the fleet");
  fleet.peers.push_back({.kind = "hierarchy", .address = "h:1", .state = "unreachable"});
  EXPECT_EQ(Judge(fleet).level, "bad");
  EXPECT_THAT(Judge(fleet).text, HasSubstr("hierarchy node h:1 does not answer"));
}

TEST(FleetTest, ManyTroublesAreCountedNotListed) {
  std::vector<FleetCell> cells;
  for (uint32_t i = 0; i < 50; ++i)
    cells.push_back(Cell("c" + std::to_string(i), FleetHealth::kStale, i * 1000));
  cells.push_back(Cell("good", FleetHealth::kExact));
  const FleetVerdict verdict = Judge(FleetOf(cells));
  EXPECT_EQ(verdict.text, "1 of 51 cells exact; cell c49 49 s stale; cell c48 48 s stale; 30 more");
  EXPECT_EQ(verdict.points.size(), 32u);
}

TEST(FleetTest, TheJsonHasWhatThePageReads) {
  FleetCell cell = CellOf(Leaf("a", 1));
  cell.workers_at_ms = 99000;
  FleetPage fleet = FleetOf({cell});
  fleet.peers.push_back({.kind = "leaf", .name = "a", .version = "0.0.9", .state = "fresh"});
  const Json json = Json::parse(FleetJson(fleet));
  EXPECT_EQ(json["version"], kVersion);
  EXPECT_EQ(json["totals"]["workers"], 1);
  EXPECT_EQ(json["cells"][0]["state"], "exact");
  EXPECT_EQ(json["cells"][0]["seen_ms"], 1000);
  EXPECT_EQ(json["cells"][0]["tiles"][0],
            Json({"w0", 0, "exact", false, true, 0, 100, 30, 70, 2, 0}));
  EXPECT_EQ(json["versions"].size(), 2u);
  EXPECT_EQ(json["findings"], Json::array());
}

TEST(FleetTest, CountsThatABrowserWouldRoundAreText) {
  FleetCell cell = Cell("a", FleetHealth::kExact);
  cell.blocks = (uint64_t{1} << 53) + 1;
  const Json json = Json::parse(FleetJson(FleetOf({cell})));
  EXPECT_EQ(json["cells"][0]["blocks"], "9007199254740993");
}

TEST(FleetTest, OfManyWorkersOnlyCellsAreShownUntilOneIsAskedFor) {
  std::vector<FleetCell> cells;
  for (int i = 0; i < 300; ++i) {
    cells.push_back(CellOf(Leaf("c" + std::to_string(i), 8)));
    cells.back().workers_at_ms = 0;
  }
  const FleetPage fleet = FleetOf(cells);
  EXPECT_FALSE(Json::parse(FleetJson(fleet))["cells"][7].contains("tiles"));
  const Json one = Json::parse(CellJson(fleet, "c7"));
  ASSERT_EQ(one["cells"].size(), 1u);
  EXPECT_EQ(one["cells"][0]["tiles"].size(), 8u);
  EXPECT_EQ(CellJson(fleet, "elsewhere"), "");
}

TEST(FleetTest, TheWorstStreamsComeFirst) {
  v1::StatsResponse leaf = Leaf("a", 100);
  v1::HolderStats* gone = leaf.mutable_domains(0)->mutable_holder_stats(70);
  gone->set_connected(false);
  gone->set_state("disconnected");
  leaf.mutable_domains(0)->mutable_holder_stats(20)->set_gaps(3);
  leaf.mutable_domains(0)->mutable_holder_stats(30)->set_digests_different(1);
  v1::RefusedStream* refused = leaf.add_refused();
  refused->mutable_holder()->set_name("stranger");
  refused->set_reason("other hash contract");
  refused->set_times(4);
  FleetPage fleet = FleetOf({CellOf(leaf)});
  AppendStreams(leaf, &fleet.streams);
  const Json json = Json::parse(FleetJson(fleet));
  EXPECT_EQ(json["streams_total"], 101);
  ASSERT_EQ(json["streams"].size(), kStreamsShown);
  EXPECT_EQ(json["streams"][0]["from"], "stranger");
  EXPECT_EQ(json["streams"][0]["reason"], "other hash contract");
  EXPECT_EQ(json["streams"][1]["from"], "w70");
  EXPECT_EQ(json["streams"][2]["from"], "w30");
  EXPECT_EQ(json["streams"][3]["from"], "w20");
}

TEST(FleetTest, AFleetOf4096CellsIsOfABoundedSize) {
  std::vector<FleetCell> cells;
  for (int i = 0; i < 4096; ++i)
    cells.push_back(CellOf(Leaf("region/cell-" + std::to_string(i), 8)));
  EXPECT_LT(FleetJson(FleetOf(std::move(cells))).size(), 2u << 20);
}

TEST(FleetTest, TextThatIsNoUtf8IsStillJson) {
  const std::string json = FleetJson(FleetOf({Cell("a\xff", FleetHealth::kStale)}));
  EXPECT_FALSE(Json::parse(json, nullptr, false).is_discarded());
}

}  // namespace
}  // namespace kvatlas
