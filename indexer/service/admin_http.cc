#include "indexer/service/admin_http.h"

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <exception>
#include <map>
#include <thread>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "indexer/service/log.h"
#include "indexer/service/text_escape.h"
#include "indexer/service/version.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

// After the last reply, what the client still sends is read and forgotten for so long and so much:
// closing at once would reset the connection and might take the reply with it.
constexpr std::chrono::seconds kLinger(2);
constexpr size_t kLingerBytesMax = 1 << 20;

// How long accepting pauses when the machine has no descriptor left.
constexpr std::chrono::milliseconds kAcceptPause(50);

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  AppendJsonEscaped(&out, text);
  out.push_back('"');
  return out;
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

// Nothing, if a '%' is not followed by two digits.
std::optional<std::string> PercentDecode(std::string_view text, bool plus_is_blank) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%') {
      if (i + 2 >= text.size()) return std::nullopt;
      const int high = HexDigit(text[i + 1]);
      const int low = HexDigit(text[i + 2]);
      if (high < 0 || low < 0) return std::nullopt;
      out.push_back(static_cast<char>(high * 16 + low));
      i += 2;
    } else {
      out.push_back(plus_is_blank && text[i] == '+' ? ' ' : text[i]);
    }
  }
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

int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kFailedPrecondition:
      return 409;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

// The reply to what the parser refused, or nothing where the client is gone.
std::optional<HttpResponse> ReplyToReadError(error_code error) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow) {
    return HttpError(431, "the header is too large");
  }
  if (error == http::error::body_limit) return HttpError(413, "the body is too large");
  if (error == http::error::end_of_stream || error == http::error::partial_message) {
    return std::nullopt;
  }
  if (error.category() == http::make_error_code(http::error::bad_method).category()) {
    return HttpError(400, "not HTTP");
  }
  return std::nullopt;
}

// Who answers which path.
class Router {
 public:
  void Add(std::string method, std::string path, HttpHandler handler) {
    routes_[std::move(path)][std::move(method)] = std::move(handler);
  }

  HttpResponse Answer(const HttpRequest& request) const {
    const Methods* methods = Find(request.path);
    if (methods == nullptr) return HttpError(404, absl::StrCat("no such path: ", request.path));
    const auto handler = methods->find(request.method);
    if (handler == methods->end()) {
      return HttpError(405, absl::StrCat(request.method, " is not for ", request.path));
    }
    try {
      return handler->second(request);
    } catch (const std::exception& error) {
      return HttpError(500, error.what());
    } catch (...) {
      return HttpError(500, "the handler failed");
    }
  }

 private:
  using Methods = std::map<std::string, HttpHandler>;

  // The path itself, or else the nearest "/*" above it.
  const Methods* Find(std::string path) const {
    if (const auto route = routes_.find(path); route != routes_.end()) return &route->second;
    for (size_t slash; (slash = path.rfind('/')) != std::string::npos;) {
      path.resize(slash);
      if (const auto route = routes_.find(path + "/*"); route != routes_.end()) {
        return &route->second;
      }
    }
    return nullptr;
  }

  std::map<std::string, Methods> routes_;
};

class Session;

// What the sessions share; all of it belongs to the server's thread once that runs.
struct Shared {
  AdminHttpOptions options;
  Router router;
  std::unordered_set<Session*> sessions;
};

// One connection: read, answer, write, again, linger. It owns itself through the handlers of its
// one pending operation.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, Shared* shared) : stream_(std::move(socket)), shared_(shared) {
    shared_->sessions.insert(this);
  }
  ~Session() { shared_->sessions.erase(this); }

  // The time-out is for the whole request, so a client that trickles bytes gains nothing.
  void Read() {
    parser_.emplace();
    parser_->header_limit(static_cast<uint32_t>(shared_->options.header_bytes_max));
    parser_->body_limit(shared_->options.body_bytes_max);
    stream_.expires_after(shared_->options.idle_timeout);
    http::async_read(
        stream_, buffer_, *parser_,
        [self = shared_from_this()](error_code error, size_t) { self->OnRead(error); });
  }

  void Close() {
    error_code ignored;
    stream_.socket().close(ignored);
  }

 private:
  void OnRead(error_code error) {
    if (error) {
      if (std::optional<HttpResponse> reply = ReplyToReadError(error)) {
        Write(*std::move(reply), 11, /*head=*/false, /*keep_alive=*/false);
      } else if (error == http::error::end_of_stream) {
        Linger();
      }
      return;
    }
    http::request<http::string_body>& message = parser_->get();
    const bool head = message.method() == http::verb::head;
    Write(Answer(message, head), message.version(), head, message.keep_alive());
  }

  HttpResponse Answer(http::request<http::string_body>& message, bool head) const {
    const std::string_view target(message.target().data(), message.target().size());
    const size_t question = target.find('?');
    std::optional<std::string> path = PercentDecode(target.substr(0, question), false);
    if (!path.has_value() || !path->starts_with('/')) return HttpError(400, "bad path");
    HttpRequest request;
    request.method = head ? "GET" : std::string(message.method_string());
    request.path = *std::move(path);
    if (question != std::string_view::npos) request.query = target.substr(question + 1);
    request.body = std::move(message.body());
    return shared_->router.Answer(request);
  }

  void Write(HttpResponse response, unsigned version, bool head, bool keep_alive) {
    message_ = {};
    message_.version(version);
    message_.result(static_cast<unsigned>(response.status));
    message_.set(http::field::content_type, response.content_type);
    message_.set(http::field::cache_control, "no-store");
    message_.body() = std::move(response.body);
    message_.prepare_payload();
    message_.keep_alive(keep_alive);
    serializer_.emplace(message_);
    stream_.expires_after(shared_->options.idle_timeout);
    auto done = [self = shared_from_this(), keep_alive](error_code error, size_t) {
      if (error) return;
      keep_alive ? self->Read() : self->Linger();
    };
    if (head) {
      http::async_write_header(stream_, *serializer_, std::move(done));
    } else {
      http::async_write(stream_, *serializer_, std::move(done));
    }
  }

  void Linger() {
    error_code ignored;
    stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
    stream_.expires_after(kLinger);
    Discard(0);
  }

  void Discard(size_t discarded) {
    if (discarded > kLingerBytesMax) return;
    stream_.async_read_some(asio::buffer(discard_),
                            [self = shared_from_this(), discarded](error_code error, size_t bytes) {
                              if (!error) self->Discard(discarded + bytes);
                            });
  }

  beast::tcp_stream stream_;
  Shared* const shared_;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  http::response<http::string_body> message_;
  std::optional<http::response_serializer<http::string_body>> serializer_;
  std::array<char, 4096> discard_;
};

}  // namespace

std::optional<std::string> HttpRequest::Param(std::string_view name) const {
  for (std::string_view rest = query; !rest.empty();) {
    const size_t end = rest.find('&');
    const std::string_view pair = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view() : rest.substr(end + 1);
    const size_t equals = pair.find('=');
    if (PercentDecode(pair.substr(0, equals), true) != name) continue;
    if (equals == std::string_view::npos) return "";
    return PercentDecode(pair.substr(equals + 1), true);
  }
  return std::nullopt;
}

HttpResponse HttpError(int status, std::string_view message) {
  return {.status = status, .body = absl::StrCat("{\"error\":", Quoted(message), "}\n")};
}

HttpResponse HttpError(const absl::Status& status) {
  return HttpError(HttpStatusOf(status.code()), status.ToString());
}

class AdminHttp::Impl {
 public:
  Impl(AdminHttpOptions options, Metrics* metrics) : acceptor_(io_), accept_timer_(io_) {
    shared_.options = std::move(options);
    Router& router = shared_.router;
    router.Add("GET", "/healthz", [this](const HttpRequest&) {
      const Health health = health_.load(std::memory_order_relaxed);
      return HttpResponse{.status = health == Health::kServing ? 200 : 503,
                          .body = absl::StrCat("{\"health\":", Quoted(HealthName(health)), "}\n")};
    });
    router.Add("GET", "/metrics", [metrics](const HttpRequest&) {
      return HttpResponse{.content_type = "text/plain; version=0.0.4; charset=utf-8",
                          .body = metrics->Text()};
    });
    const std::string version = absl::StrCat("{\"program\":", Quoted(shared_.options.program),
                                             ",\"version\":", Quoted(kVersion), "}\n");
    router.Add("GET", "/version",
               [version](const HttpRequest&) { return HttpResponse{.body = version}; });
  }

  ~Impl() { Stop(); }

  void Handle(std::string method, std::string path, HttpHandler handler) {
    shared_.router.Add(std::move(method), std::move(path), std::move(handler));
  }

  absl::Status Start() {
    if (error_code error = Listen()) {
      return absl::UnavailableError(absl::StrCat(
          "cannot listen for HTTP on ", shared_.options.listen.ToString(), ": ", error.message()));
    }
    Accept();
    thread_ = std::thread([this] { io_.run(); });
    return absl::OkStatus();
  }

  Address address() const { return bound_; }

  void SetHealth(Health health) { health_.store(health, std::memory_order_relaxed); }

  void Stop() {
    MutexLock lock(&stop_mutex_);
    if (!thread_.joinable()) return;
    asio::post(io_, [this] {
      error_code ignored;
      acceptor_.close(ignored);
      accept_timer_.cancel(ignored);
      for (Session* session : shared_.sessions) session->Close();
    });
    thread_.join();  // ends when no operation is pending
  }

 private:
  error_code Listen() {
    const Address& listen = shared_.options.listen;
    error_code error;
    tcp::resolver resolver(io_);
    const auto found =
        resolver.resolve(listen.host, std::to_string(listen.port),
                         tcp::resolver::passive | tcp::resolver::numeric_service, error);
    if (error) return error;
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(tcp::acceptor::max_listen_connections, error);
    if (!error) bound_ = {listen.host, acceptor_.local_endpoint(error).port()};
    if (error) {
      error_code ignored;
      acceptor_.close(ignored);
    }
    return error;
  }

  void Accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (error) return AcceptLater(error);
      if (shared_.sessions.size() < shared_.options.connections_max) {
        std::make_shared<Session>(std::move(socket), &shared_)->Read();
      }
      Accept();
    });
  }

  void AcceptLater(error_code error) {
    LogEvery(accept_limiter_, LogLevel::kWarning, "http accept failed",
             {{"reason", error.message()}});
    accept_timer_.expires_after(kAcceptPause);
    accept_timer_.async_wait([this](error_code) {
      if (acceptor_.is_open()) Accept();
    });
  }

  // Sessions that never ended are destroyed with `io_`, and take themselves out of `shared_`.
  Shared shared_;
  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  asio::steady_timer accept_timer_;
  LogLimiter accept_limiter_{std::chrono::seconds(10)};
  Address bound_;  // immutable after Start
  std::atomic<Health> health_{Health::kLoading};
  Mutex stop_mutex_;
  std::thread thread_;  // written by Start, joined under stop_mutex_
};

AdminHttp::AdminHttp(AdminHttpOptions options, Metrics* metrics)
    : impl_(std::make_unique<Impl>(std::move(options), metrics)) {}
AdminHttp::~AdminHttp() = default;

void AdminHttp::Handle(std::string method, std::string path, HttpHandler handler) {
  impl_->Handle(std::move(method), std::move(path), std::move(handler));
}
absl::Status AdminHttp::Start() { return impl_->Start(); }
Address AdminHttp::address() const { return impl_->address(); }
void AdminHttp::SetHealth(Health health) { impl_->SetHealth(health); }
void AdminHttp::Stop() { impl_->Stop(); }

}  // namespace kvatlas
