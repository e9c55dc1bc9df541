// The gRPC side of the service, and the metrics that go with it. Answers and streams are reactors
// that own themselves (`route_stream.h`).

#include "frontend/gateway/frontend_service.h"

#include <grpcpp/support/server_callback.h>

#include <chrono>
#include <string>
#include <utility>

#include "indexer/net/bounded_message.h"
#include "indexer/net/grpc_guard.h"
#include "indexer/telemetry/tracing/trace_context.h"
#include "indexer/telemetry/tracing/tracer.h"

namespace kvatlas {
namespace {

// The request, with the trace context of the call's metadata where the request has none. `copy` is
// written only then, so that a large prompt is not copied in the usual case.
template <typename Request>
const Request& WithTraceparent(const Request& request, const grpc::CallbackServerContext& context,
                               Request* copy) {
  if (!Tracer::OfProcess()->on() || !request.traceparent().empty()) return request;
  const auto found = context.client_metadata().find(kTraceparent);
  if (found == context.client_metadata().end()) return request;
  *copy = request;
  copy->set_traceparent(std::string(found->second.data(), found->second.size()));
  return *copy;
}

// The time until the caller gives up; far in the future without a deadline.
Duration Left(const grpc::CallbackServerContext& context) {
  return std::chrono::duration_cast<Duration>(context.deadline() -
                                              std::chrono::system_clock::now());
}

}  // namespace

FrontendService::FrontendService(Frontend* frontend, Metrics* metrics, PromptRouter* router)
    : frontend_(frontend),
      // The callbacks run with routes only, when all members exist.
      calls_(
          frontend, router,
          [this](const absl::StatusOr<RouteResult>& result) {
            if (result.ok()) route_metrics_.Observe(*result);
          },
          [this] { reports_.Increment(); }),
      router_(router),
      route_metrics_(metrics),
      reports_(metrics->AddCounter("kvatlas_frontend_reports_total", "Reports on choices.")) {
  constexpr int kRouteStream = 2;  // of the service's methods
  MarkMethodCallback(
      kRouteStream,
      new grpc::internal::CallbackBidiHandler<BoundedMessage<v1::RouteStreamRequest>,
                                              v1::RouteStreamResponse>(
          [this](grpc::CallbackServerContext* context) { return OpenStream(context); }));
  ExportRouteTotals(frontend, metrics);
  ExportPromises(frontend, metrics);
  Gauge in_flight = metrics->AddGauge("kvatlas_frontend_in_flight", "Choices not yet reported on.");
  Gauge workers = metrics->AddGauge("kvatlas_frontend_workers_remembered", "Workers last seen.");
  Gauge cells = metrics->AddGauge("kvatlas_frontend_cells_remembered", "Cells last seen.");
  metrics->OnScrape([frontend, metrics, in_flight, workers, cells]() mutable {
    const FrontendStats stats = frontend->stats();
    in_flight.Set(static_cast<double>(stats.in_flight));
    workers.Set(static_cast<double>(stats.workers));
    cells.Set(static_cast<double>(stats.cells));
    metrics->RaiseRenamed("kvatlas_frontend_refused_by_nodes_total",
                          "Questions that nodes refused for their schedule.",
                          static_cast<double>(stats.refused_by_nodes));
  });
}

// Null without a policy: then no answer depends on the caller.
RouteCalls::Asker FrontendService::AskerOf(const grpc::CallbackServerContext& context) const {
  const Tenancy& tenancy = calls_.tenancy();
  return tenancy.enforces() ? IdentityOf(&tenancy.security(), context) : nullptr;
}

template <typename Request>
grpc::ServerUnaryReactor* FrontendService::Answer(grpc::CallbackServerContext* context,
                                                  const Request& request,
                                                  v1::RouteResponse* response) {
  auto* reactor = new RouteReactor(&calls_, context, response);
  // May be called before `Ask` returns: gRPC holds a `Finish` back until it has the reactor.
  const auto answer = [reactor](absl::StatusOr<v1::RouteResponse> response_or) {
    reactor->Answer(std::move(response_or));
  };
  Request copy;
  calls_.Ask(WithTraceparent(request, *context, &copy), Left(*context), answer, AskerOf(*context));
  return reactor;
}

grpc::ServerUnaryReactor* FrontendService::Route(grpc::CallbackServerContext* context,
                                                 const v1::RouteRequest* request,
                                                 v1::RouteResponse* response) {
  return Answer(context, *request, response);
}

grpc::ServerUnaryReactor* FrontendService::RouteChat(grpc::CallbackServerContext* context,
                                                     const v1::RouteChatRequest* request,
                                                     v1::RouteResponse* response) {
  return Answer(context, *request, response);
}

RouteStreamReactor* FrontendService::OpenStream(grpc::CallbackServerContext* context) {
  return new RouteStreamReactor(&calls_, AskerOf(*context), context->peer());
}

grpc::ServerUnaryReactor* FrontendService::Report(grpc::CallbackServerContext* context,
                                                  const v1::ReportRequest* request,
                                                  v1::ReportResponse*) {
  calls_.Report(*request, AskerOf(*context));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace kvatlas
