// The frontend over HTTP: what bodies ask for, what is refused in which words, and /status.

#include <grpcpp/client_context.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "frontend/gateway/frontend_service_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvatlas {
namespace {

using testing::HasSubstr;

TEST_F(FrontendServiceTest, RoutesAndReportsOverHttp) {
  Start();
  const Address http = http_->address();
  std::vector<uint32_t> tokens(33, 5);
  const HttpAnswer answer =
      Post(http, "/route", nlohmann::json{{"model", "m"}, {"tokens", tokens}}.dump());
  EXPECT_EQ(answer.status, 200u) << answer.body;
  const nlohmann::json route = nlohmann::json::parse(answer.body);
  EXPECT_EQ(route["worker"]["name"].get<std::string>().size(), 2u);
  EXPECT_EQ(route["receipt"]["blocks"], 2);
  EXPECT_EQ(route["receipt"]["fallback"], "FALLBACK_NONE");
  EXPECT_EQ(Post(http, "/report",
                 nlohmann::json{{"decision_id", route["decision_id"]}, {"accepted", true}}.dump())
                .status,
            200u);
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
  EXPECT_EQ(
      Post(http, "/route", R"({"model":"m","sequence_hashes":["18446744073709551615",3]})").status,
      200u);
}

TEST_F(FrontendServiceTest, WhoMayBeChosenIsSaidOverHttpToo) {
  Start();
  const Address http = http_->address();
  const auto worker = [&](nlohmann::json more) {
    more.update({{"model", "m"}, {"sequence_hashes", {7919, 2 * 7919}}});
    const HttpAnswer answer = Post(http, "/route", more.dump());
    EXPECT_EQ(answer.status, 200u) << answer.body;
    return answer.status == 200 ? nlohmann::json::parse(answer.body)["worker"]["name"] : "";
  };
  EXPECT_EQ(worker({{"allowed_workers", {"b0"}}}), "b0");
  EXPECT_EQ(worker({{"excluded_workers", {"a0", "a1", "b0"}}}), "b1");
  EXPECT_EQ(worker({{"allowed_workers", {"b0"}}, {"session_id", "s"}}), "b0");
  EXPECT_EQ(frontend_->stats().sessions, 1u);
  const HttpAnswer unknown = Post(
      http, "/route",
      R"({"model":"m","sequence_hashes":[1],"required_labels":{"zone":"x"},"queue_wait_ms":0})");
  EXPECT_EQ(unknown.status, 404u) << unknown.body;
}

TEST_F(FrontendServiceTest, AFleetOverItsThresholdsSaysWhenToComeAgain) {
  options_.overload.requests = 1;
  options_.queue_wait = Duration(0);
  Start();
  const HttpAnswer refused =
      Post(http_->address(), "/route", R"({"model":"m","sequence_hashes":[1]})");
  EXPECT_EQ(refused.status, 429u) << refused.body;
  EXPECT_EQ(refused.retry_after, "1");
  grpc::ClientContext context;
  v1::RouteResponse response;
  const grpc::Status status = stub_->Route(&context, Prompt(3), &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  const auto& metadata = context.GetServerTrailingMetadata();
  const auto retry = metadata.find("retry-after-ms");
  ASSERT_NE(retry, metadata.end());
  EXPECT_EQ(std::string(retry->second.data(), retry->second.size()), "1000");
  grpc::ClientContext stream_context;
  const auto stream = stub_->RouteStream(&stream_context);
  v1::RouteStreamRequest question;
  question.set_id(9);
  *question.mutable_route() = Prompt(3);
  ASSERT_TRUE(stream->Write(question));
  v1::RouteStreamResponse answer;
  ASSERT_TRUE(stream->Read(&answer));
  EXPECT_EQ(answer.code(), static_cast<uint32_t>(grpc::StatusCode::RESOURCE_EXHAUSTED));
  EXPECT_EQ(answer.retry_after_ms(), 1000u);
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(frontend_->stats().rejected, 3u);
  // A prompt that is too long is nothing to come again with.
  const HttpAnswer large =
      Post(http_->address(), "/route",
           nlohmann::json{{"model", "m"}, {"sequence_hashes", std::vector<int>(70'000, 1)}}.dump());
  EXPECT_EQ(large.status, 413u) << large.body;
  EXPECT_EQ(large.retry_after, "");
}

TEST_F(FrontendServiceTest, ACellThatDoesNotDeliverIsNamedAndNoLongerAskedFirst) {
  leaves_["a"].answer.mutable_workers(0)->set_blocks(0);  // 40 blocks were promised
  options_.ask_cells = 1;
  Start();
  EXPECT_EQ(Route().receipt().cells(0).cell(), "a");
  int routes = 1;
  while (Route().receipt().cells(0).cell() == "a" && routes < 100) ++routes;
  EXPECT_LT(routes, 20) << "\"b\", with 16 blocks, is worth more by then";
  EXPECT_GT(routes, 1) << "once is no reason";
  const std::string metrics = metrics_.Text();
  const auto named = [&](const std::string& what) {
    return metrics.find(what) != std::string::npos;
  };
  const std::string broken = std::to_string(routes);
  EXPECT_TRUE(named("kvatlas_frontend_wrong_cells_total " + broken + "\n")) << metrics;
  EXPECT_TRUE(named("kvatlas_frontend_promises_total " + std::to_string(routes + 1) + "\n"));
  EXPECT_TRUE(named("kvatlas_frontend_cell_promises_broken_total{cell=\"a\"} " + broken + "\n"));
  EXPECT_FALSE(named("{cell=\"b\"}")) << "it has kept all of its promises";
  const nlohmann::json status = nlohmann::json::parse(Get(http_->address(), "/status").body);
  ASSERT_EQ(status["promises"].size(), 2u) << status;
  EXPECT_EQ(status["promises"][0]["cell"], "a");
  EXPECT_EQ(status["promises"][0]["broken"], routes);
  EXPECT_LT(status["promises"][0]["believed"], 0.75);
}

TEST_F(FrontendServiceTest, BadHttpBodiesAreRefused) {
  Start();
  for (const char* body :
       {"", "[]", "{", R"({"model":"m"})", R"({"tokens":[1]})", R"({"model":1,"tokens":[1]})",
        R"({"model":"m","tokens":[4294967296]})", R"({"model":"m","tokens":[-1]})",
        R"({"model":"m","tokens":"1"})", R"({"model":"m","tokens":[1],"deadline_ms":-1})",
        R"({"model":"m","sequence_hashes":["1x"]})",
        R"({"model":"m","tokens":[1],"allowed_workers":"w"})",
        R"({"model":"m","tokens":[1],"excluded_workers":[1]})",
        R"({"model":"m","tokens":[1],"required_labels":{"a":1}})",
        R"({"model":"m","tokens":[1],"queue_wait_ms":"soon"})",
        R"({"model":"m","tokens":[1],"sequence_hashes":[1]})"}) {
    EXPECT_EQ(Post(http_->address(), "/route", body).status, 400u) << body;
  }
  const std::string deep =
      R"({"model":"m","tokens":)" + std::string(200'000, '[') + std::string(200'000, ']') + "}";
  EXPECT_EQ(Post(http_->address(), "/route", deep).status, 400u);
  const std::string session(257, 's');
  EXPECT_EQ(Post(http_->address(), "/route",
                 R"({"model":"m","tokens":[1],"session_id":")" + session + R"("})")
                .status,
            400u);
  EXPECT_EQ(Post(http_->address(), "/report", R"({"accepted":true})").status, 400u);
}

TEST_F(FrontendServiceTest, FieldsThatAreMisspeltOrOfAnotherTypeAreNamed) {
  Start();
  const auto why = [this](const char* path, const std::string& body) {
    const HttpAnswer answer = Post(http_->address(), path, body);
    EXPECT_EQ(answer.status, 400u) << body;
    return answer.body;
  };
  EXPECT_THAT(why("/route", R"({"model":"m","tokens":[1],"sesion_id":"s"})"),
              HasSubstr("sesion_id is no field of /route; did you mean session_id?"));
  EXPECT_THAT(why("/report", R"({"decision_id":1,"acepted":true})"),
              HasSubstr("did you mean accepted?"));
  EXPECT_THAT(why("/report", R"({"decision_id":1,"accepted":"yes"})"),
              HasSubstr("accepted is neither true nor false"));
}

TEST_F(FrontendServiceTest, AReportOnADecisionThatWasNeverMadeIsNotFound) {
  Start();
  const Address http = http_->address();
  EXPECT_EQ(Post(http, "/report", R"({"decision_id":1,"accepted":true})").status, 404u);
  const HttpAnswer answer = Post(http, "/route", R"({"model":"m","tokens":[1,2,3]})");
  const std::string id = nlohmann::json::parse(answer.body)["decision_id"];
  EXPECT_EQ(Post(http, "/report", R"({"decision_id":")" + id + R"(","accepted":true})").status,
            200u);
  EXPECT_EQ(Post(http, "/report", R"({"decision_id":1,"accepted":true})").status, 404u);
  EXPECT_EQ(Post(http, "/report",
                 nlohmann::json{{"decision_id", std::stoull(id) + 1}, {"accepted", true}}.dump())
                .status,
            404u);
}

TEST_F(FrontendServiceTest, PromptTokensAreReadOverHttpToo) {
  Start();
  const HttpAnswer answer = Post(http_->address(), "/route",
                                 R"({"model":"m","sequence_hashes":[1],"prompt_tokens":"x"})");
  EXPECT_EQ(answer.status, 400u) << answer.body;
}

}  // namespace
}  // namespace kvatlas
