// Engines that dial a socket of the leaf: each is what it is at a socket of its own.

#include "indexer/engine_directory/dialed_workers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "indexer/base/await.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"
#include "indexer/engine_directory/pool_engine_test_util.h"
#include "indexer/kv_events/zmq_ingest.h"
#include "indexer/registry/holder_registry.h"
#include "tools/testing/servers/reserved_test_ports.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

constexpr auto kLong = std::chrono::minutes(1);

EngineRegistration OfAll() {
  EngineRegistration of_all;
  of_all.block_size = 4;
  return of_all;
}

std::string Of(const std::string& entry, const std::string& topic, uint32_t rank = 0) {
  const absl::StatusOr<DialedEntry> parsed = DialedEntry::Parse(entry, OfAll());
  if (!parsed.ok()) return std::string(parsed.status().message());
  const absl::StatusOr<EngineRegistration> worker = parsed->Of(rank, topic);
  if (!worker.ok()) return std::string(worker.status().message());
  return worker->instance + "/" + std::to_string(worker->rank) + " " + worker->model + " " +
         worker->endpoint + " " + worker->url;
}

// Forms of llm-d's guides, by their versions.
TEST(DialedEntryTest, ATopicNamesAPodAndItsModel) {
  const std::string entry = "kv@=tcp://0.0.0.0:5557";
  EXPECT_EQ(Of(entry, "kv@10.0.0.7:8200@org/llama"),
            "10.0.0.7:8200/0 org/llama tcp://0.0.0.0:5557 http://10.0.0.7:8200");
  EXPECT_EQ(Of(entry, "kv@10.0.0.7@m"), "10.0.0.7/0 m tcp://0.0.0.0:5557 http://10.0.0.7:8000");
  EXPECT_EQ(Of(entry, "kv@fd00::7@m"), "fd00::7/0 m tcp://0.0.0.0:5557 http://[fd00::7]:8000");
  EXPECT_EQ(Of(entry, "kv@vllm-0@m"), "vllm-0/0 m tcp://0.0.0.0:5557 ");
  EXPECT_EQ(Of(entry + ";ranks=2;http=9000;model=x", "kv@10.0.0.7@m", 1),
            "10.0.0.7/1 x tcp://0.0.0.0:5558 http://10.0.0.7:9000");
  EXPECT_THAT(Of(entry, "kv@pod"), HasSubstr("names no model"));
  EXPECT_THAT(Of(entry, "kv@@m"), HasSubstr("no kv@POD@MODEL"));
  EXPECT_THAT(Of(entry, "x@pod@m"), HasSubstr("no kv@POD@MODEL"));
}

TEST(DialedEntryTest, WhatIsWrongIsNamed) {
  for (const char* bad :
       {"kv@=ipc:///tmp/x", "kv@=tcp://0.0.0.0:0", "kv@=tcp://0.0.0.0:65535;ranks=2"})
    EXPECT_THAT(Of(bad, ""), HasSubstr("to listen on")) << bad;
  for (const char* bad : {"ranks=0", "http=x", "model="})
    EXPECT_THAT(Of(std::string("kv@=tcp://0.0.0.0:1;") + bad, ""), HasSubstr(bad));
  EXPECT_THAT(Of("kv@=tcp://0.0.0.0:1;no_such=1", ""), HasSubstr("is no option of a worker"));
}

class DialedWorkersTest : public ::testing::Test {
 protected:
  DialedWorkersTest() : registry_(Registry()) {
    const absl::StatusOr<DialedEntry> entry =
        DialedEntry::Parse("kv@=" + endpoint_ + ";http=8000", OfAll());
    EXPECT_TRUE(entry.ok()) << entry.status();
    ZmqIngestOptions options;
    options.shared = {topics_.Socket(endpoint_)};
    ingest_ = std::make_unique<ZmqIngest>(options);
    EXPECT_TRUE(ingest_->status().ok()) << ingest_->status();
    directory_ =
        std::make_unique<EngineDirectory>(EngineDirectoryOptions{}, &registry_, ingest_.get());
    directory_->Open();
    workers_ = std::make_unique<DialedWorkers>(std::vector<DialedEntry>{*entry}, &topics_,
                                               directory_.get(), &clock_);
  }
  ~DialedWorkersTest() override { workers_.reset(); }
  static HolderRegistryOptions Registry() {
    HolderRegistryOptions options;
    options.contract_id = HashContract().Id();
    return options;
  }
  std::unique_ptr<PoolEngine> Engine(const std::string& pod, uint64_t seed) {
    return std::make_unique<PoolEngine>(
        PoolEngineOptions{.seed = seed, .dial = endpoint_, .topic = "kv@" + pod + "@m"});
  }
  bool IsExact(const PoolEngine& engine, const std::string& instance) {
    return Eventually([&] {
      directory_->Tick();
      return engine.Compare(registry_, instance).empty();
    });
  }
  Trust TrustOf(const std::string& instance) {
    const auto stats = registry_.StatsOf({"m", ""});
    EXPECT_TRUE(stats.ok()) << stats.status();
    for (const HolderStats& holder : stats->holders)
      if (holder.holder->id.name == instance) return holder.trust;
    return Trust::kStale;
  }
  std::vector<std::string> Known() {
    std::vector<std::string> known;
    for (const EngineEntry& entry : directory_->List()) known.push_back(entry.instance);
    return known;
  }

  ReservedTestPorts ports_;
  const std::string endpoint_ = "tcp://" + ports_.HoldAny().ToString();
  ManualClock clock_;
  DialedTopics topics_;
  HolderRegistry registry_;
  std::unique_ptr<ZmqIngest> ingest_;
  std::unique_ptr<EngineDirectory> directory_;
  std::unique_ptr<DialedWorkers> workers_;
};

TEST_F(DialedWorkersTest, EachPodThatDialsInHasItsOwnBlocks) {
  const auto a = Engine("10.0.0.1:8000", 1), b = Engine("10.0.0.2:8000", 2);
  for (PoolEngine* engine : {a.get(), b.get()}) engine->sockets().WaitForSubscribers();
  for (int i = 0; i < 5; ++i) {
    a->Run(20);
    b->Run(20);
  }
  EXPECT_TRUE(IsExact(*a, "10.0.0.1:8000")) << a->Compare(registry_, "10.0.0.1:8000");
  EXPECT_TRUE(IsExact(*b, "10.0.0.2:8000")) << b->Compare(registry_, "10.0.0.2:8000");
  EXPECT_THAT(Known(), UnorderedElementsAre("10.0.0.1:8000", "10.0.0.2:8000"));
  EXPECT_EQ(directory_->List()[0].url, "http://10.0.0.1:8000");
}

// There is no replay: what is held of it is not promised any more than it can be, and the other
// pod's is.
TEST_F(DialedWorkersTest, WhatAPodLosesMakesItsOwnAnswersDoubtful) {
  const auto a = Engine("a", 1), b = Engine("b", 2);
  for (PoolEngine* engine : {a.get(), b.get()}) {
    engine->sockets().WaitForSubscribers();
    engine->Run(20);
  }
  EXPECT_TRUE(IsExact(*a, "a") && IsExact(*b, "b"));
  a->Run(20, /*lost=*/true);
  a->Run(1);
  b->Run(1);
  EXPECT_TRUE(Eventually([&] { return TrustOf("a") == Trust::kDegraded; }));
  EXPECT_EQ(TrustOf("b"), Trust::kExact);
  EXPECT_TRUE(IsExact(*b, "b"));
}

TEST_F(DialedWorkersTest, APodThatStartsAgainIsNewAndOneThatIsGoneIsForgotten) {
  auto a = Engine("a", 1);
  const auto b = Engine("b", 2);
  for (PoolEngine* engine : {a.get(), b.get()}) {
    engine->sockets().WaitForSubscribers();
    engine->Run(50);
  }
  EXPECT_TRUE(IsExact(*a, "a") && IsExact(*b, "b"));
  a = Engine("a", 3);
  a->sockets().WaitForSubscribers();
  a->Run(10);
  EXPECT_TRUE(IsExact(*a, "a")) << a->Compare(registry_, "a");
  a.reset();
  EXPECT_TRUE(Await(
      [&] {
        clock_.Advance(DialedWorkers::kForgetAfter);
        topics_.Socket(endpoint_).on_topic("", "");  // it looks again
        return Known() == std::vector<std::string>{"b"};
      },
      kLong));
  EXPECT_TRUE(IsExact(*b, "b"));
}

TEST_F(DialedWorkersTest, TopicsOfOthersAreNoWorkers) {
  const auto other = std::make_unique<PoolEngine>(
      PoolEngineOptions{.seed = 1, .dial = endpoint_, .topic = "kv@without-a-model"});
  const auto a = Engine("a", 2);
  for (PoolEngine* engine : {other.get(), a.get()}) {
    engine->sockets().WaitForSubscribers();
    engine->Run(5);
  }
  EXPECT_TRUE(IsExact(*a, "a"));
  EXPECT_THAT(Known(), ElementsAre("a"));
}

}  // namespace
}  // namespace kvatlas
