// What does a rolling restart cost? Two hierarchy nodes and two replicas of a leaf are stopped and
// started again one after the other, each when the one before is ready, while prompts are routed
// all the time: no route fails or falls back, and none loses sight of what the engines have.
//
//   load ──▶ frontend ──▶ node-0, node-1 ◀── leaf-0, leaf-1 (replicas of cell "a") ◀── engine-0, engine-1

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "indexer/base/await.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/net/grpc_channel.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"
#include "tools/bench/service_bench_http.h"
#include "tools/testing/cluster/process.h"
#include "tools/testing/mock_engine/engine.grpc.pb.h"
#include "tools/testing/mock_engine/engine_model.h"

namespace kvatlas {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kLong = seconds(90);
constexpr uint32_t kBlockSize = 16;
constexpr uint32_t kBlocks = 8;  // of a prompt
constexpr uint64_t kPrompts = 20;
// A machine that is busy is no reason to fall back.
constexpr uint32_t kRouteDeadlineMs = 10'000;
// Routed between two steps at least.
constexpr uint64_t kRoutesBetween = 50;

std::vector<uint64_t> Prompt(uint64_t number) {
  std::vector<uint64_t> blocks;
  for (uint64_t i = 1; i <= kBlocks; ++i) blocks.push_back(number * 100 + i);
  return blocks;
}

v1::RouteRequest RequestOf(uint64_t prompt) {
  v1::RouteRequest request;
  request.mutable_domain()->set_model("mock");
  for (uint64_t block : Prompt(prompt)) request.add_sequence_hashes(block);
  request.set_prompt_tokens(kBlocks * kBlockSize + 1);
  request.set_deadline_ms(kRouteDeadlineMs);
  return request;
}

// What came of the routes of the load.
struct Tally {
  std::atomic<uint64_t> routes{0};
  std::atomic<uint64_t> fallbacks{0};
  std::atomic<uint64_t> errors{0};
  std::atomic<uint64_t> unseen{0};  // promised less than an engine has
};

class RollingRestartTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int i = 0; i < 2; ++i) {
      Start("node-" + std::to_string(i), "hierarchy/kvatlas-hierarchy",
            {"--node=top", "--replica=" + std::to_string(i), "--cells_expected=1"});
    }
    for (int i = 0; i < 2; ++i) {
      Start("leaf-" + std::to_string(i), "indexer/leaf/kvatlas-leaf",
            {"--cell=a", "--replica=" + std::to_string(i), "--parents=" + Both("node"),
             "--min_initial_workers=2"});
    }
    for (int i = 0; i < 2; ++i) {
      Start("engine-" + std::to_string(i), "tools/testing/mock_engine/mock_engine",
            {"--worker=w" + std::to_string(i), "--block_size=16", "--leaf=" + Both("leaf")});
    }
    Start("frontend", "frontend/kvatlas-frontend",
          {"--hierarchy=" + Both("node"), "--block_size=16"});
    frontend_ = v1::Frontend::NewStub(MakeChannel(processes_.at("frontend")->address("grpc")));
    for (const char* name : {"node-0", "node-1", "leaf-0", "leaf-1", "frontend"}) AwaitReady(name);
    Fill();
  }

  void TearDown() override {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      wake_.SignalAll();
    }
    if (load_.joinable()) load_.join();
  }

  void Start(const std::string& name, const char* binary, std::vector<std::string> args) {
    args.push_back("--grpc=127.0.0.1:0");
    if (!name.starts_with("engine")) {
      args.push_back("--http=127.0.0.1:0");
      args.push_back("--stop_delay=1s");
    }
    auto& process = processes_[name];
    process = std::make_unique<Process>(
        ProcessOptions{.name = name,
                       .binary = binary,
                       .args = args,
                       .log = ::testing::TempDir() + "/" + name + ".log"});
    const absl::Status started = process->Start(kLong);
    ASSERT_TRUE(started.ok()) << started;
  }

  std::string Both(const std::string& kind) const {
    return processes_.at(kind + "-0")->address("grpc") + "," +
           processes_.at(kind + "-1")->address("grpc");
  }

  void AwaitReady(const std::string& name) {
    HttpClient http(*Address::Parse(processes_.at(name)->address("http")));
    std::string last;
    const auto ready = [&] {
      const absl::StatusOr<HttpAnswer> answer = http.Get("/ready");
      last = answer.ok() ? answer->body : answer.status().ToString();
      return answer.ok() && answer->status == 200;
    };
    ASSERT_TRUE(Await(ready, kLong)) << name << " is never ready: " << last;
  }

  // Every prompt is at the engine of its turn, and the frontend finds it.
  void Fill() {
    for (uint64_t prompt = 0; prompt < kPrompts; ++prompt) {
      const std::string name = "engine-" + std::to_string(prompt % 2);
      const auto engine =
          engine::v1::Engine::NewStub(MakeChannel(processes_.at(name)->address("grpc")));
      engine::v1::SubmitRequest submit;
      submit.set_id(prompt + 1);
      for (uint64_t block : Prompt(prompt)) submit.add_blocks(block);
      submit.set_prompt_tokens(kBlocks * kBlockSize + 1);
      engine::v1::StepResponse step;
      grpc::ClientContext context;
      ASSERT_TRUE(engine->Submit(&context, submit, &step).ok());
      engine::v1::AdvanceRequest all;
      all.set_time_ms(EngineModel::kForever);
      grpc::ClientContext advance;
      ASSERT_TRUE(engine->Advance(&advance, all, &step).ok());
    }
    for (uint64_t prompt = 0; prompt < kPrompts; ++prompt) {
      ASSERT_TRUE(Await(
          [&] {
            const auto route = Route(prompt);
            return route.ok() && route->overlap_blocks() == kBlocks;
          },
          kLong))
          << "prompt " << prompt << " is never found";
    }
  }

  absl::StatusOr<v1::RouteResponse> Route(uint64_t prompt) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(60));
    v1::RouteResponse response;
    const grpc::Status status = frontend_->Route(&context, RequestOf(prompt), &response);
    if (!status.ok()) return absl::UnavailableError(status.error_message());
    // Taken and done at once: no request weighs on a worker.
    v1::ReportRequest report;
    report.set_decision_id(response.decision_id());
    report.set_abandoned(true);
    grpc::ClientContext reported;
    v1::ReportResponse ignored;
    frontend_->Report(&reported, report, &ignored);
    return response;
  }

  void StartLoad() {
    load_ = std::thread([this] {
      constexpr Duration kPause = milliseconds(2);
      for (uint64_t prompt = 0;; prompt = (prompt + 1) % kPrompts) {
        const auto route = Route(prompt);
        if (!route.ok()) {
          ++tally_.errors;
        } else {
          tally_.fallbacks += route->receipt().fallback() != v1::FALLBACK_NONE;
          tally_.unseen += route->overlap_blocks() < kBlocks;
          if (route->overlap_blocks() < kBlocks) {
            MutexLock lock(&mutex_);
            if (worst_.empty()) worst_ = route->ShortDebugString();
          }
        }
        ++tally_.routes;
        MutexLock lock(&mutex_);
        if (!stopping_) wake_.WaitFor(&mutex_, kPause);
        if (stopping_) return;
      }
    });
  }

  void AwaitRoutes(uint64_t more) {
    const uint64_t until = tally_.routes + more;
    ASSERT_TRUE(Await([&] { return tally_.routes >= until; }, kLong));
  }

  void RollOver(const std::string& name) {
    SCOPED_TRACE(name);
    Process& process = *processes_.at(name);
    process.Stop(kLong);
    AwaitRoutes(kRoutesBetween);
    const absl::Status started = process.Start(kLong);
    ASSERT_TRUE(started.ok()) << started;
    AwaitReady(name);
    AwaitRoutes(kRoutesBetween);
    EXPECT_EQ(tally_.errors, 0u) << name;
    EXPECT_EQ(tally_.fallbacks, 0u) << name;
    EXPECT_EQ(tally_.unseen, 0u) << name << ": " << Worst();
  }

  std::string Worst() {
    MutexLock lock(&mutex_);
    return worst_;
  }

  std::map<std::string, std::unique_ptr<Process>> processes_;
  std::unique_ptr<v1::Frontend::Stub> frontend_;
  Tally tally_;
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::string worst_ ABSL_GUARDED_BY(mutex_);
  std::thread load_;
};

TEST_F(RollingRestartTest, NodesThenReplicasOfALeafCostNoFallback) {
  StartLoad();
  AwaitRoutes(kRoutesBetween);
  for (const char* name : {"node-0", "node-1", "leaf-0", "leaf-1"}) RollOver(name);
  RecordProperty("routes", static_cast<int>(tally_.routes));
}

}  // namespace
}  // namespace kvatlas
