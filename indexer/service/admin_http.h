// What can one ask this process with curl?
//
// A small HTTP/1.1 server for people, probes and scrapers, plus the handlers a binary adds. Built
// in:
//   GET /healthz   200 while kServing, 503 while kLoading or kStopping
//   GET /metrics   Prometheus text
//   GET /version   {"program":"kvatlas-leaf","version":"0.1.0"}
// Anything else is 404, a known path with another method 405, both as {"error":"..."}.
//
// Threads: one of its own serves everything, handlers included: a handler that takes long holds up
//     the others. Every method may be called from any thread, except `Handle` and `Start`: first
//     all `Handle`, then one `Start`.
// Bounds (`AdminHttpOptions`): a larger header gets 431, a larger body 413, a request not complete
//     within `idle_timeout` or a reply not taken by then is cut off, a connection above
//     `connections_max` is closed at once. Nonsense gets 400 and a closed connection.
// Truth: plain HTTP without authentication, so loopback unless told otherwise.
//
// Example:
//   AdminHttp http({.listen = {"127.0.0.1", 8090}, .program = "kvatlas-leaf"}, &metrics);
//   http.Handle("GET", "/domains", [&](const HttpRequest&) {
//     return HttpResponse{.body = leaf.DomainsAsJson()};
//   });
//   if (absl::Status status = http.Start(); !status.ok()) return service.Fail(status);

#ifndef KVATLAS_INDEXER_SERVICE_ADMIN_HTTP_H_
#define KVATLAS_INDEXER_SERVICE_ADMIN_HTTP_H_

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/service/address.h"
#include "indexer/service/health.h"
#include "indexer/service/metrics.h"

namespace kvatlas {

struct HttpRequest {
  std::string method;  // "GET", "POST"; a HEAD arrives as "GET"
  std::string path;    // percent-decoded, without the query
  std::string query;   // as sent, without '?'
  std::string body;

  // The first value of `name` in the query, decoded.
  std::optional<std::string> Param(std::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
};

// {"error":"<message>"}, escaped.
HttpResponse HttpError(int status, std::string_view message);

// The same for a failed absl::Status: INVALID_ARGUMENT and OUT_OF_RANGE 400, NOT_FOUND 404,
// FAILED_PRECONDITION 409, RESOURCE_EXHAUSTED 429, UNAVAILABLE 503, DEADLINE_EXCEEDED 504, else
// 500.
HttpResponse HttpError(const absl::Status& status);

using HttpHandler = std::function<HttpResponse(const HttpRequest&)>;

struct AdminHttpOptions {
  Address listen;
  std::string program;
  size_t header_bytes_max = 16 << 10;
  size_t body_bytes_max = 4 << 20;
  size_t connections_max = 256;
  Duration idle_timeout = std::chrono::seconds(30);
};

class AdminHttp {
 public:
  // `metrics` outlives this object.
  AdminHttp(AdminHttpOptions options, Metrics* metrics);
  ~AdminHttp();  // stops

  AdminHttp(const AdminHttp&) = delete;
  AdminHttp& operator=(const AdminHttp&) = delete;

  // Answers `method path` with `handler`. A path that ends in "/*" also takes every path below it,
  // the longest match first. A handler that throws answers 500.
  void Handle(std::string method, std::string path, HttpHandler handler);

  // Listens and serves; healthy only after `SetHealth(kServing)`. UNAVAILABLE, naming the address,
  // if it cannot be had. A host with several addresses listens on the first.
  absl::Status Start();

  // Where it listens, with the port that was taken. REQUIRES: `Start` was OK.
  Address address() const;

  void SetHealth(Health health);

  // Cuts open connections and returns when the thread has ended. Idempotent.
  void Stop();

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SERVICE_ADMIN_HTTP_H_
