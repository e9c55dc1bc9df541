// Engines that know nothing of kvatlas, a relay and a leaf as real processes, killed in turn: the leaf says what the
// engines really have, or that it is not sure.

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "indexer/base/await.h"
#include "indexer/base/clock.h"
#include "indexer/base/ids.h"
#include "indexer/base/test_seed.h"
#include "indexer/service/address.h"
#include "indexer/service/grpc_channel.h"
#include "indexer/service/redis_test_server.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"
#include "tools/bench/service_bench_http.h"
#include "tools/cluster/process.h"
#include "tools/engine/engine.grpc.pb.h"
#include "tools/engine/engine_model.h"
#include "tools/engine/mock_tokens.h"

namespace kvatlas {
namespace {

namespace ev1 = engine::v1;

constexpr uint32_t kBlockSize = 16;
constexpr std::chrono::seconds kLong(60);
using Prompt = std::vector<SequenceHash>;
// Blocks by worker; who has none is not in it.
using Overlaps = std::map<std::string, uint32_t>;

std::string LogOf(const std::string& name) { return ::testing::TempDir() + "/" + name + ".log"; }

bool Eventually(const std::function<bool()>& condition) { return Await(condition, kLong); }

class MockEngine {
 public:
  // `window`: batches that it can replay.
  MockEngine(const std::string& name, size_t window)
      : name_(name),
        process_({.name = name,
                  .binary = "tools/engine/mock_engine",
                  .args = {"--grpc=127.0.0.1:0", "--zmq_events=tcp://127.0.0.1:0",
                           "--zmq_replay=tcp://127.0.0.1:0", "--zmq_attach=bind", "--capacity=60",
                           "--block_size=16", "--exit_with_parent=true",
                           "--zmq_window=" + std::to_string(window)},
                  .log = LogOf(name)}) {
    const absl::Status started = process_.Start(kLong);
    EXPECT_TRUE(started.ok()) << started;
    stub_ = ev1::Engine::NewStub(MakeChannel(process_.address("grpc")));
  }

  const std::string& name() const { return name_; }
  std::string Flag() const {
    return name_ + "=tcp://" + process_.address("zmq_events") + ";replay=tcp://" +
           process_.address("zmq_replay");
  }

  void Submit(const Prompt& prompt) {
    ev1::SubmitRequest request;
    request.set_id(++requests_);
    request.set_prompt_tokens(static_cast<uint32_t>(prompt.size() * kBlockSize));
    for (const SequenceHash block : prompt) request.add_blocks(Raw(block));
    grpc::ClientContext context;
    ev1::StepResponse response;
    EXPECT_TRUE(stub_->Submit(&context, request, &response).ok());
    ev1::AdvanceRequest all;
    all.set_time_ms(EngineModel::kForever);
    grpc::ClientContext advance;
    EXPECT_TRUE(stub_->Advance(&advance, all, &response).ok());
  }

  uint32_t Held(const Prompt& prompt) {
    grpc::ClientContext context;
    ev1::ContentsResponse response;
    EXPECT_TRUE(stub_->Contents(&context, {}, &response).ok());
    const std::set<uint64_t> held(response.blocks().begin(), response.blocks().end());
    uint32_t blocks = 0;
    while (blocks < prompt.size() && held.contains(Raw(prompt[blocks]))) ++blocks;
    return blocks;
  }

 private:
  const std::string name_;
  Process process_;
  std::unique_ptr<ev1::Engine::Stub> stub_;
  uint64_t requests_ = 0;
};

std::vector<std::string> With(std::vector<std::string> args, const std::vector<std::string>& more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

class Leaf {
 public:
  explicit Leaf(const std::vector<std::string>& more = {})
      : process_(
            {.name = "leaf",
             .binary = "indexer/leaf/kvatlas-leaf",
             .args = With({"--grpc=127.0.0.1:0", "--http=127.0.0.1:0", "--exit_with_parent=true"},
                          more),
             .log = LogOf("leaf")}) {
    Start();
  }
  void Start() {
    const absl::Status started = process_.Start(kLong);
    EXPECT_TRUE(started.ok()) << started;
    stub_ = v1::Leaf::NewStub(MakeChannel(process_.address("grpc")));
  }
  void Kill() { process_.Kill(); }
  std::string grpc() const { return process_.address("grpc"); }

  v1::FindOverlapsResponse Ask(const Prompt& prompt) {
    v1::FindOverlapsRequest request;
    request.mutable_domain()->set_model("mock");
    request.set_all_workers(true);
    for (const TokenId token : MockTokens(prompt, kBlockSize))
      request.mutable_tokens()->add_ids(token);
    grpc::ClientContext context;
    v1::FindOverlapsResponse response;
    if (!stub_->FindOverlaps(&context, request, &response).ok()) return {};
    return response;
  }
  Overlaps Blocks(const Prompt& prompt) {
    Overlaps blocks;
    const v1::FindOverlapsResponse answer = Ask(prompt);
    for (const v1::WorkerOverlap& worker : answer.workers())
      if (worker.blocks() > 0) blocks[worker.worker().name()] = worker.blocks();
    return blocks;
  }
  // Of that worker; UNKNOWN: it is in no answer.
  v1::Trust TrustOf(const std::string& name) {
    const v1::FindOverlapsResponse answer = Ask({SequenceHash{1}});
    for (const v1::WorkerOverlap& worker : answer.workers())
      if (worker.worker().name() == name) return worker.trust();
    return v1::TRUST_UNKNOWN;
  }

  // Every prompt becomes what the engines have, surely.
  void ExpectExact(const std::vector<Prompt>& prompts, const std::vector<MockEngine*>& engines) {
    for (MockEngine* engine : engines) {
      EXPECT_TRUE(Eventually([&] { return TrustOf(engine->name()) == v1::TRUST_EXACT; }))
          << engine->name();
    }
    for (size_t p = 0; p < prompts.size(); ++p) {
      Overlaps truth;
      for (MockEngine* engine : engines)
        if (const uint32_t blocks = engine->Held(prompts[p]); blocks > 0)
          truth[engine->name()] = blocks;
      EXPECT_TRUE(Eventually([&] { return Blocks(prompts[p]) == truth; })) << "prompt " << p;
    }
  }

 private:
  Process process_;
  std::unique_ptr<v1::Leaf::Stub> stub_;
};

class Relay {
 public:
  Relay(const Leaf& leaf, const std::vector<MockEngine*>& engines)
      : Relay(std::vector<std::string>{"--leaves=" + leaf.grpc()}, engines) {}
  // `told`: the flags that say who is told.
  Relay(const std::vector<std::string>& told, const std::vector<MockEngine*>& engines)
      : process_({.name = "relay",
                  .binary = "publisher/kvatlas-relay",
                  .args = With({"--http=127.0.0.1:0", "--model_name=mock", "--block_size=16",
                                "--workers=" + Workers(engines),
                                "--min_initial_workers=" + std::to_string(engines.size()),
                                "--exit_with_parent=true"},
                               told),
                  .log = LogOf("relay")}) {
    Start();
  }
  void Start() {
    const absl::Status started = process_.Start(kLong);
    EXPECT_TRUE(started.ok()) << started;
  }
  void Kill() { process_.Kill(); }
  void Terminate() { process_.Stop(kLong); }
  HttpAnswer Get(const std::string& path) {
    HttpClient http(*Address::Parse(process_.address("http")));
    const absl::StatusOr<HttpAnswer> answer = http.Get(path);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? *answer : HttpAnswer();
  }

 private:
  static std::string Workers(const std::vector<MockEngine*>& engines) {
    std::string flag;
    for (MockEngine* engine : engines) flag += (flag.empty() ? "" : ",") + engine->Flag();
    return flag;
  }
  Process process_;
};

// Prompts that share one of four roots.
std::vector<Prompt> Prompts() {
  std::vector<Prompt> prompts;
  for (uint64_t p = 0; p < 16; ++p) {
    Prompt prompt;
    for (uint64_t i = 0; i < 6; ++i) prompt.push_back(SequenceHash{(p % 4 + 1) * 1000 + i});
    for (uint64_t i = 0; i < 4 + p; ++i) prompt.push_back(SequenceHash{(p + 1) * 100000 + i});
    prompts.push_back(prompt);
  }
  return prompts;
}

// A random prompt to each of some engines, by turns.
class Traffic {
 public:
  Traffic(std::vector<Prompt> prompts, std::vector<MockEngine*> engines)
      : prompts_(std::move(prompts)), engines_(std::move(engines)), random_(seed_) {}
  uint64_t seed() const { return seed_; }
  void Submit(int count) {
    for (int i = 0; i < count; ++i)
      engines_[random_() % engines_.size()]->Submit(prompts_[random_() % prompts_.size()]);
  }

 private:
  const std::vector<Prompt> prompts_;
  const std::vector<MockEngine*> engines_;
  const uint64_t seed_ = TestSeed();
  std::mt19937 random_;
};

TEST(RelayProcessesTest, WhoeverIsKilledTheLeafIsExactAgain) {
  MockEngine first("first", 10000), second("second", 10000);
  const std::vector<MockEngine*> engines = {&first, &second};
  const std::vector<Prompt> prompts = Prompts();
  Traffic traffic(prompts, engines);
  SCOPED_TRACE(traffic.seed());
  traffic.Submit(30);  // before anybody listens: replayed
  Leaf leaf;
  Relay relay(leaf, engines);
  traffic.Submit(30);
  leaf.ExpectExact(prompts, engines);
  EXPECT_EQ(relay.Get("/ready").status, 200);
  {
    SCOPED_TRACE("the leaf");
    leaf.Kill();
    traffic.Submit(30);
    leaf.Start();
    traffic.Submit(5);
    leaf.ExpectExact(prompts, engines);
  }
  {
    SCOPED_TRACE("the relay");
    relay.Kill();
    traffic.Submit(30);
    relay.Start();
    traffic.Submit(5);
    leaf.ExpectExact(prompts, engines);
  }
  {
    SCOPED_TRACE("both");
    leaf.Kill();
    relay.Kill();
    traffic.Submit(30);
    leaf.Start();
    relay.Start();
    leaf.ExpectExact(prompts, engines);
  }
  {
    SCOPED_TRACE("the relay, gracefully");
    relay.Terminate();
    traffic.Submit(10);
    relay.Start();
    leaf.ExpectExact(prompts, engines);
  }
}

TEST(RelayProcessesTest, ThroughALogInRedisTheLeafIsExactWhoeverIsKilled) {
  RedisTestServer redis;
  MockEngine first("first", 10000), second("second", 10000);
  const std::vector<MockEngine*> engines = {&first, &second};
  const std::vector<Prompt> prompts = Prompts();
  Traffic traffic(prompts, engines);
  SCOPED_TRACE(traffic.seed());
  const std::vector<std::string> through = {"--cell=cell-a", "--redis=" + redis.url()};
  Leaf leaf(through);
  Relay relay(through, engines);
  traffic.Submit(30);
  leaf.ExpectExact(prompts, engines);
  {
    SCOPED_TRACE("the leaf");
    leaf.Kill();
    traffic.Submit(30);
    leaf.Start();
    leaf.ExpectExact(prompts, engines);
  }
  {
    SCOPED_TRACE("redis, which comes back empty");
    redis.Kill();
    traffic.Submit(30);
    redis.Start();
    leaf.ExpectExact(prompts, engines);
  }
  {
    SCOPED_TRACE("the relay");
    relay.Kill();
    traffic.Submit(30);
    relay.Start();
    leaf.ExpectExact(prompts, engines);
  }
}

// Engines keep too little to tell a new relay all that they hold, though more than they say at once: what rolls over unsent is
// a gap too.
TEST(RelayProcessesTest, WhatTheRelayMissedForGoodTheLeafDoubts) {
  MockEngine engine("engine", 64);
  const std::vector<Prompt> prompts = Prompts();
  Traffic traffic(prompts, {&engine});
  SCOPED_TRACE(traffic.seed());
  Leaf leaf;
  Relay relay(leaf, {&engine});
  engine.Submit(prompts[0]);
  leaf.ExpectExact(prompts, {&engine});
  // A leaf that forgot needs no replay by the engine: the relay remembers.
  leaf.Kill();
  traffic.Submit(10);
  leaf.Start();
  leaf.ExpectExact(prompts, {&engine});
  // A relay that forgot does.
  relay.Kill();
  traffic.Submit(200);
  relay.Start();
  EXPECT_TRUE(Eventually([&] { return leaf.TrustOf("engine") == v1::TRUST_DEGRADED; }));
  for (int round = 0; round < 5; ++round) {
    // When this is found, all that came before was heard.
    const Prompt marker = {SequenceHash{7000 + static_cast<uint64_t>(round)}};
    engine.Submit(marker);
    EXPECT_TRUE(Eventually([&] { return leaf.Blocks(marker).contains("engine"); }));
    EXPECT_EQ(leaf.TrustOf("engine"), v1::TRUST_DEGRADED);
    traffic.Submit(5);
  }
  // So does one that is asked anew.
  leaf.Kill();
  leaf.Start();
  EXPECT_TRUE(Eventually([&] { return leaf.TrustOf("engine") == v1::TRUST_DEGRADED; }));
}

}  // namespace
}  // namespace kvatlas
