#include "tools/bench/service_bench_http.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"

namespace kvatlas {
namespace {

constexpr size_t kReadBytes = 64 << 10;

absl::StatusOr<int> ConnectTo(const Address& to) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(to.port);
  if (inet_pton(AF_INET, to.host == "localhost" ? "127.0.0.1" : to.host.c_str(),
                &address.sin_addr) != 1) {
    return absl::InvalidArgumentError(to.host + ": not an IPv4 address");
  }
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::UnavailableError("no socket");
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    const std::string why = std::strerror(errno);
    close(fd);
    return absl::UnavailableError("cannot connect to " + to.ToString() + ": " + why);
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  return fd;
}

// Where an answer ends, once its head is there.
struct Framing {
  int status = 0;
  size_t head = 0;   // bytes
  size_t total = 0;  // bytes
};

bool StartsWithNoCase(std::string_view text, std::string_view lower) {
  return text.size() >= lower.size() &&
         std::equal(lower.begin(), lower.end(), text.begin(), [](char want, char is) {
           return want == std::tolower(static_cast<unsigned char>(is));
         });
}

// Nothing: the head is not complete. A status of 0: not an answer that this client understands.
std::optional<Framing> ParseHead(std::string_view bytes) {
  const size_t end = bytes.find("\r\n\r\n");
  if (end == std::string_view::npos) return std::nullopt;
  Framing framing{.status = 0, .head = end + 4, .total = end + 4};
  if (!bytes.starts_with("HTTP/1.1 ") || end < 12) return framing;
  for (const char digit : bytes.substr(9, 3)) framing.status = framing.status * 10 + (digit - '0');
  constexpr std::string_view kLength = "content-length:";
  for (size_t at = bytes.find("\r\n"); at < end; at = bytes.find("\r\n", at + 2)) {
    std::string_view line = bytes.substr(at + 2, end - at);
    if (!StartsWithNoCase(line, kLength)) continue;
    line = line.substr(kLength.size(), line.find("\r\n") - kLength.size());
    size_t length = 0;
    if (!absl::SimpleAtoi(absl::string_view(line.data(), line.size()), &length) ||
        length > kAnswerBytesMax) {
      framing.status = 0;
      return framing;
    }
    framing.total += length;
    return framing;
  }
  framing.status = 0;
  return framing;
}

}  // namespace

std::string HttpPost(const Address& to, std::string_view path, std::string_view body) {
  std::string request =
      "POST " + std::string(path) + " HTTP/1.1\r\nhost: " + to.ToString() +
      "\r\ncontent-type: application/json\r\ncontent-length: " + std::to_string(body.size()) +
      "\r\n\r\n";
  request += body;
  return request;
}

HttpClient::~HttpClient() { Close(); }

void HttpClient::Close() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

absl::StatusOr<HttpAnswer> HttpClient::Post(std::string_view path, std::string_view body) {
  return Ask(HttpPost(to_, path, body));
}

absl::StatusOr<HttpAnswer> HttpClient::Get(std::string_view path) {
  return Ask("GET " + std::string(path) + " HTTP/1.1\r\nhost: " + to_.ToString() + "\r\n\r\n");
}

absl::StatusOr<HttpAnswer> HttpClient::Ask(std::string_view request) {
  if (fd_ < 0) {
    absl::StatusOr<int> fd = ConnectTo(to_);
    if (!fd.ok()) return fd.status();
    fd_ = *fd;
  }
  const auto failed = [this](const char* what) {
    Close();
    return absl::UnavailableError(to_.ToString() + ": " + what);
  };
  while (!request.empty()) {
    const ssize_t sent = send(fd_, request.data(), request.size(), MSG_NOSIGNAL);
    if (sent <= 0) return failed("cannot send");
    request.remove_prefix(static_cast<size_t>(sent));
  }
  std::string bytes;
  std::optional<Framing> framing;
  while (!framing || bytes.size() < framing->total) {
    const size_t before = bytes.size();
    bytes.resize(before + kReadBytes);
    const ssize_t got = recv(fd_, bytes.data() + before, kReadBytes, 0);
    if (got <= 0) return failed("connection ended");
    bytes.resize(before + static_cast<size_t>(got));
    if (!framing) framing = ParseHead(bytes);
    if (framing && framing->status == 0) return failed("not an answer with content-length");
  }
  return HttpAnswer{framing->status, bytes.substr(framing->head, framing->total - framing->head),
                    bytes.substr(0, framing->head)};
}

std::string HttpAnswer::Header(std::string_view name) const {
  for (size_t line = head.find("\r\n"); line != std::string::npos;
       line = head.find("\r\n", line + 2)) {
    const size_t begin = line + 2, end = head.find("\r\n", begin);
    const size_t colon = head.find(':', begin);
    if (end == std::string::npos || colon == std::string::npos || colon > end) continue;
    if (colon - begin != name.size() ||
        strncasecmp(head.data() + begin, name.data(), name.size()) != 0)
      continue;
    const size_t value = head.find_first_not_of(' ', colon + 1);
    return value >= end ? "" : head.substr(value, end - value);
  }
  return "";
}

struct HttpLoad::State {
  struct Connection {
    int fd = -1;
    bool busy = false;
    bool waits_to_write = false;
    std::string_view unsent;
    uint64_t started = 0;  // ticks: when it was sent, or due
    std::optional<Framing> framing;
    std::string in;
    size_t got = 0;  // bytes of `in`
  };

  void Fail(Connection* connection, std::string why);
  void Begin(Connection* connection, uint64_t due);
  void Write(Connection* connection);
  void Read(Connection* connection);
  void Finish(Connection* connection);
  void WatchWrites(Connection* connection, bool on);

  HttpLoadOptions options;
  std::span<const std::string> requests;
  int epoll = -1;
  std::vector<Connection> connections;
  size_t next_request = 0;
  HttpLoadResult result;
  bool closed_loop_on = false;  // a finished connection begins anew
  std::vector<Connection*> idle;
};

HttpLoad::HttpLoad(const HttpLoadOptions& options, std::span<const std::string> requests)
    : state_(std::make_unique<State>()) {
  state_->options = options;
  state_->requests = requests;
}

HttpLoad::~HttpLoad() {
  for (const State::Connection& connection : state_->connections) {
    if (connection.fd >= 0) close(connection.fd);
  }
  if (state_->epoll >= 0) close(state_->epoll);
}

absl::Status HttpLoad::Connect() {
  state_->epoll = epoll_create1(EPOLL_CLOEXEC);
  if (state_->epoll < 0) return absl::UnavailableError("no epoll");
  state_->connections.resize(state_->options.connections);
  for (State::Connection& connection : state_->connections) {
    absl::StatusOr<int> fd = ConnectTo(state_->options.to);
    if (!fd.ok()) return fd.status();
    connection.fd = *fd;
    connection.in.resize(kReadBytes);
    fcntl(connection.fd, F_SETFL, fcntl(connection.fd, F_GETFL) | O_NONBLOCK);
    epoll_event event{.events = EPOLLIN, .data = {.ptr = &connection}};
    epoll_ctl(state_->epoll, EPOLL_CTL_ADD, connection.fd, &event);
  }
  return absl::OkStatus();
}

void HttpLoad::State::Fail(Connection* connection, std::string why) {
  ++result.errors;
  if (result.first_error.empty()) result.first_error = std::move(why);
  if (connection->fd >= 0) close(std::exchange(connection->fd, -1));  // leaves the epoll set
  connection->busy = false;
}

void HttpLoad::State::Begin(Connection* connection, uint64_t due) {
  connection->busy = true;
  connection->started = due;
  connection->framing.reset();
  connection->got = 0;
  connection->unsent = requests[next_request];
  next_request = next_request + 1 == requests.size() ? 0 : next_request + 1;
  Write(connection);
}

void HttpLoad::State::Write(Connection* connection) {
  while (!connection->unsent.empty()) {
    const ssize_t sent =
        send(connection->fd, connection->unsent.data(), connection->unsent.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      connection->unsent.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return WatchWrites(connection, true);
    } else {
      return Fail(connection, std::string("send: ") + std::strerror(errno));
    }
  }
  WatchWrites(connection, false);
}

void HttpLoad::State::WatchWrites(Connection* connection, bool on) {
  if (connection->waits_to_write == on) return;
  connection->waits_to_write = on;
  epoll_event event{.events = EPOLLIN | (on ? EPOLLOUT : 0u), .data = {.ptr = connection}};
  epoll_ctl(epoll, EPOLL_CTL_MOD, connection->fd, &event);
}

void HttpLoad::State::Read(Connection* connection) {
  if (connection->in.size() - connection->got < kReadBytes / 2) {
    connection->in.resize(connection->in.size() * 2);
  }
  const ssize_t got = recv(connection->fd, connection->in.data() + connection->got,
                           connection->in.size() - connection->got, 0);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
  if (got <= 0) return Fail(connection, "connection ended");
  connection->got += static_cast<size_t>(got);
  const std::string_view bytes(connection->in.data(), connection->got);
  if (!connection->framing) connection->framing = ParseHead(bytes);
  if (!connection->framing) return;
  if (connection->framing->status == 0) {
    return Fail(connection, "not an answer with content-length");
  }
  if (connection->got >= connection->framing->total) Finish(connection);
}

void HttpLoad::State::Finish(Connection* connection) {
  const uint64_t now = Ticks();
  if (connection->framing->status == 200) {
    ++result.answers;
    result.answer_bytes += connection->framing->total;
    result.latencies.Add(now - connection->started);
  } else {
    ++result.errors;
    if (result.first_error.empty()) {
      result.first_error = connection->in.substr(0, std::min<size_t>(connection->got, 300));
    }
  }
  connection->busy = false;
  if (closed_loop_on) {
    Begin(connection, now);
  } else {
    idle.push_back(connection);
  }
}

HttpLoadResult HttpLoad::Run(double seconds) {
  State& state = *state_;
  state.result = {};
  state.result.latencies.Reserve(1 << 20);
  state.closed_loop_on = state.options.qps <= 0;
  const double cpu_before = ThreadCpuSeconds();
  const uint64_t begin = Ticks();
  const double ticks_per_s = 1e9 / NsPerTick();
  const uint64_t end = begin + static_cast<uint64_t>(seconds * ticks_per_s);
  const double interval = state.closed_loop_on ? 0 : ticks_per_s / state.options.qps;
  uint64_t due_count = 0;
  state.idle.clear();
  for (State::Connection& connection : state.connections) {
    if (connection.busy || connection.fd < 0) continue;
    if (state.closed_loop_on) {
      state.Begin(&connection, Ticks());
    } else {
      state.idle.push_back(&connection);
    }
  }
  std::vector<epoll_event> events(std::max<size_t>(1, state.connections.size()));
  for (uint64_t now = Ticks(); now < end; now = Ticks()) {
    int wait_ms = 100;
    if (!state.closed_loop_on) {
      const auto due_at = [&] { return begin + static_cast<uint64_t>(due_count * interval); };
      while (!state.idle.empty() && due_at() <= now) {
        State::Connection* const connection = state.idle.back();
        state.idle.pop_back();
        state.Begin(connection, due_at());
        ++due_count;
      }
      wait_ms = 1;
      if (!state.idle.empty() && due_at() < now + static_cast<uint64_t>(ticks_per_s / 1000)) {
        wait_ms = 0;
      }
    }
    const int count =
        epoll_wait(state.epoll, events.data(), static_cast<int>(events.size()), wait_ms);
    for (int i = 0; i < count; ++i) {
      auto* const connection = static_cast<State::Connection*>(events[i].data.ptr);
      if (connection->fd >= 0 && (events[i].events & EPOLLOUT) != 0) state.Write(connection);
      if (connection->fd >= 0 && (events[i].events & ~EPOLLOUT) != 0) state.Read(connection);
    }
    if (std::all_of(state.connections.begin(), state.connections.end(),
                    [](const State::Connection& c) { return c.fd < 0; })) {
      break;
    }
  }
  state.closed_loop_on = false;
  state.result.seconds = static_cast<double>(Ticks() - begin) / ticks_per_s;
  state.result.client_cpu_s = ThreadCpuSeconds() - cpu_before;
  return std::move(state.result);
}

}  // namespace kvatlas
