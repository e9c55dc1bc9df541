// The server around the connections: its threads, the door that accepts and sorts connections, and
// the sweep that enforces deadlines. What happens on a connection is in http_connection.cc.

#include "indexer/net/http_server.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "indexer/base/mutex.h"
#include "indexer/net/connection_account.h"
#include "indexer/net/http_connection.h"
#include "indexer/net/io_loop.h"
#include "indexer/telemetry/log.h"
#include "indexer/telemetry/text_escape.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Connections accepted in a row before the door serves the connections that wait at it.
constexpr int kAcceptedInARow = 64;
// Bytes of a request that the door looks at to see whether it asks for a vital route. The paths of
// vital routes are far shorter.
constexpr size_t kLookBytes = 128;
// Time that a connection on reserve has to send its request.
constexpr std::chrono::seconds kReserveTimeout(2);
constexpr char kPlainOnly[] =
    "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
// The first byte of a client that speaks TLS.
constexpr char kTlsHandshake = 0x16;
constexpr char kRefusal[] =
    "HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\n"
    "content-length: 0\r\n\r\n";

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

// A connection that waits at the door for its first bytes. It is in `guests_` from Welcome until it
// is readable (Enter), its deadline passes (SweepGuests) or the door closes.
struct HttpServer::Guest {
  Guest(tcp::socket guest_socket, ConnectionListener::Busy guest_busy, bool guest_on_reserve)
      : socket(std::move(guest_socket)),
        busy(std::move(guest_busy)),
        on_reserve(guest_on_reserve) {}

  tcp::socket socket;
  ConnectionListener::Busy busy;
  bool on_reserve;
  Time deadline{0};
};

class HttpServer::Impl {
 public:
  // Connections of the door's own loop come back to it after each answer: their next request may be
  // for an I/O thread.
  explicit Impl(HttpServerOptions options)
      : shared_(std::move(options)), threads_(MakeThreads(shared_.options.io_threads)) {
    door_.loop.hand_back = [this](tcp::socket socket, ConnectionListener::Busy busy) {
      Welcome(std::make_shared<Guest>(std::move(socket), std::move(busy), false));
    };
  }

  ~Impl() { Stop(); }

  void Handle(HttpRoute route) { shared_.router.Add(std::move(route)); }

  // 1. `Security` allows the address. 2. The listener binds; a reserve exists only for vital
  //    routes. 3. Pools start before any thread that submits to them. 4. The door accepts, then the
  //    I/O threads run.
  absl::Status Start() {
    const bool vital = shared_.router.has_vital();
    if (absl::Status open = shared_.security->MayListen(shared_.options.listen); !open.ok())
      return open;
    const absl::Status bad = listener_.Listen(shared_.options.listen,
                                              {.connections_max = shared_.options.connections_max,
                                               .reserve = vital ? kHttpVitalConnections : 0});
    if (!bad.ok()) {
      return absl::UnavailableError(absl::StrCat(
          "cannot listen for HTTP on ", shared_.options.listen.ToString(), ": ", bad.message()));
    }
    error_code error;
    waiting_.assign(listener_.fd(), error);
    shared_.pool.Start(std::max<uint32_t>(1, shared_.options.pool_threads));
    if (vital) shared_.vital_pool.Start(1);
    AcceptLater();
    Run(&door_);
    for (auto& thread : threads_) Run(thread.get());
    return absl::OkStatus();
  }

  Address address() const { return listener_.address(); }
  size_t connections() const {
    return shared_.connections.load(std::memory_order_relaxed) +
           guests_count_.load(std::memory_order_relaxed);
  }
  size_t bodies_bytes() const { return shared_.bodies_bytes.load(std::memory_order_relaxed); }

  // 1. Each thread stops accepting and closes its connections, in a task of its own loop.
  // 2. The pools finish the jobs that run, and keep the waiting ones.
  // 3. The threads end when nothing is pending.
  // 4. The pools drop the waiting jobs, and with them the last references to connections, only now
  //    that no loop runs.
  void Stop() {
    MutexLock lock(&stop_mutex_);
    if (stopped_) return;
    stopped_ = true;
    asio::post(door_.loop.io, [this] {
      CloseDoor();
      StopThread(&door_);
    });
    for (auto& thread : threads_) {
      asio::post(thread->loop.io, [this, thread = thread.get()] { StopThread(thread); });
    }
    shared_.pool.Stop();
    shared_.vital_pool.Stop();
    Join(&door_);
    for (auto& thread : threads_) Join(thread.get());
    shared_.pool.Forget();
    shared_.vital_pool.Forget();
    if (door_.loop.io.stopped() || listener_.fd() < 0) return;
    CloseDoor();  // it was never opened
  }

 private:
  // One I/O thread, or the door. `work` keeps the loop running while it has no connection.
  struct IoThread {
    HttpLoop loop;
    IoLoop shared{&loop.io};  // with what handlers keep on it
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

  void Run(IoThread* thread) {
    Sweep(thread);
    thread->thread = std::thread([thread] {
      thread->shared.Enter();
      thread->loop.io.run();
    });
  }

  // On the loop's thread. Closed connections end by themselves once their operations have failed.
  void StopThread(IoThread* thread) {
    error_code ignored;
    thread->stopping = true;
    thread->sweep.cancel(ignored);
    for (HttpConnection* connection : thread->loop.connections) connection->Close();
    thread->shared.CloseTenants();
  }

  void Join(IoThread* thread) {
    thread->work.reset();
    if (thread->thread.joinable()) thread->thread.join();
  }

  // ---- The door: on its thread ----

  // `waiting_` borrows the listener's descriptor: it is released before the listener closes it.
  void CloseDoor() {
    error_code ignored;
    if (waiting_.is_open()) waiting_.release();
    listener_.Close();
    accept_timer_.cancel(ignored);
    for (const auto& guest : guests_) guest->socket.close(ignored);
    guests_.clear();
    guests_count_.store(0, std::memory_order_relaxed);
  }

  void AcceptLater() {
    waiting_.async_wait(asio::posix::stream_descriptor::wait_read, [this](error_code error) {
      if (!error && listener_.fd() >= 0) Accept();
    });
  }

  // Accepts until none waits. A failure pauses, instead of asking a readable descriptor again at
  // once. After `kAcceptedInARow` it posts itself, so that guests are served too.
  void Accept() {
    for (int i = 0; i < kAcceptedInARow; ++i) {
      ConnectionListener::Accepted accepted = listener_.Accept(/*with_busy=*/true);
      switch (accepted.outcome) {
        case ConnectionListener::Outcome::kNone:
          return AcceptLater();
        case ConnectionListener::Outcome::kFailed:
          LogEvery(limiter_, LogLevel::kWarning, "http accept failed",
                   {{"address", listener_.address().ToString()}});
          return AcceptAfter(kAcceptPause);
        case ConnectionListener::Outcome::kFull:
          return AcceptAfter(kFullPause);
        case ConnectionListener::Outcome::kShed:
          LogEvery(
              limiter_, LogLevel::kWarning, "http connection refused",
              {{"address", listener_.address().ToString()}, {"reason", "too many connections"}});
          break;
        case ConnectionListener::Outcome::kAccepted: {
          error_code error;
          tcp::socket socket(door_.loop.io);
          socket.assign(Protocol(), accepted.fd, error);
          if (error) {
            ::close(accepted.fd);
            break;
          }
          Welcome(std::make_shared<Guest>(std::move(socket), std::move(accepted.busy),
                                          accepted.on_reserve));
          break;
        }
      }
    }
    asio::post(door_.loop.io, [this] {
      if (listener_.fd() >= 0) Accept();
    });
  }

  void AcceptAfter(Duration pause) {
    accept_timer_.expires_after(pause);
    accept_timer_.async_wait([this](error_code) {
      if (listener_.fd() >= 0) Accept();
    });
  }

  // Asio needs the address family of a descriptor only to name it; all operations here are
  // independent of it.
  tcp Protocol() const {
    return shared_.options.listen.host.find(':') == std::string::npos ? tcp::v4() : tcp::v6();
  }

  // The connection waits for its first bytes. Accepting alone does not show whose it is.
  void Welcome(std::shared_ptr<Guest> guest) {
    if (door_.stopping) return;
    const Duration patience =
        guest->on_reserve ? Duration(kReserveTimeout) : shared_.options.idle_timeout;
    guest->deadline = Clock::Real().Now() + patience;
    guests_.insert(guest);
    guests_count_.store(guests_.size(), std::memory_order_relaxed);
    guest->socket.async_wait(tcp::socket::wait_read, [this, guest](error_code error) {
      if (guests_.erase(guest) == 0) return;
      guests_count_.store(guests_.size(), std::memory_order_relaxed);
      if (!error) Enter(guest);
    });
  }

  // Sorts a connection by its first bytes, which are looked at and stay in the socket.
  // 1. With TLS nothing can be seen: an I/O thread takes it, the door those on reserve.
  // 2. A TLS hello at a port without TLS is refused with a plain answer and a log record.
  // 3. A vital route is answered by the door, all else by the I/O threads in turn.
  // 4. A connection on reserve that asks for anything else gets 503.
  // A request line that arrived only in part counts as not vital.
  void Enter(const std::shared_ptr<Guest>& guest) {
    char first[kLookBytes];
    const ssize_t got =
        recv(guest->socket.native_handle(), first, sizeof(first), MSG_PEEK | MSG_DONTWAIT);
    if (got <= 0) return;  // it is gone
    if (shared_.security->tls() != nullptr) {
      if (!guest->on_reserve) return GiveTo(threads_[next_++ % threads_.size()].get(), guest);
      return GiveTo(&door_, guest);
    }
    if (first[0] == kTlsHandshake) {
      SayItIsPlain();
      return Refuse(guest, kPlainOnly);
    }
    if (AsksForVital({first, static_cast<size_t>(got)})) return GiveTo(&door_, guest);
    if (guest->on_reserve) return Refuse(guest, kRefusal);
    GiveTo(threads_[next_++ % threads_.size()].get(), guest);
  }

  // "GET PATH" or "HEAD PATH" of a vital route, and a blank or a '?'.
  bool AsksForVital(std::string_view first) const {
    const size_t blank = first.find(' ');
    if (blank == std::string_view::npos) return false;
    const std::string_view method = first.substr(0, blank);
    if (method != "GET" && method != "HEAD") return false;
    first.remove_prefix(blank + 1);
    const size_t end = first.find_first_of(" ?");
    return end != std::string_view::npos && shared_.router.IsVital(first.substr(0, end));
  }

  // Moves the socket to the loop of `thread`. The connection is constructed here and only then
  // posted, so that it is counted at once; it starts on its own loop.
  void GiveTo(IoThread* thread, const std::shared_ptr<Guest>& guest) {
    if (thread == &door_) {
      auto connection = std::make_shared<HttpConnection>(
          std::move(guest->socket), std::move(guest->busy), &shared_, &thread->loop);
      if (guest->on_reserve) return connection->StartOnReserve();
      return connection->Start();
    }
    error_code error;
    const int fd = guest->socket.release(error);
    if (error) return;
    tcp::socket socket(thread->loop.io);
    socket.assign(Protocol(), fd, error);
    if (error) {
      ::close(fd);
      return;
    }
    auto connection = std::make_shared<HttpConnection>(std::move(socket), std::move(guest->busy),
                                                       &shared_, &thread->loop);
    asio::post(thread->loop.io, [thread, connection = std::move(connection)] {
      if (!thread->stopping) connection->Start();
    });
  }

  void SayItIsPlain() {
    LogEvery(limiter_, LogLevel::kWarning, "http connection refused",
             {{"address", listener_.address().ToString()},
              {"reason",
               "the client speaks TLS, and this port does not: use http://, or give "
               "this process --tls_cert and --tls_key"}});
  }

  // Answers without a parser and drops the guest, whose socket then closes.
  void Refuse(const std::shared_ptr<Guest>& guest, std::string_view answer) {
    const int fd = guest->socket.native_handle();
    [[maybe_unused]] const ssize_t sent =
        send(fd, answer.data(), answer.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    // Unread input at the close would make the kernel send a reset, which may discard the answer
    // at the client.
    char unread[4096];
    while (recv(fd, unread, sizeof(unread), MSG_DONTWAIT) > 0) {
    }
  }

  // One timer per thread checks the deadlines of all its connections, four times within the
  // shortest time-out: a timer per request would cost more than the request. CheckDeadline only
  // closes sockets; connections leave the set later, so the loop over it is safe.
  void Sweep(IoThread* thread) {
    const HttpServerOptions& options = shared_.options;
    const Duration shortest = std::min({options.idle_timeout, options.header_timeout,
                                        options.request_timeout, options.write_timeout});
    thread->sweep.expires_after(
        std::clamp<Duration>(shortest / 4, std::chrono::milliseconds(5), std::chrono::seconds(1)));
    thread->sweep.async_wait([this, thread](error_code error) {
      if (error || thread->stopping) return;
      const Time now = Clock::Real().Now();
      for (HttpConnection* connection : thread->loop.connections) connection->CheckDeadline(now);
      if (thread == &door_) SweepGuests(now);
      Sweep(thread);
    });
  }

  void SweepGuests(Time now) {
    for (auto it = guests_.begin(); it != guests_.end();) {
      if (now < (*it)->deadline) {
        ++it;
        continue;
      }
      error_code ignored;
      (*it)->socket.close(ignored);
      it = guests_.erase(it);
    }
    guests_count_.store(guests_.size(), std::memory_order_relaxed);
  }

  HttpShared shared_;
  // Loops are declared after `shared_`, so they go first: connections that never ended are
  // destroyed with their loop and still take themselves out of `shared_`.
  IoThread door_;
  const std::vector<std::unique_ptr<IoThread>> threads_;
  ConnectionListener listener_;  // of the door's thread once that runs, as what follows
  asio::posix::stream_descriptor waiting_{door_.loop.io};  // the listener's descriptor, lent
  asio::steady_timer accept_timer_{door_.loop.io};
  std::unordered_set<std::shared_ptr<Guest>> guests_;
  std::atomic<size_t> guests_count_{0};
  size_t next_ = 0;
  LogLimiter limiter_{std::chrono::seconds(10)};
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
size_t HttpServer::bodies_bytes() const { return impl_->bodies_bytes(); }
void HttpServer::Stop() { impl_->Stop(); }

}  // namespace kvatlas
