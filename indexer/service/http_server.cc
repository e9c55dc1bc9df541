#include "indexer/service/http_server.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "indexer/base/mutex.h"
#include "indexer/service/http_connection.h"
#include "indexer/service/log.h"
#include "indexer/service/text_escape.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// How long accepting pauses when the machine has no descriptor left.
constexpr std::chrono::milliseconds kAcceptPause(50);

}  // namespace

int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kAlreadyExists:
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

HttpResponse HttpError(int status, std::string_view message) {
  HttpResponse response{.status = status, .body = "{\"error\":\""};
  AppendJsonEscaped(&response.body, message);
  response.body += "\"}\n";
  return response;
}

HttpResponse HttpError(const absl::Status& status) {
  return HttpError(HttpStatusOf(status.code()), status.ToString());
}

class HttpServer::Impl {
 public:
  explicit Impl(HttpServerOptions options)
      : shared_(std::move(options)), threads_(MakeThreads(shared_.options.io_threads)) {}

  ~Impl() { Stop(); }

  void Handle(HttpRoute route) { shared_.router.Add(std::move(route)); }

  absl::Status Start() {
    if (error_code error = Listen()) {
      return absl::UnavailableError(absl::StrCat(
          "cannot listen for HTTP on ", shared_.options.listen.ToString(), ": ", error.message()));
    }
    shared_.pool.Start(std::max<uint32_t>(1, shared_.options.pool_threads));
    Accept();
    for (auto& thread : threads_) {
      Sweep(thread.get());
      thread->thread = std::thread([io = &thread->loop.io] { io->run(); });
    }
    return absl::OkStatus();
  }

  Address address() const { return bound_; }
  size_t connections() const { return shared_.connections.load(std::memory_order_relaxed); }

  // 1. Nobody comes in, and everybody is cut off. 2. What runs on the pool ends. 3. So do the threads, when nothing
  // is pending.
  void Stop() {
    MutexLock lock(&stop_mutex_);
    if (stopped_) return;
    stopped_ = true;
    for (auto& thread : threads_) {
      asio::post(thread->loop.io, [this, thread = thread.get()] {
        error_code ignored;
        if (thread == threads_.front().get()) {
          acceptor_.close(ignored);
          accept_timer_.cancel(ignored);
        }
        thread->stopping = true;
        thread->sweep.cancel(ignored);
        for (HttpConnection* connection : thread->loop.connections) connection->Close();
      });
    }
    shared_.pool.Stop();
    for (auto& thread : threads_) {
      thread->work.reset();
      if (thread->thread.joinable()) thread->thread.join();
    }
    shared_.pool.Forget();
  }

 private:
  struct IoThread {
    HttpLoop loop;
    asio::executor_work_guard<asio::io_context::executor_type> work{loop.io.get_executor()};
    asio::steady_timer sweep{loop.io};
    bool stopping = false;  // of the loop's thread
    std::thread thread;     // written by Start, joined under stop_mutex_
  };

  static std::vector<std::unique_ptr<IoThread>> MakeThreads(uint32_t count) {
    std::vector<std::unique_ptr<IoThread>> threads;
    do {
      threads.push_back(std::make_unique<IoThread>());
    } while (threads.size() < count);
    return threads;
  }

  error_code Listen() {
    const Address& listen = shared_.options.listen;
    error_code error;
    tcp::resolver resolver(threads_.front()->loop.io);
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

  // On the first thread; connections go to all of them in turn.
  void Accept() {
    IoThread* const thread = threads_[next_++ % threads_.size()].get();
    acceptor_.async_accept(thread->loop.io, [this, thread](error_code error, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (error) return AcceptLater(error);
      if (connections() < shared_.options.connections_max) {
        auto connection =
            std::make_shared<HttpConnection>(std::move(socket), &shared_, &thread->loop);
        asio::post(thread->loop.io, [thread, connection = std::move(connection)] {
          if (!thread->stopping) connection->Start();
        });
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

  // One timer per thread looks at everybody's deadline: a timer per request would cost more than the request.
  void Sweep(IoThread* thread) {
    const HttpServerOptions& options = shared_.options;
    const Duration shortest =
        std::min({options.idle_timeout, options.request_timeout, options.write_timeout});
    thread->sweep.expires_after(
        std::clamp<Duration>(shortest / 4, std::chrono::milliseconds(5), std::chrono::seconds(1)));
    thread->sweep.async_wait([this, thread](error_code error) {
      if (error || thread->stopping) return;
      const Time now = Clock::Real().Now();
      for (HttpConnection* connection : thread->loop.connections) connection->CheckDeadline(now);
      Sweep(thread);
    });
  }

  HttpShared shared_;
  // Connections that never ended are destroyed with their loop, and take themselves out of `shared_`.
  const std::vector<std::unique_ptr<IoThread>> threads_;
  tcp::acceptor acceptor_{threads_.front()->loop.io};
  asio::steady_timer accept_timer_{threads_.front()->loop.io};
  size_t next_ = 0;
  LogLimiter accept_limiter_{std::chrono::seconds(10)};
  Address bound_;  // immutable after Start
  Mutex stop_mutex_;
  bool stopped_ ABSL_GUARDED_BY(stop_mutex_) = false;
};

HttpServer::HttpServer(HttpServerOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}
HttpServer::~HttpServer() = default;

void HttpServer::Handle(HttpRoute route) { impl_->Handle(std::move(route)); }
absl::Status HttpServer::Start() { return impl_->Start(); }
Address HttpServer::address() const { return impl_->address(); }
size_t HttpServer::connections() const { return impl_->connections(); }
void HttpServer::Stop() { impl_->Stop(); }

}  // namespace kvatlas
