// A cluster of processes under another schedule of waypoints than the standard one: exact at rest,
// and found by it. And one process that was forgotten: who runs it is told what to mend, who
// refuses it too, and requests go on.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/gateway/http/socket_test_util.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "proto/kvatlas/v1/frontend.pb.h"
#include "tools/testing/cluster/client.h"
#include "tools/testing/cluster/cluster.h"
#include "tools/testing/cluster/process.h"
#include "tools/testing/cluster/replay.h"
#include "tools/testing/cluster/report.h"
#include "tools/trace/trace.h"

namespace kvatlas {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint32_t kSplit = 4;
constexpr char kSchedule[] = "early:4,12;every:32";
constexpr char kOther[] = "early:9;every:32";

std::vector<TraceRequest> Excerpt() {
  absl::StatusOr<std::vector<TraceRequest>> trace =
      ReadTrace("tests/data/conversation_excerpt.jsonl");
  EXPECT_TRUE(trace.ok()) << trace.status();
  return trace.ok() ? *std::move(trace) : std::vector<TraceRequest>();
}

std::unique_ptr<Cluster> Start(std::vector<std::string> leaf_args = {},
                               std::vector<std::string> frontend_args = {}) {
  ClusterOptions options;
  options.leaf_args = std::move(leaf_args);
  options.frontend_args = std::move(frontend_args);
  options.cells = 2;
  options.workers = 2;
  options.capacity = 400;
  options.block_size = kTokensPerHashId / kSplit;
  options.schedule = kSchedule;
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return cluster.ok() ? *std::move(cluster) : nullptr;
}

absl::StatusOr<ReplayReport> ReplayOn(const Cluster& cluster,
                                      const std::vector<TraceRequest>& trace) {
  ReplayOptions options;
  options.split = kSplit;
  options.compare = false;
  return Replay(cluster, trace, options);
}

std::string LogOf(const Cluster& cluster, const std::string& process) {
  std::ifstream log(cluster.logs() + "/" + process + ".log");
  return {std::istreambuf_iterator<char>(log), std::istreambuf_iterator<char>()};
}

std::string MetricsOf(const Cluster& cluster, const std::string& process) {
  const absl::StatusOr<Address> http = Address::Parse(cluster.address(process, "http"));
  EXPECT_TRUE(http.ok()) << process;
  TestSocket socket(*http);
  socket.Send("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  return socket.ReadToEnd();
}

void Pause() {
  Mutex mutex;
  CondVar never;
  MutexLock lock(&mutex);
  never.WaitFor(&mutex, std::chrono::milliseconds(20));
}

// Once `said` says it, or after a minute as it is.
template <typename Said>
std::string Await(const std::string& what, Said said) {
  const Time until = Clock::Real().Now() + std::chrono::seconds(60);
  while (said().find(what) == std::string::npos && Clock::Real().Now() < until) Pause();
  return said();
}

TEST(ScheduleTest, AClusterUnderAnotherScheduleIsExactAtRestAndFindsByIt) {
  std::unique_ptr<Cluster> cluster = Start();
  ASSERT_NE(cluster, nullptr);
  const std::vector<TraceRequest> trace = Excerpt();
  const absl::StatusOr<ReplayReport> report = ReplayOn(*cluster, trace);
  ASSERT_TRUE(report.ok()) << report.status();
  SCOPED_TRACE(ToTable(*report));
  EXPECT_EQ(report->errors, 0u);
  EXPECT_EQ(report->fallbacks, 0u);
  EXPECT_EQ(report->promised_over, 0u);
  EXPECT_EQ(report->mirror_differences, 0u);
  ASSERT_TRUE(report->at_rest.has_value());
  EXPECT_GE(report->at_rest->checked, 40u);
  EXPECT_EQ(report->at_rest->over + report->at_rest->under + report->at_rest->not_exact, 0u);
  // Up to the waypoint after 13 blocks, which the standard does not have.
  ClusterClient client(*cluster);
  std::vector<SequenceHash> prompt = PromptBlocks(trace.back(), kSplit);
  ASSERT_GT(prompt.size(), 13u);
  prompt.resize(20, SequenceHash{1});
  for (size_t i = 13; i < prompt.size(); ++i) prompt[i] = SequenceHash{i};
  const absl::StatusOr<v1::RouteResponse> route = client.Route(prompt, 20 * 128);
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_EQ(route->receipt().fallback(), v1::FALLBACK_NONE) << route->receipt().reason();
  EXPECT_EQ(route->overlap_blocks(), 13u);
  ASSERT_GT(route->receipt().cells_size(), 0);
  uint32_t promised = 0;
  for (const auto& cell : route->receipt().cells())
    promised = std::max(promised, cell.blocks_at_least());
  EXPECT_EQ(promised, 13u);
  for (const char* process : {"hierarchy", "leaf-0", "leaf-1", "frontend"})
    EXPECT_THAT(LogOf(*cluster, process), Not(HasSubstr("refuse"))) << process;
}

TEST(ScheduleTest, ALeafThatWasForgottenIsNamedAtBothEndsAndItsCellStillServes) {
  std::unique_ptr<Cluster> cluster = Start({std::string("--schedule=") + kOther}, {});
  ASSERT_NE(cluster, nullptr);
  const std::string why = std::string("waypoint schedule \\\"") + kOther +
                          "\\\" is not ours, \\\"" + kSchedule + "\\\"";
  EXPECT_THAT(Await("a parent refuses", [&] { return LogOf(*cluster, "leaf-0"); }),
              HasSubstr("level=warning component=leaf event=\"a parent refuses what is "
                        "reported\" parent=" +
                        cluster->hierarchy() + " domain=mock schedule=" + kOther +
                        " reason=\"FAILED_PRECONDITION: " + why));
  const std::string refuses =
      "kvatlas_leaf_parent_refuses{domain=\"mock\",parent=\"" + cluster->hierarchy() + "\"} 1\n";
  EXPECT_THAT(Await(refuses, [&] { return MetricsOf(*cluster, "leaf-1"); }), HasSubstr(refuses));
  EXPECT_THAT(Await("stream refused", [&] { return LogOf(*cluster, "hierarchy"); }),
              ContainsRegex("event=\"stream refused\" holder=cell-[01][^\n]*is not ours"));
  EXPECT_THAT(
      Await("fault=\"refused\"", [&] { return MetricsOf(*cluster, "hierarchy"); }),
      ContainsRegex("kvatlas_hierarchy_cell_faults_total.cell=\"cell-[01]/0\",domain=\"mock\","
                    "fault=\"refused\". [1-9]"));
  ClusterClient client(*cluster);
  const absl::StatusOr<v1::StatsResponse> stats = client.LeafStats(1);
  ASSERT_TRUE(stats.ok()) << stats.status();
  ASSERT_EQ(stats->parents_size(), 1);
  EXPECT_THAT(stats->parents(0).refused(), HasSubstr("is not ours"));
  const absl::StatusOr<v1::RouteResponse> route =
      client.Route(PromptBlocks(Excerpt()[0], kSplit), 100);
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_EQ(route->receipt().fallback(), v1::FALLBACK_OWN_CELL);
}

TEST(ScheduleTest, AFrontendThatWasForgottenSaysSoAndRoutesByItsOwnCells) {
  std::unique_ptr<Cluster> cluster = Start({}, {std::string("--schedule=") + kOther});
  ASSERT_NE(cluster, nullptr);
  const std::vector<TraceRequest> trace = Excerpt();
  const absl::StatusOr<ReplayReport> report =
      ReplayOn(*cluster, {trace.begin(), trace.begin() + 20});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->errors, 0u);
  EXPECT_EQ(report->fallbacks, 20u);
  EXPECT_EQ(report->promised_over, 0u);
  const std::string why = std::string("schedule '") + kOther + "' is not ours, '" + kSchedule + "'";
  ClusterClient client(*cluster);
  const absl::StatusOr<v1::RouteResponse> route = client.Route(PromptBlocks(trace[0], kSplit), 100);
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_THAT(route->receipt().reason(), HasSubstr(why));
  EXPECT_THAT(LogOf(*cluster, "frontend"),
              HasSubstr("event=\"a node refuses this frontend's questions\" node=" +
                        cluster->hierarchy() + " reason=\"FAILED_PRECONDITION: " + why));
  EXPECT_THAT(MetricsOf(*cluster, "frontend"),
              ContainsRegex("kvatlas_frontend_refused_by_nodes_total [1-9]"));
}

TEST(ScheduleTest, AScheduleThatIsNoneEndsAProcessAndIsNamed) {
  const std::pair<const char*, const char*> binaries[] = {
      {"indexer/leaf/kvatlas-leaf", "schedule"},
      {"hierarchy/kvatlas-hierarchy", "schedule"},
      {"hierarchy/kvatlas-hierarchy", "parents_schedule"},
      {"frontend/kvatlas-frontend", "schedule"},
      {"frontend/kvatlas-frontend", "hierarchy_schedule"},
  };
  for (const auto& [binary, flag] : binaries) {
    const std::string name = std::string("--") + flag;
    Process process({.name = "refused",
                     .binary = binary,
                     .args = {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0", name + "=sometimes"},
                     .log = std::string(std::getenv("TEST_TMPDIR")) + "/refused.log"});
    const absl::Status status = process.Start(std::chrono::seconds(30));
    // Flags that are checked with all others are told with what was given.
    EXPECT_THAT(std::string(status.message()),
                ContainsRegex(" " + name + "(=sometimes)?: .*does not end in every:N"))
        << binary;
  }
}

}  // namespace
}  // namespace kvatlas
