// A frontend's service before one cell whose answers wait when they are told to, and a tokenizer
// that makes a token of each byte.

#ifndef KVATLAS_FRONTEND_GATEWAY_GRPC_ROUTE_PROMPTS_TEST_UTIL_H_
#define KVATLAS_FRONTEND_GATEWAY_GRPC_ROUTE_PROMPTS_TEST_UTIL_H_

#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "frontend/gateway/frontend_service.h"
#include "frontend/gateway/http/socket_test_util.h"
#include "frontend/prompt/prompt_router.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/router/frontend.h"
#include "frontend/router/lookup_clients.h"
#include "frontend/router/route_observer.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"
#include "indexer/base/mutex.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/net/grpc_server.h"
#include "indexer/process/admin_http.h"
#include "indexer/telemetry/metrics.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"

namespace kvatlas {

inline constexpr TokenId kBeginToken = 256;
inline constexpr uint32_t kTestBlockSize = 4;

inline std::vector<TokenId> BytesAsTokens(const std::string& text) {
  std::vector<TokenId> tokens = {kBeginToken};
  for (char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

// One cell of two workers: "far" holds what it is told, "idle" nothing. Answers wait while it is
// held.
class WaitingCell : public CellFinder, public OverlapFinder {
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
            .block_size = kTestBlockSize});
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

  // From now on "far" has the blocks that were asked for last.
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
class WordlessTokenizer : public PromptTokenizer {
 public:
  void Tokenize(const std::string& model, const Prompt& prompt, Duration,
                Callback callback) override {
    if (model == "late") return callback(absl::DeadlineExceededError("the engine is late"));
    if (model != "m") return callback(absl::NotFoundError("no such model: " + model));
    std::string text;
    if (const auto* body = std::get_if<BodyPrompt>(&prompt); body != nullptr) {
      const auto json = nlohmann::ordered_json::parse(*body->body);
      if (json.contains("prompt")) text = json["prompt"].get<std::string>();
      for (const auto& message : json.value("messages", nlohmann::ordered_json::array())) {
        if (!message.contains("content"))
          return callback(absl::InvalidArgumentError("messages is without content"));
        text += message["content"].get<std::string>();
      }
      if (json.contains("messages") && json.value("add_generation_prompt", true)) text += '>';
    } else {
      text = std::get<TextPrompt>(prompt).text;
    }
    callback(PromptTokens{.tokens = BytesAsTokens(text), .bos = kBeginToken, .source = "bytes"});
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

class RoutePromptsTest : public testing::Test {
 protected:
  static v1::RouteChatRequest Body(const nlohmann::json& body) {
    v1::RouteChatRequest request;
    request.set_body(body.dump());
    request.set_return_tokens(true);
    return request;
  }

  static nlohmann::json Chat(const std::string& content) {
    return {{"model", "m"}, {"messages", {{{"role", "user"}, {"content", content}}}}};
  }

  static nlohmann::json Completion(const std::string& prompt) {
    return {{"model", "m"}, {"prompt", prompt}};
  }

  void SetUp() override { Start(&tokenizer_); }
  void TearDown() override { cell_.GoOn(); }

  void Start(PromptTokenizer* tokenizer) {
    FrontendOptions options;
    options.leaves = {{.cell = "cell", .address = "leaf"}};
    options.block_size = kTestBlockSize;
    options.deadline = std::chrono::seconds(60);
    options.observer = &decisions_;
    frontend_ = std::make_unique<Frontend>(options, &cell_, &cell_, &Clock::Real());
    if (tokenizer != nullptr) {
      PromptRouterOptions router;
      router.tokenize_deadline = std::chrono::seconds(60);
      router_ = std::make_unique<PromptRouter>(router, frontend_.get(), tokenizer);
    }
    service_ = std::make_unique<FrontendService>(frontend_.get(), &metrics_, router_.get());
    server_ = std::make_unique<GrpcServer>(GrpcServerOptions{.listen = {"127.0.0.1", 0}});
    server_->Register(service_.get());
    ASSERT_TRUE(server_->Start().ok());
    stub_ = v1::Frontend::NewStub(
        MakeChannel(server_->address().ToString(), {.connect_timeout = std::chrono::seconds(60)}));
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
  // The server sees what happened on a connection before anything that happens later, on it or on a
  // new one: after one more answered call it knows.
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
                     const std::string& type, const nlohmann::json& param) {
    const std::string answer = Post(path, body);
    EXPECT_THAT(answer, testing::StartsWith(absl::StrCat("HTTP/1.1 ", status, " "))) << body;
    const nlohmann::json error = nlohmann::json::parse(BodyOf(answer), nullptr, false);
    ASSERT_TRUE(error.is_object() && error.contains("error")) << answer;
    EXPECT_EQ(error["error"]["type"], type) << body;
    EXPECT_EQ(error["error"]["param"], param) << body;
    EXPECT_TRUE(error["error"]["message"].is_string());
    EXPECT_EQ(error["error"]["code"], status) << body;
  }

  WordlessTokenizer tokenizer_;
  WaitingCell cell_;
  Decisions decisions_;
  Metrics metrics_;
  std::unique_ptr<Frontend> frontend_;
  std::unique_ptr<PromptRouter> router_;
  std::unique_ptr<FrontendService> service_;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<v1::Frontend::Stub> stub_;
  std::unique_ptr<AdminHttp> http_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_GRPC_ROUTE_PROMPTS_TEST_UTIL_H_
