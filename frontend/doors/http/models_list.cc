#include "frontend/doors/http/models_list.h"

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

#include "frontend/peers/engine_call.h"
#include "frontend/prompt/openai/json_depth.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;
using Json = nlohmann::ordered_json;

class ModelsQuestion : public std::enable_shared_from_this<ModelsQuestion> {
 public:
  ModelsQuestion(asio::io_context* io, ModelsCallback callback)
      : io_(io), timer_(*io), callback_(std::move(callback)) {}

  void Start(EngineConnections* pool, const std::vector<KnownEngine>& engines,
             const HttpHeaders& headers, Duration timeout) {
    std::set<std::string> asked;
    for (const KnownEngine& engine : engines) {
      absl::StatusOr<EngineUrl> url = EngineUrl::Parse(engine.url);
      if (asked.size() == kModelsEnginesMax) break;
      if (!url.ok() || !asked.insert(url->authority()).second) continue;
      answers_.push_back(std::make_shared<Answer>());
      Ask(pool, *std::move(url), headers, answers_.back());
    }
    left_ = answers_.size();
    if (left_ == 0) return asio::post(*io_, [self = shared_from_this()] { self->End(); });
    timer_.expires_after(timeout);
    timer_.async_wait([self = shared_from_this()](boost::system::error_code cancelled) {
      if (!cancelled) self->End();
    });
    for (const std::shared_ptr<Answer>& answer : std::vector(answers_)) answer->call->Start();
  }

 private:
  struct Answer {
    std::shared_ptr<EngineCall> call;
    int status = 0;
    std::string body;
    bool over = false;
  };

  void Ask(EngineConnections* pool, EngineUrl url, HttpHeaders headers,
           const std::shared_ptr<Answer>& answer) {
    pool->options().reach.Authorize(url, &headers);
    const std::shared_ptr<ModelsQuestion> self = shared_from_this();
    answer->call = std::make_shared<EngineCall>(
        io_, pool,
        EngineCallRequest{.url = std::move(url),
                          .method = "GET",
                          .target = "/v1/models",
                          .headers = std::move(headers),
                          .body = nullptr},
        EngineCallbacks{
            .on_head =
                [self, answer](const EngineHead& head) {
                  answer->status = head.status;
                  answer->call->Resume();
                },
            .on_piece = [self, answer](std::string_view piece) { self->OnPiece(answer, piece); },
            .on_end = [self, answer] { self->OnOver(answer, answer->status == 200); },
            .on_failed = [self, answer](const absl::Status&,
                                        bool) { self->OnOver(answer, false); }});
  }

  void OnPiece(const std::shared_ptr<Answer>& answer, std::string_view piece) {
    const std::shared_ptr<EngineCall> call = answer->call;
    if (answer->body.size() + piece.size() <= kModelsAnswerBytesMax) {
      answer->body += piece;
      return call->Resume();
    }
    call->Cancel();
    OnOver(answer, false);
  }

  void OnOver(const std::shared_ptr<Answer>& answer, bool good) {
    if (std::exchange(answer->over, true)) return;
    if (!good) answer->body.clear();
    answer->call = nullptr;
    if (--left_ == 0) End();
  }

  void End() {
    if (callback_ == nullptr) return;
    timer_.cancel();
    std::vector<std::string> bodies;
    for (const std::shared_ptr<Answer>& answer : answers_) {
      if (answer->over) bodies.push_back(std::move(answer->body));
      if (answer->call != nullptr) std::exchange(answer->call, nullptr)->Cancel();
    }
    answers_.clear();
    std::exchange(callback_, nullptr)(MergeModels(bodies));
  }

  asio::io_context* const io_;
  asio::steady_timer timer_;
  ModelsCallback callback_;
  std::vector<std::shared_ptr<Answer>> answers_;
  size_t left_ = 0;
};

}  // namespace

void AskModels(asio::io_context* io, EngineConnections* pool,
               const std::vector<KnownEngine>& engines, const HttpHeaders& headers,
               Duration timeout, ModelsCallback callback) {
  std::make_shared<ModelsQuestion>(io, std::move(callback))->Start(pool, engines, headers, timeout);
}

std::optional<std::string> ModelIn(const std::string& list, const std::string& id) {
  const Json json = Json::parse(list, nullptr, /*allow_exceptions=*/false);
  for (const Json& model : json["data"]) {
    if (model["id"] == id) return model.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
  return std::nullopt;
}

std::optional<std::string> MergeModels(const std::vector<std::string>& bodies) {
  std::map<std::string, Json> models;
  bool any = false;
  for (const std::string& body : bodies) {
    if (IsNestedTooDeep(body)) continue;
    const Json list = Json::parse(body, nullptr, /*allow_exceptions=*/false);
    if (!list.is_object()) continue;
    const auto data = list.find("data");
    if (data == list.end() || !data->is_array()) continue;
    any = true;
    for (const Json& model : *data) {
      if (!model.is_object()) continue;
      const auto id = model.find("id");
      if (id != model.end() && id->is_string()) models.emplace(id->get<std::string>(), model);
    }
  }
  if (!any) return std::nullopt;
  Json merged = {{"object", "list"}, {"data", Json::array()}};
  for (auto& [id, model] : models) merged["data"].push_back(std::move(model));
  return merged.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace kvatlas
