#include "frontend/ui/fleet_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "indexer/base/await.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using Json = nlohmann::json;

// Answers from a table; an address that is not in it refuses connections.
class FakeAsker : public PeerAsker {
 public:
  void Ask(StatsOf what, const std::string& address, Duration, Told callback) override {
    absl::StatusOr<v1::StatsResponse> answer = absl::UnavailableError("connection refused");
    {
      MutexLock lock(&mutex);
      ++asked[address];
      const auto found = answers.find(address);
      if (found != answers.end()) answer = found->second;
      if (what == StatsOf::kLeaf) ++leaves_asked;
    }
    callback(std::move(answer));
  }
  void Explain(const std::string&, const v1::ExplainRequest&, Duration,
               Explained callback) override {
    callback(absl::UnimplementedError("not in this test"));
  }
  void FindSessions(const std::string&, const v1::FindSessionsRequest&, Duration,
                    Sessions callback) override {
    callback(absl::UnimplementedError("not in this test"));
  }
  void Set(const std::string& address, absl::StatusOr<v1::StatsResponse> answer) {
    MutexLock lock(&mutex);
    answers.insert_or_assign(address, std::move(answer));
  }
  void Remove(const std::string& address) {
    MutexLock lock(&mutex);
    answers.erase(address);
  }
  int TimesAsked(const std::string& address) {
    MutexLock lock(&mutex);
    return asked[address];
  }

  Mutex mutex;
  std::map<std::string, absl::StatusOr<v1::StatsResponse>> answers;
  std::map<std::string, int> asked;
  int leaves_asked = 0;
};

v1::StatsResponse Leaf(const std::string& cell, int workers) {
  v1::StatsResponse leaf;
  leaf.set_cell(cell);
  leaf.mutable_process()->set_version("0.1.0");
  v1::DomainStats* domain = leaf.add_domains();
  domain->mutable_domain()->set_model("m");
  for (int i = 0; i < workers; ++i) {
    v1::HolderStats* worker = domain->add_holder_stats();
    worker->mutable_holder()->set_name("w" + std::to_string(i));
    worker->set_trust(v1::TRUST_EXACT);
    worker->set_connected(true);
    worker->set_state("connected");
  }
  return leaf;
}

v1::HolderStats* AddCell(const std::string& name, const std::string& address,
                         v1::StatsResponse* node) {
  v1::DomainStats* domain =
      node->domains_size() > 0 ? node->mutable_domains(0) : node->add_domains();
  domain->mutable_domain()->set_model("m");
  v1::HolderStats* cell = domain->add_holder_stats();
  cell->mutable_holder()->set_name(name);
  cell->set_trust(v1::TRUST_EXACT);
  cell->set_connected(true);
  cell->set_state("connected");
  cell->set_address(address);
  return cell;
}

class FleetWatchTest : public ::testing::Test {
 protected:
  FleetWatchTest() { Make({}); }

  void Make(FleetWatchOptions options) {
    watch_ = std::make_unique<FleetWatch>(
        options,
        FleetSources{.nodes = [this] { return nodes_; }, .leaves = [this] { return leaves_; }},
        &asker_, &clock_);
  }
  FleetPage After(int rounds) {
    for (int i = 0; i < rounds; ++i) {
      watch_->Round();
      clock_.Advance(seconds(2));
    }
    return watch_->Get();
  }
  void TwoCells() {
    v1::StatsResponse top;
    AddCell("a", "a:1", &top);
    AddCell("b", "b:1", &top);
    asker_.Set("top:1", top);
    asker_.Set("a:1", Leaf("a", 2));
    asker_.Set("b:1", Leaf("b", 3));
  }
  static const FleetCell& CellOf(const FleetPage& fleet, const std::string& name) {
    for (const FleetCell& cell : fleet.cells)
      if (cell.name == name) return cell;
    static const FleetCell kNone;
    ADD_FAILURE() << "no cell " << name;
    return kNone;
  }

  ManualClock clock_;
  FakeAsker asker_;
  std::vector<std::string> nodes_ = {"top:1"};
  std::vector<std::pair<std::string, std::string>> leaves_;
  std::unique_ptr<FleetWatch> watch_;
};

TEST_F(FleetWatchTest, NothingIsFreshBeforeTheFirstRound) {
  const FleetPage fleet = watch_->Get();
  EXPECT_FALSE(fleet.fresh);
  EXPECT_TRUE(fleet.cells.empty());
  EXPECT_EQ(Judge(fleet).text, "asking the fleet");
}

TEST_F(FleetWatchTest, CellsComeFromNodesAndWorkersFromLeaves) {
  TwoCells();
  const FleetPage fleet = After(1);
  EXPECT_TRUE(fleet.fresh);
  ASSERT_EQ(fleet.cells.size(), 2u);
  EXPECT_EQ(CellOf(fleet, "b").workers_count, 3u);
  EXPECT_EQ(Judge(fleet).text, "all 2 cells exact, 5 workers heard");
  EXPECT_EQ(fleet.streams_total, 7u);
  EXPECT_EQ(fleet.peers.size(), 3u);
  EXPECT_TRUE(fleet.models.contains("m"));
}

TEST_F(FleetWatchTest, ALeafThatRefusesConnectionsIsUnreachableWithWhatItSaidLast) {
  TwoCells();
  After(1);
  asker_.Remove("b:1");
  const FleetPage fleet = After(3);
  const FleetCell& b = CellOf(fleet, "b");
  EXPECT_EQ(b.health, FleetHealth::kUnreachable);
  EXPECT_EQ(b.workers_count, 3u);
  EXPECT_EQ(b.age_ms, 8000u);
  EXPECT_EQ(b.why, "connection refused");
  EXPECT_EQ(Judge(fleet).text, "1 of 2 cells exact; cell b 8 s unreachable");
  asker_.Set("b:1", Leaf("b", 3));
  EXPECT_EQ(CellOf(After(1), "b").health, FleetHealth::kExact);
}

TEST_F(FleetWatchTest, OneLateAnswerIsOnlyLate) {
  TwoCells();
  After(1);
  asker_.Set("b:1", absl::DeadlineExceededError("late"));
  EXPECT_EQ(CellOf(After(1), "b").health, FleetHealth::kExact);
  EXPECT_EQ(CellOf(After(1), "b").health, FleetHealth::kUnreachable);
}

TEST_F(FleetWatchTest, ALeafThatDoesNotAllowIsNotTakenForGone) {
  TwoCells();
  asker_.Set("b:1", absl::PermissionDeniedError("not allowed"));
  const FleetPage fleet = After(3);
  EXPECT_EQ(CellOf(fleet, "b").health, FleetHealth::kExact);  // as the node says
  EXPECT_EQ(CellOf(fleet, "b").why, "not allowed");
  for (const FleetPeer& peer : fleet.peers) {
    if (peer.address == "b:1") {
      EXPECT_EQ(peer.state, "refused");
    }
  }
}

TEST_F(FleetWatchTest, WhileTheTopIsAwayItsCellsAreStillAsked) {
  TwoCells();
  After(1);
  asker_.Remove("top:1");
  const FleetPage fleet = After(2);
  EXPECT_EQ(fleet.cells.size(), 2u);
  EXPECT_EQ(CellOf(fleet, "a").health, FleetHealth::kExact);
  EXPECT_THAT(Judge(fleet).text, HasSubstr("hierarchy node top:1 does not answer"));
  EXPECT_EQ(asker_.TimesAsked("a:1"), 3);
}

TEST_F(FleetWatchTest, ACellThatIsNamedNoMoreIsForgotten) {
  TwoCells();
  After(1);
  v1::StatsResponse top;
  AddCell("a", "a:1", &top);
  asker_.Set("top:1", top);
  const FleetPage fleet = After(1);
  EXPECT_EQ(fleet.cells.size(), 1u);
  EXPECT_EQ(fleet.peers.size(), 2u);
}

TEST_F(FleetWatchTest, OwnCellsAreThereWithoutANode) {
  nodes_.clear();
  leaves_ = {{"own", "own:1"}};
  EXPECT_EQ(CellOf(After(1), "own").health, FleetHealth::kUnreachable);
  asker_.Set("own:1", Leaf("own", 1));
  const FleetPage fleet = After(1);
  EXPECT_EQ(CellOf(fleet, "own").health, FleetHealth::kExact);
  EXPECT_EQ(CellOf(fleet, "own").workers_count, 1u);
}

TEST_F(FleetWatchTest, CellsOfALowerNodeAreInItsRegionUnlessTheyNameOne) {
  v1::StatsResponse top, row;
  (*AddCell("row-1", "row:1", &top)->mutable_labels())["kvatlas.kind"] = "node";
  AddCell("a", "a:1", &row);
  (*AddCell("b", "b:1", &row)->mutable_labels())["zone"] = "eu";
  asker_.Set("top:1", top);
  asker_.Set("row:1", row);
  const FleetPage fleet = After(1);
  ASSERT_EQ(fleet.cells.size(), 2u);
  EXPECT_EQ(CellOf(fleet, "a").region, "row-1");
  EXPECT_EQ(CellOf(fleet, "b").region, "eu");
}

TEST_F(FleetWatchTest, NodesThatNameEachOtherAreAskedOnce) {
  v1::StatsResponse top, row;
  (*AddCell("row-1", "row:1", &top)->mutable_labels())["kvatlas.kind"] = "node";
  (*AddCell("top", "top:1", &row)->mutable_labels())["kvatlas.kind"] = "node";
  asker_.Set("top:1", top);
  asker_.Set("row:1", row);
  After(1);
  EXPECT_EQ(asker_.TimesAsked("top:1"), 1);
  EXPECT_EQ(asker_.TimesAsked("row:1"), 1);
}

TEST_F(FleetWatchTest, OfManyCellsSoManyAreAskedInARoundAndAllInTurn) {
  v1::StatsResponse top;
  for (int i = 0; i < 1000; ++i)
    AddCell("c" + std::to_string(i), "c" + std::to_string(i) + ":1", &top);
  asker_.Set("top:1", top);
  After(1);
  EXPECT_EQ(asker_.leaves_asked, 64);
  watch_->Get("c777");
  After(1);
  EXPECT_EQ(asker_.TimesAsked("c777:1"), 1);
  After(14);
  for (int i = 0; i < 1000; ++i)
    EXPECT_GE(asker_.TimesAsked("c" + std::to_string(i) + ":1"), 1) << i;
}

TEST_F(FleetWatchTest, BeyondABoundOnlySumsOfWorkersAreKept) {
  Make({.workers_max = 4});
  TwoCells();
  const FleetPage fleet = After(1);
  EXPECT_EQ(CellOf(fleet, "a").workers.size(), 2u);
  EXPECT_TRUE(CellOf(fleet, "b").workers.empty());
  EXPECT_EQ(CellOf(fleet, "b").workers_count, 3u);
}

TEST_F(FleetWatchTest, RoundsAreMadeOnlyWhileThePageIsLookedAt) {
  TwoCells();
  watch_->Start();
  watch_->Get();
  ASSERT_TRUE(Await([&] { return asker_.TimesAsked("a:1") == 1; }, seconds(60)));
  // Looked at again at once: what is there is fresh.
  EXPECT_TRUE(Await([&] { return watch_->Get().fresh; }, seconds(60)));
  EXPECT_EQ(asker_.TimesAsked("a:1"), 1);
  clock_.Advance(seconds(2));
  watch_->Get();
  EXPECT_TRUE(Await([&] { return asker_.TimesAsked("a:1") == 2; }, seconds(60)));
  clock_.Advance(seconds(60));
  EXPECT_FALSE(watch_->Get().fresh);
}

}  // namespace
}  // namespace kvatlas
