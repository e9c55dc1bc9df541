#include "indexer/service/admin_http.h"

#include <atomic>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "indexer/service/text_escape.h"
#include "indexer/service/version.h"

namespace kvatlas {
namespace {

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  AppendJsonEscaped(&out, text);
  out.push_back('"');
  return out;
}

const char* HealthName(Health health) {
  switch (health) {
    case Health::kLoading:
      return "loading";
    case Health::kServing:
      return "serving";
    case Health::kStopping:
      return "stopping";
  }
  return "unknown";
}

HttpServerOptions ServerOptions(const AdminHttpOptions& options) {
  return {.listen = options.listen,
          .io_threads = options.io_threads,
          .pool_threads = options.pool_threads,
          .header_bytes_max = options.header_bytes_max,
          .connections_max = options.connections_max,
          .idle_timeout = options.idle_timeout,
          .request_timeout = options.request_timeout,
          .write_timeout = options.request_timeout,
          .bare_errors = options.bare_errors,
          .trace_id_header = options.trace_id_header,
          .keep_headers = options.keep_headers};
}

}  // namespace

class AdminHttp::Impl {
 public:
  Impl(AdminHttpOptions options, Metrics* metrics)
      : body_bytes_max_(options.body_bytes_max), server_(ServerOptions(options)) {
    Handle("GET", "/healthz", [this](const HttpRequest&) {
      const Health health = health_.load(std::memory_order_relaxed);
      return HttpResponse{.status = health == Health::kServing ? 200 : 503,
                          .body = absl::StrCat("{\"health\":", Quoted(HealthName(health)), "}\n")};
    });
    Handle("GET", "/metrics", [metrics](const HttpRequest&) {
      return HttpResponse{.content_type = "text/plain; version=0.0.4", .body = metrics->Text()};
    });
    const std::string version = absl::StrCat("{\"program\":", Quoted(options.program),
                                             ",\"version\":", Quoted(kVersion), "}\n");
    Handle("GET", "/version",
           [version](const HttpRequest&) { return HttpResponse{.body = version}; });
  }

  void Handle(std::string method, std::string path, HttpHandler handler) {
    server_.Handle({.method = std::move(method),
                    .path = std::move(path),
                    .handler = std::move(handler),
                    .body_bytes_max = body_bytes_max_});
  }

  HttpServer& server() { return server_; }
  void SetHealth(Health health) { health_.store(health, std::memory_order_relaxed); }

 private:
  const size_t body_bytes_max_;
  std::atomic<Health> health_{Health::kLoading};
  HttpServer server_;
};

AdminHttp::AdminHttp(AdminHttpOptions options, Metrics* metrics)
    : impl_(std::make_unique<Impl>(std::move(options), metrics)) {}
AdminHttp::~AdminHttp() = default;

void AdminHttp::Handle(std::string method, std::string path, HttpHandler handler) {
  impl_->Handle(std::move(method), std::move(path), std::move(handler));
}
HttpServer* AdminHttp::server() { return &impl_->server(); }
absl::Status AdminHttp::Start() { return impl_->server().Start(); }
Address AdminHttp::address() const { return impl_->server().address(); }
void AdminHttp::SetHealth(Health health) { impl_->SetHealth(health); }
void AdminHttp::Stop() { impl_->server().Stop(); }

}  // namespace kvatlas
