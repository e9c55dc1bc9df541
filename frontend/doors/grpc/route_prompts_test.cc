// Text, chats and OpenAI's bodies over real gRPC and real sockets: what tokens they become, where they are sent, and what is
// left of a caller that goes away.

#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "frontend/doors/frontend_service.h"
#include "frontend/doors/grpc/route_stream.h"
#include "frontend/doors/http/socket_test_util.h"
#include "frontend/prompt/prompt_router.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/route/finders.h"
#include "frontend/route/frontend.h"
#include "frontend/route/route_observer.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"
#include "indexer/base/mutex.h"
#include "indexer/service/admin_http.h"
#include "indexer/service/grpc_channel.h"
#include "indexer/service/grpc_server.h"
#include "indexer/service/metrics.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"

namespace kvatlas {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using Json = nlohmann::json;

constexpr TokenId kBos = 256;
constexpr uint32_t kBlockSize = 4;

std::vector<TokenId> Bytes(const std::string& text) {
  std::vector<TokenId> tokens = {kBos};
  for (char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

// One cell of two workers: "far" holds what it is told, "idle" nothing. Answers wait while it is held.
class OneCell : public CellFinder, public OverlapFinder {
 public:
  void FindCells(const std::string&, const CellQuestion&, Duration,
                 CellFinder::Callback callback) override {
    callback(absl::UnavailableError("no hierarchy"));
  }
  void FindOverlaps(const std::string&, const OverlapQuestion& question, Duration deadline,
                    OverlapFinder::Callback callback) override {
    std::function<void()> answer;
    {
      MutexLock lock(&mutex_);
      uint32_t common = 0;
      while (common < held_.size() && common < question.sequence.size() &&
             held_[common] == question.sequence[common])
        ++common;
      last_.assign(question.sequence.begin(), question.sequence.end());
      answer = [common, callback = std::move(callback)] {
        callback(WorkersAnswer{
            .workers = {{.worker = {"far", 0, ""},
                         .blocks = common,
                         .load = Load{.running_requests = 3}},
                        {.worker = {"idle", 0, ""}, .load = Load{.running_requests = 0}}},
            .block_size = kBlockSize});
      };
      deadline_ = deadline;
      ++asked_;
      changed_.SignalAll();
      if (waiting_) {
        answers_.push_back(std::move(answer));
        return;
      }
    }
    answer();
  }

  // What was last asked for is from now on what "far" has.
  void HoldTheLast() {
    MutexLock lock(&mutex_);
    held_ = last_;
  }
  void Wait() {
    MutexLock lock(&mutex_);
    waiting_ = true;
  }
  void WaitUntilAsked(size_t times) {
    MutexLock lock(&mutex_);
    while (asked_ < times) changed_.Wait(&mutex_);
  }
  size_t asked() {
    MutexLock lock(&mutex_);
    return asked_;
  }
  Duration deadline() {
    MutexLock lock(&mutex_);
    return deadline_;
  }
  // The answers that wait, the last question's first, if wanted so; all later ones at once.
  void GoOn(bool backwards = false) {
    std::vector<std::function<void()>> answers;
    {
      MutexLock lock(&mutex_);
      waiting_ = false;
      answers.swap(answers_);
    }
    if (backwards) std::reverse(answers.begin(), answers.end());
    for (const auto& answer : answers) answer();
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;
  size_t asked_ ABSL_GUARDED_BY(mutex_) = 0;
  Duration deadline_ ABSL_GUARDED_BY(mutex_){0};
  std::vector<SequenceHash> held_ ABSL_GUARDED_BY(mutex_);
  std::vector<SequenceHash> last_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::function<void()>> answers_ ABSL_GUARDED_BY(mutex_);
};

// A token for each byte, after the one that begins. A chat is its messages' contents.
class ByteTokenizer : public PromptTokenizer {
 public:
  void Tokenize(const std::string& model, const Prompt& prompt, Duration,
                Callback callback) override {
    if (model == "late") return callback(absl::DeadlineExceededError("the engine is late"));
    if (model != "m") return callback(absl::NotFoundError("no such model: " + model));
    std::string text;
    if (const auto* chat = std::get_if<ChatPrompt>(&prompt)) {
      for (const auto& message : chat->messages) {
        if (!message.contains("content"))
          return callback(absl::InvalidArgumentError("messages is without content"));
        text += message["content"].get<std::string>();
      }
      if (chat->add_generation_prompt) text += '>';
    } else {
      text = std::get<TextPrompt>(prompt).text;
    }
    callback(PromptTokens{.tokens = Bytes(text), .bos = kBos, .source = "bytes"});
  }
};

class Decisions : public RouteObserver {
 public:
  void OnDecided(const Decided& decided) override {
    MutexLock lock(&mutex_);
    last_ = decided.input;
  }
  void OnReported(uint64_t, const RouteReport& report, Time) override {
    MutexLock lock(&mutex_);
    ++reports_;
    abandoned_ += report.abandoned;
    changed_.SignalAll();
  }
  RouteInput last() {
    MutexLock lock(&mutex_);
    return last_;
  }
  void WaitForAbandoned(size_t times) {
    MutexLock lock(&mutex_);
    while (abandoned_ < times) changed_.Wait(&mutex_);
  }
  void WaitForReports(size_t times) {
    MutexLock lock(&mutex_);
    while (reports_ < times) changed_.Wait(&mutex_);
  }
  size_t abandoned() {
    MutexLock lock(&mutex_);
    return abandoned_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  RouteInput last_ ABSL_GUARDED_BY(mutex_);
  size_t reports_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t abandoned_ ABSL_GUARDED_BY(mutex_) = 0;
};

v1::RouteChatRequest Body(const Json& body) {
  v1::RouteChatRequest request;
  request.set_body(body.dump());
  request.set_return_tokens(true);
  return request;
}

Json Chat(const std::string& content) {
  return {{"model", "m"}, {"messages", {{{"role", "user"}, {"content", content}}}}};
}

Json Completion(const std::string& prompt) { return {{"model", "m"}, {"prompt", prompt}}; }

class RoutePromptsTest : public testing::Test {
 protected:
  void SetUp() override { Start(&tokenizer_); }
  void TearDown() override { cell_.GoOn(); }

  void Start(PromptTokenizer* tokenizer) {
    FrontendOptions options;
    options.leaves = {{.cell = "cell", .address = "leaf"}};
    options.block_size = kBlockSize;
    options.deadline = seconds(60);
    options.observer = &decisions_;
    frontend_ = std::make_unique<Frontend>(options, &cell_, &cell_, &Clock::Real());
    if (tokenizer != nullptr) {
      PromptRouterOptions router;
      router.tokenize_deadline = seconds(60);
      router_ = std::make_unique<PromptRouter>(router, frontend_.get(), tokenizer);
    }
    service_ = std::make_unique<FrontendService>(frontend_.get(), &metrics_, router_.get());
    server_ = std::make_unique<GrpcServer>(GrpcServerOptions{.listen = {"127.0.0.1", 0}});
    server_->Register(service_.get());
    ASSERT_TRUE(server_->Start().ok());
    stub_ = v1::Frontend::NewStub(MakeChannel(server_->address().ToString()));
    http_ = std::make_unique<AdminHttp>(
        AdminHttpOptions{.listen = {"127.0.0.1", 0}, .program = "test", .keep_headers = true},
        &metrics_);
    service_->AddHttp(http_.get());
    ASSERT_TRUE(http_->Start().ok());
  }

  grpc::Status Ask(const v1::RouteRequest& request, v1::RouteResponse* response) {
    grpc::ClientContext context;
    return stub_->Route(&context, request, response);
  }
  grpc::Status Ask(const v1::RouteChatRequest& request, v1::RouteResponse* response) {
    grpc::ClientContext context;
    return stub_->RouteChat(&context, request, response);
  }
  template <typename Request>
  v1::RouteResponse Route(const Request& request) {
    v1::RouteResponse response;
    const grpc::Status status = Ask(request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response;
  }
  // The server hears of what happened on a connection before it hears of what happens on it, or on a new one, later.
  void WaitUntilTheServerKnows() {
    grpc::ClientContext context;
    v1::ReportResponse response;
    ASSERT_TRUE(stub_->Report(&context, v1::ReportRequest(), &response).ok());
    GetModels();
  }
  std::string GetModels() {
    TestSocket client(http_->address());
    client.Send("GET /v1/models HTTP/1.1\r\nHost: front\r\n\r\n");
    return client.ReadMessage();
  }
  std::string Post(const std::string& path, const std::string& body, const std::string& more = "") {
    TestSocket client(http_->address());
    client.Send(absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: front\r\n", more,
                             "Content-Length: ", body.size(), "\r\n\r\n", body));
    return client.ReadMessage();
  }
  void ExpectRefused(const std::string& path, const std::string& body, int status,
                     const std::string& type, const Json& param) {
    const std::string answer = Post(path, body);
    EXPECT_THAT(answer, StartsWith(absl::StrCat("HTTP/1.1 ", status, " "))) << body;
    const Json error = Json::parse(BodyOf(answer), nullptr, false);
    ASSERT_TRUE(error.is_object() && error.contains("error")) << answer;
    EXPECT_EQ(error["error"]["type"], type) << body;
    EXPECT_EQ(error["error"]["param"], param) << body;
    EXPECT_TRUE(error["error"]["message"].is_string());
    EXPECT_EQ(error["error"]["code"], status == 404 ? Json("tokenizer_not_found") : Json()) << body;
  }

  ByteTokenizer tokenizer_;
  OneCell cell_;
  Decisions decisions_;
  Metrics metrics_;
  std::unique_ptr<Frontend> frontend_;
  std::unique_ptr<PromptRouter> router_;
  std::unique_ptr<FrontendService> service_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<v1::Frontend::Stub> stub_;
  std::unique_ptr<AdminHttp> http_;
};

TEST_F(RoutePromptsTest, AChatsBodyGoesWhereItsTokensAre) {
  const std::string words = "what a long conversation";
  v1::RouteResponse answer = Route(Body(Chat(words)));
  EXPECT_EQ(answer.worker().name(), "idle");
  EXPECT_EQ(answer.tokenizer(), "bytes");
  const std::vector<TokenId> expected = Bytes(words + ">");
  EXPECT_THAT(answer.tokens(), ElementsAreArray(expected));
  EXPECT_EQ(answer.prompt_tokens(), expected.size());
  EXPECT_EQ(decisions_.last().form, PromptForm::kChat);
  EXPECT_EQ(decisions_.last().bos, kBos);
  cell_.HoldTheLast();
  answer = Route(Body(Chat(words)));
  EXPECT_EQ(answer.worker().name(), "far");
  EXPECT_EQ(answer.overlap_blocks(), expected.size() / kBlockSize);
  // The same, as the messages alone, and as tokens.
  v1::RouteRequest request;
  request.mutable_domain()->set_model("m");
  request.mutable_chat()->set_messages_json(Chat(words)["messages"].dump());
  answer = Route(request);
  EXPECT_EQ(answer.overlap_blocks(), expected.size() / kBlockSize);
  EXPECT_THAT(answer.tokens(), IsEmpty()) << "not asked for";
  EXPECT_EQ(decisions_.last().form, PromptForm::kChat);
  request.clear_chat();
  request.mutable_tokens()->mutable_ids()->Add(expected.begin(), expected.end());
  EXPECT_EQ(Route(request).overlap_blocks(), expected.size() / kBlockSize);
}

TEST_F(RoutePromptsTest, ACompletionsBodyIsTextOrTokens) {
  const std::string words = "once upon a time";
  v1::RouteChatRequest body = Body(Completion(words));
  body.set_tenant("t");
  v1::RouteResponse answer = Route(body);
  EXPECT_THAT(answer.tokens(), ElementsAreArray(Bytes(words)));
  RouteInput decided = decisions_.last();
  EXPECT_EQ(decided.form, PromptForm::kCompletion);
  EXPECT_EQ(decided.bos, kBos);
  EXPECT_EQ(decided.domain.tenant, "t");
  answer = Route(Body({{"model", "m"}, {"prompt", Bytes(words)}}));
  EXPECT_THAT(answer.tokens(), ElementsAreArray(Bytes(words)));
  EXPECT_EQ(answer.tokenizer(), "");
  decided = decisions_.last();
  EXPECT_EQ(decided.form, PromptForm::kCompletion);
  EXPECT_EQ(decided.bos, std::nullopt) << "who made them is not known";
  // A word that looks like a chat's field.
  EXPECT_THAT(Route(Body(Completion("messages"))).tokens(), ElementsAreArray(Bytes("messages")));
  v1::RouteRequest request;
  request.mutable_domain()->set_model("m");
  request.mutable_text()->set_text(words);
  request.mutable_text()->set_lora_name("adapter");
  request.mutable_text()->set_cache_salt("salt");
  request.set_return_tokens(true);
  EXPECT_THAT(Route(request).tokens(), ElementsAreArray(Bytes(words)));
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

TEST_F(RoutePromptsTest, AnHttpBodyBecomesAWorkerAndItsTokens) {
  const std::string more = "x-kvatlas-tenant: t\r\nX-Kvatlas-Session: s\r\n";
  std::string answer = Post("/route/chat?tokens=1", Chat("hello").dump(), more);
  ASSERT_THAT(answer, StartsWith("HTTP/1.1 200 "));
  Json json = Json::parse(BodyOf(answer));
  EXPECT_EQ(json["worker"]["name"], "idle");
  EXPECT_EQ(json["tokens"].get<std::vector<TokenId>>(), Bytes("hello>"));
  EXPECT_EQ(decisions_.last().form, PromptForm::kChat);
  EXPECT_EQ(decisions_.last().bos, kBos);
  EXPECT_EQ(decisions_.last().domain.tenant, "t");
  EXPECT_EQ(decisions_.last().session_id, "s");
  answer = Post("/route/completion", Completion("hello").dump());
  ASSERT_THAT(answer, StartsWith("HTTP/1.1 200 "));
  json = Json::parse(BodyOf(answer));
  EXPECT_THAT(json["tokens"], IsEmpty());
  EXPECT_EQ(json["prompt_tokens"], Bytes("hello").size());
  EXPECT_EQ(decisions_.last().form, PromptForm::kCompletion);

  json = Json::parse(BodyOf(GetModels()));
  EXPECT_EQ(json["object"], "list");
  ASSERT_EQ(json["data"].size(), 1u) << "one model, of two tenants: " << json;
  EXPECT_EQ(json["data"][0]["id"], "m");
  EXPECT_EQ(json["data"][0]["object"], "model");
}

TEST_F(RoutePromptsTest, RefusalsOverHttpAreOpenAisAndNameTheField) {
  const std::string invalid = "invalid_request_error";
  ExpectRefused("/route/chat", "{", 400, invalid, Json());
  ExpectRefused("/route/chat", R"({"model":"m"})", 400, invalid, "messages");
  ExpectRefused("/route/chat", R"({"model":"m","messages":[{}]})", 400, invalid, "messages");
  ExpectRefused("/route/chat", R"({"messages":[{}]})", 400, invalid, "model");
  ExpectRefused("/route/chat", R"({"model":"m","messages":[{"content":"x"}],"tools":1})", 400,
                invalid, "tools");
  ExpectRefused("/route/completion", R"({"model":"m"})", 400, invalid, "prompt");
  ExpectRefused("/route/completion", R"({"model":"m","prompt":"x","max_tokens":"1"})", 400, invalid,
                "max_tokens");
  ExpectRefused("/route/completion", R"({"model":"other","prompt":"x"})", 404, "not_found_error",
                "model");
  ExpectRefused("/route/completion", R"({"model":"late","prompt":"x"})", 504, "server_error",
                Json());
  const std::string long_prompt(size_t{kBlockSize} * (kRouteBlocksMax + 1), 'x');
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
  ExpectRefused("/route/completion", Completion("hello").dump(), 404, "not_found_error", "model");
  ExpectRefused("/route/chat", Chat("hello").dump(), 404, "not_found_error", "model");
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

// ---- many on one stream ----

class RouteStreamTest : public RoutePromptsTest {
 protected:
  using Stream = grpc::ClientReaderWriter<v1::RouteStreamRequest, v1::RouteStreamResponse>;

  void SetUp() override {
    RoutePromptsTest::SetUp();
    stream_ = stub_->RouteStream(&context_);
  }
  // Tokens are asked about in the order in which they were sent.
  static v1::RouteStreamRequest Tokens(uint64_t id) {
    v1::RouteStreamRequest request;
    request.set_id(id);
    request.mutable_route()->mutable_domain()->set_model("m");
    for (uint32_t i = 0; i < kBlockSize; ++i)
      request.mutable_route()->mutable_tokens()->add_ids(static_cast<uint32_t>(id));
    return request;
  }
  static v1::RouteStreamRequest Chats(uint64_t id, const Json& body) {
    v1::RouteStreamRequest request;
    request.set_id(id);
    *request.mutable_chat() = Body(body);
    return request;
  }
  v1::RouteStreamResponse Read() {
    v1::RouteStreamResponse response;
    EXPECT_TRUE(stream_->Read(&response));
    return response;
  }
  // Written by another thread, since the server may not read on.
  std::thread Write(uint64_t from, uint64_t to) {
    return std::thread([this, from, to] {
      for (uint64_t id = from; id < to; ++id) stream_->Write(Tokens(id));
    });
  }

  grpc::ClientContext context_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(RouteStreamTest, AnswersComeAsTheyAreReadyWithTheIdsOfTheirQuestions) {
  constexpr uint64_t kQuestions = 300;
  cell_.Wait();
  std::thread writer = Write(0, kQuestions);
  cell_.WaitUntilAsked(kQuestions);
  writer.join();
  cell_.GoOn(/*backwards=*/true);
  std::set<uint64_t> decisions;
  for (uint64_t id = kQuestions; id-- > 0;) {
    const v1::RouteStreamResponse answer = Read();
    EXPECT_EQ(answer.id(), id);
    EXPECT_TRUE(answer.has_route()) << answer.message();
    decisions.insert(answer.route().decision_id());
  }
  EXPECT_EQ(decisions.size(), kQuestions);
}

TEST_F(RouteStreamTest, ChatsAndTokensAndMistakesAreAnsweredEachByItsId) {
  constexpr uint64_t kEach = 100;
  for (uint64_t id = 0; id < kEach; ++id) {
    stream_->Write(Chats(3 * id, Chat(absl::StrCat("chat ", id))));
    stream_->Write(Tokens(3 * id + 1));
    Json other = Chat("x");
    if (id % 2 == 0) other["model"] = absl::StrCat("other-", id);
    v1::RouteStreamRequest wrong = Chats(3 * id + 2, other);
    if (id % 2 == 1) wrong.clear_chat();
    stream_->Write(wrong);
  }
  stream_->WritesDone();
  std::set<uint64_t> seen;
  v1::RouteStreamResponse answer;
  while (stream_->Read(&answer)) {
    const uint64_t id = answer.id() / 3;
    seen.insert(answer.id());
    if (answer.id() % 3 == 0) {
      EXPECT_THAT(answer.route().tokens(), ElementsAreArray(Bytes(absl::StrCat("chat ", id, ">"))));
    } else if (answer.id() % 3 == 1) {
      EXPECT_EQ(answer.route().prompt_tokens(), kBlockSize);
    } else {
      EXPECT_FALSE(answer.has_route());
      EXPECT_EQ(answer.code(), id % 2 == 0 ? grpc::NOT_FOUND : grpc::INVALID_ARGUMENT);
      EXPECT_THAT(answer.message(),
                  HasSubstr(id % 2 == 0 ? absl::StrCat("other-", id) : "no question"));
    }
  }
  EXPECT_TRUE(stream_->Finish().ok());
  EXPECT_EQ(seen.size(), 3 * kEach);
  EXPECT_EQ(frontend_->stats().in_flight, 2 * kEach) << "who ends a stream keeps its choices";
  EXPECT_EQ(decisions_.abandoned(), 0u);
}

TEST_F(RouteStreamTest, NoMoreThanTheBoundAreUnanswered) {
  constexpr uint64_t kQuestions = kStreamOutstandingMax + 500;
  cell_.Wait();
  std::thread writer = Write(0, kQuestions);
  cell_.WaitUntilAsked(kStreamOutstandingMax);
  WaitUntilTheServerKnows();
  EXPECT_EQ(cell_.asked(), kStreamOutstandingMax) << "the rest is not read";
  cell_.GoOn();
  std::set<uint64_t> answered;
  for (uint64_t i = 0; i < kQuestions; ++i) answered.insert(Read().id());
  writer.join();
  EXPECT_EQ(answered.size(), kQuestions);
}

TEST_F(RouteStreamTest, ABrokenStreamLeavesOnlyWhatWasReportedOn) {
  for (uint64_t id = 0; id < 50; ++id) stream_->Write(Tokens(id));
  std::vector<uint64_t> decisions;
  for (uint64_t id = 0; id < 50; ++id) decisions.push_back(Read().route().decision_id());
  for (uint64_t i = 0; i < 10; ++i) {
    v1::RouteStreamRequest report;
    report.mutable_report()->set_decision_id(decisions[3 * i]);
    report.mutable_report()->set_accepted(true);
    stream_->Write(report);
  }
  decisions_.WaitForReports(10);
  EXPECT_EQ(frontend_->stats().in_flight, 40u);
  EXPECT_THAT(metrics_.Text(), HasSubstr("kvatlas_frontend_reports_total 10\n"));
  cell_.Wait();
  for (uint64_t id = 50; id < 70; ++id) stream_->Write(Tokens(id));
  cell_.WaitUntilAsked(70);
  context_.TryCancel();
  EXPECT_EQ(stream_->Finish().error_code(), grpc::StatusCode::CANCELLED);
  WaitUntilTheServerKnows();
  cell_.GoOn();
  decisions_.WaitForAbandoned(60);
  EXPECT_EQ(frontend_->stats().in_flight, 0u);
}

}  // namespace
}  // namespace kvatlas
