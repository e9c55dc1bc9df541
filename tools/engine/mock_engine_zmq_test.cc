// Mock engines feed a leaf as engines do that know nothing of it: by vLLM's events over ZeroMQ.

#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "indexer/base/await.h"
#include "indexer/base/test_seed.h"
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
constexpr std::chrono::seconds kLong(60);
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

// Of an engine that can replay its last few batches.
std::vector<std::string> ForgetfulArgs() {
  std::vector<std::string> args = FreshArgs();
  args.push_back("--zmq_window=16");
  return args;
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

class Leaf {
 public:
  explicit Leaf(const std::string& name, std::vector<std::string> args = {})
      : process_({.name = name,
                  .binary = "indexer/leaf/kvatlas-leaf",
                  .args = WithAddresses(std::move(args)),
                  .log = LogOf(name)}) {
    Start();
  }

  void Start() {
    const absl::Status started = process_.Start(kLong);
    EXPECT_TRUE(started.ok()) << started;
    http_ = std::make_unique<HttpClient>(*Address::Parse(process_.address("http")));
  }
  void Kill() { process_.Kill(); }

  std::string url() const { return "http://" + process_.address("http"); }

  void Register(int instance, const MockEngine& engine) {
    const auto answer = http_->Post(
        "/register", "{\"instance_id\":" + std::to_string(instance) + ",\"endpoint\":\"" +
                         engine.events() + "\",\"replay_endpoint\":\"" + engine.replay() +
                         "\",\"model_name\":\"mock\",\"block_size\":16}");
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_EQ(answer->status, 201) << answer->body;
  }

  std::string Detail(const Prompt& prompt) {
    const auto answer =
        http_->Post("/query?detail=1", QueryBody(MockTokens(prompt, kBlockSize), /*model=*/"mock"));
    return answer.ok() ? answer->body : std::string(answer.status().message());
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

  // Empty while the leaf cannot answer yet.
  Scores TryAsk(const Prompt& prompt) {
    const auto answer =
        http_->Post("/query", QueryBody(MockTokens(prompt, kBlockSize), /*model=*/"mock"));
    if (!answer.ok() || answer->status != 200) return {};
    return *ScoresIn(*answer);
  }

  // What the leaf says becomes what the engines have, for every prompt, and stays so. While a replay runs a prompt may
  // be right for a moment, as it was in the past: all must be, twice.
  void ExpectExact(const std::vector<Prompt>& prompts, const std::vector<MockEngine*>& engines) {
    std::vector<Scores> truth;
    for (const Prompt& prompt : prompts) truth.push_back(Truth(prompt, engines));
    int equal = 0;
    const auto all_equal_twice = [&] {
      size_t p = 0;
      while (p < prompts.size() && TryAsk(prompts[p]) == truth[p]) ++p;
      equal = p == prompts.size() ? equal + 1 : 0;
      return equal == 2;
    };
    Await(all_equal_twice, kLong);
    for (size_t p = 0; p < prompts.size(); ++p)
      EXPECT_EQ(Ask(prompts[p]), truth[p]) << "prompt " << p;
  }

  // Engine e is instance e + 1.
  static Scores Truth(const Prompt& prompt, const std::vector<MockEngine*>& engines) {
    Scores truth;
    for (size_t e = 0; e < engines.size(); ++e) {
      const uint64_t tokens = engines[e]->CachedTokens(prompt);
      if (tokens > 0) truth[std::to_string(e + 1)] = tokens;
    }
    return truth;
  }

 private:
  static std::vector<std::string> WithAddresses(std::vector<std::string> args) {
    args.insert(args.end(),
                {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0", "--exit_with_parent=true"});
    return args;
  }

  Process process_;
  std::unique_ptr<HttpClient> http_;
};

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

// How long it took is recorded, not judged.
class Stopwatch {
 public:
  explicit Stopwatch(std::string what) : what_(std::move(what)) {}
  ~Stopwatch() {
    const auto ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(Clock::Real().Now() - start_);
    std::printf("%s after %lld ms\n", what_.c_str(), static_cast<long long>(ms.count()));
    ::testing::Test::RecordProperty("ms", std::to_string(ms.count()));
  }

 private:
  const std::string what_;
  const Time start_ = Clock::Real().Now();
};

// Each engine says something, and the leaf has heard it: from then on it misses nothing that is said.
void WaitUntilHeard(Leaf* leaf, const std::vector<MockEngine*>& engines) {
  for (size_t e = 0; e < engines.size(); ++e) {
    const Prompt first = {SequenceHash{9000 + e}};
    engines[e]->Submit(first);
    EXPECT_TRUE(Await([&] { return leaf->TryAsk(first).contains(std::to_string(e + 1)); }, kLong));
  }
}

std::string WorkerFlag(const std::vector<MockEngine*>& engines) {
  std::string flag = "--workers=";
  for (size_t e = 0; e < engines.size(); ++e)
    flag += (e == 0 ? "" : ",") + std::to_string(e + 1) + "=" + engines[e]->events() +
            ";replay=" + engines[e]->replay();
  return flag;
}

TEST(MockEngineZmqTest, TheLeafKnowsExactlyWhatEnginesThatEvictHave) {
  Leaf leaf("leaf");
  std::vector<std::string> legacy = FreshArgs();
  legacy.push_back("--zmq_legacy");
  MockEngine maps("maps", FreshArgs());
  MockEngine arrays("arrays", legacy);
  const std::vector<Prompt> prompts = Prompts();
  Traffic traffic(prompts, {&maps, &arrays});
  SCOPED_TRACE(traffic.seed());
  // The first ones are said before anybody listens, and replayed.
  traffic.Submit(40);
  leaf.Register(1, maps);
  leaf.Register(2, arrays);
  traffic.Submit(40);
  leaf.ExpectExact(prompts, {&maps, &arrays});
  traffic.Submit(40);
  leaf.ExpectExact(prompts, {&maps, &arrays});
}

TEST(MockEngineZmqTest, AnEngineThatStartsAnewHasWhatItHasNow) {
  Leaf leaf("leaf");
  const std::vector<Prompt> prompts = Prompts();
  auto engine = std::make_unique<MockEngine>("first", FreshArgs());
  leaf.Register(1, *engine);
  for (int p = 0; p < 4; ++p) engine->Submit(prompts[p]);
  leaf.ExpectExact(prompts, {engine.get()});
  const std::string events = engine->events();
  const std::string replay = engine->replay();
  engine->Kill();
  engine = std::make_unique<MockEngine>("second", EngineArgs(events, replay));
  engine->Submit(prompts[9]);
  engine->Submit(prompts[10]);
  leaf.ExpectExact(prompts, {engine.get()});
}

// kill -9, with windows that reach back.
TEST(MockEngineZmqTest, AKilledLeafIsExactAgainByReplay) {
  MockEngine first("first", FreshArgs());
  MockEngine second("second", FreshArgs());
  const std::vector<Prompt> prompts = Prompts();
  Traffic traffic(prompts, {&first, &second});
  SCOPED_TRACE(traffic.seed());
  Leaf leaf("leaf", {WorkerFlag({&first, &second}), "--model_name=mock", "--block_size=16"});
  traffic.Submit(60);
  leaf.ExpectExact(prompts, {&first, &second});
  leaf.Kill();
  traffic.Submit(60);
  const Stopwatch stopwatch("exact by replay");
  leaf.Start();
  traffic.Submit(5);
  leaf.ExpectExact(prompts, {&first, &second});
}

// kill -9, with a replica alive; the engines keep so little that they cannot help.
TEST(MockEngineZmqTest, AKilledLeafIsExactAgainFromAPeer) {
  MockEngine first("first", ForgetfulArgs());
  MockEngine second("second", ForgetfulArgs());
  const std::vector<Prompt> prompts = Prompts();
  Traffic traffic(prompts, {&first, &second});
  SCOPED_TRACE(traffic.seed());
  Leaf peer("peer",
            {WorkerFlag({&first, &second}), "--model_name=mock", "--block_size=16", "--replica=a"});
  WaitUntilHeard(&peer, {&first, &second});
  Leaf leaf("leaf", {"--replica=b", "--peers=" + peer.url()});
  WaitUntilHeard(&leaf, {&first, &second});
  traffic.Submit(60);
  peer.ExpectExact(prompts, {&first, &second});
  leaf.ExpectExact(prompts, {&first, &second});
  leaf.Kill();
  traffic.Submit(60);
  peer.ExpectExact(prompts, {&first, &second});
  const Stopwatch stopwatch("exact from a peer");
  leaf.Start();
  traffic.Submit(5);
  leaf.ExpectExact(prompts, {&first, &second});
}

// kill -9, no replica to ask, and windows that have rolled over.
TEST(MockEngineZmqTest, ALeafThatMissedTooMuchSaysSoAndNeverPromisesTooMuch) {
  MockEngine engine("engine", ForgetfulArgs());
  const std::vector<Prompt> prompts = Prompts();
  Traffic traffic(prompts, {&engine});
  SCOPED_TRACE(traffic.seed());
  Leaf leaf("leaf", {WorkerFlag({&engine}), "--model_name=mock", "--block_size=16",
                     "--repair_timeout=200ms", "--replay_timeout=200ms"});
  WaitUntilHeard(&leaf, {&engine});
  traffic.Submit(60);
  leaf.Kill();
  traffic.Submit(60);
  leaf.Start();
  for (uint64_t round = 0; round < 5; ++round) {
    traffic.Submit(10);
    // When this is found, all that came before was heard.
    const Prompt marker = {SequenceHash{7000 + round}};
    engine.Submit(marker);
    EXPECT_TRUE(Await([&] { return !leaf.TryAsk(marker).empty(); }, kLong));
    EXPECT_THAT(leaf.Detail(marker), ::testing::HasSubstr("\"trust\":\"degraded\""));
    for (const Prompt& prompt : prompts) {
      const uint64_t held = engine.CachedTokens(prompt);
      const Scores promised = leaf.TryAsk(prompt);
      EXPECT_LE(promised.contains("1") ? promised.at("1") : 0, held);
    }
  }
}

}  // namespace
}  // namespace kvatlas
