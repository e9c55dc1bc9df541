// `FrontendService` over HTTP: routes, reports and models. A route is a stream of the HTTP server:
// it begins on an I/O thread, holds no thread while it waits, and answers on the thread of its
// connection.

#include <google/protobuf/util/json_util.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "frontend/gateway/errors.h"
#include "frontend/gateway/frontend_service.h"
#include "frontend/gateway/route_json.h"
#include "frontend/gateway/session_header.h"
#include "indexer/telemetry/tracing/trace_context.h"
#include "indexer/telemetry/tracing/tracer.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

// The largest body of a prompt over HTTP, where token ids are written as text.
constexpr size_t kRouteBodyBytesMax = 64 << 20;
// Bodies up to this size are parsed on the I/O thread, larger ones on the threads that read
// prompts.
constexpr size_t kInlineBytesMax = 64 << 10;

std::string TraceparentOf(const HttpRequest& request) {
  for (const auto& [name, value] : request.headers)
    if (absl::EqualsIgnoreCase(name, kTraceparent)) return value;
  return "";
}

HttpResponse JsonResponse(const google::protobuf::Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  HttpResponse response;
  if (!google::protobuf::util::MessageToJsonString(message, &response.body, options).ok()) {
    return HttpError(500, "the answer is not printable as JSON");
  }
  return response;
}

// Brings an answer back to the thread of its connection. `work` keeps that thread's loop running
// until then. A client that has left gets no answer, and its choice is released. `gone` is read and
// written on that thread only.
RouteCalls::Callback ToExchange(const RouteCalls* calls, std::shared_ptr<HttpExchange> exchange,
                                std::function<HttpResponse(const absl::Status&)> error) {
  auto gone = std::make_shared<bool>(false);  // of that thread
  exchange->OnGone([gone] { *gone = true; });
  boost::asio::io_context& io = exchange->io();
  return [calls, exchange, error, gone, &io,
          work = boost::asio::make_work_guard(io)](absl::StatusOr<v1::RouteResponse> answer) {
    boost::asio::post(io, [calls, exchange, error, gone, answer = std::move(answer)] {
      if (!answer.ok()) return exchange->Answer(error(answer.status()));
      if (*gone) return calls->Release(answer->decision_id());
      exchange->Answer(JsonResponse(*answer));
    });
  };
}

}  // namespace

void FrontendService::AddHttp(AdminHttp* http) {
  const auto add = [http](const char* path, HttpStreamHandler handler) {
    http->server()->Handle({.method = "POST",
                            .path = path,
                            .stream = std::move(handler),
                            .body_bytes_max = kRouteBodyBytesMax});
  };
  add("/route", [this](std::shared_ptr<HttpExchange> exchange) { HttpRoute(std::move(exchange)); });
  add("/route/chat", [this](std::shared_ptr<HttpExchange> exchange) {
    HttpRouteBody(RequestPath::kChat, std::move(exchange));
  });
  add("/route/completion", [this](std::shared_ptr<HttpExchange> exchange) {
    HttpRouteBody(RequestPath::kCompletions, std::move(exchange));
  });
  http->Handle("GET", "/v1/models",
               [this](const HttpRequest& request) { return HttpModels(request); });
  http->Handle("POST", "/report",
               [this](const HttpRequest& request) { return HttpReport(request); });
  http->Handle("GET", "/status", [this](const HttpRequest&) { return HttpStatus(); });
}

// The body of tokens or hashes. Errors are plain, since no client of an engine sends this.
void FrontendService::HttpRoute(std::shared_ptr<HttpExchange> exchange) {
  auto body = std::make_shared<const std::string>(exchange->TakeBody());
  const RouteCalls::Asker asker = exchange->request().identity;
  const std::string trace = TraceparentOf(exchange->request());
  RouteCalls::Callback answer = ToExchange(&calls_, std::move(exchange), PlainError);
  if (router_ == nullptr || body->size() <= kInlineBytesMax)
    return HttpRouteNow(*body, trace, std::move(answer), asker);
  router_->Run([this, body, trace, answer, asker] { HttpRouteNow(*body, trace, answer, asker); },
               answer);
}

void FrontendService::HttpRouteNow(const std::string& body, const std::string& traceparent,
                                   RouteCalls::Callback answer, const RouteCalls::Asker& asker) {
  absl::StatusOr<v1::RouteRequest> message = RouteRequestFromJson(body);
  if (!message.ok()) return answer(message.status());
  if (!traceparent.empty()) message->set_traceparent(traceparent);
  calls_.Ask(*message, Duration::max(), std::move(answer), asker);
}

// The body of an engine's API. Errors have the engine's form.
void FrontendService::HttpRouteBody(RequestPath call, std::shared_ptr<HttpExchange> exchange) {
  PromptQuestion question;
  const HttpRequest& request = exchange->request();
  question.return_tokens = request.Param("tokens").value_or("0") == "1";
  for (const auto& [name, value] : request.headers) {
    if (absl::EqualsIgnoreCase(name, "x-kvatlas-tenant")) question.input.domain.tenant = value;
  }
  question.input.session_id = SessionOfHeaders(request.headers);
  question.input.trace = Tracer::ParentOf(TraceparentOf(request));
  const RouteCalls::Asker asker = request.identity;
  auto body = std::make_shared<const std::string>(exchange->TakeBody());
  calls_.AskBody(call, std::move(body), std::move(question),
                 ToExchange(&calls_, std::move(exchange),
                            [](const absl::Status& why) { return ErrorAnswer(why); }),
                 asker);
}

HttpResponse FrontendService::HttpModels(const HttpRequest& request) const {
  std::set<std::string> models;
  // A model of several tenants is listed once, if the caller may use one of them.
  for (const Domain& domain : frontend_->Domains())
    if (calls_.tenancy().MayRoute(*request.identity, domain.tenant, domain.model))
      models.insert(domain.model);
  Json json = {{"object", "list"}, {"data", Json::array()}};
  for (const std::string& model : models)
    json["data"].push_back(
        {{"id", model}, {"object", "model"}, {"created", 0}, {"owned_by", "kvatlas"}});
  return {.body = json.dump(-1, ' ', false, Json::error_handler_t::replace)};
}

// 404 for a decision of another process or of another caller, in the same words. A report by gRPC
// is passed over in silence there.
HttpResponse FrontendService::HttpReport(const HttpRequest& request) {
  const absl::StatusOr<v1::ReportRequest> message = ReportFromJson(request.body);
  if (!message.ok()) return PlainError(message.status());
  const uint64_t id = message->decision_id();
  if (!calls_.GaveOut(id) || !calls_.IsOf(id, request.identity))
    return PlainError(
        absl::NotFoundError("decision_id " + std::to_string(id) +
                            " is none of this frontend's decisions: report the decision_id of an "
                            "answer of /route, to the frontend that gave it"));
  calls_.Report(*message, request.identity);
  return {.body = "{}"};
}

}  // namespace kvatlas
