// An engine on real sockets for tests: it lists its model and the adapters that are loaded, makes
// tokens, and says "ok" to everything else.

#ifndef KVATLAS_FRONTEND_GATEWAY_HTTP_MODELS_ENGINE_TEST_UTIL_H_
#define KVATLAS_FRONTEND_GATEWAY_HTTP_MODELS_ENGINE_TEST_UTIL_H_

#include <cstddef>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "frontend/gateway/http/socket_test_util.h"
#include "indexer/base/address.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

class ModelsEngine {
 public:
  static constexpr int kToken = 7;  // all of them

  explicit ModelsEngine(std::set<std::string> adapters = {}, std::string model = "m")
      : model_(std::move(model)), adapters_(std::move(adapters)) {}

  std::string url() const { return engine_.url(); }
  const Address& address() const { return engine_.address(); }

  void Load(const std::string& adapter) {
    MutexLock lock(&mutex_);
    adapters_.insert(adapter);
  }
  void Unload(const std::string& adapter) {
    MutexLock lock(&mutex_);
    adapters_.erase(adapter);
  }
  // Lists are refused from now on.
  void Refuse() {
    MutexLock lock(&mutex_);
    refuses_ = true;
  }
  // The engine's name in its list, and its answer to /server_info and /version.
  void SetOwner(const std::string& owner, const std::string& server_info = "{}") {
    MutexLock lock(&mutex_);
    owner_ = owner;
    server_info_ = server_info;
  }
  // The answer to every question at /tokenize.
  void SetTokens(size_t count) {
    MutexLock lock(&mutex_);
    tokens_ = count;
  }
  int lists_asked() {
    MutexLock lock(&mutex_);
    return lists_asked_;
  }
  // Requests but those for lists and versions, as they came.
  std::vector<std::string> got() {
    MutexLock lock(&mutex_);
    return got_;
  }

 private:
  std::string Answer(const std::string& request) {
    MutexLock lock(&mutex_);
    std::string body = "ok";
    if (absl::StartsWith(request, "GET /v1/models ")) {
      ++lists_asked_;
      if (refuses_) return "HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n";
      body = absl::StrCat(R"({"object":"list","data":[{"id":")", model_,
                          R"(","parent":null,"owned_by":")", owner_, R"("})");
      for (const std::string& adapter : adapters_)
        absl::StrAppend(&body, R"(,{"id":")", adapter, R"(","parent":")", model_, R"("})");
      body += "]}";
    } else if (!absl::StartsWith(request, "GET /version ")) {
      got_.push_back(request);
    }
    if (absl::StartsWith(request, "GET /server_info ") ||
        (absl::StartsWith(request, "GET /version ") && !server_info_.empty()))
      body = server_info_;
    if (absl::StartsWith(request, "POST /tokenize ")) {
      body = absl::StrCat(R"({"tokens":[)", absl::StrJoin(std::vector<int>(tokens_, kToken), ","),
                          "]}");
    }
    return absl::StrCat("HTTP/1.1 200 OK\r\ncontent-length: ", body.size(), "\r\n\r\n", body);
  }

  const std::string model_;
  Mutex mutex_;
  std::set<std::string> adapters_ ABSL_GUARDED_BY(mutex_);
  size_t tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string owner_ ABSL_GUARDED_BY(mutex_) = "mock";
  std::string server_info_ ABSL_GUARDED_BY(mutex_);
  bool refuses_ ABSL_GUARDED_BY(mutex_) = false;
  int lists_asked_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::string> got_ ABSL_GUARDED_BY(mutex_);
  TestEngine engine_{[this](TestSocket& connection) {
    for (std::string request; !(request = connection.ReadMessage()).empty();)
      connection.Send(Answer(request));
  }};
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_HTTP_MODELS_ENGINE_TEST_UTIL_H_
