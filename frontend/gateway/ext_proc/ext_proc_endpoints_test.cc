// Which endpoint a request goes to: of workers that are known, of those that the gateway names, and
// without a prompt.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/gateway/ext_proc/ext_proc_test_util.h"

namespace kvatlas {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

// ---- Who is there ----

TEST_F(ExtProcServiceTest, NobodyThereIs503) {
  leaf_.Set(absl::UnavailableError("down"));
  EXPECT_EQ(Refused(Completion(), kIds), 503);
  EXPECT_THAT(refused_why_, HasSubstr("no worker"));
}

TEST_F(ExtProcServiceTest, AWorkerWithoutAnEndpointIsPassedOver) {
  workers_.workers.push_back({.worker = {"best", 0, ""}, .blocks = 1});
  workers_.workers.erase(workers_.workers.begin());
  leaf_.Set(workers_);
  EXPECT_EQ(HeadersEndpoint(Ask(Completion(), kIds)), "10.0.0.2:8000");
  EXPECT_EQ(frontend_->stats().in_flight, 0u) << "the one that was chosen gets nothing";
  workers_.workers.erase(workers_.workers.begin());
  leaf_.Set(workers_);
  EXPECT_EQ(Refused(Completion(), kIds), 503);
  EXPECT_THAT(refused_why_, HasSubstr("best/0"));
}

// The worker that is chosen has no endpoint; the one that gets the request is a choice as any.
class ExtProcOtherWorkerTest : public ExtProcServiceTest {
 protected:
  // The best has no endpoint. Two ranks of "far" are at one endpoint.
  void SetUp() override {
    const auto add = [this](const HolderId& worker, uint32_t blocks, uint32_t running) {
      workers_.workers.push_back(
          {.worker = worker, .blocks = blocks, .load = Load{.running_requests = running}});
    };
    add({"best", 0, ""}, 1, 0);
    add({"far", 0, ""}, 0, 9);
    add({"far", 1, ""}, 0, 9);
    configured_ = {"far=10.0.0.2:8000"};
    leaf_.Set(workers_);
  }
};

TEST_F(ExtProcOtherWorkerTest, ItCountsInFlightAndAsAPickByPromptWithTheRankThatWasChosen) {
  Stream stream = Open();
  stream.Write(Completion());
  stream.Write(Body(kIds, true));
  const ext_proc::ProcessingResponse headers = stream.Read();
  EXPECT_EQ(HeadersEndpoint(headers), "10.0.0.2:8000");
  EXPECT_NE(
      HeaderIn(headers.request_headers().response().header_mutation(), kDataParallelRankHeader),
      "");
  EXPECT_TRUE(stream.Read().has_request_body());
  EXPECT_EQ(frontend_->stats().in_flight, 1u);
  EXPECT_THAT(metrics_.Text(), AllOf(HasSubstr("kvatlas_ext_proc_picks_total{by=\"prompt\"} 1\n"),
                                     HasSubstr("kvatlas_ext_proc_picks_total{by=\"turns\"} 0\n")));
  stream.Write(Response("200", "application/json"));
  EXPECT_TRUE(stream.Read().has_response_headers());
  stream.Write(ResponseBody(std::string("{") + kUsage + "}", true));
  EXPECT_TRUE(Streamed(stream.Read().response_body()).end_of_stream());
  reports_.AllEnded();
  EXPECT_EQ(reports_.last().cached_tokens, 16u);
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
}

TEST_F(ExtProcOtherWorkerTest, TheAnswerSaysWhyTheChoiceIsByLoadAlone) {
  tokenizer_.Set(absl::NotFoundError("no model m"));
  Stream stream = Open();
  stream.Write(Completion());
  stream.Write(Body(kText, true));
  EXPECT_EQ(HeadersEndpoint(stream.Read()), "10.0.0.2:8000");
  EXPECT_TRUE(stream.Read().has_request_body());
  stream.Write(Response("200", "application/json", true));
  EXPECT_EQ(
      HeaderIn(stream.Read().response_headers().response().header_mutation(), "x-kvatlas-fallback"),
      "no_tokens: no model m");
}

TEST_F(ExtProcOtherWorkerTest, WhatTheRequestNamesIsThereFromNowOn) {
  const std::string turn = R"({"model":"m","input":"x","conversation":"conv_1","prompt":{}})";
  {
    Stream stream = Open();
    stream.Write(Request("POST", "/v1/responses"));
    stream.Write(Body(turn, true));
    EXPECT_EQ(HeadersEndpoint(stream.Read()), "10.0.0.2:8000");
    EXPECT_TRUE(stream.Read().has_request_body());
    stream.Write(Response("200", "application/json", true));
    EXPECT_TRUE(stream.Read().has_response_headers());
    EXPECT_TRUE(stream.Finish().ok());
  }
  AddWorker("idle", 0, "10.0.0.3:8000");
  workers_.workers.back().load = Load();
  ASSERT_TRUE(endpoints_.Configure(configured_.back()).ok());
  leaf_.Set(workers_);
  EXPECT_EQ(HeadersEndpoint(Ask(Request("POST", "/v1/responses"), turn)), "10.0.0.2:8000");
}

TEST_F(ExtProcOtherWorkerTest, ADecoderWithoutAnEndpointGivesWayToOneThatHasOne) {
  workers_.workers.clear();
  configured_.clear();
  AddWorker("prefills", 1, "10.0.0.1:8000");
  AddWorker("decodes", 0, "10.0.0.2:8000");
  AddWorker("nowhere", 0, "");
  configured_.pop_back();
  for (WorkerFound& worker : workers_.workers) worker.load = Load{.running_requests = 9};
  workers_.workers.back().load = Load();
  SetRole("prefills", "prefill");
  SetRole("decodes", "decode");
  SetRole("nowhere", "decode");
  Stream stream = Open();
  stream.Write(Completion());
  stream.Write(Body(kIds, true));
  const ext_proc::ProcessingResponse headers = stream.Read();
  EXPECT_EQ(HeadersEndpoint(headers), "10.0.0.2:8000");
  EXPECT_EQ(HeaderIn(headers.request_headers().response().header_mutation(), kPrefillerHeader),
            "10.0.0.1:8000");
  EXPECT_TRUE(stream.Read().has_request_body());
  EXPECT_EQ(frontend_->stats().in_flight, 1u);
}

TEST_F(ExtProcServiceTest, WorkersMaySayThemselvesWhereTheyAre) {
  WorkersAnswer answer;
  auto labels = std::make_shared<LabelsByWorker>();
  for (const char* name : {"a", "b"}) {
    answer.workers.push_back({.worker = {name, 0, ""}, .blocks = name[0] == 'a' ? 1u : 0u});
    (*labels)[{name, 0, ""}] = {
        {"url", name[0] == 'a' ? "http://10.1.0.1:80" : "http://10.1.0.2:80"}};
  }
  answer.labels = labels;
  leaf_.Set(answer);
  EXPECT_EQ(HeadersEndpoint(Ask(Completion(), kIds)), "10.1.0.1:80");
  EXPECT_EQ(HeadersEndpoint(Ask(Subset({"10.1.0.2:80"}, Completion()), kIds)), "10.1.0.2:80");
}

TEST_F(ExtProcServiceTest, TheNextBestFollowToBeTried) {
  picker_options_.endpoints_best = 2;
  AddWorker("third", 0, "10.0.0.3:8000");
  EXPECT_EQ(HeadersEndpoint(Ask(Completion(), kIds)).substr(0, 14), "10.0.0.1:8000,");
}

TEST_F(ExtProcServiceTest, OnlyTheGatewaysSubsetIsChosenFrom) {
  const auto headers = Subset({"10.0.0.2:8000", "10.0.0.9:8000"}, Completion());
  EXPECT_EQ(HeadersEndpoint(Ask(headers, kIds)), "10.0.0.2:8000");
}

TEST_F(ExtProcServiceTest, ASubsetMayBeOneString) {
  auto headers = Completion();
  auto& fields = (*headers.mutable_metadata_context()->mutable_filter_metadata())[kSubsetSpace];
  (*fields.mutable_fields())[kSubsetKey].set_string_value("nonsense, 10.0.0.2:8000 ,");
  EXPECT_EQ(HeadersEndpoint(Ask(headers, kIds)), "10.0.0.2:8000");
}

TEST_F(ExtProcServiceTest, AnEmptySubsetIs503) {
  EXPECT_EQ(Refused(Subset({}, Completion()), kIds), 503);
  EXPECT_EQ(Refused(Subset({"no endpoint"}, Completion()), kIds), 503);
  Stream stream = Open();
  stream.Write(Subset({}, Request("GET", "/v1/models", true)));
  EXPECT_EQ(RefusedBy(&stream), 503);
}

TEST_F(ExtProcServiceTest, ASubsetThatNoWorkerIsInIs503WithTheReason) {
  const std::vector<std::string> others = {"192.0.2.8:8000", "192.0.2.9"};
  EXPECT_EQ(Refused(Subset(others, Completion()), kIds), 503);
  EXPECT_EQ(refused_dropped_, "rejected-no-endpoints");
  EXPECT_EQ(Refused(Subset(others, Request("POST", "/v1/embeddings")), R"({"input": "x"})"), 503);
  EXPECT_EQ(refused_dropped_, "rejected-no-endpoints");
  Stream get = Open();
  get.Write(Subset(others, Request("GET", "/v1/models", true)));
  EXPECT_EQ(RefusedBy(&get), 503);
  EXPECT_EQ(refused_dropped_, "rejected-no-endpoints");
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
}

TEST_F(ExtProcServiceTest, AnEntryOfASubsetWithoutAPortMeansThePod) {
  EXPECT_EQ(HeadersEndpoint(Ask(Subset({"10.0.0.2"}, Completion()), kIds)), "10.0.0.2:8000");
  for (int i = 0; i < 3; ++i) {
    Stream get = Open();
    get.Write(Subset({"10.0.0.2"}, Request("GET", "/v1/models", true)));
    EXPECT_EQ(HeadersEndpoint(get.Read()), "10.0.0.2:8000");
  }
  AddWorker("like", 9, "10.0.0.20:8000");
  ASSERT_TRUE(endpoints_.Configure(configured_.back()).ok());
  leaf_.Set(workers_);
  EXPECT_EQ(HeadersEndpoint(Ask(Subset({"10.0.0.2"}, Completion()), kIds)), "10.0.0.2:8000");
}

// Its worker is far down in the order, and the first answer that names it is the one to this route.
TEST_F(ExtProcServiceTest, ASubsetOfAWorkerThatWasNotMetYetIsFound) {
  WorkersAnswer answer;
  auto labels = std::make_shared<LabelsByWorker>();
  for (int i = 0; i < 40; ++i) {
    const HolderId worker = {"w" + std::to_string(i), 0, ""};
    answer.workers.push_back({.worker = worker, .blocks = i == 0 ? 0u : 1u});
    (*labels)[worker] = {{kUrlLabel, "http://10.3.0." + std::to_string(i) + ":80"}};
  }
  answer.labels = labels;
  leaf_.Set(answer);
  EXPECT_EQ(HeadersEndpoint(Ask(Subset({"10.3.0.0:80"}, Completion()), kIds)), "10.3.0.0:80");
}

// ---- Pools ----

class ExtProcPoolTest : public ExtProcServiceTest {
 protected:
  // Workers of two tiers, of which the one outside of the pool has more of the prompt.
  void StartWith(const std::vector<std::string>& pool,
                 const std::vector<std::string>& configured = {}) {
    configured_ = configured;
    picker_options_.pool = PickerPool::Parse(pool).value();
    auto labels = std::make_shared<LabelsByWorker>();
    WorkersAnswer answer;
    for (const char* name : {"batch", "chat"}) {
      answer.workers.push_back({.worker = {name, 0, ""}, .blocks = name[0] == 'b' ? 1u : 0u});
      (*labels)[{name, 0, ""}] = {
          {kUrlLabel, name[0] == 'b' ? "http://10.0.0.1:80" : "http://10.0.0.2:80"},
          {"tier", name}};
    }
    answer.labels = labels;
    leaf_.Set(answer);
    Start();
  }
  std::string Get() {
    Stream stream = Open();
    stream.Write(Request("GET", "/v1/models", true));
    const ext_proc::ProcessingResponse answer = stream.Read();
    return answer.has_immediate_response() ? "refused" : HeadersEndpoint(answer);
  }
};

TEST_F(ExtProcPoolTest, OfAPoolByLabelsOthersAreNeverNamed) {
  StartWith({"tier=chat"});
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(HeadersEndpoint(Ask(Completion(), kIds)), "10.0.0.2:80") << "also at first";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Get(), "10.0.0.2:80");
  EXPECT_EQ(Refused(Subset({"10.0.0.1:80"}, Completion()), kIds), 503);
  EXPECT_EQ(refused_dropped_, "rejected-no-endpoints");
}

TEST_F(ExtProcPoolTest, AWorkerThatLeavesThePoolIsNamedNoMore) {
  StartWith({"tier=chat", "tier=batch"});
  EXPECT_EQ(HeadersEndpoint(Ask(Completion(), kIds)), "10.0.0.1:80");
  WorkersAnswer answer;
  auto labels = std::make_shared<LabelsByWorker>();
  (*labels)[{"batch", 0, ""}] = {{kUrlLabel, "http://10.0.0.1:80"}, {"tier", "other"}};
  answer.workers.push_back({.worker = {"batch", 0, ""}, .blocks = 1});
  answer.labels = labels;
  leaf_.Set(answer);
  EXPECT_EQ(Refused(Completion(), kIds), 503);
  EXPECT_EQ(Get(), "refused");
}

TEST_F(ExtProcPoolTest, OfAPoolByModelOthersDoNotExist) {
  StartWith({"model=m"});
  EXPECT_EQ(HeadersEndpoint(Ask(Completion(), kIds)), "10.0.0.1:80");
  EXPECT_EQ(Refused(Completion(), R"({"model": "other", "prompt": [1]})"), 404);
  EXPECT_THAT(refused_why_, HasSubstr("`other` does not exist"));
}

TEST_F(ExtProcPoolTest, OfAPoolByCellOthersAreNeverNamed) {
  StartWith({"cell=elsewhere"});
  EXPECT_EQ(Refused(Completion(), kIds), 503);
  EXPECT_EQ(Get(), "refused");
}

TEST_F(ExtProcPoolTest, APoolByItsOwnCellHasAllOfIt) {
  StartWith({"cell=cell"});
  EXPECT_EQ(HeadersEndpoint(Ask(Completion(), kIds)), "10.0.0.1:80");
}

// What is configured says where a worker is, not that it is one of the pool's.
TEST_F(ExtProcPoolTest, ConfiguredEndpointsOfOthersAreNeverNamed) {
  StartWith({"tier=chat"}, {"batch=10.0.0.8:80", "unheard=10.0.0.9:80"});
  EXPECT_EQ(Get(), "refused") << "no leaf has told that one of them is of the pool";
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(HeadersEndpoint(Ask(Completion(), kIds)), "10.0.0.2:80") << "also at first";
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Get(), "10.0.0.2:80");
  EXPECT_EQ(Refused(Subset({"10.0.0.8:80"}, Completion()), kIds), 503);
  Stream get = Open();
  get.Write(Subset({"10.0.0.8:80"}, Request("GET", "/v1/models", true)));
  EXPECT_EQ(RefusedBy(&get), 503);
}

TEST_F(ExtProcPoolTest, AConfiguredEndpointWinsOverWhatAWorkerOfThePoolSays) {
  StartWith({"tier=chat"}, {"chat=10.0.0.8:80"});
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(HeadersEndpoint(Ask(Completion(), kIds)), "10.0.0.8:80") << "also at first";
  EXPECT_EQ(Get(), "10.0.0.8:80");
  WorkersAnswer answer;
  auto labels = std::make_shared<LabelsByWorker>();
  (*labels)[{"chat", 0, ""}] = {{"tier", "other"}};
  answer.workers.push_back({.worker = {"chat", 0, ""}, .blocks = 1});
  answer.labels = labels;
  leaf_.Set(answer);
  EXPECT_EQ(Refused(Completion(), kIds), 503) << "it left the pool";
  EXPECT_EQ(Get(), "refused");
}

// Its workers say nothing of themselves; who they are is told by the answer about their model.
TEST_F(ExtProcPoolTest, OfAPoolByModelConfiguredEndpointsAreThoseOfItsWorkers) {
  StartWith({"model=m"}, {"near/0=10.0.0.1:80", "far=10.0.0.2:80", "other=10.0.0.3:80"});
  leaf_.Set(workers_);
  EXPECT_EQ(HeadersEndpoint(Ask(Completion(), kIds)), "10.0.0.1:80");
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Get(), "10.0.0.1:80");
    EXPECT_EQ(Get(), "10.0.0.2:80");
  }
  workers_.workers.erase(workers_.workers.begin());
  leaf_.Set(workers_);
  Ask(Completion(), kIds);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Get(), "10.0.0.2:80") << "the other one is gone";
}

// ---- Requests without a prompt ----

TEST_F(ExtProcServiceTest, ARequestWithoutABodyGoesAnywhereAtOnce) {
  Stream stream = Open();
  stream.Write(Request("GET", "/v1/models", true));
  EXPECT_EQ(HeadersEndpoint(stream.Read()), "10.0.0.1:8000");
  stream.Write(Response("200", "application/json", true));
  EXPECT_TRUE(stream.Read().has_response_headers());
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(reports_.count(), 0u);
}

TEST_F(ExtProcServiceTest, OtherCallsPassUnread) {
  Stream stream = Open();
  stream.Write(Request("PUT", "/v1/files"));
  EXPECT_EQ(HeadersEndpoint(stream.Read()), "10.0.0.1:8000");
  stream.Write(Body("not ", false));
  EXPECT_EQ(Streamed(stream.Read().request_body()).body(), "not ");
  stream.Write(Body("JSON", true));
  const ext_proc::StreamedBodyResponse last = Streamed(stream.Read().request_body());
  EXPECT_EQ(last.body(), "JSON");
  EXPECT_TRUE(last.end_of_stream());
}

TEST_F(ExtProcServiceTest, CallsWithoutAPromptGoToWorkersOfTheirModel) {
  leaf_.SetFor("other", {.workers = {{.worker = {"far", 0, ""}}}});
  const std::string embeddings = R"({"model": "other", "input": "hello"})";
  for (const char* path : {"/v1/embeddings", "/v1/responses", "/v1/rerank"}) {
    for (int i = 0; i < 4; ++i)
      EXPECT_EQ(HeadersEndpoint(Ask(Request("POST", path), embeddings)), "10.0.0.2:8000") << path;
    Stream buffered = Open();
    buffered.Write(Mode(ext_proc::BUFFERED, Request("POST", path)));
    EXPECT_EQ(HeadersEndpoint(buffered.Read()), "");
    buffered.Write(Body(embeddings, true));
    EXPECT_EQ(BodyEndpoint(buffered.Read()), "10.0.0.2:8000") << path;
  }
  leaf_.SetFor("nobodys", {});
  EXPECT_EQ(Refused(Request("POST", "/v1/embeddings"), R"({"model": "nobodys"})"), 404);
  // A response whose input the engine has, and a prompt that is no text.
  EXPECT_EQ(
      HeadersEndpoint(Ask(Request("POST", "/v1/responses"),
                          R"({"model": "other", "input": "x", "previous_response_id": "r"})")),
      "10.0.0.2:8000");
  EXPECT_EQ(HeadersEndpoint(Ask(Completion(), R"({"model": "other", "prompt_embeds": "AAAA"})")),
            "10.0.0.2:8000");
}

TEST_F(ExtProcServiceTest, ABodyThatNamesNoModelGoesAnywhere) {
  for (const char* body : {"not JSON", "{}", "[]", R"({"model": 7})", ""}) {
    Stream stream = Open();
    stream.Write(Request("POST", "/v1/embeddings"));
    stream.Write(Body(body, true));
    EXPECT_NE(HeadersEndpoint(stream.Read()), "") << body;
    EXPECT_EQ(Streamed(stream.Read().request_body()).body(), body);
  }
  EXPECT_EQ(frontend_->stats().routes, 0u);
}

TEST_F(ExtProcServiceTest, TurnsAreOfWorkersThatAreThereAndTakeRequests) {
  configured_.clear();
  const auto answer = [](const LabelsByWorker& labels) {
    WorkersAnswer answer;
    answer.labels = std::make_shared<const LabelsByWorker>(labels);
    for (const auto& [worker, of_worker] : labels) answer.workers.push_back({.worker = worker});
    return answer;
  };
  const auto turns = [this] {
    std::set<std::string> endpoints;
    for (int i = 0; i < 6; ++i) {
      Stream stream = Open();
      stream.Write(Request("GET", "/v1/models", true));
      endpoints.insert(HeadersEndpoint(stream.Read()));
    }
    return endpoints;
  };
  LabelsByWorker labels;
  for (const char* name : {"1", "2", "3"})
    labels[{name, 0, ""}] = {{kUrlLabel, std::string("http://10.0.0.") + name + ":80"}};
  const WorkersAnswer all = answer(labels);
  leaf_.Set(all);
  leaf_.SetFor("other", all);
  const std::string other = R"({"model": "other", "prompt": [1, 2]})";
  Ask(Completion(), kIds);
  Ask(Completion(), other);
  EXPECT_THAT(turns(), ElementsAre("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"));
  labels.erase({"3", 0, ""});
  leaf_.Set(answer(labels));
  Ask(Completion(), kIds);
  EXPECT_THAT(turns(), ElementsAre("10.0.0.1:80", "10.0.0.2:80"));
  Ask(Completion(), other);
  EXPECT_THAT(turns(), ElementsAre("10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"))
      << "it left one model alone";
  leaf_.SetFor("other", answer(labels));
  Ask(Completion(), other);
  labels[{"2", 0, ""}]["draining"] = "true";
  leaf_.Set(answer(labels));
  Ask(Completion(), kIds);
  EXPECT_THAT(turns(), ElementsAre("10.0.0.1:80"));
  frontend_->SetDraining({"1"});
  Stream stream = Open();
  stream.Write(Request("GET", "/v1/models", true));
  EXPECT_EQ(RefusedBy(&stream), 503);
  frontend_->SetDraining({});
  labels[{"2", 0, ""}]["draining"] = "false";
  leaf_.Set(answer(labels));
  Ask(Completion(), kIds);
  EXPECT_THAT(turns(), ElementsAre("10.0.0.1:80", "10.0.0.2:80"));
}

// ---- What a client says ----

TEST_F(ExtProcServiceTest, WithoutAnyEndpointARequestIsRefusedWhateverItsClientNames) {
  configured_.clear();
  for (const Headers& says : {Headers{}, Headers{{kEndpointKey, "169.254.169.254:80"}}}) {
    for (const auto& headers :
         {Request("GET", "/v1/models", true, says), Request("POST", "/v1/embeddings", true, says),
          Mode(ext_proc::NONE, Request("POST", "/v1/completions", false, says)),
          Mode(ext_proc::BUFFERED, Request("PUT", "/v1/files", false, says))}) {
      Stream stream = Open();
      stream.Write(headers);
      EXPECT_EQ(RefusedBy(&stream), 503);
      EXPECT_THAT(refused_why_, HasSubstr("no endpoint"));
    }
    EXPECT_EQ(Refused(Request("POST", "/v1/completions", false, says), kIds), 503);
  }
}

TEST_F(ExtProcServiceTest, AClientRoutesNothing) {
  Headers says = {{kPrefillerHeader, ""}};
  for (const std::string_view header : kRoutingHeaders)
    says.emplace_back(header, "169.254.169.254:80");
  const auto removed = [](const ext_proc::CommonResponse& common) {
    const auto& names = common.header_mutation().remove_headers();
    return std::vector<std::string>(names.begin(), names.end());
  };
  const auto all_but_the_endpoint =
      ElementsAre(kPrefillerHeader, "x-prefiller-url", "x-encoder-hosts-ports",
                  "x-data-parallel-host-port", "x-kv-cache-source-host-port");
  const ext_proc::ProcessingResponse by_prompt =
      Ask(Request("POST", "/v1/completions", false, says), kIds);
  EXPECT_EQ(HeadersEndpoint(by_prompt), "10.0.0.1:8000");
  EXPECT_THAT(removed(by_prompt.request_headers().response()), all_but_the_endpoint);
  Stream by_turns = Open();
  by_turns.Write(Request("GET", "/v1/models", true, says));
  EXPECT_THAT(removed(by_turns.Read().request_headers().response()), all_but_the_endpoint);
  // A proxy that buffers has all of them removed before the body, and is told the endpoint with it.
  Stream buffered = Open();
  buffered.Write(Mode(ext_proc::BUFFERED, Request("POST", "/v1/completions", false, says)));
  EXPECT_THAT(removed(buffered.Read().request_headers().response()),
              ElementsAreArray(kRoutingHeaders));
  buffered.Write(Body(kIds, true));
  EXPECT_EQ(BodyEndpoint(buffered.Read()), "10.0.0.1:8000");
}

}  // namespace
}  // namespace kvatlas
