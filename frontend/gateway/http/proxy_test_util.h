// A proxy for tests: one cell of engines on real sockets, and a tokenizer with a token for each
// letter.

#ifndef KVATLAS_FRONTEND_GATEWAY_HTTP_PROXY_TEST_UTIL_H_
#define KVATLAS_FRONTEND_GATEWAY_HTTP_PROXY_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "frontend/gateway/http/proxy.h"
#include "frontend/gateway/http/socket_test_util.h"
#include "frontend/prompt/engine_names.h"
#include "frontend/prompt/no_tokens.h"
#include "frontend/prompt/prompt_router.h"
#include "frontend/prompt/text/prompt_tokenizer.h"
#include "frontend/router/frontend.h"
#include "frontend/router/lookup_clients.h"
#include "frontend/router/route_observer.h"
#include "indexer/base/clock.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {

// One cell, whose workers say where their engines are; the first holds more, and so is chosen while
// it is alive.
class OneCell : public CellFinder, public OverlapFinder {
 public:
  void FindCells(const std::string&, const CellQuestion&, Duration,
                 CellFinder::Callback callback) override {
    callback(absl::UnavailableError("no hierarchy"));
  }
  void FindOverlaps(const std::string&, const OverlapQuestion& question, Duration,
                    OverlapFinder::Callback callback) override {
    if (!model.empty() && question.domain->model != model)
      return callback(absl::NotFoundError("no such domain"));
    {
      MutexLock lock(&mutex_);
      asked_.assign(question.sequence.begin(), question.sequence.end());
    }
    WorkersAnswer answer{.workers = {}, .block_size = 4};
    auto labels = std::make_shared<LabelsByWorker>();
    for (size_t i = 0; i < urls.size(); ++i) {
      HolderId worker =
          ranks.empty() ? HolderId{"w" + std::to_string(i), 0, ""} : HolderId{"w0", ranks[i], ""};
      if (i < names.size()) worker.name = names[i];
      const auto blocks = static_cast<uint32_t>(question.sequence.size());
      answer.workers.push_back({.worker = worker,
                                .blocks = i == 0 ? blocks : 0,
                                .load = Load{.running_requests = static_cast<uint32_t>(i)}});
      (*labels)[worker] = {{"url", urls[i]}};
      if (first_rank != 0) (*labels)[worker]["first_rank"] = std::to_string(first_rank);
      if (i < roles.size()) (*labels)[worker]["role"] = roles[i];
    }
    answer.labels = labels;
    callback(std::move(answer));
  }
  // The blocks that it was asked for last.
  std::vector<SequenceHash> asked() {
    MutexLock lock(&mutex_);
    return asked_;
  }
  std::vector<std::string> urls;
  std::vector<std::string> roles;
  std::vector<std::string> names;  // in the place of "w0", "w1", …
  std::vector<uint32_t> ranks;     // of one worker, one for each url; empty: workers of one rank
  uint32_t first_rank = 0;         // of these, as a label
  std::string model;               // that it knows; empty: any

 private:
  Mutex mutex_;
  std::vector<SequenceHash> asked_ ABSL_GUARDED_BY(mutex_);
};

// A token for each letter; and what it was asked.
class LetterTokenizer : public PromptTokenizer {
 public:
  void Tokenize(const std::string& model, const Prompt& prompt, Duration,
                Callback callback) override {
    if (model != "m") return callback(absl::NotFoundError("no such model: " + model));
    std::string text;
    if (const auto* body = std::get_if<BodyPrompt>(&prompt)) {
      const auto json =
          nlohmann::ordered_json::parse(*body->body, nullptr, /*allow_exceptions=*/false);
      if (json.is_object() && json.contains("messages")) text = json["messages"].dump();
      if (json.is_object() && json.contains("previous_response_id"))
        return callback(absl::UnimplementedError("it goes on from what an engine keeps"));
      if (json.is_object() && json.contains("input"))
        text = json.value("instructions", "") + json["input"].dump();
      if (json.is_object() && json.contains("prompt")) {
        const auto& prompt = json["prompt"];
        text = (prompt.is_array() ? prompt.front() : prompt).get<std::string>();
      }
    } else {
      text = std::get<TextPrompt>(prompt).text;
    }
    PromptTokens tokens{.tokens = {}, .source = "letters"};
    for (char c : text) tokens.tokens.push_back(static_cast<unsigned char>(c));
    ++calls;
    callback(std::move(tokens));
  }
  std::atomic<int> calls = 0;
};

class EndReports : public RouteObserver {
 public:
  void OnDecided(const Decided&) override {}
  void OnReported(uint64_t, const RouteReport& report, Time) override {
    MutexLock lock(&mutex_);
    reports_.push_back(report);
    changed_.SignalAll();
  }
  // The next one that says the request is over.
  RouteReport WaitForEnd() {
    MutexLock lock(&mutex_);
    while (true) {
      for (; seen_ < reports_.size(); ++seen_) {
        const RouteReport& report = reports_[seen_];
        if (report.finished || report.abandoned) return reports_[seen_++];
      }
      changed_.Wait(&mutex_);
    }
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  std::vector<RouteReport> reports_ ABSL_GUARDED_BY(mutex_);
  size_t seen_ ABSL_GUARDED_BY(mutex_) = 0;
};

inline std::string Post(const std::string& path, const std::string& body,
                        const std::string& more = "") {
  return absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: front\r\n", more,
                      "Content-Type: application/json\r\nContent-Length: ", body.size(), "\r\n\r\n",
                      body);
}

inline constexpr char kChat[] =
    R"({"messages": [{"role":"user","content":"hello"}],  "model":"m"})";
inline constexpr char kOk[] = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";

// Says the same to everybody, for as long as they ask.
inline TestEngine::Serve Says(std::string answer) {
  return [answer](TestSocket& connection) {
    while (!connection.ReadMessage().empty()) connection.Send(answer);
  };
}

// A value that one thread hands to another.
class Gate {
 public:
  void Open() {
    MutexLock lock(&mutex_);
    open_ = true;
    changed_.SignalAll();
  }
  void Wait() {
    MutexLock lock(&mutex_);
    while (!open_) changed_.Wait(&mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  bool open_ ABSL_GUARDED_BY(mutex_) = false;
};

class ProxyTest : public testing::Test {
 protected:
  ~ProxyTest() override {
    if (names_ != nullptr) names_->Stop();
    if (proxy_ != nullptr) proxy_->Stop();
  }

  void Start(std::vector<std::string> urls) {
    cell_.urls = std::move(urls);
    FrontendOptions options;
    options.leaves = {{"cell", "leaf"}};
    // However slow a test is: a route is in time, a suspect is one until the test's end, an engine
    // that is there is reached, and a list of models is whole and kept.
    options.deadline = std::chrono::minutes(1);
    options.suspects.ttl = options.suspects.ttl_max = std::chrono::hours(1);
    options_.engine.connect_timeout = std::chrono::minutes(1);
    options_.models_timeout = std::chrono::minutes(1);
    options_.models_kept_for = std::chrono::hours(1);
    options.observer = &reports_;
    options.overload = overload_;
    options.engines = engines_;
    frontend_ = std::make_unique<Frontend>(options, &cell_, &cell_, &Clock::Real());
    PromptRouterOptions prompts;
    prompts.on_no_tokens = no_tokens_.counting();
    if (names_options_.has_value()) {
      // However slow a test is, an engine that is there has listed its models in time.
      names_options_->timeout = std::chrono::minutes(1);
      names_ = std::make_unique<EngineNames>(*names_options_, frontend_.get());
      prompts.served_name = names_->finder();
      options_.meet_engines = [this](std::function<void()> later) {
        return names_->Meet(std::move(later));
      };
    }
    router_ = std::make_unique<PromptRouter>(prompts, frontend_.get(), &tokenizer_);
    options_.listen = {"127.0.0.1", 0};
    // However slow a test is, its engine sees no idle connection close.
    options_.engine.keep_idle = std::chrono::hours(1);
    proxy_ = std::make_unique<Proxy>(options_, frontend_.get(), router_.get(), &metrics_);
    ASSERT_TRUE(proxy_->Start().ok());
  }

  std::string Ask(const std::string& request) {
    TestSocket client(proxy_->address());
    EXPECT_TRUE(client.Send(request));
    return client.ReadMessage();
  }
  static nlohmann::json ErrorOf(const std::string& answer) {
    return nlohmann::json::parse(BodyOf(answer), nullptr, false)["error"];
  }

  OneCell cell_;
  LetterTokenizer tokenizer_;
  EndReports reports_;
  Metrics metrics_;
  NoTokensCounter no_tokens_{&metrics_};
  ProxyOptions options_;
  OverloadThresholds overload_;
  std::map<std::string, std::string> engines_;  // `FrontendOptions::engines`
  std::unique_ptr<Frontend> frontend_;
  std::optional<EngineNamesOptions> names_options_;  // nothing: a model has no other names
  std::unique_ptr<EngineNames> names_;
  std::unique_ptr<PromptRouter> router_;
  std::unique_ptr<Proxy> proxy_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_HTTP_PROXY_TEST_UTIL_H_
