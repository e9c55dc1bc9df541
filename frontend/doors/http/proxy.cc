#include "frontend/doors/http/proxy.h"

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "frontend/doors/http/openai_error.h"
#include "frontend/doors/http/proxied_paths.h"
#include "frontend/prompt/openai/openai_request.h"
#include "frontend/prompt/openai/usage_reader.h"
#include "indexer/base/mutex.h"
#include "indexer/service/http_exchange.h"
#include "indexer/service/http_server.h"
#include "indexer/service/log.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;

// Engines among which one is taken when any will do.
constexpr size_t kAnyOfMax = 1024;
constexpr size_t kHeaderBytesMax = 30 << 10;
// Of a reason in a header.
constexpr size_t kReasonBytesMax = 200;

bool SameName(std::string_view a, std::string_view b) {
  return absl::EqualsIgnoreCase(absl::string_view(a.data(), a.size()),
                                absl::string_view(b.data(), b.size()));
}

std::string HeaderOf(const HttpHeaders& headers, std::string_view name) {
  for (const auto& [other, value] : headers) {
    if (SameName(other, name)) return value;
  }
  return "";
}

// What a header may hold: no line ends, nothing else that is no text.
std::string HeaderText(std::string text) {
  if (text.size() > kReasonBytesMax) text.resize(kReasonBytesMax);
  for (char& c : text) {
    if (c < ' ' || c > '~') c = ' ';
  }
  return text;
}

std::string ErrorBody(int status, std::string_view message) {
  return OpenAiErrorBody(status, message);
}

}  // namespace

// The proxy's parts that its requests share.
class Proxy::Impl {
 public:
  Impl(const ProxyOptions& options, Frontend* frontend, PromptRouter* router, Metrics* metrics);
  ~Impl() { Stop(); }

  absl::Status Start() { return server_.Start(); }
  Address address() const { return server_.address(); }
  size_t bodies_bytes() const { return server_.bodies_bytes(); }
  size_t connections() const { return server_.connections(); }
  void Stop() {
    server_.Stop();
    MutexLock lock(&pools_mutex_);
    pools_.clear();
  }

  const ProxyOptions& options() const { return options_; }
  Frontend* frontend() const { return frontend_; }
  PromptRouter* router() const { return router_; }
  const ProxiedPaths& paths() const { return options_.paths; }

  EnginePool* PoolOf(asio::io_context* io) {
    MutexLock lock(&pools_mutex_);
    std::unique_ptr<EnginePool>& pool = pools_[io];
    if (pool == nullptr) pool = std::make_unique<EnginePool>(options_.engine);
    return pool.get();
  }

  // Any engine, another one each time.
  std::optional<KnownEngine> AnyEngine(uint32_t tried) {
    std::vector<KnownEngine> engines = frontend_->Engines(kAnyOfMax);
    if (engines.empty()) return std::nullopt;
    const auto suspects = std::find_if(engines.begin(), engines.end(),
                                       [](const KnownEngine& engine) { return engine.suspect; });
    if (suspects != engines.begin()) engines.erase(suspects, engines.end());
    const size_t turn = tried + turn_.fetch_add(tried == 0 ? 1 : 0, std::memory_order_relaxed);
    return std::move(engines[turn % engines.size()]);
  }

  // What became of requests, for metrics.
  struct Counters {
    Counter answered;
    Counter refused;
    Counter tried_again;
    Counter outside;
    Counter broken;
    Counter client_gone;
    Counter no_tokens;
    Gauge under_way;
  };
  Counters counters;
  std::atomic<int64_t> under_way{0};

 private:
  static HttpServerOptions ServerOptions(const ProxyOptions& options);
  static Counters MakeCounters(Metrics* metrics);

  const ProxyOptions options_;
  Frontend* const frontend_;
  PromptRouter* const router_;
  std::atomic<size_t> turn_{0};
  HttpServer server_;
  Mutex pools_mutex_;
  // Their sockets go before the server's threads' contexts.
  std::map<asio::io_context*, std::unique_ptr<EnginePool>> pools_ ABSL_GUARDED_BY(pools_mutex_);
};

// One request: chosen for, sent, answered. On the thread of its connection, but for the router's callbacks.
//
//   1. `Start`      what kind of call it is
//   2. `Route`      asks the router; `OnRoute` comes back to the thread
//   3. `Send`       to the engine; `OnFailed` before its head: step 2 again, with another worker
//   4. `OnHead`, `OnPiece`, `OnEnd`: to the client, and to the frontend as reports
class Proxy::Request : public std::enable_shared_from_this<Request> {
 public:
  Request(Impl* proxy, std::shared_ptr<HttpExchange> exchange)
      : proxy_(proxy), exchange_(std::move(exchange)), io_(&exchange_->io()) {
    proxy_->under_way.fetch_add(1, std::memory_order_relaxed);
  }
  ~Request() { proxy_->under_way.fetch_sub(1, std::memory_order_relaxed); }

  void Start() {
    exchange_->OnGone([self = shared_from_this()] { self->OnClientGone(); });
    body_ = std::make_shared<const std::string>(exchange_->TakeBody());
    const HttpRequest& request = exchange_->request();
    method_ = exchange_->head_only() ? "HEAD" : request.method;
    target_ = request.target;
    for (const auto& field : request.headers) {
      const bool ours = SameName(field.first, "host") || SameName(field.first, "content-length") ||
                        SameName(field.first, kPrefillerHeader) ||
                        IsHopByHop(field.first, request.headers);
      if (!ours) headers_.push_back(field);
    }
    call_ = OpenAiCallOf(method_, request.path);
    tenant_ = HeaderOf(request.headers, "x-kvatlas-tenant");
    if (tenant_.empty()) tenant_ = proxy_->options().tenant;
    session_ = HeaderOf(request.headers, "x-kvatlas-session");
    if (!proxy_->paths().Allows(method_, std::string_view(request.path))) {
      return Refuse(absl::NotFoundError(absl::StrCat(
                        method_, " ", request.path, " is not passed on to engines. Passed on are: ",
                        proxy_->paths().ToString())),
                    "unknown_url");
    }
    const std::string type = HeaderOf(request.headers, "content-type");
    if (method_ == "POST" && !call_.has_value() &&
        absl::StartsWithIgnoreCase(absl::string_view(type), "multipart/")) {
      form_model_ = MultipartModel(type, *body_);
      any_engine_ = !form_model_.has_value();
    }
    Next();
  }

 private:
  void Next() {
    if (method_ == "POST" && !any_engine_) return Route();
    std::optional<KnownEngine> engine = proxy_->AnyEngine(tries_);
    if (!engine.has_value()) return Refuse(absl::UnavailableError("no engine is known yet"));
    route_.route = {.decision_id = 0,
                    .worker = engine->worker,
                    .cell = engine->cell,
                    .url = engine->url,
                    .receipt = {}};
    Send();
  }

  // The callback comes on another thread; until it does, this one must not end.
  void Route() {
    PromptQuestion question;
    question.input.domain.tenant = tenant_;
    question.input.session_id = session_;
    question.input.tried = tried_workers_;
    question.by_load_without_tokens = true;
    // Its hold goes with the answer, so that a request never ends on a thread of the router's, maybe after the proxy.
    auto back = [self = shared_from_this(),
                 work = asio::make_work_guard(*io_)](absl::StatusOr<PromptRoute> route) mutable {
      asio::io_context& io = *self->io_;
      asio::post(io, [self = std::move(self), route = std::move(route)]() mutable {
        self->OnRoute(std::move(route));
      });
    };
    if (call_.has_value()) {
      proxy_->router()->RouteBody(*call_, body_, std::move(question), std::move(back));
    } else if (form_model_.has_value()) {
      question.input.domain.model = *form_model_;
      proxy_->router()->RouteByLoad(std::move(question), std::move(back));
    } else {
      proxy_->router()->RouteModel(body_, std::move(question), std::move(back));
    }
  }

  void OnRoute(absl::StatusOr<PromptRoute> route) {
    if (!route.ok()) return Refuse(route.status());
    route_ = *std::move(route);
    if (gone_) return Report({.abandoned = true});
    if (!route_.no_tokens.ok()) proxy_->counters.no_tokens.Increment();
    Send();
  }

  void Send() {
    ++tries_;
    absl::StatusOr<EngineUrl> url =
        UrlOf(route_.route.destination(), route_.route.destination_url());
    absl::StatusOr<HttpHeaders> headers = EngineHeaders();
    if (absl::IsPermissionDenied(headers.status())) return OnPrefillerOutside(headers.status());
    if (!url.ok() || !headers.ok()) {
      const absl::Status bad = url.ok() ? headers.status() : url.status();
      return OnFailed(absl::UnavailableError(std::string(bad.message())), false);
    }
    sending_to_ = url->authority();
    if (sent_to_.contains(sending_to_))
      return Refuse(absl::UnavailableError("no engine took the request: " + tried_));
    const std::shared_ptr<Request> self = shared_from_this();
    upstream_ = std::make_shared<EngineCall>(
        io_, proxy_->PoolOf(io_),
        EngineCallRequest{.url = *std::move(url),
                          .method = method_,
                          .target = target_,
                          .headers = *std::move(headers),
                          .body = body_},
        EngineCallbacks{.on_head = [self](EngineHead head) { self->OnHead(std::move(head)); },
                        .on_piece = [self](std::string_view piece) { self->OnPiece(piece); },
                        .on_end = [self] { self->OnEnd(); },
                        .on_failed = [self](const absl::Status& why,
                                            bool answered) { self->OnFailed(why, answered); }});
    upstream_->Start();
  }

  static absl::StatusOr<EngineUrl> UrlOf(const HolderId& worker, const std::string& url) {
    if (!url.empty()) return EngineUrl::Parse(url);
    return absl::UnavailableError("worker " + worker.name +
                                  " has no label url, and no --engines says where it is");
  }

  // The client's, and for who decodes the address of who prefills.
  absl::StatusOr<HttpHeaders> EngineHeaders() const {
    if (!route_.route.decode.has_value()) return headers_;
    absl::StatusOr<EngineUrl> prefiller = UrlOf(route_.route.worker, route_.route.url);
    if (!prefiller.ok()) return prefiller.status();
    const absl::Status outside = proxy_->options().engine.reach.Check(*prefiller);
    if (!outside.ok()) return outside;
    HttpHeaders headers = headers_;
    headers.emplace_back(kPrefillerHeader, prefiller->authority());
    return headers;
  }

  void OnHead(EngineHead head) {
    proxy_->counters.answered.Increment();
    if (HeaderOf(head.headers, "content-encoding").empty())
      usage_.emplace(HeaderOf(head.headers, "content-type"));
    status_ = head.status;
    if (head.status < 500) Report({.accepted = true});
    HttpHead out{.status = head.status,
                 .reason = std::move(head.reason),
                 .headers = std::move(head.headers),
                 .length = head.length,
                 .no_body = head.no_body};
    AddDecision(&out.headers);
    exchange_->Begin(std::move(out), [self = shared_from_this()] { self->upstream_->Resume(); });
  }

  void OnPiece(std::string_view piece) {
    if (usage_.has_value()) usage_->Add(piece);
    exchange_->Write(piece, [self = shared_from_this()] { self->upstream_->Resume(); });
  }

  void OnEnd() {
    RouteReport report{.finished = true};
    if (status_ >= 400) report.error = "the engine answered " + std::to_string(status_);
    const std::optional<OpenAiUsage> usage = usage_.has_value() ? usage_->Finish() : std::nullopt;
    if (usage.has_value()) {
      // What who decodes had cached, or was sent, says nothing of who prefilled.
      if (!route_.route.decode.has_value()) report.cached_tokens = usage->cached_tokens;
      report.prompt_tokens = usage->prompt_tokens;
    }
    Report(report);
    exchange_->End();
    upstream_.reset();
  }

  void OnFailed(const absl::Status& why, bool answered) {
    // It may be working on the request: it does not get it again.
    if (upstream_ != nullptr && upstream_->sent()) sent_to_.insert(sending_to_);
    upstream_.reset();
    const RouteResult& route = route_.route;
    const HolderId destination = route.destination();
    const std::string cell = route.destination_cell();
    if (absl::IsPermissionDenied(why)) {
      NoteOutside(cell, destination, route.destination_url(), why);
      return TryAnother(cell, destination, kOutside,
                        {.error = kOutside, .decode_unreachable = true});
    }
    const std::string reason(why.message().data(), why.message().size());
    LogEvery(failed_limiter, LogLevel::kWarning, "an engine failed",
             {{"worker", destination.name},
              {"cell", cell},
              {"answered", answered ? "yes" : "no"},
              {"reason", reason}});
    if (answered) {
      proxy_->counters.broken.Increment();
      proxy_->frontend()->Avoid(cell, destination);
      Report({.finished = true, .error = reason});
      return exchange_->Cut();
    }
    // Who was to prefill was not asked: nothing is held against it.
    TryAnother(cell, destination, reason, {.error = reason, .decode_unreachable = true});
  }

  // Nothing is held against who was to decode.
  void OnPrefillerOutside(const absl::Status& why) {
    const RouteResult& route = route_.route;
    const HolderId worker = route.worker;
    const std::string cell = route.cell;
    NoteOutside(cell, worker, route.url, why);
    TryAnother(cell, worker, kOutside, {.error = kOutside, .unreachable = true});
  }

  void NoteOutside(const std::string& cell, const HolderId& worker, const std::string& url,
                   const absl::Status& why) {
    proxy_->counters.outside.Increment();
    LogEvery(outside_limiter, worker.name, LogLevel::kWarning,
             "a worker gets no requests: its url leads outside --engine_addresses",
             {{"worker", worker.name}, {"cell", cell}, {"url", url}, {"reason", why}});
  }

  // The choice may be over already, and with it whose it was: its worker's own report counted it.
  void TryAnother(const std::string& cell, const HolderId& worker, const std::string& reason,
                  const RouteReport& report) {
    proxy_->frontend()->Avoid(cell, worker);
    Report(report);
    tried_workers_.emplace_back(cell, worker);
    tried_ += (tried_.empty() ? "" : ", ") + worker.name + " (" + reason + ")";
    if (tries_ < proxy_->options().tries) {
      proxy_->counters.tried_again.Increment();
      return Next();
    }
    Refuse(absl::UnavailableError("no engine took the request: " + tried_));
  }

  // `code`: of an error that is not about a model.
  void Refuse(const absl::Status& why, std::string_view code = "") {
    if (gone_) return;
    proxy_->counters.refused.Increment();
    HttpResponse response = OpenAiError(why);
    if (!code.empty())
      response.body = OpenAiErrorBody(
          response.status, std::string_view(why.message().data(), why.message().size()), "", code);
    if (!tried_.empty()) response.headers.emplace_back("x-kvatlas-tried", HeaderText(tried_));
    exchange_->Answer(std::move(response));
  }

  void OnClientGone() {
    gone_ = true;
    proxy_->counters.client_gone.Increment();
    if (upstream_ == nullptr) return;  // being routed, or over
    std::exchange(upstream_, nullptr)->Cancel();
    Report(status_ == 0 ? RouteReport{.abandoned = true} : RouteReport{.finished = true});
  }

  void Report(const RouteReport& report) {
    if (route_.route.decision_id != 0) proxy_->frontend()->Report(route_.route.decision_id, report);
  }

  void AddDecision(HttpHeaders* headers) const {
    const RouteResult& route = route_.route;
    if (route.decision_id != 0) {
      headers->emplace_back("x-kvatlas-decision", std::to_string(route.decision_id));
      headers->emplace_back("x-kvatlas-overlap-blocks", std::to_string(route.overlap_blocks));
      headers->emplace_back(
          "x-kvatlas-fallback",
          route_.no_tokens.ok()
              ? std::string(ToString(route.receipt.fallback))
              : HeaderText("no_tokens: " + std::string(route_.no_tokens.message())));
    }
    headers->emplace_back("x-kvatlas-worker", HeaderText(route.worker.name));
    if (!route.cell.empty()) headers->emplace_back("x-kvatlas-cell", HeaderText(route.cell));
    if (route.decode.has_value()) {
      headers->emplace_back("x-kvatlas-decode-worker", HeaderText(route.decode->worker.name));
      headers->emplace_back("x-kvatlas-decode-cell", HeaderText(route.decode->cell));
    }
    if (!tried_.empty()) headers->emplace_back("x-kvatlas-tried", HeaderText(tried_));
  }

  // What a client is told; the log says which addresses.
  static constexpr char kOutside[] = "its url leads outside --engine_addresses";
  static inline LogLimiter failed_limiter{std::chrono::seconds(1)};
  static inline LogLimiter outside_limiter{std::chrono::seconds(10)};

  Impl* const proxy_;
  const std::shared_ptr<HttpExchange> exchange_;
  asio::io_context* const io_;
  std::shared_ptr<const std::string> body_;
  std::string method_;
  std::string target_;
  HttpHeaders headers_;
  std::optional<OpenAiCall> call_;
  std::string tenant_;
  std::string session_;

  PromptRoute route_;
  uint32_t tries_ = 0;
  std::string tried_;  // and failed
  std::vector<CellWorker> tried_workers_;
  std::string sending_to_;
  std::set<std::string> sent_to_;  // engines that may have got something of it
  std::optional<std::string> form_model_;
  bool any_engine_ = false;  // a form that names no model
  std::shared_ptr<EngineCall> upstream_;
  int status_ = 0;  // of the answer; 0: none yet
  std::optional<UsageReader> usage_;
  bool gone_ = false;
};

Proxy::Impl::Counters Proxy::Impl::MakeCounters(Metrics* metrics) {
  return {
      .answered = metrics->AddCounter("kvatlas_frontend_proxy_answers_total",
                                      "Requests that an engine answered."),
      .refused = metrics->AddCounter("kvatlas_frontend_proxy_refused_total",
                                     "Requests that no engine was asked about, or took."),
      .tried_again = metrics->AddCounter("kvatlas_frontend_proxy_tried_again_total",
                                         "Engines that failed before they answered, after which "
                                         "another was asked."),
      .outside = metrics->AddCounter("kvatlas_frontend_proxy_outside_total",
                                     "Workers that got no request, as their url leads outside "
                                     "--engine_addresses."),
      .broken = metrics->AddCounter("kvatlas_frontend_proxy_broken_total",
                                    "Answers that engines broke off."),
      .client_gone = metrics->AddCounter("kvatlas_frontend_proxy_clients_gone_total",
                                         "Requests whose client left before their end."),
      .no_tokens = metrics->AddCounter("kvatlas_frontend_proxy_without_tokens_total",
                                       "Prompts routed by load, since nobody made tokens of them."),
      .under_way =
          metrics->AddGauge("kvatlas_frontend_proxy_under_way", "Requests not yet answered.")};
}

HttpServerOptions Proxy::Impl::ServerOptions(const ProxyOptions& options) {
  HttpServerOptions server;
  server.listen = options.listen;
  server.io_threads = options.io_threads;
  server.pool_threads = 1;
  server.header_bytes_max = kHeaderBytesMax;
  server.bodies_bytes_max = options.bodies_bytes_max;
  server.connections_max = options.connections_max;
  server.write_timeout = options.write_timeout;
  server.keep_headers = true;
  server.error_body = ErrorBody;
  return server;
}

Proxy::Impl::Impl(const ProxyOptions& options, Frontend* frontend, PromptRouter* router,
                  Metrics* metrics)
    : counters(MakeCounters(metrics)),
      options_(options),
      frontend_(frontend),
      router_(router),
      server_(ServerOptions(options)) {
  server_.Handle({.method = "*",
                  .path = "/v1/*",
                  .stream =
                      [this](std::shared_ptr<HttpExchange> exchange) {
                        std::make_shared<Request>(this, std::move(exchange))->Start();
                      },
                  .body_bytes_max = options.body_bytes_max});
  server_.Handle(
      {.method = "GET",
       .path = "/health",
       .handler = [](const HttpRequest&) { return HttpResponse{.content_type = "", .body = ""}; },
       .vital = true});
  metrics->OnScrape([this, gauge = counters.under_way]() mutable {
    gauge.Set(static_cast<double>(under_way.load(std::memory_order_relaxed)));
  });
}

Proxy::Proxy(const ProxyOptions& options, Frontend* frontend, PromptRouter* router,
             Metrics* metrics)
    : impl_(std::make_unique<Impl>(options, frontend, router, metrics)) {}
Proxy::~Proxy() = default;

absl::Status Proxy::Start() { return impl_->Start(); }
Address Proxy::address() const { return impl_->address(); }
size_t Proxy::bodies_bytes() const { return impl_->bodies_bytes(); }
size_t Proxy::connections() const { return impl_->connections(); }
void Proxy::Stop() { impl_->Stop(); }

}  // namespace kvatlas
