// The frontend behind gRPC, and behind HTTP for people and scripts.
//
//   POST /route   {"model": "m", "tenant": "", "tokens": [1, 2, …]}        ids, or
//                 {"model": "m", "sequence_hashes": [123, "18446744073709551615", …]}
//                 with "lora_name", "cache_salt", "deadline_ms" as in frontend.proto → RouteResponse as JSON
//   POST /route/chat, /route/completion
//                 the body of /v1/chat/completions or /v1/completions → RouteResponse as JSON, or an error as OpenAI's; with
//                 ?tokens=1 the prompt's token ids too; headers x-kvatlas-tenant, x-kvatlas-session
//   GET  /v1/models  those that were asked about, as OpenAI lists them
//   POST /report  {"decision_id": "7", "accepted": true}, and at the end, from the engine's own usage,
//                 {"decision_id": "7", "finished": true, "cached_tokens": 512, "prompt_tokens": 700,
//                  "worker": "w3", "rank": 0, "error": ""}
//                 404: a decision that neither gRPC nor HTTP of this process gave out
//   GET  /status  what it is configured with and what it did
//
// A field that /route or /report does not know, or of another type, is 400 and named.
//
// A caller that is gone before it has its answer leaves no choice behind.
//
// *Threads*: any; routes hold no thread while they wait.
// *Lifetime*: frontend, router and metrics outlive the service.

#ifndef KVATLAS_FRONTEND_GATEWAY_FRONTEND_SERVICE_H_
#define KVATLAS_FRONTEND_GATEWAY_FRONTEND_SERVICE_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/gateway/grpc/route_calls.h"
#include "frontend/gateway/grpc/route_stream.h"
#include "frontend/gateway/route_metrics.h"
#include "frontend/prompt/prompt_router.h"
#include "frontend/prompt/request/prompt_request.h"
#include "frontend/router/frontend.h"
#include "indexer/net/http_exchange.h"
#include "indexer/process/admin_http.h"
#include "indexer/telemetry/metrics.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"

namespace kvatlas {

// `RouteStream` is not of the generated interface: its requests are `BoundedMessage`s.
class FrontendService
    : public v1::Frontend::WithCallbackMethod_Route<v1::Frontend::WithCallbackMethod_RouteChat<
          v1::Frontend::WithCallbackMethod_Report<v1::Frontend::Service>>> {
 public:
  // Without a router there are no tokens for text and chats.
  FrontendService(Frontend* frontend, Metrics* metrics, PromptRouter* router = nullptr);

  grpc::ServerUnaryReactor* Route(grpc::CallbackServerContext* context,
                                  const v1::RouteRequest* request,
                                  v1::RouteResponse* response) override;
  grpc::ServerUnaryReactor* RouteChat(grpc::CallbackServerContext* context,
                                      const v1::RouteChatRequest* request,
                                      v1::RouteResponse* response) override;
  grpc::ServerUnaryReactor* Report(grpc::CallbackServerContext* context,
                                   const v1::ReportRequest* request,
                                   v1::ReportResponse* response) override;

  // A section of `GET /status`: `json` says a JSON value, whenever asked. REQUIRES: not serving
  // yet.
  void AddStatus(std::string name, std::function<std::string()> json);

  // Adds the paths above. REQUIRES: `http` has not started.
  void AddHttp(AdminHttp* http);

 private:
  void HttpRoute(std::shared_ptr<HttpExchange> exchange);
  void HttpRouteBody(RequestPath call, std::shared_ptr<HttpExchange> exchange);
  HttpResponse HttpModels(const HttpRequest& request) const;
  HttpResponse HttpReport(const HttpRequest& request);
  HttpResponse HttpStatus() const;
  void HttpRouteNow(const std::string& body, const std::string& traceparent,
                    RouteCalls::Callback answer, const RouteCalls::Asker& asker);
  template <typename Request>
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const Request& request,
                                   v1::RouteResponse* response);
  RouteStreamReactor* OpenStream(grpc::CallbackServerContext* context);
  RouteCalls::Asker AskerOf(const grpc::CallbackServerContext& context) const;

  Frontend* const frontend_;
  const RouteCalls calls_;
  std::vector<std::pair<std::string, std::function<std::string()>>> status_sections_;
  PromptRouter* const router_;
  RouteMetrics route_metrics_;
  Counter reports_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_FRONTEND_SERVICE_H_
