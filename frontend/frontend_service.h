// The frontend behind gRPC, and behind HTTP for people and scripts.
//
//   POST /route   {"model": "m", "tenant": "", "tokens": [1, 2, …]}        ids, or
//                 {"model": "m", "sequence_hashes": [123, "18446744073709551615", …]}
//                 with "lora_name", "cache_salt", "deadline_ms" as in frontend.proto → RouteResponse as JSON
//   POST /report  {"decision_id": "7", "accepted": true}, and at the end, from the engine's own usage,
//                 {"decision_id": "7", "finished": true, "cached_tokens": 512, "prompt_tokens": 700,
//                  "worker": "w3", "rank": 0, "error": ""}
//   GET  /status  what it is configured with and what it did
//
// *Threads*: any; gRPC routes hold no thread while they wait, an HTTP route holds the HTTP server's only one.
// *Lifetime*: frontend and metrics outlive the service.

#ifndef KVATLAS_FRONTEND_FRONTEND_SERVICE_H_
#define KVATLAS_FRONTEND_FRONTEND_SERVICE_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "frontend/frontend.h"
#include "indexer/service/admin_http.h"
#include "indexer/service/metrics.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"

namespace kvatlas {

class FrontendService : public v1::Frontend::CallbackService {
 public:
  FrontendService(Frontend* frontend, Metrics* metrics);

  grpc::ServerUnaryReactor* Route(grpc::CallbackServerContext* context,
                                  const v1::RouteRequest* request,
                                  v1::RouteResponse* response) override;
  grpc::ServerUnaryReactor* Report(grpc::CallbackServerContext* context,
                                   const v1::ReportRequest* request,
                                   v1::ReportResponse* response) override;

  // A section of `GET /status`: `json` says a JSON value, whenever asked. REQUIRES: not serving yet.
  void AddStatus(std::string name, std::function<std::string()> json);

  // Adds the paths above. REQUIRES: `http` has not started.
  void AddHttp(AdminHttp* http);

 private:
  HttpResponse HttpRoute(const HttpRequest& request);
  HttpResponse HttpReport(const HttpRequest& request);
  HttpResponse HttpStatus() const;
  void Count(const absl::StatusOr<RouteResult>& result);

  Frontend* const frontend_;
  std::vector<std::pair<std::string, std::function<std::string()>>> status_sections_;
  std::vector<Counter> routes_;  // by fallback
  Counter failed_;
  Counter reports_;
  Counter promises_;
  Counter wrong_cells_;
  Histogram route_seconds_;
  Histogram find_cells_seconds_;
  Histogram find_overlaps_seconds_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_FRONTEND_SERVICE_H_
