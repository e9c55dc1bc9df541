// The proxy's HTTP server and its routes. Every path that is not its own becomes a
// `ProxiedRequest`, which works on the server's I/O threads; `ProxyParts` is what these requests
// share.

#include "frontend/gateway/http/proxy.h"

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "frontend/gateway/errors.h"
#include "frontend/gateway/http/header_text.h"
#include "frontend/gateway/http/proxied_request.h"
#include "frontend/gateway/http/proxy_parts.h"
#include "indexer/base/address.h"
#include "indexer/net/http_exchange.h"
#include "indexer/net/http_server.h"
#include "indexer/security/security.h"
#include "indexer/telemetry/health.h"

namespace kvatlas {
namespace {

// The health of a proxy that is given none: serving.
std::shared_ptr<const ProcessHealth> Serving() {
  auto health = std::make_shared<ProcessHealth>();
  health->Set(Health::kServing);
  return health;
}

// One pool thread is enough: proxied requests are streams, which run on the I/O threads. Headers
// are kept, since they go on to engines.
HttpServerOptions ServerOptions(const ProxyOptions& options) {
  HttpServerOptions server;
  server.listen = options.listen;
  server.io_threads = options.io_threads;
  server.pool_threads = 1;
  server.header_bytes_max = options.header_bytes_max;
  server.bodies_bytes_max = options.bodies_bytes_max;
  server.connections_max = options.connections_max;
  server.write_timeout = options.write_timeout;
  server.keep_headers = true;
  server.error_body = [](int status, std::string_view message) {
    return ErrorBody(status, message);
  };
  return server;
}

// Where a client that asked `host` finds the page at "SCHEME://HOST:PORT/…": on the same host,
// where it listens on all addresses. Empty: it listens on loopback, which `host` is not.
std::string PageFrom(std::string_view host, const std::string& page) {
  const size_t begin = page.find("://") + 3, end = page.find('/', begin);
  const absl::StatusOr<Address> at = Address::Parse(page.substr(begin, end - begin));
  absl::StatusOr<Address> asked = Address::Parse(host);
  if (!asked.ok()) asked = Address::Parse(absl::StrCat(std::string(host), ":80"));
  if (!at.ok() || !asked.ok()) return page;
  if (at->host == "0.0.0.0" || at->host == "::")
    return page.substr(0, begin) + Address{asked->host, at->port}.ToString() + page.substr(end);
  return IsLoopbackHost(at->host) && !IsLoopbackHost(asked->host) ? "" : page;
}

// Redirects a browser to the page; other clients get a text that names it.
HttpResponse Root(const std::string& page, const HttpRequest& request) {
  const std::string from = PageFrom(HeaderOf(request.headers, "host"), page);
  HttpResponse response{.content_type = "text/plain; charset=utf-8"};
  response.body = absl::StrCat(
      "kvatlas: OpenAI's API is at /v1, the page of the fleet at ", from.empty() ? page : from,
      from.empty() ? " of its own machine; elsewhere with --http 0.0.0.0:PORT" : "", "\n");
  if (from.empty() || !absl::StrContains(HeaderOf(request.headers, "accept"), "text/html"))
    return response;
  response.status = 307;
  response.headers = {{"location", from}, {"cache-control", "no-store"}};
  return response;
}

}  // namespace

class Proxy::Impl {
 public:
  // The wildcard route has the lowest precedence: `/health` and the others below win over it.
  Impl(const ProxyOptions& options, Frontend* frontend, PromptRouter* router, Metrics* metrics)
      : health_(options.health != nullptr ? options.health : Serving()),
        parts_(options, frontend, router, metrics),
        server_(ServerOptions(options)) {
    // A path that `ProxiedPaths` does not name is refused by the request, in the form of an
    // engine's API.
    server_.Handle({.method = "*",
                    .path = "/*",
                    .stream =
                        [this](std::shared_ptr<HttpExchange> exchange) {
                          std::make_shared<ProxiedRequest>(&parts_, std::move(exchange))->Start();
                        },
                    .body_bytes_max = options.body_bytes_max,
                    .verb = Verb::kRoute});
    if (options.page != nullptr) {
      server_.Handle({.method = "GET",
                      .path = "/",
                      .handler = [page = options.page](
                                     const HttpRequest& request) { return Root(page(), request); },
                      .verb = Verb::kRoute});
    }
    server_.Handle(
        {.method = "GET",
         .path = "/health",
         .handler = [](const HttpRequest&) { return HttpResponse{.content_type = "", .body = ""}; },
         .vital = true});
    health_->AddRoutes(&server_);
    server_.Handle({.method = "GET",
                    .path = "/metrics",
                    .handler =
                        [metrics](const HttpRequest&) {
                          return HttpResponse{.content_type = "text/plain; version=0.0.4",
                                              .body = metrics->Text()};
                        },
                    .vital = true});
  }
  ~Impl() { Stop(); }

  HttpServer& server() { return server_; }
  // The server first, which ends its threads and with them the requests; the pools hold connections
  // on the server's contexts and must go before these.
  void Stop() {
    server_.Stop();
    parts_.ClosePools();
  }

 private:
  const std::shared_ptr<const ProcessHealth> health_;
  ProxyParts parts_;
  HttpServer server_;
};

Proxy::Proxy(const ProxyOptions& options, Frontend* frontend, PromptRouter* router,
             Metrics* metrics)
    : impl_(std::make_unique<Impl>(options, frontend, router, metrics)) {}
Proxy::~Proxy() = default;

absl::Status Proxy::Start() { return impl_->server().Start(); }
Address Proxy::address() const { return impl_->server().address(); }
size_t Proxy::bodies_bytes() const { return impl_->server().bodies_bytes(); }
size_t Proxy::connections() const { return impl_->server().connections(); }
void Proxy::Stop() { impl_->Stop(); }

}  // namespace kvatlas
