#include "tools/bench/hierarchy_bench_grpc.h"

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/cluster_client/grpc_lookup_clients.h"
#include "frontend/router/lookup_clients.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/hash.h"
#include "indexer/base/mutex.h"
#include "indexer/base/waypoints.h"
#include "indexer/stream/resident_set.h"
#include "indexer/stream/sender.h"
#include "indexer/stream/sender_pump.h"
#include "indexer/transport/grpc_link.h"
#include "proto/kvatlas/v1/hierarchy.pb.h"
#include "tools/bench/hierarchy_bench_synthetic.h"
#include "tools/bench/service_bench_grpc.h"
#include "tools/bench/service_bench_target.h"
#include "tools/bench/timing.h"
#include "tools/testing/cluster/process.h"

namespace kvatlas {
namespace {

constexpr Duration kStart = std::chrono::seconds(30), kStop = std::chrono::seconds(10);
constexpr Duration kFill = std::chrono::minutes(5);
constexpr char kFindCells[] = "/kvatlas.v1.Hierarchy/FindCells";
constexpr size_t kQuestions = 20000;  // serialized before the clock runs; asked by turns
constexpr double kWarmSeconds =
    1;  // the best of many are found once the node has seen that they are asked for

// A cell's stream to the node, full and kept open.
class Cell {
 public:
  Cell(SyntheticCell made, const std::string& node)
      : made_(std::move(made)),
        pump_(SenderOptions(), Identity(made_.name), &resident_, &mutex_,
              std::make_unique<GrpcLink>(node), &Clock::Real()) {
    pump_.Start();
    {
      MutexLock lock(&mutex_);
      for (const Event& event : made_.events) resident_.Apply(event);
      pump_.Append(made_.events, made_.load);
    }
    pump_.Flush();
  }
  ~Cell() { pump_.Stop(/*goodbye=*/false, Duration(0)); }

  bool WaitAtRest(Duration timeout) {
    pump_.Tick();
    return pump_.WaitAtRest(timeout);
  }

 private:
  static SenderIdentity Identity(const std::string& name) {
    return {.holder = {.name = name, .rank = 0, .replica = ""},
            .domain = SyntheticCells::domain(),
            .block_size = 16,
            .contract_id = HashContract().Id(),
            .schedule = WaypointSchedule::Standard().Name(),
            .address = "127.0.0.1:1",
            .labels = {},
            .epoch = WallTimeNs(),
            .instance_id = RandomInstanceId()};
  }

  const SyntheticCell made_;
  Mutex mutex_;
  ResidentSet resident_;
  SenderPump pump_;
};

// Waypoints of each.
std::vector<std::vector<SequenceHash>> Questions(const SyntheticCells& made, uint64_t seed) {
  std::mt19937_64 random(seed + 1);
  std::vector<std::vector<SequenceHash>> questions;
  for (size_t i = 0; i < kQuestions; ++i) questions.push_back(made.Question(&random));
  return questions;
}

uint32_t BlocksOf(const std::vector<SequenceHash>& waypoints) {
  return WaypointSchedule::Standard().BlocksCovered(static_cast<uint32_t>(waypoints.size()));
}

std::vector<std::string> Serialized(const std::vector<std::vector<SequenceHash>>& questions,
                                    uint32_t best) {
  std::vector<std::string> serialized;
  for (const std::vector<SequenceHash>& waypoints : questions) {
    v1::FindCellsRequest question;
    question.mutable_domain()->set_model(SyntheticCells::domain().model);
    for (SequenceHash waypoint : waypoints) question.add_waypoint_hashes(Raw(waypoint));
    question.set_blocks(BlocksOf(waypoints));
    question.set_schedule(WaypointSchedule::Standard().Name());
    question.set_best(best);
    serialized.push_back(question.SerializeAsString());
  }
  return serialized;
}

// Questions as a frontend asks them, at a rate.
class FinderLoad {
 public:
  FinderLoad(std::string address, double qps, uint32_t best,
             const std::vector<std::vector<SequenceHash>>& questions)
      : address_(std::move(address)), qps_(qps), best_(best), questions_(questions) {}

  HttpLoadResult Run(double seconds) {
    const double cpu_before = CpuSeconds();
    const uint64_t begin = Ticks();
    const double interval = 1e9 / NsPerTick() / qps_;
    const auto count = static_cast<size_t>(seconds * qps_);
    {
      MutexLock lock(&mutex_);
      result_ = {};
      result_.latencies.Reserve(count);
    }
    for (size_t i = 0; i < count; ++i) {
      const uint64_t due = begin + static_cast<uint64_t>(static_cast<double>(i) * interval);
      SleepUntil(due);
      Ask(questions_[i % questions_.size()], due);
    }
    MutexLock lock(&mutex_);
    while (result_.answers + result_.errors < count) answered_.Wait(&mutex_);
    result_.seconds = static_cast<double>(Ticks() - begin) * NsPerTick() / 1e9;
    result_.client_cpu_s = CpuSeconds() - cpu_before;
    return std::move(result_);
  }

 private:
  void Ask(const std::vector<SequenceHash>& waypoints, uint64_t due) {
    finder_.FindCells(
        address_,
        {.domain = &domain_, .waypoints = waypoints, .blocks = BlocksOf(waypoints), .best = best_},
        kPatience, [this, due](absl::StatusOr<CellsAnswer> answer) {
          const uint64_t now = Ticks();
          MutexLock lock(&mutex_);
          if (answer.ok()) {
            ++result_.answers;
            result_.latencies.Add(now - due);
          } else {
            ++result_.errors;
            if (result_.first_error.empty()) result_.first_error = answer.status().ToString();
          }
          answered_.SignalAll();
        });
  }

  static constexpr Duration kPatience = std::chrono::seconds(30);

  const std::string address_;
  const double qps_;
  const uint32_t best_;
  const std::vector<std::vector<SequenceHash>>& questions_;
  const Domain domain_ = SyntheticCells::domain();
  Mutex mutex_;
  CondVar answered_;
  HttpLoadResult result_ ABSL_GUARDED_BY(mutex_);
  GrpcCellFinder finder_;
};

std::string LogName() {
  const char* const folder = std::getenv("TMPDIR");
  return std::string(folder == nullptr ? "/tmp" : folder) + "/hierarchy_bench_" +
         std::to_string(getpid()) + ".log";
}

}  // namespace

absl::StatusOr<HierarchyBenchResult> RunGrpcScaleBench(const GrpcScaleOptions& options) {
  const Time started = Clock::Real().Now();
  const std::string log = LogName();
  Process node(
      {.name = "hierarchy",
       .binary = options.binary,
       // Streams need no heartbeats then: nothing but questions goes on.
       .args = {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0", "--exit_with_parent", "--lease_ttl=1h"},
       .log = log});
  if (absl::Status status = node.Start(kStart); !status.ok()) return status;
  const std::string address = node.address("grpc");
  SyntheticCells made(options.scale.waypoints, options.scale.seed);
  std::vector<std::unique_ptr<Cell>> cells;
  for (uint32_t i = 0; i < options.scale.cells; ++i)
    cells.push_back(std::make_unique<Cell>(made.Next(), address));
  const Time give_up = Clock::Real().Now() + kFill;
  for (const auto& cell : cells) {
    if (!cell->WaitAtRest(give_up - Clock::Real().Now()))
      return absl::DeadlineExceededError("the node did not take all streams; " + TailOf(log, 5));
  }
  const std::vector<std::vector<SequenceHash>> made_questions = Questions(made, options.scale.seed);
  const std::vector<std::string> questions = Serialized(made_questions, options.scale.best);
  HttpLoadResult load;
  std::optional<double> node_cpu_s;
  double answer_bytes = 0;
  {
    GrpcLoad warm(address, kFindCells, options.connections, options.qps, questions);
    HttpLoadResult warmed = warm.Run(kWarmSeconds);
    // A node that waits for a processor may answer nothing for a while.
    while (warmed.answers + warmed.errors == 0 && Clock::Real().Now() < give_up)
      warmed = warm.Run(kWarmSeconds);
    if (warmed.errors > 0) return absl::InternalError("a question failed: " + warmed.first_error);
    if (warmed.answers == 0) return absl::DeadlineExceededError("no question was answered");
    answer_bytes = static_cast<double>(warmed.answer_bytes) / static_cast<double>(warmed.answers);
    FinderLoad finder(address, options.qps, options.scale.best, made_questions);
    if (options.question_streams) finder.Run(kWarmSeconds);
    node_cpu_s = BenchTarget::CpuSecondsOf(node.pid());
    load = options.question_streams
               ? finder.Run(options.seconds)
               : GrpcLoad(address, kFindCells, options.connections, options.qps, questions)
                     .Run(options.seconds);
    if (node_cpu_s.has_value())
      node_cpu_s = BenchTarget::CpuSecondsOf(node.pid()).value_or(0) - *node_cpu_s;
  }
  cells.clear();
  node.Stop(kStop);
  unlink(log.c_str());
  if (load.errors > 0) return absl::InternalError("a question failed: " + load.first_error);
  HierarchyBenchResult result;
  result.workload = "synthetic cells over gRPC";
  result.cells = options.scale.cells;
  result.options.cells = options.scale.cells;
  result.options.seed = options.scale.seed;
  const Percentiles ns = load.latencies.InNs();
  result.find_cells_grpc_us = {ns.p50 / 1000, ns.p99 / 1000};
  result.qps = static_cast<double>(load.answers) / load.seconds;
  result.answer_bytes = answer_bytes;
  if (load.answers > 0) {
    const double per_question_us = 1e6 / static_cast<double>(load.answers);
    if (node_cpu_s.has_value()) result.node_cpu_us = *node_cpu_s * per_question_us;
    result.client_cpu_us = load.client_cpu_s * per_question_us;
  }
  result.seconds = std::chrono::duration<double>(Clock::Real().Now() - started).count();
  return result;
}

}  // namespace kvatlas
