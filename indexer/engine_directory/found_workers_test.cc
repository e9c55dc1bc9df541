// Engines found as pods: over a real watch of an API server of the test's own.

#include "indexer/engine_directory/found_workers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include "indexer/base/await.h"
#include "indexer/net/http_server.h"
#include "tools/testing/servers/k8s_test_server.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr auto kLong = std::chrono::minutes(1);

EngineRegistration OfAll() {
  EngineRegistration of_all;
  of_all.model = "m";
  of_all.block_size = 16;
  return of_all;
}

std::vector<std::string> TextsOf(const std::vector<EngineRegistration>& workers) {
  std::vector<std::string> texts;
  for (const EngineRegistration& one : workers) {
    texts.push_back(one.instance + "/" + std::to_string(one.rank) + " " + one.model + " " +
                    one.endpoint + " " + one.replay_endpoint + " " + one.url);
  }
  return texts;
}

std::vector<std::string> Of(const std::string& entry, const std::string& address = "10.0.0.7") {
  const absl::StatusOr<PodWorkers> workers = PodWorkers::Parse(entry, OfAll());
  if (!workers.ok()) return {std::string(workers.status().message())};
  ServiceRecord pod;
  pod.name = "pod";
  pod.grpc = address;
  return TextsOf(workers->Of(pod));
}

TEST(PodWorkersTest, APodIsAWorkerOfAsManyRanksAsItHasPorts) {
  EXPECT_THAT(Of("k8s:llm/app=vllm"),
              ElementsAre("pod/0 m tcp://10.0.0.7:5557  http://10.0.0.7:8000"));
  EXPECT_THAT(Of("k8s:llm/app=vllm&tier=chat;model=x;http=8000|8001;replay=5657"),
              ElementsAre("pod/0 x tcp://10.0.0.7:5557 tcp://10.0.0.7:5657 http://10.0.0.7:8000",
                          "pod/1 x tcp://10.0.0.7:5558 tcp://10.0.0.7:5658 http://10.0.0.7:8001"));
  EXPECT_THAT(Of("k8s:llm;ranks=2;events=6000", "fd00::1"),
              ElementsAre("pod/0 m tcp://[fd00::1]:6000  http://[fd00::1]:8000",
                          "pod/1 m tcp://[fd00::1]:6001  http://[fd00::1]:8000"));
}

TEST(PodWorkersTest, WhereAnEngineSaysThatItPublishesItIsListenedTo) {
  const auto of = [](const std::string& entry, const SaidSources& said) {
    ServiceRecord pod;
    pod.name = "pod";
    pod.grpc = "10.0.0.7";
    return TextsOf(PodWorkers::Parse(entry, OfAll())->Of(pod, said));
  };
  const KvEventSources two = {{0, {"tcp://*:6000", "tcp://*:7000"}}, {1, {"tcp://*:6001"}}};
  EXPECT_THAT(of("k8s:llm", {{8000, two}}),
              ElementsAre("pod/0 m tcp://10.0.0.7:6000 tcp://10.0.0.7:7000 http://10.0.0.7:8000",
                          "pod/1 m tcp://10.0.0.7:6001  http://10.0.0.7:8000"))
      << "its ranks too";
  EXPECT_THAT(of("k8s:llm;ranks=1;replay=5657", {{8000, two}}),
              ElementsAre("pod/0 m tcp://10.0.0.7:6000 tcp://10.0.0.7:5657 http://10.0.0.7:8000"));
  // Servers of a deployment that count its ranks throughout, and those that do not know of each
  // other.
  EXPECT_THAT(of("k8s:llm;http=8000|8001",
                 {{8000, {{0, {"tcp://*:6000"}}}}, {8001, {{1, {"tcp://*:6001"}}}}}),
              ElementsAre("pod/0 m tcp://10.0.0.7:6000  http://10.0.0.7:8000",
                          "pod/1 m tcp://10.0.0.7:6001  http://10.0.0.7:8001"));
  EXPECT_THAT(of("k8s:llm;http=8000|8001", {{8001, {{0, {"tcp://*:9001"}}}}}),
              ElementsAre("pod/0 m tcp://10.0.0.7:5557  http://10.0.0.7:8000",
                          "pod/1 m tcp://10.0.0.7:9001  http://10.0.0.7:8001"));
  EXPECT_THAT(of("k8s:llm", {{8000, {{0, {"ipc:///tmp/x", "tcp://*:1"}}}}}),
              ElementsAre("pod/0 m tcp://10.0.0.7:5557  http://10.0.0.7:8000"));
}

TEST(PodWorkersTest, OtherOptionsAreThoseOfWorkers) {
  const auto workers =
      PodWorkers::Parse("k8s:llm/app=v;block_size=auto;type=SGLang;hybrid=true", OfAll());
  ASSERT_TRUE(workers.ok()) << workers.status();
  const EngineRegistration one = workers->Of(ServiceRecord())[0];
  EXPECT_EQ(one.block_size, kBlockSizeAuto);
  EXPECT_EQ(one.engine_type, "SGLang");
  EXPECT_TRUE(one.hybrid);
  EXPECT_FALSE(one.from_flags);
}

TEST(PodWorkersTest, WhatIsWrongIsNamed) {
  EXPECT_THAT(Of("k8s:LLM/app=v")[0], HasSubstr("is no NAMESPACE/LABEL=VALUE"));
  EXPECT_THAT(Of("k8s:llm/app")[0], HasSubstr("is no NAMESPACE/LABEL=VALUE"));
  for (const char* bad :
       {"http=", "http=0", "http=8000|x", "http=1|2|3|4|5|6|7|8|9", "events=70000", "ranks=0"})
    EXPECT_THAT(Of(std::string("k8s:llm;") + bad)[0], HasSubstr("is no option of pods")) << bad;
  EXPECT_THAT(Of("k8s:llm;no_such=1")[0], HasSubstr("is no option of a worker"));
  EXPECT_THAT(Of("k8s:llm;model=")[0], HasSubstr("no model"));
  EXPECT_THAT(Of("k8s:llm;ranks=3;http=1|2")[0], HasSubstr("as many ports"));
}

class FoundWorkersTest : public ::testing::Test {
 protected:
  FoundWorkersTest() : registry_(Registry()) {
    ingest_ = std::make_unique<ZmqIngest>(ZmqIngestOptions{});
    directory_ =
        std::make_unique<EngineDirectory>(EngineDirectoryOptions{}, &registry_, ingest_.get());
    directory_->Open();
  }
  static HolderRegistryOptions Registry() {
    HolderRegistryOptions options;
    options.contract_id = HashContract().Id();
    return options;
  }
  void Find(const std::string& entry) {
    const absl::StatusOr<PodWorkers> workers = PodWorkers::Parse(entry, OfAll());
    ASSERT_TRUE(workers.ok()) << workers.status();
    auto found =
        FoundWorkers::Start({*workers}, directory_.get(), EngineAddresses(), server_.options());
    ASSERT_TRUE(found.ok()) << found.status();
    found_ = *std::move(found);
  }
  std::vector<std::string> Known() {
    std::vector<std::string> known;
    for (const EngineEntry& entry : directory_->List())
      for (const EngineListener& listener : entry.listeners)
        known.push_back(entry.instance + "/" + std::to_string(listener.rank) + " " +
                        listener.endpoint);
    return known;
  }
  bool Becomes(const std::vector<std::string>& wanted) {
    return Await([&] { return Known() == wanted; }, kLong);
  }

  K8sTestServer server_;
  HolderRegistry registry_;
  std::unique_ptr<ZmqIngest> ingest_;
  std::unique_ptr<EngineDirectory> directory_;
  std::unique_ptr<FoundWorkers> found_;
};

TEST_F(FoundWorkersTest, PodsThatBecomeReadyAreListenedToAndThoseThatGoAreNot) {
  server_.PutPod("vllm", "a", "127.0.0.1", true);
  server_.PutPod("vllm", "b", "127.0.0.2", false);
  server_.PutPod("other", "c", "127.0.0.3", true);
  Find("k8s:llm/app=vllm;http=8000|8001");
  const std::vector<std::string> of_a = {"a/0 tcp://127.0.0.1:5557", "a/1 tcp://127.0.0.1:5558"};
  EXPECT_TRUE(Becomes(of_a)) << testing::PrintToString(Known());
  server_.PutPod("vllm", "b", "127.0.0.2", true);
  EXPECT_TRUE(Becomes({of_a[0], of_a[1], "b/0 tcp://127.0.0.2:5557", "b/1 tcp://127.0.0.2:5558"}));
  server_.PutPod("vllm", "b", "127.0.0.2", true, /*ends=*/true);
  EXPECT_TRUE(Becomes(of_a)) << "it is being deleted";
  server_.PutPod("vllm", "a", "127.0.0.1", false);
  EXPECT_TRUE(Becomes({})) << "not ready";
  server_.PutPod("vllm", "a", "127.0.0.9", true);
  EXPECT_TRUE(Becomes({"a/0 tcp://127.0.0.9:5557", "a/1 tcp://127.0.0.9:5558"})) << "has moved";
  server_.DeletePod("vllm", "a");
  EXPECT_TRUE(Becomes({}));
}

TEST_F(FoundWorkersTest, WhatWasKnownStaysWhileTheApiServerIsAway) {
  server_.PutPod("vllm", "a", "127.0.0.1", true);
  Find("k8s:llm/app=vllm");
  EXPECT_TRUE(Becomes({"a/0 tcp://127.0.0.1:5557"}));
  server_.AnswerAll(500, "down");
  server_.EndWatches();
  const uint64_t lists = server_.lists();
  server_.PutPod("vllm", "b", "127.0.0.2", true);
  EXPECT_THAT(Known(), ElementsAre("a/0 tcp://127.0.0.1:5557"));
  server_.AnswerAll(0);
  EXPECT_TRUE(Becomes({"a/0 tcp://127.0.0.1:5557", "b/0 tcp://127.0.0.2:5557"}));
  EXPECT_GE(server_.lists(), lists);
}

// vLLM of 0.33 says where each rank publishes; it is asked again until it answers.
TEST_F(FoundWorkersTest, AnEngineIsAskedWhereItPublishes) {
  HttpServer engine({.listen = {"127.0.0.1", 0}});
  std::atomic<int> asked{0};
  engine.Handle({.method = "GET", .path = "/kv_event_sources", .handler = [&](const HttpRequest&) {
                   ++asked;
                   return HttpResponse{.body = R"({"0":{"endpoint":"tcp://*:6100"}})"};
                 }});
  ASSERT_TRUE(engine.Start().ok());
  const std::string http = ";http=" + std::to_string(engine.address().port);
  server_.PutPod("vllm", "a", "127.0.0.1", true);
  Find("k8s:llm/app=vllm" + http);
  EXPECT_TRUE(Becomes({"a/0 tcp://127.0.0.1:6100"})) << testing::PrintToString(Known());
  server_.PutPod("vllm", "b", "127.0.0.2", true);
  EXPECT_TRUE(Becomes({"a/0 tcp://127.0.0.1:6100", "b/0 tcp://127.0.0.2:5557"}));
  EXPECT_EQ(asked, 1) << "once for each pod";
  found_.reset();
  Find("k8s:llm/app=vllm;events=5557" + http);
  EXPECT_TRUE(Becomes({"a/0 tcp://127.0.0.1:5557", "b/0 tcp://127.0.0.2:5557"}));
  EXPECT_EQ(asked, 1) << "the entry says it";
}

// As a checkpoint brings them back.
TEST_F(FoundWorkersTest, OfWhatWasThereBeforeOnlyPodsThatAreThereStay) {
  const absl::StatusOr<PodWorkers> workers = PodWorkers::Parse("k8s:llm/app=vllm", OfAll());
  ASSERT_TRUE(workers.ok());
  for (const auto& [name, address] : {std::pair("a", "127.0.0.1"), std::pair("gone", "127.0.0.2"),
                                      std::pair("moved", "127.0.0.3")}) {
    ServiceRecord pod;
    pod.name = name;
    pod.grpc = address;
    ASSERT_TRUE(directory_->Register(workers->Of(pod)[0]).ok());
  }
  EngineRegistration other = OfAll();
  other.instance = "other";
  other.endpoint = "tcp://127.0.0.9:1";
  ASSERT_TRUE(directory_->Register(other).ok());
  server_.PutPod("vllm", "a", "127.0.0.1", true);
  server_.PutPod("vllm", "moved", "127.0.0.4", true);
  Find("k8s:llm/app=vllm");
  EXPECT_TRUE(Becomes(
      {"a/0 tcp://127.0.0.1:5557", "moved/0 tcp://127.0.0.4:5557", "other/0 tcp://127.0.0.9:1"}))
      << testing::PrintToString(Known());
}

TEST_F(FoundWorkersTest, APodOutsideOfTheAddressesOfEnginesIsNone) {
  server_.PutPod("vllm", "a", "8.8.8.8", true);
  server_.PutPod("vllm", "b", "127.0.0.2", true);
  Find("k8s:llm/app=vllm");
  EXPECT_TRUE(Becomes({"b/0 tcp://127.0.0.2:5557"}));
}

}  // namespace
}  // namespace kvatlas
