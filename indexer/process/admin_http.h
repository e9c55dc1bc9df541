// The admin port: an `HttpServer` for people, probes and scrapers, plus the handlers that a binary
// adds. Built in:
//   GET /livez, /ready, /healthz   as `process_health.h` says; every 2 seconds the process dials its own gRPC listeners
//   GET /metrics   Prometheus text; all of these are answered whatever others do (`HttpRoute::vital`)
//   GET /version   {"program":"kvatlas-leaf","version":"0.1.0"}
// Anything else is 404, a known path with another method 405, both as {"error":"..."} unless told
// otherwise.
//
// Threads, Bounds, Truth: those of `HttpServer`. Handlers run on its pool, so they may take long
// and run side by side.
//
// Example:
//   AdminHttp http({.listen = {"127.0.0.1", 8090}, .program = "kvatlas-leaf"}, &metrics);
//   http.Handle("GET", "/domains", [&](const HttpRequest&) {
//     return HttpResponse{.body = leaf.DomainsAsJson()};
//   });
//   if (absl::Status status = http.Start(); !status.ok()) return service.Fail(status);

#ifndef KVATLAS_INDEXER_PROCESS_ADMIN_HTTP_H_
#define KVATLAS_INDEXER_PROCESS_ADMIN_HTTP_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/net/http_server.h"
#include "indexer/process/process_health.h"
#include "indexer/telemetry/health.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {

struct AdminHttpOptions {
  Address listen;
  std::string program;
  size_t header_bytes_max = 16 << 10;
  size_t body_bytes_max = 4 << 20;  // of routes added by `AdminHttp::Handle`
  size_t connections_max = 256;
  Duration idle_timeout = std::chrono::seconds(30);   // between requests
  Duration header_timeout = std::chrono::seconds(5);  // for a request's header
  Duration request_timeout =
      std::chrono::seconds(30);  // for a request, and for an answer to be taken
  uint32_t io_threads = 1;
  uint32_t pool_threads = 2;
  bool bare_errors = false;
  std::string trace_id_header = {};
  bool keep_headers = false;  // `HttpRequest::headers`
  // The health of the whole process, where several servers answer probes; null: one of its own.
  std::shared_ptr<ProcessHealth> health = nullptr;
};

class AdminHttp {
 public:
  // `metrics` outlives this object.
  AdminHttp(AdminHttpOptions options, Metrics* metrics);
  ~AdminHttp();  // stops

  AdminHttp(const AdminHttp&) = delete;
  AdminHttp& operator=(const AdminHttp&) = delete;

  // Answers `method path` with `handler`, as `HttpRoute` says.
  void Handle(std::string method, std::string path, HttpHandler handler);

  // For routes that need more than that. REQUIRES: not started.
  HttpServer* server();

  // Serves; ready only after `SetHealth(kServing)`. UNAVAILABLE, naming the address, if it cannot
  // be had.
  absl::Status Start();

  // Where it listens, with the port that was taken. REQUIRES: `Start` was OK.
  Address address() const;

  void SetHealth(Health health, std::string reason = "");
  // The health from which its probes are answered. Never null, the same for the life of this
  // object.
  ProcessHealth* health();

  // Cuts open connections and returns when the threads have ended. Idempotent.
  void Stop();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_PROCESS_ADMIN_HTTP_H_
