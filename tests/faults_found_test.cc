// Are faults found where docs/operate.md says, and as soon? For each row of its table "How soon a
// fault is found": the fault in a small real cluster, then what /ui tells the page, the alert that
// we ship (its rule as it is, in a real Prometheus), and `kvatlas doctor`.
//
// Times, alerts and findings are those of the table, so that text and test cannot part; a row that
// this test does not know fails it.

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "indexer/base/await.h"
#include "indexer/base/clock.h"
#include "tests/doctor_run.h"
#include "tests/watched_cluster.h"
#include "tools/bench/service_bench_http.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::seconds kLong(90);
constexpr char kTable[] = "docs/operate.md";

// A row of the table.
struct Stated {
  std::chrono::seconds page;
  std::string alert;
  std::chrono::seconds alert_in;
  std::string finding;
  std::chrono::seconds finding_in;
};

// | kill -9 of a leaf | 15 s | `KvatlasProcessDown`, 120 s | `unreachable`, 15 s |
std::map<std::string, Stated> ReadTable() {
  const std::regex row(R"(\| (.+) \| (\d+) s \| `(\w+)`, (\d+) s \| `(\w+)`, (\d+) s \|)");
  const auto seconds = [](const std::string& text) {
    return std::chrono::seconds(std::stoi(text));
  };
  std::map<std::string, Stated> rows;
  std::ifstream file(kTable);
  std::smatch at;
  for (std::string line; std::getline(file, line);)
    if (std::regex_match(line, at, row))
      rows[at[1]] = {seconds(at[2]), at[3], seconds(at[4]), at[5], seconds(at[6])};
  return rows;
}

// What is looked for, beside the names of the table.
struct Sign {
  std::function<bool(const Json& fleet)> page;
  std::string label, value;  // of the alert
  std::string where, what;   // of the finding; regular expressions
};

class FaultsFoundTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    absl::StatusOr<std::unique_ptr<WatchedCluster>> world =
        WatchedCluster::Start({.rules_as_shipped = true});
    ASSERT_TRUE(world.ok()) << world.status();
    world_ = world->release();
    // The engine has been heard, and lost nothing.
    world_->engine().WaitForSubscribers();
    world_->engine().Publish(StoredBlockPayload(++block_, WallSeconds()));
    ASSERT_TRUE(Await([] { return world_->Has("kvatlas_engine_messages_total > 0"); }, kLong));
    ASSERT_TRUE(
        Await([] { return world_->Has("kvatlas_engine_messages_lost_total == 0"); }, kLong));
    ASSERT_TRUE(Await([] { return Verdict(Fleet()).starts_with("all 2 cells exact"); }, kLong))
        << Fleet();
  }
  void SetUp() override { ASSERT_NE(world_, nullptr); }

  static std::string Instance(const std::string& process) { return world_->Instance(process); }

  // What /ui tells of all.
  static Json Fleet() {
    HttpClient frontend(*Address::Parse(Instance("frontend")));
    const absl::StatusOr<HttpAnswer> answer = frontend.Get("/ui/fleet.json");
    if (!answer.ok()) return {};
    return Json::parse(answer->body, nullptr, /*allow_exceptions=*/false);
  }
  static std::string Verdict(const Json& fleet) {
    return fleet.is_object() ? fleet["verdict"]["text"].get<std::string>() : "";
  }
  // A stream of the page's table.
  static bool HasStream(const Json& fleet, const std::string& from,
                        const std::function<bool(const Json& stream)>& fits) {
    if (!fleet.is_object()) return false;
    for (const Json& stream : fleet["streams"])
      if (stream["from"] == from && fits(stream)) return true;
    return false;
  }

  static bool DoctorNames(const std::string& id, const Sign& sign, std::string* said) {
    const Ended run = RunDoctor({"--frontend_http=" + Instance("frontend")});
    *said = run.out;
    for (const Json& finding : run.Lines()) {
      if (finding.is_object() && finding["id"] == id &&
          std::regex_search(finding["where"].get<std::string>(), std::regex(sign.where)) &&
          std::regex_search(finding["what"].get<std::string>(), std::regex(sign.what)))
        return true;
    }
    return false;
  }

  // None of the three finds it before `fault`, and each within its time after.
  static void ExpectFound(const std::string& row, const Sign& sign,
                          const std::function<void()>& fault) {
    const std::map<std::string, Stated> table = ReadTable();
    ASSERT_TRUE(table.contains(row)) << kTable << " has no row: " << row;
    const Stated& stated = table.at(row);
    std::string said;
    EXPECT_FALSE(sign.page(Fleet())) << Fleet();
    EXPECT_FALSE(world_->prometheus().Fires(stated.alert, sign.label, sign.value));
    EXPECT_FALSE(DoctorNames(stated.finding, sign, &said)) << said;
    const Time begin = Clock::Real().Now();
    fault();
    const auto left = [&](std::chrono::seconds of) { return begin + of - Clock::Real().Now(); };
    EXPECT_TRUE(Await([&] { return sign.page(Fleet()); }, left(stated.page)))
        << "not on the page within " << stated.page.count() << " s: " << Fleet();
    EXPECT_TRUE(
        Await([&] { return DoctorNames(stated.finding, sign, &said); }, left(stated.finding_in)))
        << "no " << stated.finding << " within " << stated.finding_in.count() << " s: " << said;
    EXPECT_TRUE(
        Await([&] { return world_->prometheus().Fires(stated.alert, sign.label, sign.value); },
              left(stated.alert_in)))
        << "no " << stated.alert << " within " << stated.alert_in.count()
        << " s; these fire: " << world_->prometheus().Firing();
  }

  static WatchedCluster* world_;
  static uint64_t block_;  // the last one that the engine stored
};
WatchedCluster* FaultsFoundTest::world_ = nullptr;
uint64_t FaultsFoundTest::block_ = 0;

TEST_F(FaultsFoundTest, TheTableHasNoOtherRow) {
  EXPECT_EQ(ReadTable().size(), 4u) << "a test for each row of " << kTable;
}

TEST_F(FaultsFoundTest, Gap) {
  ExpectFound("a gap: messages of an engine are lost",
              {.page =
                   [](const Json& fleet) {
                     return HasStream(fleet, "7", [](const Json& stream) {
                       return stream["lost"] == 1 && stream["trust"] == "degraded";
                     });
                   },
               .label = "worker",
               .value = "7",
               .where = "worker 7 of leaf",
               .what = "1 message"},
              [] {
                world_->engine().Drop(StoredBlockPayload(++block_, WallSeconds()));
                world_->engine().Publish(StoredBlockPayload(++block_, WallSeconds()));
              });
}

TEST_F(FaultsFoundTest, BlockSize) {
  ExpectFound("an engine of another block size",
              {.page =
                   [](const Json& fleet) {
                     return HasStream(fleet, "7", [](const Json& stream) {
                       return stream["refusals"] > 0 &&
                              std::regex_search(stream["reason"].get<std::string>(),
                                                std::regex("block size is 32.* 16"));
                     });
                   },
               .label = "worker",
               .value = "7",
               .where = "worker 7 of leaf",
               .what = "block size is 32.* 16"},
              [] { world_->engine().Publish(StoredBlockPayload(++block_, WallSeconds(), 32)); });
}

TEST_F(FaultsFoundTest, EngineKilled) {
  const std::string engine = world_->cluster().WorkerName(3);
  ExpectFound("kill -9 of an engine with a publisher",
              {.page =
                   [&](const Json& fleet) {
                     return Verdict(fleet).find("worker " + engine + " of cell cell-1 silent") !=
                            std::string::npos;
                   },
               .label = "instance",
               .value = Instance("leaf-1"),
               .where = "worker " + engine + " of leaf",
               .what = "in no answer"},
              [&] { ASSERT_TRUE(world_->cluster().Kill(engine).ok()); });
}

TEST_F(FaultsFoundTest, LeafKilled) {
  ExpectFound("kill -9 of a leaf",
              {.page =
                   [](const Json& fleet) {
                     return std::regex_search(Verdict(fleet),
                                              std::regex("cell cell-0 [^;]*unreachable"));
                   },
               .label = "instance",
               .value = Instance("leaf-0"),
               .where = "leaf " + world_->cluster().leaf(0),
               .what = "Connection refused"},
              [] { ASSERT_TRUE(world_->cluster().Kill("leaf-0").ok()); });
}

}  // namespace
}  // namespace kvatlas
