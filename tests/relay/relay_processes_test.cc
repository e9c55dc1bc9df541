// Engines that know nothing of kvatlas, a relay and a leaf as real processes, killed in turn: the
// leaf says what the engines really have, or that it is not sure.

#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "indexer/base/address.h"
#include "indexer/base/await.h"
#include "indexer/base/ids.h"
#include "indexer/net/grpc_channel.h"
#include "proto/kvatlas/v1/leaf.grpc.pb.h"
#include "tools/bench/service_bench_http.h"
#include "tools/testing/cluster/process.h"
#include "tools/testing/mock_engine/mock_engine_test_util.h"
#include "tools/testing/mock_engine/mock_tokens.h"
#include "tools/testing/servers/redis_test_server.h"

namespace kvatlas {
namespace {

// Blocks by worker; who has none is not in it.
using Overlaps = std::map<std::string, uint32_t>;

// Batches that an engine can replay.
const std::vector<std::string> kFarWindow = {"--zmq_window=10000"};

bool Eventually(const std::function<bool()>& condition) { return Await(condition, kMockWait); }

class Leaf {
 public:
  explicit Leaf(const std::vector<std::string>& more = {})
      : process_(MockProcess("leaf", "indexer/leaf/kvatlas-leaf",
                             {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0"}, more)) {
    Start();
  }
  void Start() {
    const absl::Status started = process_.Start(kMockWait);
    EXPECT_TRUE(started.ok()) << started;
    stub_ = v1::Leaf::NewStub(MakeChannel(process_.address("grpc")));
  }
  void Kill() { process_.Kill(); }
  std::string grpc() const { return process_.address("grpc"); }

  v1::FindOverlapsResponse Ask(const MockPrompt& prompt) {
    v1::FindOverlapsRequest request;
    request.mutable_domain()->set_model("mock");
    request.set_all_workers(true);
    for (const TokenId token : MockTokens(prompt, kMockBlockSize))
      request.mutable_tokens()->add_ids(token);
    grpc::ClientContext context;
    v1::FindOverlapsResponse response;
    if (!stub_->FindOverlaps(&context, request, &response).ok()) return {};
    return response;
  }
  Overlaps Blocks(const MockPrompt& prompt) {
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
  void ExpectExact(const std::vector<MockPrompt>& prompts,
                   const std::vector<MockEngine*>& engines) {
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
      : process_(MockProcess("relay", "publisher/kvatlas-relay",
                             {"--http=127.0.0.1:0", "--model_name=mock", "--block_size=16",
                              "--workers=" + Workers(engines),
                              "--min_initial_workers=" + std::to_string(engines.size())},
                             told)) {
    Start();
  }
  void Start() {
    const absl::Status started = process_.Start(kMockWait);
    EXPECT_TRUE(started.ok()) << started;
  }
  void Kill() { process_.Kill(); }
  void Terminate() { process_.Stop(kMockWait); }
  HttpAnswer Get(const std::string& path) {
    HttpClient http(*Address::Parse(process_.address("http")));
    const absl::StatusOr<HttpAnswer> answer = http.Get(path);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? *answer : HttpAnswer();
  }

 private:
  static std::string Workers(const std::vector<MockEngine*>& engines) {
    std::string flag;
    for (const MockEngine* engine : engines)
      flag += (flag.empty() ? "" : ",") + engine->name() + "=" + engine->events() +
              ";replay=" + engine->replay();
    return flag;
  }
  Process process_;
};

TEST(RelayProcessesTest, WhoeverIsKilledTheLeafIsExactAgain) {
  MockEngine first("first", kFarWindow), second("second", kFarWindow);
  const std::vector<MockEngine*> engines = {&first, &second};
  const std::vector<MockPrompt> prompts = MockPrompts();
  MockTraffic traffic(prompts, engines);
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
  MockEngine first("first", kFarWindow), second("second", kFarWindow);
  const std::vector<MockEngine*> engines = {&first, &second};
  const std::vector<MockPrompt> prompts = MockPrompts();
  MockTraffic traffic(prompts, engines);
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

// Engines keep too little to tell a new relay all that they hold, though more than they say at
// once: what rolls over unsent is a gap too.
TEST(RelayProcessesTest, WhatTheRelayMissedForGoodTheLeafDoubts) {
  MockEngine engine("engine", {"--zmq_window=64"});
  const std::vector<MockPrompt> prompts = MockPrompts();
  MockTraffic traffic(prompts, {&engine});
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
    const MockPrompt marker = {SequenceHash{7000 + static_cast<uint64_t>(round)}};
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
