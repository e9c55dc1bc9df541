// The endpoint picker over real gRPC, asked as Envoy asks: the order of messages of a full-duplex
// and of a buffering proxy.

#include "frontend/gateway/ext_proc/ext_proc_service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/gateway/ext_proc/ext_proc_test_util.h"
#include "frontend/prompt/discover_engines.h"
#include "frontend/prompt/no_tokens.h"
#include "indexer/base/await.h"
#include "indexer/net/message_account.h"

namespace kvatlas {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ---- Full duplex ----

TEST_F(ExtProcServiceTest, HeadersAreAnsweredAfterTheWholeBodyAndTheBodyComesBack) {
  Stream stream = Open();
  stream.Write(Mode(ext_proc::FULL_DUPLEX_STREAMED, Completion()));
  const std::string body = kIds;
  stream.Write(Body(body.substr(0, 10), false));
  stream.Write(Body(body.substr(10), true));
  EXPECT_EQ(HeadersEndpoint(stream.Read()), "10.0.0.1:8000");
  const ext_proc::StreamedBodyResponse back = Streamed(stream.Read().request_body());
  EXPECT_EQ(back.body(), body);
  EXPECT_TRUE(back.end_of_stream());
  EXPECT_EQ(leaf_.asked_blocks(), 1u);
  EXPECT_EQ(frontend_->stats().in_flight, 1u);

  stream.Write(Response("200", "application/json"));
  EXPECT_TRUE(stream.Read().has_response_headers());
  EXPECT_EQ(frontend_->stats().in_flight, 0u) << "its worker counts it";
  const std::string answer = std::string("{") + kUsage + "}";
  stream.Write(ResponseBody(answer.substr(0, 20), false));
  EXPECT_EQ(Streamed(stream.Read().response_body()).body(), answer.substr(0, 20));
  stream.Write(ResponseBody(answer.substr(20), true));
  const ext_proc::StreamedBodyResponse last = Streamed(stream.Read().response_body());
  EXPECT_EQ(last.body(), answer.substr(20));
  EXPECT_TRUE(last.end_of_stream());
  const RouteReport report = reports_.Finished();
  EXPECT_EQ(report.cached_tokens, 16u);
  EXPECT_EQ(report.prompt_tokens, 17u);
  EXPECT_FALSE(report.served_by.has_value());
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(reports_.count(), 2u);
}

TEST_F(ExtProcServiceTest, AMessageOfTooManyPartsEndsItsStreamAlone) {
  Stream neighbour = Open();
  neighbour.Write(Completion());
  Stream stream = Open();
  ext_proc::ProcessingRequest message = Completion();
  // Each counts for more than a hundred bytes.
  for (size_t i = 0; i < kParsedBytesMax / 100; ++i)
    message.mutable_request_headers()->mutable_headers()->add_headers();
  stream.Write(message);
  const grpc::Status ended = stream.End();
  EXPECT_EQ(ended.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(ended.error_message(), testing::HasSubstr("too many parts"));
  neighbour.Write(Body(kIds, true));
  EXPECT_EQ(HeadersEndpoint(neighbour.Read()), "10.0.0.1:8000");
  EXPECT_EQ(MessageAccount::OfProcess().bytes(), 0u);
}

// ---- Prefill here, decode there ----

TEST_F(ExtProcServiceTest, WhoDecodesIsTheEndpointAndAHeaderNamesWhoPrefills) {
  SetRole("near", "prefill");
  SetRole("far", "decode");
  picker_options_.endpoints_best = 3;
  Stream stream = Open();
  stream.Write(Request("POST", "/v1/completions", false, {{kPrefillerHeader, "10.9.9.9:1"}}));
  stream.Write(Body(kIds, true));
  const ext_proc::ProcessingResponse headers = stream.Read();
  EXPECT_EQ(HeadersEndpoint(headers), "10.0.0.2:8000") << "and no prefill-only worker to retry";
  EXPECT_EQ(HeaderIn(headers.request_headers().response().header_mutation(), kPrefillerHeader),
            "10.0.0.1:8000");
  EXPECT_EQ(Streamed(stream.Read().request_body()).body(), kIds);
  EXPECT_EQ(frontend_->stats().in_flight, 1u);
  stream.Write(Response("200", "application/json"));
  EXPECT_TRUE(stream.Read().has_response_headers());
  stream.Write(ResponseBody(std::string("{") + kUsage + "}", true));
  EXPECT_TRUE(Streamed(stream.Read().response_body()).end_of_stream());
  const RouteReport report = reports_.Finished();
  EXPECT_EQ(report.prompt_tokens, 17u);
  EXPECT_FALSE(report.cached_tokens.has_value()) << "the decoder's, of which nothing was promised";
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
}

TEST_F(ExtProcServiceTest, ARouteIsInTheMetricsOfRoutes) {
  Stream stream = Open();
  stream.Write(Mode(ext_proc::BUFFERED, Completion()));
  EXPECT_TRUE(stream.Read().has_request_headers());
  stream.Write(Body(kIds, true));
  EXPECT_FALSE(BodyEndpoint(stream.Read()).empty());
  const std::string text = metrics_.Text();
  EXPECT_NE(text.find("kvatlas_frontend_route_seconds_count 1\n"), std::string::npos) << text;
  EXPECT_NE(text.find("kvatlas_frontend_find_overlaps_seconds_count 1\n"), std::string::npos);
}

TEST_F(ExtProcServiceTest, ABufferingProxyIsToldWhoPrefillsWithTheBody) {
  SetRole("near", "prefill");
  SetRole("far", "decode");
  Stream stream = Open();
  stream.Write(Mode(ext_proc::BUFFERED, Completion()));
  EXPECT_TRUE(stream.Read().has_request_headers());
  stream.Write(Body(kIds, true));
  const ext_proc::ProcessingResponse body = stream.Read();
  EXPECT_EQ(BodyEndpoint(body), "10.0.0.2:8000");
  EXPECT_EQ(HeaderIn(body.request_body().response().header_mutation(), kPrefillerHeader),
            "10.0.0.1:8000");
}

TEST_F(ExtProcServiceTest, AWorkerThatOnlyPrefillsIsNoEndpointToRetry) {
  picker_options_.endpoints_best = 3;
  AddWorker("prefills", 1, "10.0.0.3:8000");
  AddWorker("decodes", 0, "10.0.0.4:8000");
  SetRole("prefills", "prefill");
  SetRole("decodes", "decode");
  const ext_proc::ProcessingResponse headers = Ask(Completion(), kIds);
  EXPECT_EQ(HeadersEndpoint(headers), "10.0.0.1:8000,10.0.0.2:8000");
  EXPECT_EQ(HeaderIn(headers.request_headers().response().header_mutation(), kPrefillerHeader), "");
}

TEST_F(ExtProcServiceTest, WhatAClientSaysOfAPrefillerGoesNowhere) {
  const Headers says = {{kPrefillerHeader, "10.9.9.9:1"}};
  const ext_proc::ProcessingResponse by_prompt =
      Ask(Request("POST", "/v1/completions", false, says), kIds);
  EXPECT_EQ(HeadersEndpoint(by_prompt), "10.0.0.1:8000");
  EXPECT_THAT(by_prompt.request_headers().response().header_mutation().remove_headers(),
              ElementsAre(kPrefillerHeader));
  EXPECT_THAT(
      Ask(Completion(), kIds).request_headers().response().header_mutation().remove_headers(),
      IsEmpty())
      << "who says nothing is left as it is";
  Stream stream = Open();
  stream.Write(Request("GET", "/v1/models", true, says));
  EXPECT_THAT(stream.Read().request_headers().response().header_mutation().remove_headers(),
              ElementsAre(kPrefillerHeader));
}

// ---- Data-parallel ranks ----

TEST_F(ExtProcServiceTest, TheEngineIsToldWhichOfItsRanksWasChosenUnlessTheClientSaysOne) {
  const auto rank_in = [](const ext_proc::ProcessingResponse& headers) {
    return HeaderIn(headers.request_headers().response().header_mutation(),
                    kDataParallelRankHeader);
  };
  EXPECT_EQ(rank_in(Ask(Completion(), kIds)), "") << "it has one";
  workers_.workers.push_back({.worker = {"near", 1, ""}, .blocks = 2});
  leaf_.Set(workers_);
  const ext_proc::ProcessingResponse chosen = Ask(Completion(), kIds);
  EXPECT_EQ(HeadersEndpoint(chosen), "10.0.0.1:8000");
  EXPECT_EQ(rank_in(chosen), "1");
  EXPECT_EQ(rank_in(Ask(Request("POST", "/v1/completions", false, {{kDataParallelRankHeader, "7"}}),
                        kIds)),
            "");
}

// Servers of one rank each in a pod, as `InferencePool.targetPorts` has them: an endpoint is (pod,
// port, rank).
TEST_F(ExtProcServiceTest, ARankWithAUrlOfItsOwnIsAnEndpointOfItsOwn) {
  configured_.clear();
  WorkersAnswer answer;
  auto labels = std::make_shared<LabelsByWorker>();
  for (uint32_t rank = 0; rank < 2; ++rank) {
    answer.workers.push_back({.worker = {"pod", rank, ""}, .blocks = rank});
    (*labels)[{"pod", rank, ""}] = {{kUrlLabel, "http://10.0.0.1:800" + std::to_string(rank)}};
  }
  answer.labels = labels;
  leaf_.Set(answer);
  const ext_proc::ProcessingResponse chosen = Ask(Completion(), kIds);
  EXPECT_EQ(HeadersEndpoint(chosen), "10.0.0.1:8001");
  EXPECT_EQ(
      HeaderIn(chosen.request_headers().response().header_mutation(), kDataParallelRankHeader), "")
      << "a server refuses a rank that it does not manage";
  EXPECT_EQ(HeadersEndpoint(Ask(Subset({"10.0.0.1:8000"}, Completion()), kIds)), "10.0.0.1:8000");
}

TEST_F(ExtProcServiceTest, ALongBodyComesBackInChunksThatEnvoyTakes) {
  const std::string body =
      R"({"model": "m", "prompt": [1, 2], "user": ")" + std::string(200000, 'x') + "\"}";
  Stream stream = Open();
  stream.Write(Completion());
  stream.Write(Body(body, true));
  EXPECT_EQ(HeadersEndpoint(stream.Read()), "10.0.0.1:8000");
  std::string back;
  for (bool last = false; !last;) {
    const ext_proc::StreamedBodyResponse chunk = Streamed(stream.Read().request_body());
    EXPECT_LE(chunk.body().size(), kBodyChunkMax);
    back += chunk.body();
    last = chunk.end_of_stream();
    EXPECT_EQ(last, back.size() == body.size());
  }
  EXPECT_EQ(back, body);
}

TEST_F(ExtProcServiceTest, TrailersMayEndTheBody) {
  Stream stream = Open();
  stream.Write(Completion());
  stream.Write(Body(kIds, false));
  stream.Write(RequestTrailers());
  EXPECT_EQ(HeadersEndpoint(stream.Read()), "10.0.0.1:8000");
  const ext_proc::StreamedBodyResponse back = Streamed(stream.Read().request_body());
  EXPECT_EQ(back.body(), kIds);
  EXPECT_FALSE(back.end_of_stream());
  EXPECT_TRUE(stream.Read().has_request_trailers());
  stream.Write(Response("200", "text/event-stream"));
  EXPECT_TRUE(stream.Read().has_response_headers());
  stream.Write(ResponseBody(std::string("data: {") + kUsage + "}\n\n", false));
  EXPECT_FALSE(Streamed(stream.Read().response_body()).end_of_stream());
  stream.Write(ResponseTrailers());
  EXPECT_TRUE(stream.Read().has_response_trailers());
  EXPECT_EQ(reports_.Finished().cached_tokens, 16u);
}

TEST_F(ExtProcServiceTest, AStreamOfEventsPassesChunkByChunk) {
  Stream stream = Open();
  Pick(&stream);
  stream.Write(Response("200", "text/event-stream"));
  stream.Read();
  std::vector<std::string> chunks;
  for (int i = 0; i < 40; ++i) chunks.push_back("data: {\"i\": " + std::to_string(i) + "}\n\n");
  chunks.push_back(std::string("data: {") + kUsage + "}\n\ndata: [DONE]\n\n");
  for (const std::string& chunk : chunks) {
    stream.Write(ResponseBody(chunk, false));
    EXPECT_EQ(Streamed(stream.Read().response_body()).body(), chunk);
  }
  stream.Write(ResponseBody("", true));
  EXPECT_TRUE(Streamed(stream.Read().response_body()).end_of_stream());
  EXPECT_EQ(reports_.Finished().prompt_tokens, 17u);
}

// ---- Buffered ----

TEST_F(ExtProcServiceTest, ABufferingProxyIsAnsweredMessageByMessage) {
  Stream stream = Open();
  stream.Write(Mode(ext_proc::BUFFERED, Completion()));
  EXPECT_EQ(HeadersEndpoint(stream.Read()), "") << "Envoy waits for it before it sends the body";
  stream.Write(Body(kIds, true));
  EXPECT_EQ(BodyEndpoint(stream.Read()), "10.0.0.1:8000");
  stream.Write(Response("200", "application/json"));
  EXPECT_TRUE(stream.Read().has_response_headers());
  stream.Write(ResponseBody(std::string("{") + kUsage + "}", true));
  const ext_proc::ProcessingResponse last = stream.Read();
  ASSERT_TRUE(last.has_response_body());
  EXPECT_FALSE(last.response_body().response().has_body_mutation());
  EXPECT_EQ(reports_.Finished().cached_tokens, 16u);
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(ExtProcServiceTest, ABufferedBodyIsWholeAlsoWhenTrailersFollow) {
  Stream stream = Open();
  stream.Write(Mode(ext_proc::BUFFERED, Completion()));
  stream.Read();
  stream.Write(Body(kIds, false));
  EXPECT_EQ(BodyEndpoint(stream.Read()), "10.0.0.1:8000");
  stream.Write(RequestTrailers());
  EXPECT_TRUE(stream.Read().has_request_trailers());
}

// One such request of any client, and no copy that is counted of its blocks is right any more.
TEST_F(ExtProcServiceTest, NoEngineIsAskedToAnnounceWhatItHoldsAlready) {
  const std::string member = R"(,"vllm_xargs":{"kv_cache_report_mode":"full"}})";
  std::string body = kIds;
  body.replace(body.rfind('}'), 1, member);
  std::string wanted = body;
  const std::string_view mode = R"("kv_cache_report_mode":"full")";
  wanted.replace(wanted.find(mode), mode.size(), mode.size(), ' ');
  for (const auto how : {ext_proc::BUFFERED, ext_proc::FULL_DUPLEX_STREAMED}) {
    Stream stream = Open();
    stream.Write(Mode(how, Completion()));
    if (how == ext_proc::BUFFERED) {
      stream.Read();
      stream.Write(Body(body, true));
      EXPECT_EQ(stream.Read().request_body().response().body_mutation().body(), wanted);
    } else {
      stream.Write(Body(body, true));
      EXPECT_EQ(HeadersEndpoint(stream.Read()), "10.0.0.1:8000");
      EXPECT_EQ(stream.Read().request_body().response().body_mutation().streamed_response().body(),
                wanted);
    }
  }
}

TEST_F(ExtProcServiceTest, AProxyThatDoesNotSayItsModeHasTheConfiguredOne) {
  options_.mode_unsaid = ext_proc::BUFFERED;
  Stream stream = Open();
  stream.Write(Completion());
  EXPECT_EQ(HeadersEndpoint(stream.Read()), "");
  stream.Write(Body(kIds, true));
  EXPECT_EQ(BodyEndpoint(stream.Read()), "10.0.0.1:8000");
}

TEST_F(ExtProcServiceTest, AModeThatSendsHeadersOnBeforeTheWholeBodyIsRefused) {
  for (const auto mode : {ext_proc::STREAMED, ext_proc::GRPC, ext_proc::BUFFERED_PARTIAL}) {
    Stream stream = Open();
    stream.Write(Mode(mode, Completion()));
    const grpc::Status status = stream.End();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(status.error_message(), HasSubstr("FULL_DUPLEX_STREAMED"));
  }
}

// ---- Prompts ----

TEST_F(ExtProcServiceTest, TextAndChatsGoThroughTheTokenizer) {
  EXPECT_EQ(HeadersEndpoint(Ask(Completion(), kText)), "10.0.0.1:8000");
  EXPECT_EQ(leaf_.asked_blocks(), 2u);
  const std::string chat = R"({"model": "m", "messages": [{"role": "user", "content": "hi"}]})";
  EXPECT_EQ(HeadersEndpoint(Ask(Request("POST", "/v1/chat/completions"), chat)), "10.0.0.1:8000");
  EXPECT_THAT(tokenizer_.asked(), ElementsAre("m text", "m chat"));
}

TEST_F(ExtProcServiceTest, TenantAndSessionComeInHeaders) {
  Ask(Request("POST", "/v1/completions", false, {{kTenantHeader, "t"}, {"x-kvatlas-session", "s"}}),
      kIds);
  EXPECT_THAT(reports_.tenants(), ElementsAre("t"));
  EXPECT_THAT(reports_.sessions(), ElementsAre("s"));
}

TEST_F(ExtProcServiceTest, AgentsSayTheirSessionByHeadersOfTheirOwn) {
  Ask(Request("POST", "/v1/completions", false, {{"x-claude-code-session-id", "claude"}}), kIds);
  Ask(Request("POST", "/v1/completions", false,
              {{"session-id", "codex"}, {"x-session-id", "vllm"}}),
      kIds);
  EXPECT_THAT(reports_.sessions(), ElementsAre("claude", "vllm"));
}

TEST_F(ExtProcServiceTest, ABodyNamesItsSessionWhereNoHeaderDoes) {
  const std::string body = std::string(kIds).insert(1, R"("metadata": {"session_id": "body"}, )");
  Ask(Completion(), body);
  Ask(Request("POST", "/v1/completions", false, {{"x-session-id", "header"}}), body);
  EXPECT_THAT(reports_.sessions(), ElementsAre("body", "header"));
}

// Items that this worker's engine keeps are at no other one.
TEST_F(ExtProcServiceTest, WhatGoesOnWithAResponseGoesToTheWorkerThatMadeIt) {
  leaf_.SetFor("far", {.workers = {{.worker = {"far", 0, ""}}}});
  {
    Stream stream = Open();
    stream.Write(Request("POST", "/v1/responses"));
    stream.Write(Body(R"({"model":"far","input":"x","conversation":"conv_1","prompt":{}})", true));
    EXPECT_EQ(HeadersEndpoint(stream.Read()), "10.0.0.2:8000");
    stream.Read();
    stream.Write(Response("200", "text/event-stream"));
    stream.Read();
    stream.Write(ResponseBody("data: {\"response\":{\"id\":\"resp", false));
    stream.Read();
    stream.Write(ResponseBody("_1\"},\"item\":{\"id\":\"msg_1\"}}\n\n", true));
    stream.Read();
    EXPECT_TRUE(stream.Finish().ok());
  }
  for (const char* more : {R"("input":"x","previous_response_id":"resp_1")",
                           R"("input":"x","conversation":"conv_1","prompt":{})",
                           R"("input":[{"type":"item_reference","id":"msg_1"}])"})
    EXPECT_EQ(HeadersEndpoint(Ask(Request("POST", "/v1/responses"),
                                  std::string("{\"model\":\"m\",") + more + "}")),
              "10.0.0.2:8000")
        << more;
  EXPECT_EQ(HeadersEndpoint(Ask(Request("POST", "/v1/responses"),
                                R"({"model":"m","input":"x","previous_response_id":"resp_2"})")),
            "10.0.0.1:8000");
  // The worker is gone.
  workers_.workers.pop_back();
  leaf_.Set(workers_);
  EXPECT_EQ(HeadersEndpoint(Ask(Request("POST", "/v1/responses"),
                                R"({"model":"m","input":"x","previous_response_id":"resp_1"})")),
            "10.0.0.1:8000");
}

TEST_F(ExtProcServiceTest, RefusalsOfTheMessagesApiAreAnthropics) {
  leaf_.SetFor("nope", {});
  Stream stream = Open();
  stream.Write(Request("POST", "/v1/messages"));
  stream.Write(Body(R"({"model":"nope","messages":[]})", true));
  const ext_proc::ProcessingResponse answer = stream.Read();
  EXPECT_EQ(static_cast<int>(answer.immediate_response().status().code()), 404);
  EXPECT_EQ(answer.immediate_response().body(),
            R"({"type":"error","error":{"type":"not_found_error",)"
            R"("message":"The model `nope` does not exist."}})");
}

// As through the proxy: the engine takes it, or says what is wrong with it.
TEST_F(ExtProcServiceTest, APromptWithoutTokensGoesByLoadAndTheAnswerSaysWhy) {
  for (const absl::Status& why :
       {absl::NotFoundError("no model m"), absl::InvalidArgumentError("roles must alternate"),
        absl::ResourceExhaustedError("too long"), absl::UnavailableError("the engine is away")}) {
    tokenizer_.Set(why);
    Stream stream = Open();
    stream.Write(Completion());
    stream.Write(Body(kText, true));
    EXPECT_NE(HeadersEndpoint(stream.Read()), "") << why;
    EXPECT_TRUE(stream.Read().has_request_body());
    stream.Write(Response("200", "application/json", true));
    EXPECT_EQ(HeaderIn(stream.Read().response_headers().response().header_mutation(),
                       "x-kvatlas-fallback"),
              "no_tokens: " + std::string(why.message()));
    EXPECT_TRUE(stream.Finish().ok());
  }
  Stream known = Open();
  Pick(&known);
  known.Write(Response("200", "application/json", true));
  EXPECT_EQ(known.Read().response_headers().response().header_mutation().set_headers_size(), 0);
}

// The model's own engines make its tokens, and leaves alone know where these are.
TEST_F(ExtProcServiceTest, TheFirstTextAfterAStartMeetsTheEngineThatMakesItsTokens) {
  auto labels = std::make_shared<LabelsByWorker>();
  (*labels)[{"near", 0, ""}][kUrlLabel] = "http://10.0.0.1:8000";
  workers_.labels = labels;
  leaf_.Set(absl::UnavailableError("down"));
  tokenizer_.Set([this]() -> absl::StatusOr<PromptTokens> {
    if (frontend_->Engines(1).empty()) return NoEngineMet("m");
    return PromptTokens{.tokens = std::vector<TokenId>(33, 7), .source = {}};
  });
  EXPECT_EQ(Refused(Completion(), kText), 503) << "an outage says nothing of the model";
  leaf_.Set(WorkersAnswer());
  EXPECT_EQ(Refused(Completion(), kText), 404);
  EXPECT_EQ(refused_why_, "The model `m` does not exist.");
  leaf_.Set(workers_);
  EXPECT_EQ(HeadersEndpoint(Ask(Completion(), kText)), "10.0.0.1:8000");
  EXPECT_EQ(leaf_.asked_blocks(), 2u) << "by its prompt";
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
}

// They have moved, and no request has tokens to be routed by.
TEST_F(ExtProcServiceTest, EnginesThatAreAwayAreLookedForAgain) {
  bool away = true;
  tokenizer_.Set([&]() -> absl::StatusOr<PromptTokens> {
    if (away) return absl::UnavailableError("connection refused");
    return PromptTokens{.tokens = std::vector<TokenId>(33, 7), .source = {}};
  });
  EXPECT_NE(HeadersEndpoint(Ask(Completion(), kText)), "") << "by load";
  EXPECT_EQ(leaf_.asked_blocks(), 0u);
  EXPECT_TRUE(frontend_->Knows({"m", ""})) << "a leaf was asked";
  away = false;
  EXPECT_EQ(HeadersEndpoint(Ask(Completion(), kText)), "10.0.0.1:8000");
}

TEST_F(ExtProcServiceTest, WithoutATokenizerOnlyIdsAreRoutedByPrompt) {
  with_tokenizer_ = false;
  EXPECT_NE(HeadersEndpoint(Ask(Completion(), kText)), "");
  EXPECT_EQ(leaf_.asked_blocks(), 0u);
  EXPECT_EQ(HeadersEndpoint(Ask(Completion(), kIds)), "10.0.0.1:8000");
  EXPECT_EQ(leaf_.asked_blocks(), 1u);
}

TEST_F(ExtProcServiceTest, ABodyThatIsNoCallIs400) {
  EXPECT_EQ(Refused(Completion(), "{"), 400);
  EXPECT_EQ(Refused(Completion(), ""), 400);
  EXPECT_EQ(Refused(Completion(), R"({"model": "m"})"), 400);
  EXPECT_THAT(refused_why_, HasSubstr("prompt"));
}

TEST_F(ExtProcServiceTest, ABodyOverTheBoundIs413) {
  options_.body_bytes_max = 100;
  Stream stream = Open();
  stream.Write(Completion());
  stream.Write(Body(std::string(60, ' '), false));
  stream.Write(Body(std::string(41, ' '), false));
  EXPECT_EQ(RefusedBy(&stream), 413);
}

TEST_F(ExtProcServiceTest, BodiesOfAllStreamsTogetherAreBounded) {
  bodies_bytes_max_ = 210;
  Stream first = Open();
  first.Write(Completion());
  first.Write(Body(std::string(60, ' '), false));
  first.Write(Body(std::string(60, ' '), false));
  ASSERT_TRUE(Await([&] { return service_->bodies_bytes() == 120; }, std::chrono::minutes(1)));
  Stream second = Open();
  second.Write(Completion());
  second.Write(Body(std::string(91, ' '), false));
  EXPECT_EQ(RefusedBy(&second), 503);
  EXPECT_EQ(refused_dropped_, "rejected-saturated");
  EXPECT_EQ(service_->bodies_bytes(), 120u);
  // A body that the proxy has taken back counts no longer, once the engine answers.
  first.Write(Body(kIds, true));
  EXPECT_TRUE(first.Read().has_request_headers());
  EXPECT_TRUE(first.Read().has_request_body());
  EXPECT_EQ(service_->bodies_bytes(), 120 + std::strlen(kIds));
  first.Write(Response("200", "application/json"));
  EXPECT_TRUE(first.Read().has_response_headers());
  EXPECT_EQ(service_->bodies_bytes(), 0u);
}

TEST_F(ExtProcServiceTest, ABodyWhoseProxyGoesAwayIsHeldNoLonger) {
  {
    Stream stream = Open();
    stream.Write(Completion());
    stream.Write(Body(std::string(60, ' '), false));
    ASSERT_TRUE(Await([&] { return service_->bodies_bytes() == 60; }, std::chrono::minutes(1)));
  }
  EXPECT_TRUE(Await([&] { return service_->bodies_bytes() == 0; }, std::chrono::minutes(1)));
}

TEST_F(ExtProcServiceTest, APromptOverTheFrontendsBoundGoesByLoad) {
  tokenizer_.Set(
      PromptTokens{.tokens = std::vector<TokenId>(16 * (kRouteBlocksMax + 1), 1), .source = {}});
  std::string counted;
  picker_options_.on_no_tokens = [&](const std::string& model, const absl::Status& why) {
    counted = model + " " + std::string(NoTokensReason(why));
  };
  EXPECT_NE(HeadersEndpoint(Ask(Completion(), kText)), "");
  EXPECT_EQ(counted, "m too_long");
}

// ---- What no picker expects ----

TEST_F(ExtProcServiceTest, AProxyThatOnlyWatchesIsNotAnswered) {
  Stream stream = Open();
  auto headers = Completion();
  headers.set_observability_mode(true);
  stream.Write(headers);
  stream.Write(Body(kIds, true));
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(frontend_->stats().routes, 0u);
}

TEST_F(ExtProcServiceTest, MessagesOutOfTurnEndTheStream) {
  Stream body = Open();
  body.Write(Body(kIds, true));
  EXPECT_EQ(body.End().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  Stream trailers = Open();
  trailers.Write(RequestTrailers());
  EXPECT_EQ(trailers.End().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  Stream twice = Open();
  twice.Write(Completion());
  twice.Write(Completion());
  EXPECT_EQ(twice.End().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(ExtProcServiceTest, UnknownFieldsAndMessagesArePassedOver) {
  Stream stream = Open();
  stream.Write(ext_proc::ProcessingRequest());
  auto headers = Completion();
  headers.GetReflection()->MutableUnknownFields(&headers)->AddLengthDelimited(99, "later");
  stream.Write(headers);
  stream.Write(Body(kIds, true));
  EXPECT_EQ(HeadersEndpoint(stream.Read()), "10.0.0.1:8000");
}

TEST_F(ExtProcServiceTest, AResponseWithoutARoutedRequestPasses) {
  // A filter before this one answered by itself.
  Stream stream = Open();
  stream.Write(Completion());
  stream.Write(Response("403", "text/plain", true));
  EXPECT_TRUE(stream.Read().has_response_headers());
  EXPECT_TRUE(stream.Finish().ok());
}

// ---- The end ----

// Nothing is left to answer, and a proxy that ends it would reset it.
TEST_F(ExtProcServiceTest, AStreamEndsWithTheLastAnswer) {
  Stream body = Open();
  Pick(&body);
  body.Write(Response("200", "application/json"));
  EXPECT_TRUE(body.Read().has_response_headers());
  body.Write(ResponseBody("{}", true));
  EXPECT_TRUE(Streamed(body.Read().response_body()).end_of_stream());
  EXPECT_TRUE(body.End().ok());

  Stream trailers = Open();
  Pick(&trailers);
  trailers.Write(Response("200", "text/event-stream"));
  EXPECT_TRUE(trailers.Read().has_response_headers());
  trailers.Write(ResponseBody("data: [DONE]\n\n", false));
  EXPECT_FALSE(Streamed(trailers.Read().response_body()).end_of_stream());
  trailers.Write(ResponseTrailers());
  EXPECT_TRUE(trailers.Read().has_response_trailers());
  EXPECT_TRUE(trailers.End().ok());

  Stream get = Open();
  get.Write(Request("GET", "/v1/models", true));
  EXPECT_EQ(HeadersEndpoint(get.Read()), "10.0.0.1:8000");
  get.Write(Response("204", "text/plain", true));
  EXPECT_TRUE(get.Read().has_response_headers());
  EXPECT_TRUE(get.End().ok());
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
}

// An engine refuses a body that it has not read, and the proxy still sends it.
TEST_F(ExtProcServiceTest, AResponseThatIsOverBeforeItsRequestEndsNoStream) {
  Stream stream = Open();
  stream.Write(Request("PUT", "/v1/files"));
  EXPECT_EQ(HeadersEndpoint(stream.Read()), "10.0.0.1:8000");
  stream.Write(Body("one", false));
  EXPECT_EQ(Streamed(stream.Read().request_body()).body(), "one");
  stream.Write(Response("413", "text/plain", true));
  EXPECT_TRUE(stream.Read().has_response_headers());
  stream.Write(Body("two", true));
  EXPECT_EQ(Streamed(stream.Read().request_body()).body(), "two");
  EXPECT_TRUE(stream.Finish().ok());
}

TEST_F(ExtProcServiceTest, AStreamThatIsNotReadHoldsNobodyUp) {
  Stream slow = Open();
  slow.Write(Request("PUT", "/v1/files"));
  for (int i = 0; i < 100; ++i) slow.Write(Body(std::string(1000, 'x'), false));
  EXPECT_EQ(HeadersEndpoint(Ask(Completion(), kIds)), "10.0.0.1:8000");
  EXPECT_EQ(HeadersEndpoint(slow.Read()), "10.0.0.1:8000");
  for (int i = 0; i < 100; ++i) EXPECT_EQ(Streamed(slow.Read().request_body()).body().size(), 1000);
}

}  // namespace
}  // namespace kvatlas
