// Mock engines feed a leaf as engines do that know nothing of it: by vLLM's events over ZeroMQ.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "indexer/base/address.h"
#include "indexer/base/await.h"
#include "tools/bench/service_bench_http.h"
#include "tools/bench/service_bench_query.h"
#include "tools/testing/cluster/process.h"
#include "tools/testing/mock_engine/mock_engine_test_util.h"
#include "tools/testing/mock_engine/mock_tokens.h"

namespace kvatlas {
namespace {

// Of an engine that can replay its last few batches.
const std::vector<std::string> kForgetful = {"--zmq_window=16"};

class Leaf {
 public:
  explicit Leaf(const std::string& name, const std::vector<std::string>& more = {})
      : process_(MockProcess(name, "indexer/leaf/kvatlas-leaf",
                             {"--grpc=127.0.0.1:0", "--http=127.0.0.1:0"}, more)) {
    Start();
  }

  void Start() {
    const absl::Status started = process_.Start(kMockWait);
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

  std::string Detail(const MockPrompt& prompt) {
    const auto answer = http_->Post(
        "/query?detail=1", QueryBody(MockTokens(prompt, kMockBlockSize), /*model=*/"mock"));
    return answer.ok() ? answer->body : std::string(answer.status().message());
  }

  Scores Ask(const MockPrompt& prompt) {
    const auto answer =
        http_->Post("/query", QueryBody(MockTokens(prompt, kMockBlockSize), /*model=*/"mock"));
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
  Scores TryAsk(const MockPrompt& prompt) {
    const auto answer =
        http_->Post("/query", QueryBody(MockTokens(prompt, kMockBlockSize), /*model=*/"mock"));
    if (!answer.ok() || answer->status != 200) return {};
    return *ScoresIn(*answer);
  }

  // What the leaf says becomes what the engines have, for every prompt, and stays so. While a
  // replay runs a prompt may be right for a moment, as it was in the past: all must be, twice.
  void ExpectExact(const std::vector<MockPrompt>& prompts,
                   const std::vector<MockEngine*>& engines) {
    std::vector<Scores> truth;
    for (const MockPrompt& prompt : prompts) truth.push_back(Truth(prompt, engines));
    int equal = 0;
    const auto all_equal_twice = [&] {
      size_t p = 0;
      while (p < prompts.size() && TryAsk(prompts[p]) == truth[p]) ++p;
      equal = p == prompts.size() ? equal + 1 : 0;
      return equal == 2;
    };
    Await(all_equal_twice, kMockWait);
    for (size_t p = 0; p < prompts.size(); ++p)
      EXPECT_EQ(Ask(prompts[p]), truth[p]) << "prompt " << p;
  }

  // Engine e is instance e + 1.
  static Scores Truth(const MockPrompt& prompt, const std::vector<MockEngine*>& engines) {
    Scores truth;
    for (size_t e = 0; e < engines.size(); ++e) {
      const uint64_t tokens = uint64_t{engines[e]->Held(prompt)} * kMockBlockSize;
      if (tokens > 0) truth[std::to_string(e + 1)] = tokens;
    }
    return truth;
  }

 private:
  Process process_;
  std::unique_ptr<HttpClient> http_;
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

// Each engine says something, and the leaf has heard it: from then on it misses nothing that is
// said.
void WaitUntilHeard(Leaf* leaf, const std::vector<MockEngine*>& engines) {
  for (size_t e = 0; e < engines.size(); ++e) {
    const MockPrompt first = {SequenceHash{9000 + e}};
    engines[e]->Submit(first);
    EXPECT_TRUE(
        Await([&] { return leaf->TryAsk(first).contains(std::to_string(e + 1)); }, kMockWait));
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
  MockEngine maps("maps");
  MockEngine arrays("arrays", {"--zmq_legacy"});
  const std::vector<MockPrompt> prompts = MockPrompts();
  MockTraffic traffic(prompts, {&maps, &arrays});
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
  const std::vector<MockPrompt> prompts = MockPrompts();
  auto engine = std::make_unique<MockEngine>("first");
  leaf.Register(1, *engine);
  for (int p = 0; p < 4; ++p) engine->Submit(prompts[p]);
  leaf.ExpectExact(prompts, {engine.get()});
  const std::string events = engine->events();
  const std::string replay = engine->replay();
  engine->Kill();
  engine = std::make_unique<MockEngine>("second", std::vector<std::string>(), events, replay);
  engine->Submit(prompts[9]);
  engine->Submit(prompts[10]);
  leaf.ExpectExact(prompts, {engine.get()});
}

// kill -9, with windows that reach back.
TEST(MockEngineZmqTest, AKilledLeafIsExactAgainByReplay) {
  MockEngine first("first");
  MockEngine second("second");
  const std::vector<MockPrompt> prompts = MockPrompts();
  MockTraffic traffic(prompts, {&first, &second});
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
  MockEngine first("first", kForgetful);
  MockEngine second("second", kForgetful);
  const std::vector<MockPrompt> prompts = MockPrompts();
  MockTraffic traffic(prompts, {&first, &second});
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
  MockEngine engine("engine", kForgetful);
  const std::vector<MockPrompt> prompts = MockPrompts();
  MockTraffic traffic(prompts, {&engine});
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
    const MockPrompt marker = {SequenceHash{7000 + round}};
    engine.Submit(marker);
    EXPECT_TRUE(Await([&] { return !leaf.TryAsk(marker).empty(); }, kMockWait));
    EXPECT_THAT(leaf.Detail(marker), ::testing::HasSubstr("\"trust\":\"degraded\""));
    for (const MockPrompt& prompt : prompts) {
      const uint64_t held = uint64_t{engine.Held(prompt)} * kMockBlockSize;
      const Scores promised = leaf.TryAsk(prompt);
      EXPECT_LE(promised.contains("1") ? promised.at("1") : 0, held);
    }
  }
}

}  // namespace
}  // namespace kvatlas
