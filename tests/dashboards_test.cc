// Do the dashboards show anything? A real Prometheus scrapes a small fleet with traffic, and is
// asked for every expression of every dashboard: each has data. So have the metrics that the alerts
// ask for: a name that no process has is a typing error.

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_replace.h"
#include "indexer/base/await.h"
#include "tests/watched_cluster.h"

namespace kvatlas {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::chrono::seconds kLong(90);
constexpr char kDashboards[] = "tools/deploy/dashboards";
constexpr char kRules[] = "tools/deploy/alerts/kvatlas.rules.yaml";
constexpr int kSchemaVersion = 39;

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::map<std::string, Json> Dashboards() {
  std::map<std::string, Json> dashboards;
  for (const auto& file : fs::directory_iterator(kDashboards)) {
    if (file.path().extension() == ".json")
      dashboards[file.path().stem()] = Json::parse(ReadFile(file.path()));
  }
  return dashboards;
}

// As Grafana would ask, with all instances chosen.
std::string Filled(const std::string& expression) {
  return absl::StrReplaceAll(expression, {{"$__rate_interval", "30s"}, {"$instance", ".*"}});
}

// What the expressions of the alerts name.
std::set<std::string> MetricsOfRules() {
  const std::string rules = ReadFile(kRules);
  const std::regex metric("\\b(kvatlas|process)_[a-z0-9_]+\\b");
  const std::regex expressions("\n    expr:( >-\n(      [^\n]*\n)+|[^\n]*\n)");
  std::set<std::string> names;
  for (std::sregex_iterator rule(rules.begin(), rules.end(), expressions), end; rule != end;
       ++rule) {
    const std::string text = rule->str();
    for (std::sregex_iterator one(text.begin(), text.end(), metric); one != end; ++one)
      names.insert(one->str());
  }
  return names;
}

TEST(DashboardsTest, HaveWhatGrafanaNeeds) {
  const std::map<std::string, Json> dashboards = Dashboards();
  EXPECT_EQ(dashboards.size(), 5u);
  std::set<std::string> ids;
  for (const auto& [name, dashboard] : dashboards) {
    EXPECT_GE(dashboard["schemaVersion"], kSchemaVersion) << name;
    EXPECT_TRUE(ids.insert(dashboard["uid"]).second) << name;
    EXPECT_EQ(dashboard["templating"]["list"][0]["type"], "datasource") << name;
    for (const Json& panel : dashboard["panels"]) {
      if (panel["type"] == "row") continue;
      const std::string where = name + ": " + panel["title"].get<std::string>();
      EXPECT_EQ(panel["datasource"]["uid"], "${datasource}") << where;
      EXPECT_NE(panel["fieldConfig"]["defaults"].value("unit", ""), "") << where;
      EXPECT_FALSE(panel["targets"].empty()) << where;
      for (const Json& target : panel["targets"])
        EXPECT_NE(target.value("legendFormat", ""), "") << where;
    }
  }
}

TEST(DashboardsTest, EveryExpressionAndEveryMetricOfTheAlertsHasData) {
  absl::StatusOr<std::unique_ptr<WatchedCluster>> started =
      WatchedCluster::Start({.all = true, .relay = true});
  ASSERT_TRUE(started.ok()) << started.status();
  WatchedCluster& fleet = **started;
  // What a healthy fleet has none of: events that are refused,
  fleet.engine().WaitForSubscribers();
  fleet.engine().Publish(StoredBlockPayload(1, WallSeconds()));
  fleet.engine().Publish(StoredBlockPayload(1000, WallSeconds(), 32));
  // and predictions that do not hold.
  fleet.Lie();
  std::map<std::string, std::string> missing;  // expressions, and where they stand
  for (const auto& [name, dashboard] : Dashboards()) {
    for (const Json& panel : dashboard["panels"]) {
      if (panel["type"] == "row") continue;
      for (const Json& target : panel["targets"])
        missing[Filled(target["expr"])] = name + ": " + panel["title"].get<std::string>();
    }
  }
  EXPECT_GT(missing.size(), 90u);
  std::set<std::string> names = MetricsOfRules();
  names.erase(
      "kvatlas_hierarchy_cell_faults_total");  // no series until a cell does something wrong
  EXPECT_GT(names.size(), 50u);
  for (const std::string& name : names) missing["count(" + name + ")"] = "alerts: " + name;
  const auto has_data = [&](const std::string& expression) {
    for (const auto& [labels, value] : fleet.prometheus().Query(expression))
      if (std::isfinite(value)) return true;
    return false;
  };
  Await(
      [&] {
        std::erase_if(missing, [&](const auto& one) { return has_data(one.first); });
        return missing.empty();
      },
      kLong);
  for (const auto& [expression, where] : missing)
    ADD_FAILURE() << where << ": no data for " << expression;
}

}  // namespace
}  // namespace kvatlas
