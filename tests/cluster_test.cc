// A whole cluster as processes over real sockets: exact at rest on a real trace, and again exact
// after any process was killed and started again.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>

#include "proto/kvatlas/v1/frontend.pb.h"
#include "tools/testing/cluster/client.h"
#include "tools/testing/cluster/cluster.h"
#include "tools/testing/cluster/replay.h"
#include "tools/testing/cluster/report.h"
#include "tools/trace/trace.h"

namespace kvatlas {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;

constexpr uint32_t kSplit = 4;

std::vector<TraceRequest> Excerpt() {
  absl::StatusOr<std::vector<TraceRequest>> trace =
      ReadTrace("tests/data/conversation_excerpt.jsonl");
  EXPECT_TRUE(trace.ok()) << trace.status();
  return trace.ok() ? *std::move(trace) : std::vector<TraceRequest>();
}

// Two cells of two workers, small enough that they evict.
std::unique_ptr<Cluster> SmallCluster() {
  ClusterOptions options;
  options.cells = 2;
  options.workers = 2;
  options.capacity = 400;
  options.block_size = kTokensPerHashId / kSplit;
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return cluster.ok() ? *std::move(cluster) : nullptr;
}

ReplayOptions Options() {
  ReplayOptions options;
  options.split = kSplit;
  return options;
}

void ExpectExactAtRest(const absl::StatusOr<ReplayReport>& report) {
  ASSERT_TRUE(report.ok()) << report.status();
  SCOPED_TRACE(ToTable(*report));
  EXPECT_EQ(report->errors, 0u);
  EXPECT_EQ(report->mirror_differences, 0u);
  ASSERT_TRUE(report->at_rest.has_value());
  EXPECT_GE(report->at_rest->checked, 40u);
  EXPECT_EQ(report->at_rest->over, 0u);
  EXPECT_EQ(report->at_rest->under, 0u);
  EXPECT_EQ(report->at_rest->not_exact, 0u);
}

TEST(ClusterTest, ARealTraceIsRoutedAndEveryPromiseHoldsAtRest) {
  std::unique_ptr<Cluster> cluster = SmallCluster();
  ASSERT_NE(cluster, nullptr);
  const std::vector<TraceRequest> trace = Excerpt();
  const absl::StatusOr<ReplayReport> report = Replay(*cluster, trace, Options());
  ExpectExactAtRest(report);
  ASSERT_TRUE(report.ok());
  EXPECT_EQ(report->requests, trace.size());
  EXPECT_EQ(report->unacknowledged, 0u);
  EXPECT_EQ(report->promised_over, 0u);
  EXPECT_GT(report->events_removed, 0u);
  EXPECT_GT(report->cached_blocks.kvatlas, report->cached_blocks.round_robin);
}

TEST(ClusterTest, AFreeRunIsExactAtRestToo) {
  std::unique_ptr<Cluster> cluster = SmallCluster();
  ASSERT_NE(cluster, nullptr);
  ReplayOptions options = Options();
  options.rate = 1000;
  options.compare = false;
  ExpectExactAtRest(Replay(*cluster, Excerpt(), options));
}

// Capacity for main and side blocks together; blocks of 128 tokens.
std::unique_ptr<Cluster> HybridCluster(const std::string& hybrid, const std::string& answer) {
  ClusterOptions options;
  options.cells = 2;
  options.workers = 2;
  options.capacity = 500;
  options.block_size = kTokensPerHashId / kSplit;
  options.hybrid = hybrid;
  options.leaf_args = {"--answer=" + answer};
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return cluster.ok() ? *std::move(cluster) : nullptr;
}

TEST(ClusterTest, OfHybridModelsExactlyWhatTheEnginesReuseIsPromised) {
  for (const char* hybrid : {"window:1024", "mamba:2048"}) {
    SCOPED_TRACE(hybrid);
    std::unique_ptr<Cluster> cluster = HybridCluster(hybrid, "reusable");
    ASSERT_NE(cluster, nullptr);
    const absl::StatusOr<ReplayReport> report = Replay(*cluster, Excerpt(), Options());
    ExpectExactAtRest(report);
    ASSERT_TRUE(report.ok());
    EXPECT_EQ(report->promised_over, 0u);
    EXPECT_GT(report->cached_blocks.kvatlas, 0u);
    // The main class alone held more: the check is not empty.
    EXPECT_GT(report->cached_blocks.held, report->cached_blocks.kvatlas);
  }
}

TEST(ClusterTest, HeldBlocksOfHybridModelsPromiseTooMuch) {
  std::unique_ptr<Cluster> cluster = HybridCluster("mamba:2048", "held");
  ASSERT_NE(cluster, nullptr);
  ReplayOptions options = Options();
  options.answer = "held";
  options.compare = false;
  const absl::StatusOr<ReplayReport> report = Replay(*cluster, Excerpt(), options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_GT(report->at_rest->over, 0u);
  EXPECT_EQ(report->at_rest->under, 0u);
}

// Kills and restarts while requests go on.
TEST(ClusterTest, KilledProcessesComeBackToExactAnswers) {
  std::unique_ptr<Cluster> cluster = SmallCluster();
  ASSERT_NE(cluster, nullptr);
  const std::map<size_t, std::string> kills = {
      {20, "leaf-0"}, {50, "hierarchy"}, {80, "frontend"}, {110, "leaf-1"}};
  const std::map<size_t, std::string> restarts = {
      {35, "leaf-0"}, {65, "hierarchy"}, {80, "frontend"}, {125, "leaf-1"}};
  ReplayOptions options = Options();
  options.compare = false;
  options.before = [&](size_t request) {
    if (auto kill = kills.find(request); kill != kills.end()) {
      EXPECT_TRUE(cluster->Kill(kill->second).ok());
    }
    if (auto restart = restarts.find(request); restart != restarts.end()) {
      const absl::Status status = cluster->Restart(restart->second);
      EXPECT_TRUE(status.ok()) << status;
    }
  };
  const absl::StatusOr<ReplayReport> report = Replay(*cluster, Excerpt(), options);
  ExpectExactAtRest(report);
  ASSERT_TRUE(report.ok());
  EXPECT_GT(report->fallbacks, 0u);  // while the hierarchy was away
}

TEST(ClusterTest, WithEverythingElseDeadTheFrontendStillNamesAWorkerAndSaysWhy) {
  std::unique_ptr<Cluster> cluster = SmallCluster();
  ASSERT_NE(cluster, nullptr);
  const std::vector<TraceRequest> trace = Excerpt();
  ClusterClient client(*cluster);
  // So that it has seen workers; the check at the end knows of no kills.
  ReplayOptions options = Options();
  options.compare = false;
  ExpectExactAtRest(Replay(*cluster, {trace.begin(), trace.begin() + 10}, options));
  for (const char* name :
       {"hierarchy", "leaf-0", "leaf-1", "worker-0-0", "worker-0-1", "worker-1-0", "worker-1-1"}) {
    ASSERT_TRUE(cluster->Kill(name).ok());
  }
  const absl::StatusOr<v1::RouteResponse> route =
      client.Route(PromptBlocks(trace[0], kSplit), 100, 10);
  ASSERT_TRUE(route.ok()) << route.status();
  EXPECT_THAT(route->worker().name(), HasSubstr("worker-"));
  EXPECT_EQ(route->receipt().fallback(), v1::FALLBACK_LOAD_ONLY);
  EXPECT_NE(route->receipt().reason(), "");
  EXPECT_EQ(route->overlap_blocks(), 0u);
}

// The runner's exit status and what it says, to people and to scripts unless told otherwise.
std::pair<int, std::string> RunCluster(const std::string& flags,
                                       const std::string& redirect = "2>&1") {
  FILE* pipe = popen(("tools/testing/cluster/run_cluster " + flags + " " + redirect).c_str(), "r");
  std::string said;
  char buffer[4096];
  for (size_t got; (got = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) said.append(buffer, got);
  return {WEXITSTATUS(pclose(pipe)), said};
}

std::string WriteTrace(const std::string& name, const std::string& text) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/" + name;
  std::ofstream(path) << text;
  return path;
}

TEST(RunClusterTest, BadFlagsAreNamedAndEndWithTwo) {
  for (const std::string flag : {"workers", "capacity", "split"}) {
    const auto [code, said] = RunCluster("--" + flag + "=0");
    EXPECT_EQ(code, 2) << said;
    EXPECT_THAT(said, HasSubstr(flag));
  }
  EXPECT_EQ(RunCluster("--split=3").first, 2);
  EXPECT_EQ(RunCluster("--policy=nonsense").first, 2);
  EXPECT_EQ(RunCluster("--transport=pigeon").first, 2);
  EXPECT_THAT(RunCluster("--schedule=sometimes"), Pair(2, HasSubstr("--schedule: ")));
  EXPECT_THAT(RunCluster("--hybrid=chunk:64"), Pair(2, HasSubstr("--hybrid: ")));
  EXPECT_EQ(RunCluster("--answer=all").first, 2);
  EXPECT_EQ(RunCluster("--no_such_flag").first, 2);
  EXPECT_EQ(RunCluster("--help").first, 0);
}

TEST(RunClusterTest, ATraceThatDoesNotParseEndsWithOneAndFileLineReason) {
  const std::string bad = WriteTrace("bad.jsonl", "{\"timestamp\": 0}\n");
  const auto [code, said] = RunCluster("--trace=" + bad);
  EXPECT_EQ(code, 1);
  EXPECT_THAT(said, HasSubstr(bad + ":1: input_length is missing"));
  std::string ids = "0";
  for (int i = 1; i < 8193; ++i) ids += ",0";
  const std::string deep =
      WriteTrace("deep.jsonl",
                 "{\"timestamp\": 0, \"input_length\": 4194816, \"output_length\": 1, "
                 "\"hash_ids\": [" +
                     ids + "]}\n");
  EXPECT_THAT(RunCluster("--trace=" + deep),
              Pair(1, HasSubstr("request 1 has 65544 blocks at --split=8; at most 65536")));
  const std::string empty = WriteTrace("empty.jsonl", "");
  EXPECT_EQ(RunCluster("--trace=" + empty).first, 1);
  EXPECT_EQ(RunCluster("--trace=/no/such/file").first, 1);
}

TEST(RunClusterTest, NoCellsEndWithOneAndAReason) {
  const auto [code, said] = RunCluster("--trace=tests/data/conversation_excerpt.jsonl --cells=0");
  EXPECT_EQ(code, 1);
  EXPECT_THAT(said, HasSubstr("--cells=0"));
}

TEST(RunClusterTest, OneWorkerInOneCellIsExactAndTheReportIsALineOfJson) {
  const auto [code, said] = RunCluster(
      "--trace=tests/data/conversation_excerpt.jsonl --requests=30 --cells=1 --workers=1 --split=4 "
      "--json=-",
      "2>/dev/null");
  EXPECT_EQ(code, 0);
  EXPECT_EQ(said.front(), '{');
  EXPECT_EQ(said.find('\n'), said.size() - 1);
  EXPECT_THAT(said, HasSubstr("\"errors\":0"));
  EXPECT_THAT(said, HasSubstr("\"at_rest\":{\"checked\":30,\"over\":0,\"under\":0"));
}

TEST(RunClusterTest, AskedByChatEveryPromiseHolds) {
  const auto [code, said] = RunCluster(
      "--trace=tests/data/conversation_excerpt.jsonl --requests=30 --cells=2 --workers=2 --split=8 "
      "--text --json=-",
      "2>/dev/null");
  EXPECT_EQ(code, 0);
  EXPECT_THAT(said, HasSubstr("\"requests\":30,\"errors\":0,\"fallbacks\":0"));
  EXPECT_THAT(said, HasSubstr("\"promised\":{\"over\":0,\"under\":0}"));
  EXPECT_THAT(said, HasSubstr("\"at_rest\":{\"checked\":120,\"over\":0,\"under\":0"));
  EXPECT_THAT(said, HasSubstr("\"tokenizer\":\"bytes (tokenizer.json "));
  EXPECT_THAT(said, HasSubstr("\"token_differences\":0"));
}

TEST(RunClusterTest, ATokenizerThatIsNotThereEndsWithOneAndIsNamed) {
  const auto [code, said] =
      RunCluster("--trace=tests/data/conversation_excerpt.jsonl --text --models=m=/no/such/folder");
  EXPECT_EQ(code, 1);
  EXPECT_THAT(said, HasSubstr("/no/such/folder"));
}

}  // namespace
}  // namespace kvatlas
