// Answers requests over HTTP/1.1. A small server whose hot routes cost little more than
// their system calls, and in which no connection waits for another.
//
//   door ─┬▶ I/O threads (a connection stays on one) ─┬▶ quick handlers, answered at once
//         │                                          ├▶ stream handlers, answered in pieces (`http_exchange.h`)
//         │                                          └▶ pool ─▶ handlers that may take long, pieces of long answers
//         ╰▶ vital routes (health, metrics): answered by the door's own thread, or one of their own if they may take long
//
// A connection waits at the door, a thread that accepts and does little else, until its first bytes
// are there. When it asks for a vital route it is answered there and waits at the door again: no
// other request can hold that up.
//
// *Truth*: by TLS where the process's `Security` has a certificate, and then a vital route is
// answered by the I/O threads, since a door cannot see what an encrypted connection wants; the
// connections kept for vital routes are the door's as ever. A request is let in by the verb of its
// route; without TLS and policy, and on loopback, by its Host (`http_host.h`). 401 without a
// credential that counts, 403 else, before its body is read. A HEAD is answered as a GET without
// its body. Answers of a connection come in the order of its requests (pipelining).
// *Threads*: `io_threads` + `pool_threads` + 2 of its own. A quick handler runs on an I/O thread
// and holds up the other connections of that thread: microseconds, no waiting. What would take
// longer it declines, for the pool. Every method may be called from any thread, except `Handle` and
// `Start`: first all `Handle`, then one `Start`.
// *Cost*: a quick request on a connection kept alive is one read and one write; nothing is
// allocated once its buffers have grown.
// *Bounds* (`HttpServerOptions`): a larger header gets 431, a larger body 413, a request that is
// not complete within `request_timeout`, its header within `header_timeout`, or an answer not taken
// within `write_timeout` (of each piece, if it is sent in pieces) is cut off, as is a silent
// connection after `idle_timeout`; above `connections_max` the connection that was silent for
// longest is closed for a new one (`connection_account.h`), and where all are being answered the
// new one gets 503, unless it asks for a vital route: `kHttpVitalConnections` are kept for that; a
// request above `queue_max` waiting for the pool, or whose body is above `bodies_bytes_max` in sum,
// gets 503. Nonsense gets 400 and a closed connection.
//
// Example:
//   HttpServer http({.listen = {"127.0.0.1", 8090}});
//   http.Handle({.method = "GET", .path = "/domains",
//                .handler = [&](const HttpRequest&) { return HttpResponse{.body = DomainsAsJson()}; }});
//   if (absl::Status status = http.Start(); !status.ok()) return status;

#ifndef KVATLAS_INDEXER_NET_HTTP_SERVER_H_
#define KVATLAS_INDEXER_NET_HTTP_SERVER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/security/security.h"

namespace kvatlas {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // "GET", "POST"; a HEAD arrives as "GET"
  std::string path;    // percent-decoded, without the query
  std::string query;   // as sent, without '?'
  std::string body;
  std::string trace_id;  // of the header named in the options; empty when it was not sent
  // With `keep_headers`: as they were sent, names too; and the whole target.
  HttpHeaders headers = {};
  std::string target = {};
  // The caller, by certificate or token; anonymous without a policy. Never null in a handler.
  std::shared_ptr<const Identity> identity = nullptr;
  std::string peer = {};       // its address, where there is a policy
  bool token_counted = false;  // the bearer token was for this process, and is not passed on

  // The first value of `name` in the query, decoded.
  std::optional<std::string> Param(std::string_view name) const;
};

// Appends the next piece of an answer that is too long to be built as a whole; false: there is
// none, what was appended was the last. Called on the pool, one call at a time, never before the
// client has taken the piece before. One that throws cuts the connection, so that no client takes
// half an answer for a whole one.
using HttpBodySource = std::function<bool(std::string* piece)>;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";  // empty: no such header
  std::string body = {};
  HttpBodySource more = nullptr;  // follows `body`, which may be empty
  std::string about = {};         // for observers: the model that was asked for
  HttpHeaders headers = {};       // more of them
};

// {"error":"<message>"}, escaped, with a newline.
HttpResponse HttpError(int status, std::string_view message);

// INVALID_ARGUMENT and OUT_OF_RANGE 400, NOT_FOUND 404, ALREADY_EXISTS and FAILED_PRECONDITION 409,
// RESOURCE_EXHAUSTED 429, UNAVAILABLE 503, DEADLINE_EXCEEDED 504, else 500.
int HttpStatusOf(absl::StatusCode code);
// The error of a failed absl::Status.
HttpResponse HttpError(const absl::Status& status);

// A handler that throws answers 500.
using HttpHandler = std::function<HttpResponse(const HttpRequest&)>;
// Fills an answer in place: status 200, JSON, an empty body whose memory is kept. False: the
// handler on the pool shall answer; the answer is as it was.
using HttpQuickHandler = std::function<bool(const HttpRequest&, HttpResponse*)>;

// Called with each answer of a route, refusals included, when it is handed to the socket.
class HttpObserver {
 public:
  virtual ~HttpObserver() = default;
  virtual void Answered(const HttpRequest& request, std::string_view method,
                        const HttpResponse& response, Duration took) = 0;
};

inline constexpr size_t kHttpBodyBytesMax = 2 << 20;

// Connections beyond all bounds, each for a moment: time enough to see that it asks for a vital
// route.
inline constexpr size_t kHttpVitalConnections = 16;

class HttpExchange;
// Called on the I/O thread with the whole request; answers now or later.
using HttpStreamHandler = std::function<void(std::shared_ptr<HttpExchange>)>;

struct HttpRoute {
  std::string method;  // "*": every one that has no route of its own
  // A path that ends in "/*" also takes every path below it, the longest match first.
  std::string path;
  // On the pool. May be null if `quick` never declines; a large body (`quick_body_bytes_max`) is
  // then answered there too.
  HttpHandler handler = nullptr;
  // On the I/O thread, before the other; may be null.
  HttpQuickHandler quick = nullptr;
  // In place of both.
  HttpStreamHandler stream = nullptr;
  size_t body_bytes_max = kHttpBodyBytesMax;
  // Health and metrics: a GET that is answered whatever other requests do. `quick` takes
  // microseconds.
  bool vital = false;
  // The verb that the policy has to allow; none: that of `HttpVerbOf`.
  std::optional<Verb> verb = std::nullopt;
  // The body must be declared as JSON: else 415. Refusals of the body are then plain text, in the
  // words of axum.
  bool json_body = false;
  HttpObserver* observer = nullptr;  // outlives the server
};

struct HttpServerOptions {
  Address listen;
  uint32_t io_threads = 1;
  uint32_t pool_threads = 2;
  size_t queue_max = 1024;
  size_t header_bytes_max = 16 << 10;
  size_t quick_body_bytes_max = 128 << 10;
  size_t bodies_bytes_max = size_t{1} << 30;  // and an eighth of what the process may use at most
  size_t connections_max = 4096;
  Duration idle_timeout = std::chrono::minutes(5);
  Duration header_timeout = std::chrono::seconds(5);
  Duration request_timeout = std::chrono::seconds(30);
  Duration write_timeout = std::chrono::seconds(30);
  // 404 and 405 without a body, the latter with `allow` in any case; else {"error":…}.
  bool bare_errors = false;
  std::string trace_id_header = {};  // lower case; empty: none
  bool keep_headers = false;
  std::shared_ptr<Security> security = nullptr;  // null: that of the process
  // The body of what the server itself refuses, as JSON; none: {"error":…}.
  std::function<std::string(int status, std::string_view message)> error_body = nullptr;
};

// The verb of a path that our processes and their peers have; any other path is for operators.
Verb HttpVerbOf(std::string_view path);

class HttpServer {
 public:
  explicit HttpServer(HttpServerOptions options);
  ~HttpServer();  // stops

  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // A later route of the same method and path replaces an earlier one.
  void Handle(HttpRoute route);

  // UNAVAILABLE, naming the address, if it cannot be had. A host with several addresses listens on
  // the first.
  absl::Status Start();

  // Where it listens, with the port that was taken. REQUIRES: `Start` was OK.
  Address address() const;

  // Open connections.
  size_t connections() const;
  // Bytes of the large bodies of requests that are being read or answered.
  size_t bodies_bytes() const;

  // Cuts open connections and returns when the threads have ended. Idempotent.
  void Stop();

 private:
  class Impl;
  struct Guest;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_HTTP_SERVER_H_
