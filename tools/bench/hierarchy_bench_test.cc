#include "tools/bench/hierarchy_bench.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/waypoints.h"
#include "tools/bench/hierarchy_bench_cell.h"
#include "tools/bench/hierarchy_bench_grpc.h"
#include "tools/bench/hierarchy_bench_net.h"
#include "tools/bench/hierarchy_bench_report.h"
#include "tools/bench/hierarchy_bench_scale.h"
#include "tools/bench/hierarchy_bench_sweep.h"
#include "tools/bench/hierarchy_bench_workload.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Conversations of a few turns that begin alike: every turn's prompt continues the one before.
std::vector<TraceRequest> Conversations(uint32_t sessions, uint32_t turns) {
  std::vector<TraceRequest> trace;
  double now = 0;
  for (uint32_t turn = 0; turn < turns; ++turn) {
    for (uint32_t session = 0; session < sessions; ++session) {
      TraceRequest request;
      request.timestamp_ms = now += 90;
      request.output_tokens = 20;
      request.hash_ids = {1, 2};
      for (uint32_t i = 0; i < 4 * (turn + 1); ++i)
        request.hash_ids.push_back(1000 * (session + 1) + i);
      request.input_tokens = static_cast<uint32_t>(request.hash_ids.size()) * kTokensPerHashId;
      trace.push_back(request);
    }
  }
  return trace;
}

HierarchyBenchOptions Small() {
  return {.cells = 4, .workers = 2, .capacity = 700, .split = 8, .delay_ms = 20, .seed = 7};
}

nlohmann::json Measured(const HierarchyBenchOptions& options) {
  const absl::StatusOr<HierarchyBenchResult> result =
      RunHierarchyBench(Conversations(40, 4), options);
  EXPECT_TRUE(result.ok()) << result.status();
  return nlohmann::json::parse(ToJson(*result));
}

TEST(HierarchyBenchTest, EqualOptionsGiveEqualFigures) {
  nlohmann::json first = Measured(Small()), second = Measured(Small());
  for (nlohmann::json* json : {&first, &second}) {
    json->erase("find_cells_us");
    json->erase("seconds");
    // Memory depends on where names fall in a table whose order cannot be foreseen.
    json->erase("hierarchy_bytes");
    json->erase("hierarchy_bytes_per_coverage");
  }
  EXPECT_EQ(first, second);
}

TEST(HierarchyBenchTest, MeasuresWhatTheContractNames) {
  const nlohmann::json json = Measured(Small());
  for (const char* field : {"updates", "bytes", "leaf_updates", "leaf_bytes", "update_ratio",
                            "bytes_ratio", "wrong_cell_rate", "hierarchy_bytes_per_coverage"}) {
    EXPECT_TRUE(json.at(field).is_number()) << field;
  }
  EXPECT_EQ(json["cells"], 4);
  EXPECT_EQ(json["workers"], 2);
  EXPECT_EQ(json["requests"], 160);
  EXPECT_EQ(json["fallbacks"], 0);
  EXPECT_GT(json["hit_rate"]["kvatlas"], 0.3) << "three of four turns continue a conversation";
  EXPECT_GE(json["staleness_ms"]["p50"], 20.0) << "nothing is known above before it arrived";
  EXPECT_LT(json["updates"], json["leaf_updates"]);
  EXPECT_TRUE(json["hit_rate"]["exact_global"].is_null()) << "not measured";
}

TEST(HierarchyBenchTest, AtRestCoverageIsWhatTheEnginesHold) {
  EXPECT_EQ(Measured(Small())["wrong_at_rest"], 0);
}

TEST(HierarchyBenchTest, AtRestCoverageIsWhatTheEnginesHoldWhateverWasLost) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    HierarchyBenchOptions options = Small();
    options.seed = seed;
    options.loss = 0.2;
    options.partition_every_s = 10;
    options.partition_for_s = 12;  // beyond the lease
    const nlohmann::json json = Measured(options);
    EXPECT_GT(json["messages_lost"], 0);
    EXPECT_EQ(json["wrong_at_rest"], 0);
    EXPECT_EQ(json["too_long"], 0);
  }
}

TEST(HierarchyBenchTest, ABudgetBoundsWhatIsAboveAndNothingAboveIsFalse) {
  HierarchyBenchOptions options = Small();
  options.budget = 10;
  const nlohmann::json json = Measured(options);
  EXPECT_LE(json["coverage"], 4 * 10);
  EXPECT_EQ(json["wrong_at_rest"], 0);
}

TEST(HierarchyBenchTest, WhoKnowsEverythingHitsMoreThanWhoKnowsNothing) {
  const HitRates rates = RunBaselines(Conversations(40, 4), Small());
  EXPECT_GT(*rates.exact_global, *rates.random);
  EXPECT_GT(*rates.one_cell, *rates.random);
}

TEST(HierarchyBenchTest, AnUnknownScheduleIsRefused) {
  HierarchyBenchOptions options = Small();
  options.schedule = "sometimes";
  EXPECT_EQ(RunHierarchyBench(Conversations(1, 1), options).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(HierarchyBenchTest, TheTableHasTheSpreadOverSeeds) {
  HierarchyBenchResult a, b;
  a.wrong_cell_rate = 0.25;
  b.wrong_cell_rate = 0.75;
  const std::string table = ToTable(std::vector<HierarchyBenchResult>{a, b});
  EXPECT_NE(
      table.find("wrong cell rate                         0.5000        0.2500        0.7500"),
      std::string::npos)
      << table;
}

TEST(HierarchyBenchTest, ASweepHasACurveForEverySeriesAndARowForEveryPoint) {
  HierarchyBenchOptions base = Small();
  base.budget = 50;
  const Sweep sweep = MakeSweep("staleness", base);
  std::vector<HierarchyBenchResult> results(sweep.points.size());
  std::vector<std::string> labels;
  for (size_t i = 0; i < results.size(); ++i) {
    EXPECT_EQ(sweep.points[i].options.delay_ms, sweep.points[i].x);
    EXPECT_EQ(sweep.points[i].options.budget, 50u) << "all else stays as it is";
    results[i].of_best = 0.9 + 0.001 * double(i);
    labels.push_back(sweep.points[i].label);
  }
  const std::string svg = ToCurves(sweep, results, 1, "a & b");
  EXPECT_NE(svg.find("a &amp; b"), std::string::npos);
  EXPECT_NE(svg.find(">K = 1<"), std::string::npos);
  EXPECT_NE(svg.find(">K = 2<"), std::string::npos);
  const std::string table = ToFrontier(results, 1, labels);
  EXPECT_NE(table.find("K = 2, 30000"), std::string::npos) << table;
}

TEST(HierarchyBenchTest, EverySweepNamesRunsThatCanBeMade) {
  for (const std::string& name : SweepNames()) {
    for (const SweepPoint& point : MakeSweep(name, Small()).points) {
      EXPECT_TRUE(WaypointSchedule::Parse(point.options.schedule).ok()) << point.label;
      EXPECT_GE(point.options.capacity, 1u);
    }
  }
}

TEST(HierarchyBenchTest, MadeTracesAreFunctionsOfTheirSeedInOrderOfTime) {
  for (const std::string& name : WorkloadNames()) {
    SCOPED_TRACE(name);
    const std::vector<TraceRequest> trace = *MakeWorkload(name, 500, 10, 1);
    const std::vector<TraceRequest> same = *MakeWorkload(name, 500, 10, 1);
    const std::vector<TraceRequest> other = *MakeWorkload(name, 500, 10, 2);
    ASSERT_EQ(trace.size(), 500u);
    bool differs = false;
    for (size_t i = 0; i < trace.size(); ++i) {
      EXPECT_EQ(trace[i].hash_ids, same[i].hash_ids);
      differs = differs || trace[i].hash_ids != other[i].hash_ids;
      EXPECT_GE(trace[i].timestamp_ms, trace[i > 0 ? i - 1 : 0].timestamp_ms);
    }
    EXPECT_TRUE(differs);
  }
  EXPECT_FALSE(MakeWorkload("none", 1, 1, 1).ok());
}

TEST(HierarchyBenchTest, MadeCoverageOfManyCellsIsMeasuredAndASnapshotInstalled) {
  const absl::StatusOr<HierarchyBenchResult> result =
      RunScaleBench({.cells = 300, .waypoints = 100, .questions = 200, .snapshot_waypoints = 9000});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(*result->coverage, 300u * 80);
  EXPECT_LT(*result->coverage, 300u * 120);
  EXPECT_TRUE(result->find_cells_us.p99.has_value());
  EXPECT_TRUE(result->snapshot_ms.has_value());
  EXPECT_FALSE(result->hit_rate.kvatlas.has_value()) << "nothing was routed";
}

TEST(HierarchyBenchTest, ARealNodeIsFilledAndAskedOverGrpc) {
  const absl::StatusOr<HierarchyBenchResult> result =
      RunGrpcScaleBench({.scale = {.cells = 40, .waypoints = 100, .best = 8},
                         .binary = "hierarchy/kvatlas-hierarchy",
                         .qps = 200,
                         .seconds = 0.5,
                         .connections = 2});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->find_cells_grpc_us.p99.has_value());
  EXPECT_GT(*result->qps, 0);
  EXPECT_GT(*result->answer_bytes, 8 * 10) << "eight cells, with their names and bounds";
}

TEST(HierarchyBenchTest, ANodeThatIsNoneIsAnError) {
  EXPECT_FALSE(RunGrpcScaleBench({.scale = {.cells = 1}, .binary = "hierarchy/none"}).ok());
}

TEST(SimulationTest, HappensInOrderOfTimeThenOfAsking) {
  Simulation simulation;
  std::string seen;
  simulation.After(seconds(2), [&] { seen += "c"; });
  simulation.After(seconds(1), [&] {
    seen += "a";
    simulation.After(seconds(0), [&] { seen += "b"; });
  });
  simulation.After(seconds(2), [&] { seen += "d"; });
  simulation.After(seconds(9), [&] { seen += "e"; });
  simulation.RunUntil(simulation.now() + seconds(5));
  EXPECT_EQ(seen, "abcd");
}

// Answers every message with an acknowledgement.
class Echo : public StreamAcceptor {
 public:
  class Session : public ReceiverSession {
   public:
    Session(Echo* echo, ReplyFn reply) : echo_(*echo), reply_(std::move(reply)) {}
    absl::Status OnMessage(SenderMessage message) override {
      echo_.got.push_back(std::get<Heartbeat>(message).last_sent);
      reply_(Ack{.applied = echo_.got.back(), .credit = 0});
      return echo_.got.back() == 99 ? absl::InternalError("no more") : absl::OkStatus();
    }

   private:
    Echo& echo_;
    const ReplyFn reply_;
  };
  std::unique_ptr<ReceiverSession> Accept(ReplyFn reply) override {
    return std::make_unique<Session>(this, std::move(reply));
  }
  std::vector<BatchNumber> got;
};

class Recorder : public SenderLinkObserver {
 public:
  void OnConnected() override { ++connected; }
  void OnDisconnected(const absl::Status&) override { ++disconnected; }
  void OnMessage(ReceiverMessage message) override {
    acks.push_back(std::get<Ack>(message).applied);
  }
  void OnWritable() override {}
  int connected = 0, disconnected = 0;
  std::vector<BatchNumber> acks;
};

TEST(SimulatedLinkTest, ArrivesAfterTheDelayAndConnectsAgainAfterAnError) {
  Simulation simulation;
  Echo echo;
  Recorder recorder;
  NetworkStats stats;
  SimulatedLink link(&simulation, &echo, {.delay = milliseconds(100)}, 1, &stats, {});
  EXPECT_FALSE(link.Write(Heartbeat{.last_sent = 1})) << "not connected yet";
  link.Start(&recorder);
  simulation.RunUntil(simulation.now());
  ASSERT_TRUE(link.Write(Heartbeat{.last_sent = 1}));
  ASSERT_TRUE(link.Write(Heartbeat{.last_sent = 99}));
  simulation.RunUntil(simulation.now() + milliseconds(99));
  EXPECT_TRUE(echo.got.empty());
  simulation.RunUntil(simulation.now() + milliseconds(1));
  EXPECT_EQ(echo.got, (std::vector<BatchNumber>{1, 99}));
  EXPECT_EQ(recorder.disconnected, 0) << "nor do replies arrive at once";
  ASSERT_TRUE(link.Write(Heartbeat{.last_sent = 2})) << "it does not know yet";
  simulation.RunUntil(simulation.now() + milliseconds(100));
  EXPECT_EQ(recorder.acks, (std::vector<BatchNumber>{1, 99})) << "what was replied comes before";
  EXPECT_EQ(recorder.disconnected, 1);
  EXPECT_EQ(echo.got.size(), 2u);
  simulation.RunUntil(simulation.now() + seconds(2));
  EXPECT_EQ(recorder.connected, 2);
  link.Stop({});
}

TEST(SimulatedLinkTest, LosesInPartitionsAndGoesOnAfter) {
  Simulation simulation;
  Echo echo;
  Recorder recorder;
  NetworkStats stats;
  SimulatedLink link(&simulation, &echo,
                     {.partition_every = seconds(10), .partition_for = seconds(10)}, 3, &stats, {});
  link.Start(&recorder);
  for (int i = 0; i < 400; ++i) {
    simulation.RunUntil(simulation.now() + seconds(1));
    link.Write(Heartbeat{.last_sent = 7});
  }
  EXPECT_GT(stats.lost, 50u);
  EXPECT_GT(echo.got.size(), 50u);
  EXPECT_EQ(recorder.disconnected, 0);
  link.Stop({});
}

TEST(StalenessProbeTest, IsTheTimeFromTheFirstHolderUntilItIsKnownAbove) {
  StalenessProbe probe;
  std::vector<double> ms;
  const SequenceHash waypoint{5};
  probe.Below(waypoint, true, seconds(1));
  probe.Below(waypoint, true, seconds(2));
  probe.Above(waypoint, true, seconds(3), &ms);
  probe.Below(waypoint, false, seconds(4));
  probe.Below(waypoint, false, seconds(4));
  probe.Above(waypoint, false, seconds(5), &ms);
  probe.Below(waypoint, true, seconds(6));
  probe.Above(waypoint, true, seconds(7), &ms);
  EXPECT_EQ(ms, (std::vector<double>{2000, 1000}));
}

}  // namespace
}  // namespace kvatlas
