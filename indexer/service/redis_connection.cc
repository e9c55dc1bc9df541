#include "indexer/service/redis_connection.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

namespace kvatlas {
namespace {

constexpr Duration kPingEvery = std::chrono::seconds(5);

constexpr size_t kReadBytes = 64 << 10;      // at a time, so that no connection holds up the others
constexpr size_t kOutBytesKept = 256 << 10;  // of a buffer that is empty

std::string ErrorText(int error) { return std::strerror(error); }

// A socket that is being connected. Names are resolved to IPv4 addresses; to IPv6 ones where there are none.
absl::StatusOr<int> ConnectTo(const Address& address) {
  std::string why;
  for (const int family : {AF_INET, AF_INET6}) {
    addrinfo hints = {};
    hints.ai_family = family;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int error =
        getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
    if (error != 0) {
      if (why.empty()) why = gai_strerror(error);
      continue;
    }
    int connecting = -1;
    for (const addrinfo* info = found; info != nullptr && connecting < 0; info = info->ai_next) {
      const int fd = socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      if (fd >= 0 && (connect(fd, info->ai_addr, info->ai_addrlen) == 0 || errno == EINPROGRESS)) {
        connecting = fd;
      } else {
        why = ErrorText(errno);
        if (fd >= 0) close(fd);
      }
    }
    freeaddrinfo(found);
    if (connecting < 0) break;
    const int one = 1;
    setsockopt(connecting, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return connecting;
  }
  return absl::UnavailableError(why);
}

// What every Redis answers to an introduction that it does not refuse.
bool IsProper(const RedisReply& reply, const std::string& introduction) {
  if (introduction == "ROLE") return reply.is_array();
  return reply.kind == RedisReply::Kind::kStatus &&
         reply.text == (introduction == "PING" ? "PONG" : "OK");
}

}  // namespace

absl::Status RedisErrorToStatus(const std::string& error) {
  struct Meaning {
    std::string_view word;
    absl::StatusCode code;
  };
  static constexpr Meaning kMeanings[] = {
      {"OOM", absl::StatusCode::kResourceExhausted},
      {"MISCONF", absl::StatusCode::kResourceExhausted},
      {"NOAUTH", absl::StatusCode::kPermissionDenied},
      {"WRONGPASS", absl::StatusCode::kPermissionDenied},
      {"NOPERM", absl::StatusCode::kPermissionDenied},
      {"LOADING", absl::StatusCode::kUnavailable},
      {"BUSY", absl::StatusCode::kUnavailable},
      {"READONLY", absl::StatusCode::kUnavailable},
      {"MASTERDOWN", absl::StatusCode::kUnavailable},
      {"CLUSTERDOWN", absl::StatusCode::kUnavailable},
      {"TRYAGAIN", absl::StatusCode::kUnavailable},
      {"NOREPLICAS", absl::StatusCode::kUnavailable},
      {"UNBLOCKED", absl::StatusCode::kUnavailable},
      {"MOVED", absl::StatusCode::kUnavailable},
      {"ASK", absl::StatusCode::kUnavailable},
      {"NOSCRIPT", absl::StatusCode::kNotFound},
      {"NOGROUP", absl::StatusCode::kNotFound},
  };
  const std::string_view word = std::string_view(error).substr(0, error.find(' '));
  for (const Meaning& meaning : kMeanings) {
    if (word == meaning.word) return absl::Status(meaning.code, error);
  }
  // Redis before 6 says so in words.
  if (error.find("max number of clients") != std::string::npos) {
    return absl::UnavailableError(error);
  }
  if (error.find("invalid password") != std::string::npos) {
    return absl::PermissionDeniedError(error);
  }
  return absl::InvalidArgumentError(error);
}

RedisConnection::RedisConnection(int epoll_fd, uint64_t id, const Address& address,
                                 const RedisOptions* options, Role role, Owner* owner)
    : epoll_fd_(epoll_fd),
      id_(id),
      address_(address),
      options_(options),
      role_(role),
      owner_(owner),
      reader_({.bytes_max = options->reply_bytes_max}) {}

RedisConnection::~RedisConnection() { Close(absl::CancelledError("stopped")); }

void RedisConnection::Start(Time now) {
  connect_deadline_ = now + options_->connect_timeout;
  const absl::StatusOr<int> fd = ConnectTo(address_);
  if (!fd.ok()) {
    why_ = absl::UnavailableError(address_.ToString() + ": " + std::string(fd.status().message()));
    closed_ = true;
    return FailAll();
  }
  fd_ = *fd;
  SetEvents(EPOLLOUT);  // a connection attempt ends with its socket writable
}

void RedisConnection::Introduce(Time now) {
  const auto say = [&](RedisArgs args) {
    auto command = std::make_unique<RedisCommand>();
    command->args = std::move(args);
    ++introductions_left_;
    WriteNow(std::move(command), now);
  };
  if (!options_->password.empty() && role_ != Role::kSentinel) {
    options_->user.empty() ? say({"AUTH", options_->password})
                           : say({"AUTH", options_->user, options_->password});
  }
  if (options_->database != 0 && role_ != Role::kSentinel) {
    say({"SELECT", std::to_string(options_->database)});
  }
  role_ == Role::kMaster ? say({"ROLE"}) : say({"PING"});
}

void RedisConnection::Write(std::unique_ptr<RedisCommand> command, bool asking, Time now) {
  if (!ready_ || close_due_) {
    waiting_.push_back({std::move(command), asking});
    if (closed_) FailAll();
    return;
  }
  if (asking) {
    auto ask = std::make_unique<RedisCommand>();
    ask->args = {"ASKING"};
    WriteNow(std::move(ask), now);
  }
  WriteNow(std::move(command), now);
}

// A command without a callback is our own.
void RedisConnection::WriteNow(std::unique_ptr<RedisCommand> command, Time now) {
  last_write_ = now;
  command->deadline = now + options_->command_timeout + command->block_for;
  AppendRespCommand(command->args, tls_ == nullptr ? &out_ : &plain_);
  in_flight_.push_back(std::move(command));
  SetEvents(EPOLLIN | EPOLLOUT);  // what comes until then is sent with it
}

void RedisConnection::SetEvents(uint32_t events) {
  if (events == events_) return;
  epoll_event event{};
  event.events = events;
  event.data.u64 = id_;
  const int how = events_ == 0 ? EPOLL_CTL_ADD : events == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
  epoll_ctl(epoll_fd_, how, fd_, &event);
  events_ = events;
}

void RedisConnection::OnEvents(uint32_t events) {
  if (closed_) return;
  inside_ = true;
  if (!connected_) {
    OnConnected();
  } else if ((events & EPOLLOUT) != 0) {
    SendSome();
  }
  // An error is read, too.
  if (!close_due_ && (events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) ReadSome();
  inside_ = false;
  if (close_due_) Close(why_);
}

void RedisConnection::OnConnected() {
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return Fail(absl::StatusCode::kUnavailable, ErrorText(error));
  connected_ = true;
  if (options_->tls != nullptr) return StartTls();
  Introduce(Clock::Real().Now());
}

// The introduction follows when the server has shown who it is. Files that stay bad keep the old ones.
void RedisConnection::StartTls() {
  bool changed = false;
  options_->tls->Look(&changed).IgnoreError();
  absl::StatusOr<std::unique_ptr<TlsSession>> session =
      TlsSession::Start(options_->tls->client(), address_.host, &out_);
  if (!session.ok())
    return Fail(absl::StatusCode::kUnavailable, std::string(session.status().message()));
  tls_ = *std::move(session);
  SetEvents(EPOLLIN | EPOLLOUT);
}

void RedisConnection::SendSome() {
  if (!plain_.empty()) {
    const absl::Status encrypted = tls_->Write(plain_, &out_);
    plain_.clear();
    if (plain_.capacity() > kOutBytesKept) plain_.shrink_to_fit();
    if (!encrypted.ok())
      return Fail(absl::StatusCode::kUnavailable, std::string(encrypted.message()));
  }
  const std::string_view left = std::string_view(out_).substr(out_sent_);
  const ssize_t sent = send(fd_, left.data(), left.size(), MSG_NOSIGNAL);
  if (sent < 0) {
    if (errno == EAGAIN || errno == EINTR) return;
    return Fail(absl::StatusCode::kUnavailable, ErrorText(errno));
  }
  out_sent_ += static_cast<size_t>(sent);
  if (out_sent_ == out_.size()) {
    out_.clear();
    out_sent_ = 0;
    if (out_.capacity() > kOutBytesKept) out_.shrink_to_fit();
    SetEvents(EPOLLIN);
  } else if (out_sent_ > out_.size() / 2) {
    out_.erase(0, out_sent_);
    out_sent_ = 0;
  }
}

void RedisConnection::ReadSome() {
  char buffer[kReadBytes];
  const ssize_t got = recv(fd_, buffer, sizeof(buffer), 0);
  if (got < 0) {
    if (errno == EAGAIN || errno == EINTR) return;
    return Fail(absl::StatusCode::kUnavailable, ErrorText(errno));
  }
  if (got == 0) {
    return Fail(absl::StatusCode::kUnavailable,
                reader_.inside() ? "closed by the server inside a reply" : "closed by the server");
  }
  const std::string_view bytes(buffer, static_cast<size_t>(got));
  if (tls_ == nullptr) {
    TakeSome(bytes);
    return;
  }
  const bool was_ready = tls_->ready();
  std::string plain;
  const absl::Status received = tls_->Receive(bytes, &plain, &out_);
  if (!out_.empty()) SetEvents(EPOLLIN | EPOLLOUT);
  if (!received.ok()) return Fail(absl::StatusCode::kUnavailable, std::string(received.message()));
  if (!was_ready && tls_->ready()) Introduce(Clock::Real().Now());
  if (TakeSome(plain) && tls_->ended())
    Fail(absl::StatusCode::kUnavailable, "closed by the server");
}

bool RedisConnection::TakeSome(std::string_view bytes) {
  while (!bytes.empty() && !close_due_) {
    if (in_flight_.empty()) {
      Fail(absl::StatusCode::kUnavailable, "a reply that nothing had asked for");
      return false;
    }
    absl::StatusOr<std::optional<RedisReply>> reply = reader_.Read(&bytes);
    if (!reply.ok()) {
      OnUnreadable(reply.status());
      return false;
    }
    if (reply->has_value()) OnAnswer(*std::move(*reply));
  }
  return !close_due_;
}

// Only the command whose answer is too large is told so: asked for less it may be answered.
void RedisConnection::OnUnreadable(const absl::Status& status) {
  const std::string why(status.message());
  Fail(absl::StatusCode::kUnavailable, why);
  if (!absl::IsOutOfRange(status) || !in_flight_.front()->callback) return;
  std::unique_ptr<RedisCommand> command = std::move(in_flight_.front());
  in_flight_.pop_front();
  owner_->OnReply(this, std::move(command), absl::OutOfRangeError(address_.ToString() + ": " + why),
                  "");
}

void RedisConnection::OnTime(Time now) {
  if (closed_) return;
  const std::string who = address_.ToString();
  if (!ready_ && now >= connect_deadline_) {
    return Close(absl::UnavailableError(who + ": not connected in time"));
  }
  if (!in_flight_.empty() && now >= in_flight_.front()->deadline) {
    return Close(absl::DeadlineExceededError(who + ": no answer in time"));
  }
  if (ready_ && in_flight_.empty() && now - last_write_ >= kPingEvery) {
    auto ping = std::make_unique<RedisCommand>();
    ping->args = {"PING"};
    WriteNow(std::move(ping), now);
  }
}

void RedisConnection::Close(const absl::Status& why) {
  if (closed_) return;
  if (why_.ok()) why_ = why;
  if (inside_) {
    close_due_ = true;
    return;
  }
  if (why_.ok()) why_ = absl::UnavailableError(address_.ToString() + ": the connection was closed");
  if (fd_ >= 0) {
    SetEvents(0);
    close(std::exchange(fd_, -1));
  }
  closed_ = true;
  close_due_ = ready_ = false;
  out_ = {};
  plain_ = {};
  FailAll();
}

void RedisConnection::Fail(absl::StatusCode code, const std::string& why) {
  if (why_.ok()) why_ = absl::Status(code, address_.ToString() + ": " + why);
  close_due_ = true;
}

void RedisConnection::OnAnswer(RedisReply reply) {
  std::unique_ptr<RedisCommand> command = std::move(in_flight_.front());
  in_flight_.pop_front();
  std::string error;
  absl::StatusOr<RedisReply> result = RedisReply();
  if (reply.kind == RedisReply::Kind::kError) {
    error = std::move(reply.text);
    result = RedisErrorToStatus(error);
  } else {
    result = std::move(reply);
  }
  if (command->callback) {
    return owner_->OnReply(this, std::move(command), std::move(result), error);
  }
  if (!ready_) OnIntroduced(*command, result);
}

void RedisConnection::OnIntroduced(const RedisCommand& said,
                                   const absl::StatusOr<RedisReply>& reply) {
  if (!reply.ok()) return Fail(reply.status().code(), std::string(reply.status().message()));
  if (!IsProper(*reply, said.args[0])) {
    return Fail(absl::StatusCode::kUnavailable, said.args[0] + " is answered as no Redis does");
  }
  if (--introductions_left_ > 0) return;
  if (role_ == Role::kMaster && (reply->elements.empty() || reply->elements[0].text != "master")) {
    return Fail(absl::StatusCode::kUnavailable, "not the master any more");
  }
  ready_ = true;
  const Time now = Clock::Real().Now();
  while (!waiting_.empty()) {
    Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    Write(std::move(next.command), next.asking, now);
  }
  owner_->OnReady(this);
}

void RedisConnection::FailAll() {
  std::deque<std::unique_ptr<RedisCommand>> failed = std::move(in_flight_);
  in_flight_.clear();
  for (Waiting& waiting : waiting_) failed.push_back(std::move(waiting.command));
  waiting_.clear();
  for (std::unique_ptr<RedisCommand>& command : failed) {
    if (command->callback) owner_->OnReply(this, std::move(command), why_, "");
  }
}

}  // namespace kvatlas
