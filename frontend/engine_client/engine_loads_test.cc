#include "frontend/engine_client/engine_loads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/await.h"
#include "indexer/base/domain.h"
#include "indexer/base/mutex.h"
#include "indexer/base/routed.h"
#include "indexer/net/http_server.h"

namespace kvatlas {
namespace {

using testing::HasSubstr;

constexpr Duration kAwait = std::chrono::seconds(60);
constexpr char kTwoRanks[] =
    "vllm:num_requests_running{engine=\"0\"} 3\n"
    "vllm:num_requests_waiting{engine=\"0\"} 2\n"
    "vllm:num_requests_running{engine=\"1\"} 7\n";

// An engine whose /metrics has a given text.
class Engine {
 public:
  explicit Engine(std::string text) : text_(std::move(text)) {
    server_.Handle({.method = "GET", .path = "/metrics", .handler = [this](const HttpRequest&) {
                      ++polls;
                      MutexLock lock(&mutex_);
                      return HttpResponse{.status = status_, .body = text_};
                    }});
    const absl::Status started = server_.Start();
    EXPECT_TRUE(started.ok()) << started;
  }
  void Say(int status, std::string text) {
    MutexLock lock(&mutex_);
    status_ = status;
    text_ = std::move(text);
  }
  std::string url() const { return "http://" + server_.address().ToString(); }

  std::atomic<int> polls = 0;

 private:
  Mutex mutex_;
  int status_ ABSL_GUARDED_BY(mutex_) = 200;
  std::string text_ ABSL_GUARDED_BY(mutex_);
  HttpServer server_{{.listen = {"127.0.0.1", 0}}};
};

HolderId Worker(const std::string& name, uint32_t rank = 0) {
  return {.name = name, .rank = rank, .replica = ""};
}

class EngineLoadsTest : public testing::Test {
 protected:
  // Polls are real and often; what is fresh goes by `clock_`.
  EngineLoads& Start(std::map<std::string, std::string> engines) {
    clock_.Advance(std::chrono::hours(1));
    EngineLoadsOptions options{
        .engines = std::move(engines), .every = std::chrono::milliseconds(2), .timeout = kAwait};
    options.call.reach = reach_;
    options.call.connect_timeout = kAwait;
    return loads_.emplace(std::move(options), &clock_);
  }
  std::optional<Load> AwaitLoad(const HolderId& worker) {
    std::optional<Load> load;
    EXPECT_TRUE(Await([&] { return (load = loads_->Of(worker)).has_value(); }, kAwait));
    return load;
  }
  EngineLoadState AwaitState(const std::string& state) {
    EXPECT_TRUE(Await([&] { return loads_->States()[0].state == state; }, kAwait))
        << loads_->States()[0].state;
    return loads_->States()[0];
  }

  ManualClock clock_;
  EngineReach reach_;
  std::optional<EngineLoads> loads_;
};

TEST_F(EngineLoadsTest, TheLoadOfARankIsWhatItsEngineSays) {
  Engine engine(kTwoRanks);
  Start({{"w0", engine.url()}});
  EXPECT_EQ(loads_->States()[0].state, "unwanted");
  const std::optional<Load> load = AwaitLoad(Worker("w0"));
  ASSERT_TRUE(load.has_value());
  EXPECT_EQ(load->running_requests, 3u);
  EXPECT_EQ(load->waiting_requests, 2u);
  EXPECT_EQ(load->workers, 1u);
  EXPECT_EQ(AwaitLoad(Worker("w0", 1))->running_requests, 7u);
  EXPECT_FALSE(loads_->Of(Worker("w0", 2)).has_value());
  EXPECT_FALSE(loads_->Of(Worker("other")).has_value());
  const EngineLoadState state = loads_->States()[0];
  EXPECT_EQ(state.state, "known");
  EXPECT_EQ(state.loads.size(), 2u);
}

TEST_F(EngineLoadsTest, AnEngineWhoseLoadIsNotAskedForIsLeftAlone) {
  Engine wanted(kTwoRanks), unwanted(kTwoRanks);
  Start({{"w0", wanted.url()}, {"w1", unwanted.url()}});
  AwaitLoad(Worker("w0"));
  EXPECT_EQ(unwanted.polls, 0);
  clock_.Advance(kLoadWantedFor);
  EXPECT_EQ(loads_->States()[0].state, "unwanted");
}

TEST_F(EngineLoadsTest, AnOldLoadIsUnknownAndTheReasonIsTold) {
  Engine engine(kTwoRanks);
  Start({{"w0", engine.url()}});
  AwaitLoad(Worker("w0"));
  engine.Say(503, "");
  const int before = engine.polls;
  ASSERT_TRUE(Await([&] { return engine.polls > before + 1; }, kAwait));
  clock_.Advance(std::chrono::seconds(1));
  EXPECT_FALSE(loads_->Of(Worker("w0")).has_value());
  EXPECT_THAT(AwaitState("failing").reason, HasSubstr("503"));
  engine.Say(200, "process_cpu_seconds_total 3\n");
  ASSERT_TRUE(Await(
      [&] { return loads_->States()[0].reason.find("none of the metrics") != std::string::npos; },
      kAwait));
  engine.Say(200, "sglang:num_running_reqs{dp_rank=\"0\"} 9\n");
  EXPECT_EQ(AwaitLoad(Worker("w0"))->running_requests, 9u);
}

TEST_F(EngineLoadsTest, AnAnswerBeyondItsBoundIsNoLoad) {
  Engine engine(kTwoRanks + std::string(kMetricsBytesMax, '\n'));
  Start({{"w0", engine.url()}});
  EXPECT_FALSE(loads_->Of(Worker("w0")).has_value());
  EXPECT_THAT(AwaitState("failing").reason, HasSubstr("has more than"));
}

TEST_F(EngineLoadsTest, AnEngineOutsideTheReachIsNotAsked) {
  Engine engine(kTwoRanks);
  const auto none = EngineAddresses::Parse({"192.0.2.0/24"});
  ASSERT_TRUE(none.ok()) << none.status();
  reach_.addresses = *none;
  Start({{"w0", engine.url()}});
  EXPECT_FALSE(loads_->Of(Worker("w0")).has_value());
  EXPECT_THAT(AwaitState("failing").reason, HasSubstr("outside"));
  EXPECT_EQ(engine.polls, 0);
}

TEST_F(EngineLoadsTest, EnginesMayChange) {
  Engine first(kTwoRanks), second("vllm:num_requests_running 1\n");
  Start({{"w0", first.url()}});
  AwaitLoad(Worker("w0"));
  loads_->SetEngines({{"w0", second.url()}});
  EXPECT_FALSE(loads_->Of(Worker("w0", 1)).has_value());
  EXPECT_EQ(AwaitLoad(Worker("w0"))->running_requests, 1u);
}

// Else the end would wait until that poll is late.
TEST_F(EngineLoadsTest, NoPollBeginsOnceItStops) {
  boost::asio::io_context io;
  const boost::asio::ip::tcp::acceptor silent(
      io, {boost::asio::ip::address_v4::loopback(), 0});  // takes connections, and never answers
  const std::string url = absl::StrCat("http://127.0.0.1:", silent.local_endpoint().port());
  clock_.Advance(std::chrono::hours(1));
  EngineLoadsOptions options{
      .engines = {{"w0", url}}, .every = Duration(1), .timeout = std::chrono::seconds(10)};
  options.call.head_timeout = options.timeout;
  // Its eighth is the time between two sweeps, for which every end waits.
  options.call.connect_timeout = std::chrono::milliseconds(40);
  // Whether a timer has just run off is chance, so there are many rounds.
  for (int round = 0; round < 200; ++round) {
    const Time began = Clock::Real().Now();
    {
      EngineLoads loads(options, &clock_);
      loads.Of(Worker("w0"));
    }
    ASSERT_LT(Clock::Real().Now() - began, options.timeout) << "in round " << round;
  }
}

// A leaf whose first worker says its load.
class Leaf : public OverlapFinder {
 public:
  void FindOverlaps(const std::string&, const OverlapQuestion&, Duration,
                    Callback callback) override {
    WorkersAnswer answer;
    answer.workers.push_back({.worker = Worker("w0"), .load = Load{.running_requests = 40}});
    answer.workers.push_back({.worker = Worker("w1")});
    answer.workers.push_back({.worker = Worker("w2")});
    callback(std::move(answer));
  }
  void Tell(const std::string& leaf_address, const Domain&, uint64_t frontend,
            const Routed& routed) override {
    told += absl::StrCat(leaf_address, " ", frontend, " ", routed.decision, "\n");
  }
  void End(const std::string& leaf_address, const Domain&, uint64_t frontend,
           const RouteOver& over) override {
    told += absl::StrCat(leaf_address, " ", frontend, " ", over.decision, " over\n");
  }

  std::string told;
};

TEST_F(EngineLoadsTest, WhatIsToldGoesOnToTheLeaf) {
  Start({});
  Leaf leaf;
  EngineLoadFinder finder(&leaf, &*loads_);
  finder.Tell("leaf", {"m", ""}, 7, {.decision = 3});
  finder.End("leaf", {"m", ""}, 7, {.decision = 3});
  EXPECT_EQ(leaf.told, "leaf 7 3\nleaf 7 3 over\n");
}

TEST_F(EngineLoadsTest, OnlyWorkersWhoseLeafSaysNoLoadHaveTheirEngines) {
  Engine engine(kTwoRanks);
  Start({{"w0", engine.url()}, {"w1", engine.url()}});
  AwaitLoad(Worker("w1"));
  Leaf leaf;
  EngineLoadFinder finder(&leaf, &*loads_);
  std::optional<WorkersAnswer> answer;
  finder.FindOverlaps("leaf", {}, Duration(0),
                      [&](absl::StatusOr<WorkersAnswer> found) { answer = *std::move(found); });
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->workers[0].load->running_requests, 40u);
  EXPECT_EQ(answer->workers[1].load->running_requests, 3u);
  EXPECT_FALSE(answer->workers[2].load.has_value());
}

}  // namespace
}  // namespace kvatlas
