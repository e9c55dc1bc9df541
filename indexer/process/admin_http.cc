// The admin port: an `HttpServer` with probes, metrics and version, and a thread that dials the
// process's own listeners.

#include "indexer/process/admin_http.h"

#include <chrono>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "indexer/base/mutex.h"
#include "indexer/base/version.h"
#include "indexer/net/connection_account.h"
#include "indexer/process/process_metrics.h"
#include "indexer/security/security.h"
#include "indexer/telemetry/log.h"
#include "indexer/telemetry/text_escape.h"
#include "indexer/telemetry/tracing/tracer.h"

namespace kvatlas {
namespace {

// How often the process checks that its listeners take connections, and how long one may take.
constexpr std::chrono::seconds kDialEvery(2);
constexpr std::chrono::seconds kDialTimeout(5);

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  AppendJsonEscaped(&out, text);
  out.push_back('"');
  return out;
}

// A client that takes an answer slowly has the time of a request.
HttpServerOptions ServerOptions(const AdminHttpOptions& options) {
  return {.listen = options.listen,
          .io_threads = options.io_threads,
          .pool_threads = options.pool_threads,
          .header_bytes_max = options.header_bytes_max,
          .connections_max = options.connections_max,
          .idle_timeout = options.idle_timeout,
          .header_timeout = options.header_timeout,
          .request_timeout = options.request_timeout,
          .write_timeout = options.request_timeout,
          .bare_errors = options.bare_errors,
          .trace_id_header = options.trace_id_header,
          .keep_headers = options.keep_headers};
}

}  // namespace

class AdminHttp::Impl {
 public:
  // Adds to `metrics` what every process has: security, process, tracing, readiness and liveness.
  // /metrics is vital but has no quick handler: a scrape may be long, so it runs on the server's
  // own vital thread.
  Impl(AdminHttpOptions options, Metrics* metrics)
      : body_bytes_max_(options.body_bytes_max),
        health_(options.health != nullptr ? options.health : std::make_shared<ProcessHealth>()),
        server_(ServerOptions(options)) {
    metrics->OnText(
        [security = Security::OfProcess()](std::string* text) { security->AppendMetrics(text); });
    AddProcessMetrics(options.program, metrics);
    metrics->OnText([](std::string* text) { Tracer::OfProcess()->AppendMetrics(text); });
    health_->AddRoutes(&server_);
    Gauge ready = metrics->AddGauge("kvatlas_ready", "1: as GET /ready says.");
    Gauge live = metrics->AddGauge("kvatlas_live", "1: as GET /livez says.");
    metrics->OnScrape([health = health_, ready, live]() mutable {
      ready.Set(health->readiness().ready ? 1 : 0);
      live.Set(health->deaf().empty() ? 1 : 0);
    });
    server_.Handle({.method = "GET",
                    .path = "/metrics",
                    .handler =
                        [metrics](const HttpRequest&) {
                          return HttpResponse{.content_type = "text/plain; version=0.0.4",
                                              .body = metrics->Text()};
                        },
                    .vital = true});
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

  ~Impl() { Stop(); }

  // The dialler starts with the server; it finds the process's listeners by itself, those that are
  // opened later too.
  absl::Status Start() {
    absl::Status status = server_.Start();
    if (status.ok()) dialler_ = std::thread([this] { Dial(); });
    return status;
  }

  // The server stops before the dialler is joined: a dial may take up to `kDialTimeout`, and
  // requests should not be answered meanwhile.
  void Stop() {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      wake_.SignalAll();
    }
    server_.Stop();
    MutexLock lock(&stop_mutex_);
    if (dialler_.joinable()) dialler_.join();
  }

  HttpServer& server() { return server_; }
  ProcessHealth* health() { return health_.get(); }

 private:
  // The dialling thread. A listener counts as failed after two failures in a row: a moment without
  // a descriptor must not make /livez fail, which restarts the process. The mutex is not held while
  // it dials.
  void Dial() {
    int failed = 0;
    MutexLock lock(&mutex_);
    while (!stopping_) {
      mutex_.Unlock();
      const absl::Status status = CheckOwnListeners(kDialTimeout);
      mutex_.Lock();
      failed = status.ok() ? 0 : failed + 1;
      std::string deaf = failed < 2 ? "" : std::string(status.message());
      if (!deaf.empty() && health_->deaf().empty())
        Log(LogLevel::kError, "takes no connections", {{"reason", deaf}});
      health_->SetDeaf(std::move(deaf));
      if (!stopping_) wake_.WaitFor(&mutex_, kDialEvery);
    }
  }

  const size_t body_bytes_max_;
  const std::shared_ptr<ProcessHealth> health_;
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Mutex stop_mutex_;
  std::thread dialler_;  // joined under stop_mutex_
  HttpServer server_;
};

AdminHttp::AdminHttp(AdminHttpOptions options, Metrics* metrics)
    : impl_(std::make_unique<Impl>(std::move(options), metrics)) {}
AdminHttp::~AdminHttp() = default;

void AdminHttp::Handle(std::string method, std::string path, HttpHandler handler) {
  impl_->Handle(std::move(method), std::move(path), std::move(handler));
}
HttpServer* AdminHttp::server() { return &impl_->server(); }
absl::Status AdminHttp::Start() { return impl_->Start(); }
Address AdminHttp::address() const { return impl_->server().address(); }
void AdminHttp::SetHealth(Health health, std::string reason) {
  impl_->health()->Set(health, std::move(reason));
}
ProcessHealth* AdminHttp::health() { return impl_->health(); }
void AdminHttp::Stop() { impl_->Stop(); }

}  // namespace kvatlas
