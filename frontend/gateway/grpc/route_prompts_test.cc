// Text, chats and OpenAI's bodies over real gRPC and real sockets: what tokens they become, where
// they are sent, and what is left of a caller that goes away.

#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "frontend/gateway/grpc/route_prompts_test_util.h"
#include "frontend/gateway/http/socket_test_util.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;
using Json = nlohmann::json;

TEST_F(RoutePromptsTest, AChatsBodyGoesWhereItsTokensAre) {
  const std::string words = "what a long conversation";
  v1::RouteResponse answer = Route(Body(Chat(words)));
  EXPECT_EQ(answer.worker().name(), "idle");
  EXPECT_EQ(answer.tokenizer(), "bytes");
  const std::vector<TokenId> expected = BytesAsTokens(words + ">");
  EXPECT_THAT(answer.tokens(), ElementsAreArray(expected));
  EXPECT_EQ(answer.prompt_tokens(), expected.size());
  EXPECT_EQ(decisions_.last().form, PromptForm::kChat);
  EXPECT_EQ(decisions_.last().bos, kBeginToken);
  cell_.HoldTheLast();
  answer = Route(Body(Chat(words)));
  EXPECT_EQ(answer.worker().name(), "far");
  EXPECT_EQ(answer.overlap_blocks(), expected.size() / kTestBlockSize);
  // The same, as the messages alone, and as tokens.
  v1::RouteRequest request;
  request.mutable_domain()->set_model("m");
  request.mutable_chat()->set_messages_json(Chat(words)["messages"].dump());
  answer = Route(request);
  EXPECT_EQ(answer.overlap_blocks(), expected.size() / kTestBlockSize);
  EXPECT_THAT(answer.tokens(), IsEmpty()) << "not asked for";
  EXPECT_EQ(decisions_.last().form, PromptForm::kChat);
  request.clear_chat();
  request.mutable_tokens()->mutable_ids()->Add(expected.begin(), expected.end());
  EXPECT_EQ(Route(request).overlap_blocks(), expected.size() / kTestBlockSize);
}

TEST_F(RoutePromptsTest, ACompletionsBodyIsTextOrTokens) {
  const std::string words = "once upon a time";
  v1::RouteChatRequest body = Body(Completion(words));
  body.set_tenant("t");
  v1::RouteResponse answer = Route(body);
  EXPECT_THAT(answer.tokens(), ElementsAreArray(BytesAsTokens(words)));
  RouteInput decided = decisions_.last();
  EXPECT_EQ(decided.form, PromptForm::kCompletion);
  EXPECT_EQ(decided.bos, kBeginToken);
  EXPECT_EQ(decided.domain.tenant, "t");
  answer = Route(Body({{"model", "m"}, {"prompt", BytesAsTokens(words)}}));
  EXPECT_THAT(answer.tokens(), ElementsAreArray(BytesAsTokens(words)));
  EXPECT_EQ(answer.tokenizer(), "");
  decided = decisions_.last();
  EXPECT_EQ(decided.form, PromptForm::kCompletion);
  EXPECT_EQ(decided.bos, std::nullopt) << "who made them is not known";
  // A word that looks like a chat's field.
  EXPECT_THAT(Route(Body(Completion("messages"))).tokens(),
              ElementsAreArray(BytesAsTokens("messages")));
  v1::RouteRequest request;
  request.mutable_domain()->set_model("m");
  request.mutable_text()->set_text(words);
  request.mutable_text()->set_lora_name("adapter");
  request.mutable_text()->set_cache_salt("salt");
  request.set_return_tokens(true);
  EXPECT_THAT(Route(request).tokens(), ElementsAreArray(BytesAsTokens(words)));
  decided = decisions_.last();
  EXPECT_EQ(decided.form, PromptForm::kCompletion);
  EXPECT_EQ(decided.lora_name, "adapter");
  EXPECT_EQ(decided.cache_salt, "salt");
}

TEST_F(RoutePromptsTest, WhatIsWrongIsRefusedWithItsFieldOverGrpc) {
  const auto why = [&](const auto& request) {
    v1::RouteResponse response;
    return Ask(request, &response);
  };
  EXPECT_THAT(why(Body(Json::array())).error_message(), HasSubstr("JSON object"));
  EXPECT_THAT(why(Body({{"model", "m"}})).error_message(), HasSubstr("prompt"));
  EXPECT_THAT(why(Body({{"prompt", "x"}})).error_message(), HasSubstr("model"));
  EXPECT_EQ(why(Body({{"prompt", "x"}})).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  Json unknown = Chat("x");
  unknown["model"] = "other";
  EXPECT_EQ(why(Body(unknown)).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(why(Body(unknown)).error_message(), HasSubstr("other"));
  unknown["model"] = "late";
  EXPECT_EQ(why(Body(unknown)).error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  v1::RouteRequest request;
  request.mutable_domain()->set_model("m");
  request.mutable_chat()->set_messages_json("{}");
  EXPECT_THAT(why(request).error_message(), HasSubstr("chat.messages_json"));
  request.mutable_chat()->set_messages_json(R"([{"content":"x"}])");
  request.mutable_chat()->set_tools_json("[");
  EXPECT_THAT(why(request).error_message(), HasSubstr("chat.tools_json"));
  request.mutable_chat()->clear_tools_json();
  request.mutable_text()->set_text("x");
  EXPECT_EQ(why(request).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << "two prompts";
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
}

TEST_F(RoutePromptsTest, LeavesAreGivenNoLongerThanTheCallerWaits) {
  v1::RouteChatRequest request = Body(Chat("hello, anybody"));
  request.set_deadline_ms(20'000);
  Route(request);
  EXPECT_LE(cell_.deadline(), seconds(20)) << "as the question says";
  EXPECT_GT(cell_.deadline(), Duration(0));
  request.clear_deadline_ms();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(30));
  v1::RouteResponse response;
  EXPECT_TRUE(stub_->RouteChat(&context, request, &response).ok());
  EXPECT_LE(cell_.deadline(), seconds(30)) << "as the call says";
  EXPECT_GT(cell_.deadline(), Duration(0));
}

TEST_F(RoutePromptsTest, ABodyNamesItsSessionWhereNeitherAHeaderNorTheRequestDoes) {
  Json chat = Chat("hello");
  chat["prompt_cache_key"] = "of the body";
  Post("/route/chat", chat.dump());
  EXPECT_EQ(decisions_.last().session_id, "of the body");
  Post("/route/chat", chat.dump(), "x-session-id: of the header\r\n");
  EXPECT_EQ(decisions_.last().session_id, "of the header");
  v1::RouteChatRequest request = Body(chat);
  Route(request);
  EXPECT_EQ(decisions_.last().session_id, "of the body");
  request.set_session_id("of the request");
  Route(request);
  EXPECT_EQ(decisions_.last().session_id, "of the request");
}

TEST_F(RoutePromptsTest, AnHttpBodyBecomesAWorkerAndItsTokens) {
  const std::string more = "x-kvatlas-tenant: t\r\nX-Kvatlas-Session: s\r\n";
  std::string answer = Post("/route/chat?tokens=1", Chat("hello").dump(), more);
  ASSERT_THAT(answer, StartsWith("HTTP/1.1 200 "));
  Json json = Json::parse(BodyOf(answer));
  EXPECT_EQ(json["worker"]["name"], "idle");
  EXPECT_EQ(json["tokens"].get<std::vector<TokenId>>(), BytesAsTokens("hello>"));
  EXPECT_EQ(decisions_.last().form, PromptForm::kChat);
  EXPECT_EQ(decisions_.last().bos, kBeginToken);
  EXPECT_EQ(decisions_.last().domain.tenant, "t");
  EXPECT_EQ(decisions_.last().session_id, "s");
  answer = Post("/route/completion", Completion("hello").dump());
  ASSERT_THAT(answer, StartsWith("HTTP/1.1 200 "));
  json = Json::parse(BodyOf(answer));
  EXPECT_THAT(json["tokens"], IsEmpty());
  EXPECT_EQ(json["prompt_tokens"], BytesAsTokens("hello").size());
  EXPECT_EQ(decisions_.last().form, PromptForm::kCompletion);

  json = Json::parse(BodyOf(GetModels()));
  EXPECT_EQ(json["object"], "list");
  ASSERT_EQ(json["data"].size(), 1u) << "one model, of two tenants: " << json;
  EXPECT_EQ(json["data"][0]["id"], "m");
  EXPECT_EQ(json["data"][0]["object"], "model");
}

TEST_F(RoutePromptsTest, RefusalsOverHttpAreOpenAisAndNameTheField) {
  const std::string invalid = "BadRequestError";
  ExpectRefused("/route/chat", "{", 400, invalid, Json());
  ExpectRefused("/route/chat", R"({"model":"m"})", 400, invalid, "messages");
  ExpectRefused("/route/chat", R"({"model":"m","messages":[{}]})", 400, invalid, "messages");
  ExpectRefused("/route/chat", R"({"messages":[{}]})", 400, invalid, "model");
  ExpectRefused("/route/chat", R"({"model":"m","messages":[{"content":"x"}],"tools":1})", 400,
                invalid, "tools");
  ExpectRefused("/route/completion", R"({"model":"m"})", 400, invalid, "prompt");
  ExpectRefused("/route/completion", R"({"model":"other","prompt":"x"})", 404, "NotFoundError",
                "model");
  ExpectRefused("/route/completion", R"({"model":"late","prompt":"x"})", 504, "InternalServerError",
                Json());
  const std::string long_prompt(size_t{kTestBlockSize} * (kRouteBlocksMax + 1), 'x');
  ExpectRefused("/route/completion", Completion(long_prompt).dump(), 413, invalid, Json());
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
}

class WithoutTokenizerTest : public RoutePromptsTest {
 protected:
  void SetUp() override { Start(nullptr); }
};

TEST_F(WithoutTokenizerTest, NoModelIsFoundForTextsChatsAndBodies) {
  v1::RouteRequest text, chat;
  text.mutable_domain()->set_model("m");
  chat = text;
  text.mutable_text()->set_text("hello");
  chat.mutable_chat()->set_messages_json("[{}]");
  v1::RouteResponse answer;
  for (const grpc::Status& status :
       {Ask(text, &answer), Ask(chat, &answer), Ask(Body(Completion("hello")), &answer)}) {
    EXPECT_EQ(status.error_code(), grpc::StatusCode::NOT_FOUND);
    EXPECT_THAT(status.error_message(), HasSubstr("tokenizer"));
  }
  ExpectRefused("/route/completion", Completion("hello").dump(), 404, "NotFoundError", "model");
  ExpectRefused("/route/chat", Chat("hello").dump(), 404, "NotFoundError", "model");
}

// ---- callers that go away ----

TEST_F(RoutePromptsTest, ACancelledCallLeavesNoChoice) {
  cell_.Wait();
  grpc::ClientContext context;
  grpc::Status status;
  std::thread caller([&] {
    v1::RouteResponse response;
    status = stub_->RouteChat(&context, Body(Chat("hello, worker")), &response);
  });
  cell_.WaitUntilAsked(1);
  context.TryCancel();
  caller.join();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::CANCELLED);
  WaitUntilTheServerKnows();
  cell_.GoOn();
  decisions_.WaitForAbandoned(1);
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
}

TEST_F(RoutePromptsTest, AClosedConnectionLeavesNoChoice) {
  cell_.Wait();
  {
    TestSocket client(http_->address());
    const std::string body = Chat("hello, worker").dump();
    client.Send(absl::StrCat("POST /route/chat HTTP/1.1\r\nHost: front\r\nContent-Length: ",
                             body.size(), "\r\n\r\n", body));
    cell_.WaitUntilAsked(1);
  }
  WaitUntilTheServerKnows();
  cell_.GoOn();
  decisions_.WaitForAbandoned(1);
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
}

}  // namespace
}  // namespace kvatlas
