// The endpoint picker over real gRPC for tests: workers near and far, a frontend, and what it was
// told of its choices.

#ifndef KVATLAS_FRONTEND_GATEWAY_EXT_PROC_EXT_PROC_TEST_UTIL_H_
#define KVATLAS_FRONTEND_GATEWAY_EXT_PROC_EXT_PROC_TEST_UTIL_H_

#include <grpcpp/channel.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "frontend/gateway/ext_proc/endpoint_learner.h"
#include "frontend/gateway/ext_proc/endpoints.h"
#include "frontend/gateway/ext_proc/ext_proc_service.h"
#include "frontend/gateway/ext_proc/proxy_test_util.h"
#include "frontend/prompt/prompt_form.h"
#include "frontend/router/route_observer.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/net/grpc_channel.h"
#include "indexer/net/grpc_server.h"

namespace kvatlas {

inline constexpr char kIds[] =
    R"({"model": "m", "prompt": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]})";
inline constexpr char kText[] = R"({"model": "m", "prompt": "hello"})";
inline constexpr char kUsage[] =
    R"("usage": {"prompt_tokens": 17, "prompt_tokens_details": {"cached_tokens": 16}})";

// A leaf that answers at once, or when it is let go.
class HeldLeaf : public OverlapFinder {
 public:
  void FindOverlaps(const std::string&, const OverlapQuestion& question, Duration,
                    Callback callback) override {
    absl::StatusOr<WorkersAnswer> answer = this->answer();
    {
      MutexLock lock(&mutex_);
      asked_.assign(question.sequence.begin(), question.sequence.end());
      const auto of_model = of_models_.find(question.domain->model);
      if (of_model != of_models_.end()) answer = of_model->second;
      if (hold_) {
        held_.push_back(std::move(callback));
        changed_.SignalAll();
        return;
      }
    }
    callback(std::move(answer));
  }

  // Another answer about one model.
  void SetFor(const std::string& model, WorkersAnswer answer) {
    MutexLock lock(&mutex_);
    of_models_[model] = std::move(answer);
  }
  void Set(absl::StatusOr<WorkersAnswer> answer) {
    MutexLock lock(&mutex_);
    answer_ = std::move(answer);
  }
  void Hold() {
    MutexLock lock(&mutex_);
    hold_ = true;
  }
  void WaitAsked() {
    MutexLock lock(&mutex_);
    while (held_.empty()) changed_.Wait(&mutex_);
  }
  void LetGo() {
    std::vector<Callback> held;
    {
      MutexLock lock(&mutex_);
      held.swap(held_);
      hold_ = false;
    }
    for (const Callback& callback : held) callback(answer());
  }
  size_t asked_blocks() { return asked().size(); }
  // The last question that it got.
  std::vector<SequenceHash> asked() {
    MutexLock lock(&mutex_);
    return asked_;
  }

 private:
  absl::StatusOr<WorkersAnswer> answer() {
    MutexLock lock(&mutex_);
    return answer_;
  }

  Mutex mutex_;
  CondVar changed_;
  absl::StatusOr<WorkersAnswer> answer_ ABSL_GUARDED_BY(mutex_) = WorkersAnswer();
  std::map<std::string, WorkersAnswer> of_models_ ABSL_GUARDED_BY(mutex_);
  bool hold_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Callback> held_ ABSL_GUARDED_BY(mutex_);
  std::vector<SequenceHash> asked_ ABSL_GUARDED_BY(mutex_);
};

class NoHierarchy : public CellFinder {
 public:
  void FindCells(const std::string&, const CellQuestion&, Duration, Callback callback) override {
    callback(absl::UnavailableError("none"));
  }
};

class PromptsTokenizer : public PromptTokenizer {
 public:
  void Tokenize(const std::string& model, const Prompt& prompt, Duration,
                Callback callback) override {
    std::function<absl::StatusOr<PromptTokens>()> answers;
    absl::StatusOr<PromptTokens> answer;
    {
      MutexLock lock(&mutex_);
      asked_.push_back(model + (FormOf(prompt) == PromptForm::kChat ? " chat" : " text"));
      answers = answers_;
      answer = answer_;
    }
    callback(answers == nullptr ? answer : answers());
  }
  void Set(absl::StatusOr<PromptTokens> answer) {
    MutexLock lock(&mutex_);
    answer_ = std::move(answer);
  }
  void Set(std::function<absl::StatusOr<PromptTokens>()> answer) {
    MutexLock lock(&mutex_);
    answers_ = std::move(answer);
  }
  std::vector<std::string> asked() {
    MutexLock lock(&mutex_);
    return asked_;
  }

 private:
  Mutex mutex_;
  absl::StatusOr<PromptTokens> answer_ ABSL_GUARDED_BY(mutex_) = PromptTokens{
      .tokens = std::vector<TokenId>(33, 7), .source = {}};
  std::function<absl::StatusOr<PromptTokens>()> answers_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> asked_ ABSL_GUARDED_BY(mutex_);
};

// The reports that the frontend got on its choices.
class Reports : public RouteObserver {
 public:
  void OnDecided(const Decided& decided) override {
    MutexLock lock(&mutex_);
    tenants_.push_back(decided.input.domain.tenant);
    sessions_.push_back(decided.input.session_id);
    outstanding_.insert(decided.result.decision_id);
  }
  void OnReported(uint64_t decision_id, const RouteReport& report, Time) override {
    MutexLock lock(&mutex_);
    if (report.finished || report.abandoned) outstanding_.erase(decision_id);
    reports_.push_back(report);
    changed_.SignalAll();
  }
  // Waits for the report that a choice has ended, or was never taken.
  RouteReport Finished() {
    MutexLock lock(&mutex_);
    for (;;) {
      for (const RouteReport& report : reports_)
        if (report.finished || report.abandoned) return report;
      changed_.Wait(&mutex_);
    }
  }
  // Waits until every choice has ended.
  void AllEnded() {
    MutexLock lock(&mutex_);
    while (!outstanding_.empty()) changed_.Wait(&mutex_);
  }
  size_t count() {
    MutexLock lock(&mutex_);
    return reports_.size();
  }
  RouteReport last() {
    MutexLock lock(&mutex_);
    return reports_.empty() ? RouteReport() : reports_.back();
  }
  std::vector<std::string> sessions() {
    MutexLock lock(&mutex_);
    return sessions_;
  }
  std::vector<std::string> tenants() {
    MutexLock lock(&mutex_);
    return tenants_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<RouteReport> reports_ ABSL_GUARDED_BY(mutex_);
  std::set<uint64_t> outstanding_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> tenants_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> sessions_ ABSL_GUARDED_BY(mutex_);
};

class ExtProcServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    AddWorker("near", 1, "10.0.0.1:8000");
    AddWorker("far", 0, "10.0.0.2:8000");
    leaf_.Set(workers_);
  }

  void SetRole(const std::string& name, const std::string& role) {
    auto labels = workers_.labels == nullptr ? std::make_shared<LabelsByWorker>()
                                             : std::make_shared<LabelsByWorker>(*workers_.labels);
    (*labels)[{name, 0, ""}]["role"] = role;
    workers_.labels = std::move(labels);
    leaf_.Set(workers_);
  }

  void AddWorker(const std::string& name, uint32_t blocks, const std::string& endpoint) {
    workers_.workers.push_back({.worker = {name, 0, ""}, .blocks = blocks});
    configured_.push_back(name + "=" + endpoint);
  }

  void Start() {
    for (const std::string& entry : configured_) ASSERT_TRUE(endpoints_.Configure(entry).ok());
    FrontendOptions options;
    options.leaves = {{"cell", "leaf:1"}};
    options.observer = &reports_;
    // However slow a test is, a route is in time and a suspect is one until the test's end.
    options.deadline = std::chrono::minutes(1);
    options.suspects.ttl = options.suspects.ttl_max = std::chrono::hours(1);
    learner_ = std::make_unique<EndpointLearner>(&leaf_, &endpoints_, picker_options_.pool);
    learner_->SetCellOf([](const std::string& address) -> std::optional<std::string> {
      return address == "leaf:1" ? std::optional<std::string>("cell") : std::nullopt;
    });
    options.overload = overload_;
    frontend_ = std::make_unique<Frontend>(options, &no_hierarchy_, learner_.get(), &Clock::Real());
    picker_ = std::make_unique<Picker>(picker_options_, frontend_.get(),
                                       with_tokenizer_ ? &tokenizer_ : nullptr, &endpoints_);
    service_ =
        std::make_unique<ExtProcService>(options_, picker_.get(), &metrics_, bodies_bytes_max_);
    server_ = std::make_unique<GrpcServer>(
        GrpcServerOptions{.listen = {.host = "127.0.0.1", .port = 0}, .tls = tls_});
    server_->Register(service_.get(), kExtProcServiceName);
    ASSERT_TRUE(server_->Start().ok());
    channel_ = tls_ == PortTls::kOwn ? GatewayChannel(server_->address().ToString(), /*tls=*/true)
                                     : MakeChannel(server_->address().ToString(),
                                                   {.connect_timeout = std::chrono::minutes(1)});
  }

  Stream Open() {
    if (server_ == nullptr) Start();
    return Stream(channel_);
  }

  // A completion, until its destination is known.
  static void Pick(Stream* stream) {
    stream->Write(Completion());
    stream->Write(Body(kIds, true));
    stream->Read();
    stream->Read();
  }

  // The first answer to a full-duplex proxy that then goes away.
  ext_proc::ProcessingResponse Ask(const ext_proc::ProcessingRequest& headers,
                                   const std::string& body) {
    ext_proc::ProcessingResponse answer;
    {
      Stream stream = Open();
      stream.Write(headers);
      stream.Write(Body(body, true));
      answer = stream.Read();
    }
    reports_.AllEnded();
    return answer;
  }

  // A request whose proxy answers it by itself, for that reason; the endpoints that it was to go
  // to.
  std::string AnsweredInstead(const std::string& status, const std::string& details,
                              const std::string& upstream) {
    Stream stream = Open();
    stream.Write(Completion());
    stream.Write(Body(kIds, true));
    const std::string endpoints = HeadersEndpoint(stream.Read());
    EXPECT_TRUE(stream.Read().has_request_body());
    stream.Write(Because(details, upstream, Response(status, "text/plain")));
    EXPECT_TRUE(stream.Read().has_response_headers());
    stream.Write(ResponseBody("not here", true));
    EXPECT_TRUE(Streamed(stream.Read().response_body()).end_of_stream());
    EXPECT_TRUE(stream.Finish().ok());
    return endpoints;
  }

  int Refused(const ext_proc::ProcessingRequest& headers, const std::string& body) {
    Stream stream = Open();
    stream.Write(headers);
    stream.Write(Body(body, true));
    return RefusedBy(&stream);
  }

  int RefusedBy(Stream* stream) {
    const ext_proc::ProcessingResponse response = stream->Read();
    EXPECT_TRUE(response.has_immediate_response()) << response.ShortDebugString();
    const ext_proc::ImmediateResponse& answer = response.immediate_response();
    EXPECT_EQ(HeaderIn(answer.headers(), "content-type"), "application/json");
    const nlohmann::json body = nlohmann::json::parse(answer.body());
    refused_why_ = body["error"]["message"];
    EXPECT_TRUE(body["error"].contains("code"));
    refused_dropped_ = HeaderIn(answer.headers(), kDroppedHeader);
    EXPECT_TRUE(stream->End().ok());
    return static_cast<int>(answer.status().code());
  }

  WorkersAnswer workers_;
  HeldLeaf leaf_;
  NoHierarchy no_hierarchy_;
  PromptsTokenizer tokenizer_;
  bool with_tokenizer_ = true;
  PortTls tls_ = PortTls::kOfProcess;
  Reports reports_;
  std::vector<std::string> configured_;
  Endpoints endpoints_;
  std::unique_ptr<EndpointLearner> learner_;
  OverloadThresholds overload_;
  PickerOptions picker_options_;
  PickerStreamOptions options_;
  uint64_t bodies_bytes_max_ = uint64_t{1} << 30;
  Metrics metrics_;
  std::unique_ptr<Frontend> frontend_;
  std::unique_ptr<Picker> picker_;
  std::unique_ptr<ExtProcService> service_;
  std::unique_ptr<GrpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::string refused_why_;
  std::string refused_dropped_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_EXT_PROC_EXT_PROC_TEST_UTIL_H_
