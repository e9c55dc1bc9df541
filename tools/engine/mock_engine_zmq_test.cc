// Mock engines feed a leaf as engines do that know nothing of it: by vLLM's events over ZeroMQ.

#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "indexer/service/address.h"
#include "indexer/service/grpc_channel.h"
#include "tools/bench/service_bench_http.h"
#include "tools/bench/service_bench_query.h"
#include "tools/cluster/process.h"
#include "tools/engine/engine.grpc.pb.h"
#include "tools/engine/engine_model.h"
#include "tools/engine/mock_tokens.h"

namespace kvatlas {
namespace {

namespace ev1 = engine::v1;

constexpr uint32_t kBlockSize = 16;
constexpr std::chrono::seconds kLong(30);
using Prompt = std::vector<SequenceHash>;

std::string LogOf(const std::string& name) { return ::testing::TempDir() + "/" + name + ".log"; }

class MockEngine {
 public:
  MockEngine(const std::string& name, std::vector<std::string> args)
      : process_({.name = name,
                  .binary = "tools/engine/mock_engine",
                  .args = std::move(args),
                  .log = LogOf(name)}) {
    const absl::Status started = process_.Start(kLong);
    EXPECT_TRUE(started.ok()) << started;
    stub_ = ev1::Engine::NewStub(MakeChannel(process_.address("grpc")));
  }

  std::string events() const { return "tcp://" + process_.address("zmq_events"); }
  std::string replay() const { return "tcp://" + process_.address("zmq_replay"); }

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

  uint64_t CachedTokens(const Prompt& prompt) {
    grpc::ClientContext context;
    ev1::ContentsResponse response;
    EXPECT_TRUE(stub_->Contents(&context, {}, &response).ok());
    const std::set<uint64_t> held(response.blocks().begin(), response.blocks().end());
    uint64_t blocks = 0;
    while (blocks < prompt.size() && held.contains(Raw(prompt[blocks]))) ++blocks;
    return blocks * kBlockSize;
  }

  void Kill() { process_.Kill(); }

 private:
  Process process_;
  std::unique_ptr<ev1::Engine::Stub> stub_;
  uint64_t requests_ = 0;
};

std::vector<std::string> EngineArgs(const std::string& events, const std::string& replay) {
  return {"--grpc=127.0.0.1:0",      "--zmq_events=" + events, "--zmq_replay=" + replay,
          "--zmq_attach=bind",       "--capacity=60",          "--block_size=16",
          "--exit_with_parent=true", "--zmq_topic=kv@pod@mock"};
}

std::vector<std::string> FreshArgs() {
  return EngineArgs("tcp://127.0.0.1:0", "tcp://127.0.0.1:0");
}

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

class MockEngineZmqTest : public ::testing::Test {
 protected:
  MockEngineZmqTest()
      : leaf_({.name = "leaf",
               .binary = "indexer/leaf/kvatlas-leaf",
               .args = {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0", "--exit_with_parent=true"},
               .log = LogOf("leaf")}) {
    const absl::Status started = leaf_.Start(kLong);
    EXPECT_TRUE(started.ok()) << started;
    http_ = std::make_unique<HttpClient>(*Address::Parse(leaf_.address("http")));
  }

  void Register(int instance, const MockEngine& engine) {
    const auto answer = http_->Post(
        "/register", "{\"instance_id\":" + std::to_string(instance) + ",\"endpoint\":\"" +
                         engine.events() + "\",\"replay_endpoint\":\"" + engine.replay() +
                         "\",\"model_name\":\"mock\",\"block_size\":16}");
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->status, 201) << answer->body;
  }

  Scores Ask(const Prompt& prompt) {
    const auto answer =
        http_->Post("/query", QueryBody(MockTokens(prompt, kBlockSize), /*model=*/"mock"));
    EXPECT_TRUE(answer.ok()) << answer.status();
    if (!answer.ok()) return {};
    const absl::StatusOr<Scores> scores = ScoresIn(*answer);
    EXPECT_TRUE(scores.ok()) << scores.status();
    Scores held;
    for (const auto& [instance, tokens] : scores.ok() ? *scores : Scores()) {
      if (tokens > 0) held[instance] = tokens;
    }
    return held;
  }

  // What the leaf says becomes what the engines have, and then for every prompt.
  void ExpectExact(const std::vector<Prompt>& prompts, const std::vector<MockEngine*>& engines) {
    for (size_t p = 0; p < prompts.size(); ++p) {
      Scores truth;
      for (size_t e = 0; e < engines.size(); ++e) {
        const uint64_t tokens = engines[e]->CachedTokens(prompts[p]);
        if (tokens > 0) truth[std::to_string(e + 1)] = tokens;
      }
      const Time until = Clock::Real().Now() + kLong;
      while (Ask(prompts[p]) != truth && Clock::Real().Now() < until) std::this_thread::yield();
      EXPECT_EQ(Ask(prompts[p]), truth) << "prompt " << p;
    }
  }

  Process leaf_;
  std::unique_ptr<HttpClient> http_;
};

TEST_F(MockEngineZmqTest, TheLeafKnowsExactlyWhatEnginesThatEvictHave) {
  std::vector<std::string> legacy = FreshArgs();
  legacy.push_back("--zmq_legacy");
  MockEngine maps("maps", FreshArgs());
  MockEngine arrays("arrays", legacy);
  const std::vector<Prompt> prompts = Prompts();
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  // The first ones are said before anybody listens, and replayed.
  const auto submit = [&] {
    for (int i = 0; i < 40; ++i) {
      (random() % 2 == 0 ? maps : arrays).Submit(prompts[random() % prompts.size()]);
    }
  };
  submit();
  Register(1, maps);
  Register(2, arrays);
  submit();
  ExpectExact(prompts, {&maps, &arrays});
  submit();
  ExpectExact(prompts, {&maps, &arrays});
}

TEST_F(MockEngineZmqTest, AnEngineThatStartsAnewHasWhatItHasNow) {
  const std::vector<Prompt> prompts = Prompts();
  auto engine = std::make_unique<MockEngine>("first", FreshArgs());
  Register(1, *engine);
  for (int p = 0; p < 4; ++p) engine->Submit(prompts[p]);
  ExpectExact(prompts, {engine.get()});
  const std::string events = engine->events();
  const std::string replay = engine->replay();
  engine->Kill();
  engine = std::make_unique<MockEngine>("second", EngineArgs(events, replay));
  engine->Submit(prompts[9]);
  engine->Submit(prompts[10]);
  ExpectExact(prompts, {engine.get()});
}

}  // namespace
}  // namespace kvatlas
