// One try to have an engine answer a request: a choice, the call to its engine, and every report on
// both to the frontend.
//
//   UpstreamTry(choice) ─▶ Start ─▶ OnHead ─▶ Resume ─▶ OnPiece ─▶ Resume … ─▶ OnEnd
//                            ╰────────┴─────────────────┴──────▶ OnFailed        `answered`: after the head
//
// *Truth*: a choice is reported exactly once as over: finished, failed or, when the try ends before
// an answer, abandoned. One that was never started is abandoned. An engine that failed is avoided
// for a while (`outlier_ejection.h`).
// *Threads*: everything on the thread of `io`. The owner's methods are not called from within the
// constructor, `Cancel` or the destructor, and may be from within `Start`.
// *Lifetime*: kept by its call while that runs, as is its owner; the owner gives it up after
// `OnEnd` or `OnFailed`.

#ifndef KVATLAS_FRONTEND_GATEWAY_HTTP_UPSTREAM_TRY_H_
#define KVATLAS_FRONTEND_GATEWAY_HTTP_UPSTREAM_TRY_H_

#include <boost/asio/io_context.hpp>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/engine_client/engine_call.h"
#include "frontend/gateway/http/proxy_parts.h"
#include "frontend/prompt/openai/usage_reader.h"
#include "frontend/prompt/prompt_router.h"
#include "frontend/router/frontend.h"
#include "indexer/net/http_exchange.h"
#include "indexer/net/http_server.h"
#include "indexer/telemetry/tracing/trace_context.h"
#include "indexer/telemetry/tracing/tracer.h"

namespace kvatlas {

// A client's request as each engine gets it.
struct ProxiedMessage {
  std::string method;
  std::string target;   // with the query
  HttpHeaders headers;  // without those of the connection
  std::shared_ptr<const std::string> body;
  // The client is authenticated here: the engine gets the key that it wants from us, unless the
  // client sends one of its own.
  bool vouched = false;
  bool names_rank = false;  // the client says which rank is to serve it
  bool one_prompt = true;   // the engine's cache figures are of the prompt that was predicted
  bool stored_elsewhere =
      false;  // it names an item that one engine has stored: 404 may mean that another has it
};

struct TryFailure {
  CellWorker worker;   // that failed: the one that decodes, unless the other one cannot be used
  std::string reason;  // for clients: it names no address
  bool answered = false;
  // The engine has the request and may be working on it, though its time is up. No other engine is
  // to do the same work.
  bool at_work = false;
  bool not_there = false;  // it answered 404 to an item that another engine may have
};

class UpstreamTry : public std::enable_shared_from_this<UpstreamTry> {
 public:
  class Owner {
   public:
    // `piece_follows`: from within `Resume`.
    virtual void OnHead(HttpHead head, bool piece_follows) = 0;
    virtual void OnPiece(std::string_view piece) = 0;  // valid until `Resume`
    virtual void OnEnd() = 0;
    virtual void OnFailed(const TryFailure& failure) = 0;
    // The engine answered that it cannot take the request. `PassOn` gives its answer after all.
    virtual void OnRefusal(const TryFailure& failure) = 0;

   protected:
    ~Owner() = default;
  };

  // A `choice` with decision id 0 was not made by the frontend, and is not reported.
  UpstreamTry(ProxyParts* parts, boost::asio::io_context* io, PromptRoute choice);
  ~UpstreamTry();

  UpstreamTry(const UpstreamTry&) = delete;
  UpstreamTry& operator=(const UpstreamTry&) = delete;

  const PromptRoute& choice() const { return choice_; }
  CellWorker destination() const;
  // HOST:PORT of the engine; empty: its url is missing or malformed, and `Start` fails.
  std::string engine() const { return url_.ok() ? url_->authority() : ""; }

  // Sends the request. `trace`, where valid, is the parent of the engine's span.
  void Start(const ProxiedMessage& message, const TraceContext& trace,
             std::shared_ptr<Owner> owner);
  void Resume() {
    if (call_ != nullptr) call_->Resume(!usage_.has_value() || usage_->began());
  }
  // After `OnRefusal`: the answer goes to the owner like any other.
  void PassOn();
  // The owner hears nothing more.
  void Cancel();

 private:
  absl::StatusOr<HttpHeaders> EngineHeaders(const ProxiedMessage& message) const;
  std::shared_ptr<const std::string> BodyOf(const ProxiedMessage& message) const;
  void Call(HttpHeaders headers);
  bool RefusesRank(int status) const { return status == 400 && names_rank_; }
  void OnRankRefused();
  void OnHead(EngineHead head);
  void OnRefusal(EngineHead head);
  void PassHead(EngineHead head);
  void OnPiece(std::string_view piece);
  void OnEnd();
  void OnCallFailed(const absl::Status& why, bool answered);
  void OnOutside(const CellWorker& worker, const std::string& url, const absl::Status& why,
                 const RouteReport& report);
  void Fail(const TryFailure& failure, const RouteReport& report);
  void AddDecision(HttpHeaders* headers) const;
  void Report(const RouteReport& report);

  ProxyParts* const parts_;
  boost::asio::io_context* const io_;
  PromptRoute choice_;
  const absl::StatusOr<EngineUrl> url_;
  std::shared_ptr<EngineCall> call_;
  std::shared_ptr<Owner> owner_;             // while the call runs
  const ProxiedMessage* message_ = nullptr;  // the owner's
  bool one_prompt_ = true;                   // of it
  bool names_rank_ = false;                  // the engine was told which rank is to serve it
  bool rank_refused_ = false;                // and refused; it was asked again without
  Span span_;                                // until the engine has answered all, or was given up
  std::optional<UsageReader> usage_;
  std::optional<EngineHead> refusal_;  // until it is passed on
  int status_ = 0;                     // of the answer; 0: none yet
  bool reported_over_ = false;         // finished or abandoned
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_HTTP_UPSTREAM_TRY_H_
