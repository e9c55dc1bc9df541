// Which endpoint a request goes to: of workers that are known, of those that the gateway names, and without a prompt.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/doors/ext_proc/ext_proc_test_util.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

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

TEST_F(ExtProcServiceTest, ASubsetThatNoWorkerIsKnownInIsUsedByTurns) {
  const auto headers = Subset({"10.0.0.8:80", "10.0.0.9:80"}, Completion());
  const std::string one = HeadersEndpoint(Ask(headers, kIds));
  const std::string other = HeadersEndpoint(Ask(headers, kIds));
  EXPECT_THAT(std::vector({one, other}), UnorderedElementsAre("10.0.0.8:80", "10.0.0.9:80"));
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
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
  stream.Write(Request("POST", "/v1/embeddings"));
  EXPECT_EQ(HeadersEndpoint(stream.Read()), "10.0.0.1:8000");
  stream.Write(Body("not ", false));
  EXPECT_EQ(Streamed(stream.Read().request_body()).body(), "not ");
  stream.Write(Body("JSON", true));
  const ext_proc::StreamedBodyResponse last = Streamed(stream.Read().request_body());
  EXPECT_EQ(last.body(), "JSON");
  EXPECT_TRUE(last.end_of_stream());
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
