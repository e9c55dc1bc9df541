// Does every metric exist that documents, rules and dashboards name? The names are compared with
// the /metrics of real processes, and these with Prometheus' own checker.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "indexer/base/version.h"
#include "tests/metrics/metric_reference.h"

namespace kvatlas {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kPromtool[] = "/usr/bin/promtool";

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Names of programs, libraries and folders that look like metrics.
bool IsAnotherWord(const std::string& name) {
  static const auto& words = *new std::set<std::string>{
      "kvatlas_leaf",   "kvatlas_hierarchy", "kvatlas_frontend", "kvatlas_relay",
      "kvatlas_engine", "kvatlas_ext_proc",  "kvatlas_security"};
  return words.contains(name);
}

// Metrics that a text names. One that ends in "_" stands for all that begin so, as
// `kvatlas_leaf_memory_…`.
std::set<std::string> NamesIn(const std::string& text) {
  static const auto& name = *new std::regex(
      "(^|[^a-zA-Z0-9_/:.-])"
      "(kvatlas_(leaf|hierarchy|frontend|relay|engine|ext_proc|security|audit|quota|refused|clock|"
      "trace|"
      "certificate|insecure|build|ready|live)[a-z0-9_]*|dynamo_kv[a-z0-9_]+|"
      "process_(cpu|resident|virtual|open|max|start|threads)[a-z0-9_]*)"
      "(?![a-z0-9_:(.])");
  std::set<std::string> names;
  for (std::sregex_iterator i(text.begin(), text.end(), name), end; i != end; ++i) {
    if (!IsAnotherWord((*i)[2])) names.insert((*i)[2]);
  }
  return names;
}

class MetricsContractTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    fleet_ = new FleetOfAll(::testing::TempDir());
    const absl::Status started = fleet_->Start();
    ASSERT_TRUE(started.ok()) << started;
    absl::StatusOr<MetricFamilyMap> families = fleet_->Families();
    ASSERT_TRUE(families.ok()) << families.status();
    families_ = new MetricFamilyMap(*std::move(families));
  }
  static void TearDownTestSuite() {
    delete families_;
    delete fleet_;
  }

  static bool Exists(const std::string& name) {
    if (families_->contains(name)) return true;
    if (name.ends_with("_")) {
      const auto first = families_->lower_bound(name);
      return first != families_->end() && first->first.starts_with(name);
    }
    for (const std::string end : {"_bucket", "_sum", "_count"}) {
      if (!name.ends_with(end)) continue;
      const auto family = families_->find(name.substr(0, name.size() - end.size()));
      if (family != families_->end() && family->second.type == "histogram") return true;
    }
    return false;
  }

  static FleetOfAll* fleet_;
  static MetricFamilyMap* families_;
};

FleetOfAll* MetricsContractTest::fleet_ = nullptr;
MetricFamilyMap* MetricsContractTest::families_ = nullptr;

TEST(NamesInTest, FindsMetricsAndNothingElse) {
  EXPECT_EQ(
      NamesIn("`kvatlas_leaf_gaps_total{domain=\"m\"}` rate(kvatlas_frontend_route_seconds_bucket"
              "[5m])\nkvatlas_ready kvatlas_live kvatlas_leaf_memory_…, libkvatlas_frontend.so, "
              "kvatlas_frontend.h, "
              "kvatlas_frontend_open(), //tools/kvatlas_leaf_x and kvatlas:recorded"),
      (std::set<std::string>{"kvatlas_leaf_gaps_total", "kvatlas_frontend_route_seconds_bucket",
                             "kvatlas_leaf_memory_", "kvatlas_ready", "kvatlas_live"}));
}

TEST_F(MetricsContractTest, WhatDocumentsRulesAndDashboardsNameIsThere) {
  std::map<std::string, std::set<std::string>> missing;  // by file
  size_t files = 0, found = 0;
  for (const char* folder : {"docs", "hierarchy", "indexer", "frontend", "publisher", "tools"}) {
    if (!std::filesystem::exists(folder)) continue;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(
             folder, std::filesystem::directory_options::follow_directory_symlink)) {
      const std::string end = entry.path().extension();
      if (end != ".md" && end != ".yaml" && end != ".json" && end != ".tpl") continue;
      ++files;
      for (const std::string& name : NamesIn(ReadFile(entry.path()))) {
        ++found;
        if (!Exists(name)) missing[entry.path()].insert(name);
      }
    }
  }
  EXPECT_GE(files, 20u);
  EXPECT_GE(found, 200u);
  for (const auto& [file, names] : missing)
    EXPECT_THAT(names, IsEmpty()) << file << " names metrics that no process has";
}

TEST_F(MetricsContractTest, TheReferenceIsWhatProcessesSay) {
  EXPECT_EQ(ReadFile("docs/reference/metrics.md"), ReferencePage(*families_))
      << "bazel run //tests/metrics:write_reference";
}

TEST_F(MetricsContractTest, CountersAreCountersAndNamedSo) {
  for (const auto& [name, family] : *families_) {
    EXPECT_FALSE(family.help.empty()) << name;
    EXPECT_THAT(family.type, ::testing::AnyOf("counter", "gauge", "histogram")) << name;
    if (name.starts_with("dynamo_")) continue;  // named as Dynamo names them
    EXPECT_EQ(family.type == "counter", name.ends_with("_total")) << name;
    if (!family.deprecated()) continue;
    EXPECT_TRUE(families_->contains(name + "_total")) << name;
    EXPECT_EQ(family.type, "gauge") << name;
  }
}

TEST_F(MetricsContractTest, EveryProgramSaysWhatItIsAndUses) {
  const auto scrapes = fleet_->Scrapes();
  ASSERT_TRUE(scrapes.ok()) << scrapes.status();
  for (const auto& [program, text] : *scrapes) {
    SCOPED_TRACE(program);
    EXPECT_THAT(text, HasSubstr("program=\"kvatlas-" + program + "\""));
    EXPECT_THAT(text, HasSubstr(std::string("version=\"") + kVersion + "\""));
    for (const char* name :
         {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds",
          "process_max_fds", "process_start_time_seconds", "kvatlas_ready", "kvatlas_live"}) {
      EXPECT_THAT(text, HasSubstr(std::string("\n") + name + " ")) << name;
    }
  }
}

// 1: it cannot be parsed. 3: it can, but the checker would have chosen other names: Dynamo's, and
// gauges of former names.
TEST_F(MetricsContractTest, PrometheusCheckerFindsNothingWrong) {
  if (!std::filesystem::exists(kPromtool)) GTEST_SKIP() << kPromtool << " is not installed";
  const auto scrapes = fleet_->Scrapes();
  ASSERT_TRUE(scrapes.ok()) << scrapes.status();
  for (const auto& [program, text] : *scrapes) {
    SCOPED_TRACE(program);
    const std::string base = ::testing::TempDir() + "/" + program;
    std::ofstream(base + ".scrape") << text;
    const std::string command = std::string(kPromtool) + " check metrics < '" + base +
                                ".scrape' > '" + base + ".said' 2>&1";
    const int status = std::system(command.c_str());
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_NE(WEXITSTATUS(status), 1) << ReadFile(base + ".said");
    std::istringstream lines(ReadFile(base + ".said"));
    for (std::string line; std::getline(lines, line);)
      EXPECT_TRUE(line.starts_with("dynamo_")) << line;
  }
}

}  // namespace
}  // namespace kvatlas
