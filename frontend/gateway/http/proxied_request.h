// One request of a client. It owns the body, the results that a choice needs (tokens are made
// once), and the engines that were tried; each try is an object of its own.
//
//   1. `Start`     reads the head: is it passed on, and by what is its engine chosen?
//   2. `Choose`    asks the router; `OnChoice` comes back to the thread of the connection
//   3. `Try`       an `UpstreamTry` of that choice; `OnFailed` before its answer, or `OnRefusal`: step 2 again, among the other workers,
//                  unless the engine may be working on it (`TryFailure::at_work`)
//   4. `OnHead`, `OnPiece`, `OnEnd`: to the client
//
// *Truth*: an engine (HOST:PORT) is tried once at most, whatever it got of the request, and however
// many workers it has.
// *Threads*: that of its connection. *Bounds*: `ProxyOptions::tries` engines.
// *Lifetime*: kept by its exchange, its try and the router's callback.

#ifndef KVATLAS_FRONTEND_GATEWAY_HTTP_PROXIED_REQUEST_H_
#define KVATLAS_FRONTEND_GATEWAY_HTTP_PROXIED_REQUEST_H_

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/gateway/http/proxy_parts.h"
#include "frontend/gateway/http/response_makers.h"
#include "frontend/gateway/http/upstream_try.h"
#include "frontend/prompt/prompt_router.h"
#include "frontend/prompt/request/prompt_request.h"
#include "frontend/router/frontend.h"
#include "indexer/net/http_exchange.h"
#include "indexer/telemetry/tracing/tracer.h"

namespace kvatlas {

class ProxiedRequest final : public UpstreamTry::Owner,
                             public std::enable_shared_from_this<ProxiedRequest> {
 public:
  ProxiedRequest(ProxyParts* parts, std::shared_ptr<HttpExchange> exchange);
  ~ProxiedRequest();

  void Start();

  void OnHead(HttpHead head, bool piece_follows) override;
  void OnPiece(std::string_view piece) override;
  void OnEnd() override;
  void OnFailed(const TryFailure& failure) override;
  void OnRefusal(const TryFailure& failure) override;

 private:
  void ReadHead();
  void PutSalt();
  // `job`, of which work grows with `bytes`, on a thread that reads prompts if they are many, and
  // what it returns on this one.
  void Aside(size_t bytes, std::function<std::function<void()>()> job);
  void BeginSpan(const HttpRequest& request);
  void ReadTenant(const HttpRequest& request);
  // Answers from the fleet's list, or passes on one engine's own answer where none of them lists
  // any.
  void AskForModels();
  // Asks leaves once for engines that no route has met yet, before the request is refused.
  bool MeetFirst(std::function<void(ProxiedRequest*)> then);
  void OnModels(std::string asker, std::vector<std::optional<std::string>> bodies);
  void AnswerModels(std::string list);
  void Choose();
  void ChooseAny();
  void TryAny(KnownEngine engine);
  // True: another engine is asked for the response that this engine does not have.
  bool AskAnother();
  void OnWishes(const RequestWishes& wishes, RouteInput* input);
  // True: only the worker that has what the body names is allowed.
  bool AllowMaker(RouteInput* input) const;
  // True: the maker alone was asked. It will not be asked alone again.
  bool GiveUpMaker();
  void NoteIds(std::string_view piece);
  PromptQuestion Question();
  PromptRouter::Callback ToThread();
  void OnChoice(absl::StatusOr<PromptRoute> choice);
  void Try(PromptRoute choice);
  void NoteTried(const CellWorker& worker, const std::string& reason);
  bool WasTried(const CellWorker& worker) const;
  HttpExchange::Done ToResume();
  // After an engine that failed, or may not be tried.
  void ChooseAgain(const PromptRoute& earlier);
  void TryAnother(const TryFailure& failure, const UpstreamTry& failed);
  void RefuseTried();
  void RefuseLate(const TryFailure& failure);
  void DropRefusal();
  void Refuse(const absl::Status& why, const HttpHeaders& more = {});
  void RefusePath(const std::string& path);
  void RefuseRound();
  void AnswerRefusal(HttpResponse response);
  void OnClientGone();

  ProxyParts* const parts_;
  const std::shared_ptr<HttpExchange> exchange_;
  boost::asio::io_context* const io_;
  ProxiedMessage message_;
  std::optional<RequestPath> call_;        // with a prompt
  std::optional<std::string> form_model_;  // of a form
  bool asks_models_ = false;               // GET of the list, or of one model
  std::string asked_model_;                // that one
  bool any_engine_ = false;                // the request names no model
  std::string response_;                   // that the path names
  std::vector<std::string> stored_;        // ids of what an engine has, that the body names
  bool by_maker_ = false;                  // only the worker that has it was asked
  bool maker_failed_ = false;              // it is no longer asked alone
  bool goes_round_ = false;                // it has passed this process before
  bool met_ = false;                       // leaves were asked for engines
  std::optional<ResponseIds> made_;        // of an answer that makes a response
  bool response_noted_ = false;            // its id was found
  std::string tenant_;
  absl::Status refused_;  // its tenant
  std::string session_;
  Span span_;  // of the whole request

  std::shared_ptr<UpstreamTry> try_;
  // The try whose engine refused the request: its answer is the client's, unless another engine
  // takes the request.
  std::shared_ptr<UpstreamTry> refusing_;
  std::optional<HttpHead> head_;  // goes out with the first piece
  uint32_t tries_ = 0;
  std::vector<CellWorker> tried_workers_;
  std::set<std::string> tried_engines_;  // `EngineUrl::authority`
  std::string tried_;                    // "w0 (why), w1 (why)", for the client
  bool gone_ = false;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_HTTP_PROXIED_REQUEST_H_
