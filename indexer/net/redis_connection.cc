// hiredis' asynchronous context drives the protocol; this file is its event loop and its transport.
// Attach installs the hooks: hiredis calls WaitToRead and WaitToWrite when it wants the socket, and
// ReadSome and WriteSome in place of its own read and write. Commands pass as `privdata` through
// hiredis' queue of callbacks and come back by OnAnswer or OnLost.
//
// How a connection ends: Close, or hiredis after an error, frees the context. hiredis then calls
// OnLost for every command in its queue and OnFreed last, which fails the commands that waited and
// tells the owner. `context_` is null from then on, which every continuation checks.

#include "indexer/net/redis_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "hiredis/async.h"
#include "hiredis/hiredis.h"
#include "hiredis/sds.h"
extern "C" {
#include "hiredis/async_private.h"  // what a transport below hiredis uses, as its own TLS is one
}

namespace kvatlas {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

// An idle connection sends PING this often: an unanswered one closes it as any command does, so a
// dead peer is noticed without traffic.
constexpr Duration kPingEvery = std::chrono::seconds(5);

constexpr size_t kReadBytes = 64 << 10;   // at a time, so that no connection holds up the others
constexpr size_t kBytesKept = 256 << 10;  // of a buffer that is empty

// Checks the answer to an introduction: an array for ROLE, PONG for PING, else OK.
bool IsProper(const RedisReply& reply, const std::string& introduction) {
  if (introduction == "ROLE") return reply.is_array();
  return reply.kind == RedisReply::Kind::kStatus &&
         reply.text == (introduction == "PING" ? "PONG" : "OK");
}

RedisConnection* Of(void* connection) { return static_cast<RedisConnection*>(connection); }

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

RedisConnection::RedisConnection(asio::io_context* io, uint64_t id, const Address& address,
                                 const RedisOptions* options, Role role, Owner* owner)
    : io_(io),
      id_(id),
      address_(address),
      options_(options),
      role_(role),
      owner_(owner),
      builder_(options->reply_bytes_max, [this] { return First() != nullptr; }),
      descriptor_(*io) {}

RedisConnection::~RedisConnection() { Close(absl::CancelledError("stopped")); }

// ---- Connecting ----

// Begins to connect; hiredis resolves the host within this call. A failure here closes the
// connection at once, and the owner learns it within the call.
void RedisConnection::Start(Time now) {
  connect_deadline_ = now + options_->connect_timeout;
  redisOptions to = {};
  REDIS_OPTIONS_SET_TCP(&to, address_.host.c_str(), address_.port);
  to.options = REDIS_OPT_SET_SOCK_CLOEXEC;
  context_ = redisAsyncConnectWithOptions(&to);
  if (context_ == nullptr) {
    why_ = absl::ResourceExhaustedError("no memory for a connection to Redis");
    return OnFreed();
  }
  Attach();
  if (context_->err != 0) return Close(Unavailable(context_->errstr));
  error_code error;
  descriptor_.assign(context_->c.fd, error);
  if (error) return Close(Unavailable(error.message()));
  redisAsyncSetConnectCallbackNC(context_, [](redisAsyncContext* context, int status) {
    Of(context->data)->OnConnected(status == REDIS_OK);
  });
}

// Installs the hooks. hiredis calls `dataCleanup` at the very end, whatever ended it. It closes its
// socket after `cleanup`, so the descriptor is released from Asio there. `maxbuf` bounds the
// reader's idle buffer.
void RedisConnection::Attach() {
  static const redisContextFuncs functions = [&] {
    redisContextFuncs changed = *context_->c.funcs;
    changed.async_read = [](redisAsyncContext* context) { Of(context->data)->ReadSome(); };
    changed.async_write = [](redisAsyncContext* context) { Of(context->data)->WriteSome(); };
    return changed;
  }();
  builder_.Attach(context_->c.reader);
  context_->c.reader->maxbuf = kBytesKept;
  context_->c.funcs = &functions;
  context_->data = this;
  context_->dataCleanup = [](void* self) { Of(self)->OnFreed(); };
  context_->ev.data = this;
  context_->ev.addRead = [](void* self) { Of(self)->WaitToRead(); };
  context_->ev.addWrite = [](void* self) { Of(self)->WaitToWrite(); };
  context_->ev.cleanup = [](void* self) {
    if (Of(self)->descriptor_.is_open()) Of(self)->descriptor_.release();
  };
}

// Called by hiredis once TCP is connected, or failed; a failure is followed by its own OnFreed.
void RedisConnection::OnConnected(bool connected) {
  if (!connected) {
    if (why_.ok()) why_ = Unavailable(context_->c.errstr);
    return;
  }
  connected_ = true;
  if (options_->tls != nullptr) return StartTls();
  Introduce(Clock::Real().Now());
}

// The introduction follows when the handshake is done (Feed). The TLS files are read again if they
// changed; files that are bad leave the former ones in use.
void RedisConnection::StartTls() {
  bool changed = false;
  options_->tls->Look(&changed).IgnoreError();
  absl::StatusOr<std::unique_ptr<TlsSession>> session =
      TlsSession::Start(options_->tls->client(), address_.host, &out_);
  if (!session.ok()) return Close(Unavailable(std::string(session.status().message())));
  tls_ = *std::move(session);
  WaitToWrite();
}

// Sends AUTH, SELECT and PING (or ROLE) in one go; OnIntroduced counts their answers. Sentinels get
// no AUTH: user and password are the master's.
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

// The last good answer makes the connection ready, and the commands that waited are written in
// their order, before the owner is told and may write more.
void RedisConnection::OnIntroduced(const RedisCommand& said,
                                   const absl::StatusOr<RedisReply>& reply) {
  const auto fail = [this](absl::StatusCode code, std::string_view why) {
    Close(absl::Status(code, Unavailable(why).message()));
  };
  if (!reply.ok()) return fail(reply.status().code(), std::string(reply.status().message()));
  if (!IsProper(*reply, said.args[0])) {
    return fail(absl::StatusCode::kUnavailable, said.args[0] + " is answered as no Redis does");
  }
  if (--introductions_left_ > 0) return;
  if (role_ == Role::kMaster && (reply->elements.empty() || reply->elements[0].text != "master")) {
    return fail(absl::StatusCode::kUnavailable, "not the master any more");
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

// ---- Commands and answers ----

// ASKING and its command are written one after the other without anything between them: ASKING
// holds for the next command of the connection alone.
void RedisConnection::Write(std::unique_ptr<RedisCommand> command, bool asking, Time now) {
  if (closed_) return owner_->OnReply(this, std::move(command), why_, "");
  if (!ready_) return waiting_.push_back({std::move(command), asking});
  if (asking) {
    auto ask = std::make_unique<RedisCommand>();
    ask->args = {"ASKING"};
    WriteNow(std::move(ask), now);
  }
  WriteNow(std::move(command), now);
}

// Gives the command to hiredis, which owns it until it calls back, exactly once. A command without
// a callback is one of this file's own (introduction, ASKING, PING); its answer is not passed on.
void RedisConnection::WriteNow(std::unique_ptr<RedisCommand> command, Time now) {
  last_write_ = now;
  command->deadline = now + options_->command_timeout + command->block_for;
  texts_.clear();
  sizes_.clear();
  for (const std::string& arg : command->args) {
    texts_.push_back(arg.data());
    sizes_.push_back(arg.size());
  }
  const auto answered = [](redisAsyncContext* context, void* reply, void* said) {
    std::unique_ptr<RedisCommand> of(static_cast<RedisCommand*>(said));
    RedisConnection* const self = Of(context->data);
    reply == nullptr ? self->OnLost(std::move(of)) : self->OnAnswer(std::move(of));
  };
  RedisCommand* const said = command.get();
  if (redisAsyncCommandArgv(context_, answered, said, static_cast<int>(texts_.size()),
                            texts_.data(), sizes_.data()) == REDIS_OK) {
    static_cast<void>(command.release());  // hiredis calls back exactly once
  } else if (command->callback) {
    owner_->OnReply(this, std::move(command), Unavailable("no memory for a command"), "");
  }
}

// The oldest command in flight. Replies come in order, so its deadline is the one to watch, and it
// is the command that a reply belongs to.
const RedisCommand* RedisConnection::First() const {
  return context_->replies.head == nullptr
             ? nullptr
             : static_cast<const RedisCommand*>(context_->replies.head->privdata);
}

// The reply was built by `builder_` while hiredis parsed; what hiredis passes is only a token.
void RedisConnection::OnAnswer(std::unique_ptr<RedisCommand> command) {
  RedisReply reply = builder_.Take();
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
  if (!ready_ && !closed_) OnIntroduced(*command, result);
}

// A late answer closes the connection: the replies behind it could not come earlier.
void RedisConnection::OnTime(Time now) {
  if (closed_) return;
  if (!ready_ && now >= connect_deadline_) return Close(Unavailable("not connected in time"));
  const RedisCommand* const first = First();
  if (first != nullptr && now >= first->deadline) {
    return Close(absl::DeadlineExceededError(Unavailable("no answer in time").message()));
  }
  if (ready_ && first == nullptr && now - last_write_ >= kPingEvery) {
    auto ping = std::make_unique<RedisCommand>();
    ping->args = {"PING"};
    WriteNow(std::move(ping), now);
  }
}

// ---- The end ----

// The first reason counts. Within one of its own callbacks hiredis frees the context only
// afterwards.
void RedisConnection::Close(const absl::Status& why) {
  if (closed_) return;
  if (why_.ok()) why_ = why.ok() ? Unavailable("the connection was closed") : why;
  closed_ = true;
  if (context_ != nullptr) redisAsyncFree(context_);
}

// A command without an answer, since the connection ends. If a reply was too large, its command is
// the first one here and alone gets OUT_OF_RANGE: its caller may ask for less. The others get why
// the connection ended.
void RedisConnection::OnLost(std::unique_ptr<RedisCommand> command) {
  OnError();
  if (!command->callback) return;
  const absl::Status status =
      std::exchange(is_too_large_, false) ? absl::OutOfRangeError(why_.message()) : why_;
  owner_->OnReply(this, std::move(command), status, "");
}

// Keeps hiredis' error as `why_`, unless there is an earlier reason. If its reader failed, the
// reason is the builder's, which knows more than hiredis' text.
void RedisConnection::OnError() {
  closed_ = true;
  const redisContext& c = context_->c;
  if (c.err == 0) return;
  const bool is_unreadable = c.reader->err != 0;
  Lose(is_unreadable ? builder_.Why() : absl::UnavailableError(c.errstr));
}

// The end, by `dataCleanup`, or directly if there never was a context. OnClosed comes after the
// last OnReply.
void RedisConnection::OnFreed() {
  if (context_ != nullptr) OnError();
  context_ = nullptr;
  closed_ = true;
  ready_ = false;
  if (why_.ok()) why_ = Unavailable("the connection was closed");
  for (Waiting& waiting : std::exchange(waiting_, {})) {
    owner_->OnReply(this, std::move(waiting.command), why_, "");
  }
  owner_->OnClosed(this);
}

absl::Status RedisConnection::Unavailable(std::string_view why) const {
  return absl::UnavailableError(address_.ToString() + ": " + std::string(why));
}

// ---- The socket ----

// Marks hiredis' context as failed, so that it stops, and keeps the reason. Returns false for the
// callers' return statements.
bool RedisConnection::Lose(const absl::Status& why) {
  redisContext* const c = &context_->c;
  if (c->err == 0) {
    c->err = REDIS_ERR_OTHER;
    std::snprintf(c->errstr, sizeof(c->errstr), "%s", std::string(why.message()).c_str());
  }
  if (why_.ok()) {
    why_ = Unavailable(std::string(why.message()));
    is_too_large_ = absl::IsOutOfRange(why);
  }
  return false;
}

// One wait at a time. The handler's reference keeps this alive; the context may be gone when it
// runs.
void RedisConnection::WaitToRead() {
  if (std::exchange(reading_, true)) return;
  descriptor_.async_wait(asio::posix::stream_descriptor::wait_read,
                         [self = shared_from_this()](const error_code& error) {
                           self->reading_ = false;
                           if (!error && self->context_ != nullptr)
                             redisAsyncHandleRead(self->context_);
                         });
}

// While connecting, a writable socket is the result of the attempt. Afterwards the socket is mostly
// writable: instead of waiting for it, the write is posted, so that all commands written until the
// loop's next round go out in one system call. Only a full socket (`is_full_`) is waited for.
void RedisConnection::WaitToWrite() {
  if (std::exchange(writing_, true)) return;
  const auto writable = [self = shared_from_this()] {
    self->writing_ = self->is_full_ = false;
    if (self->context_ != nullptr) redisAsyncHandleWrite(self->context_);
    if (self->context_ != nullptr && !self->connected_) self->WaitToWrite();
  };
  if (connected_ && !is_full_) return asio::post(*io_, writable);
  descriptor_.async_wait(asio::posix::stream_descriptor::wait_write,
                         [writable](const error_code& error) {
                           if (!error) writable();
                         });
}

// hiredis' `async_read`: one read, then all replies that are complete. The callbacks may free the
// context, hence the checks after them. An orderly end of TLS closes after its last replies were
// used.
void RedisConnection::ReadSome() {
  char bytes[kReadBytes];
  if (!Feed(bytes, recv(context_->c.fd, bytes, sizeof(bytes), 0))) {
    return __redisAsyncDisconnect(context_);
  }
  WaitToRead();
  redisProcessCallbacks(context_);
  if (context_ == nullptr || tls_ == nullptr || !tls_->ended()) return;
  Lose(absl::UnavailableError("closed by the server"));
  __redisAsyncDisconnect(context_);
}

// Puts what was read into hiredis' buffer, through TLS where there is one. `builder_.Check` comes
// first, so that the buffer never grows beyond the bound of a reply. False: the connection is lost.
bool RedisConnection::Feed(const char* bytes, ssize_t size) {
  if (size < 0) {
    return errno == EAGAIN || errno == EINTR || Lose(absl::UnavailableError(std::strerror(errno)));
  }
  if (size == 0) return Lose(absl::UnavailableError("closed by the server"));
  std::string_view received(bytes, static_cast<size_t>(size));
  std::string plain;
  if (tls_ != nullptr) {
    const bool was_ready = tls_->ready();
    const absl::Status status = tls_->Receive(received, &plain, &out_);
    if (!out_.empty()) WaitToWrite();
    if (!status.ok()) return Lose(status);
    if (!was_ready && tls_->ready()) Introduce(Clock::Real().Now());
    received = plain;
  }
  if (absl::Status bad = builder_.Check(); !bad.ok()) return Lose(bad);
  return redisReaderFeed(context_->c.reader, received.data(), received.size()) == REDIS_OK ||
         Lose(absl::ResourceExhaustedError("no memory for a reply"));
}

// hiredis' `async_write`: takes all of its buffer at once. What the socket does not take waits in
// `out_` behind `out_sent_`; hiredis would move the rest of its buffer to the front after each
// partial write.
void RedisConnection::WriteSome() {
  redisContext* const c = &context_->c;
  const std::string_view bytes(c->obuf, sdslen(c->obuf));
  bool is_open = true;
  if (tls_ != nullptr && !bytes.empty()) {
    const absl::Status status = tls_->Write(bytes, &out_);
    is_open = status.ok() || Lose(status);
  } else if (out_.empty()) {
    size_t sent = 0;
    is_open = Send(bytes, &sent);
    out_.append(bytes.substr(sent));
  } else {
    out_.append(bytes);
  }
  if (!is_open || !Flush()) return __redisAsyncDisconnect(context_);
  if (sds fresh = sdsalloc(c->obuf) > kBytesKept ? sdsempty() : nullptr; fresh != nullptr) {
    sdsfree(std::exchange(c->obuf, fresh));
  }
  sdsclear(c->obuf);
  WaitToRead();
}

// Sends from `out_` and asks for another round while something is left. Large buffers are freed
// when they are empty.
bool RedisConnection::Flush() {
  size_t sent = 0;
  if (!is_full_ && !Send(std::string_view(out_).substr(out_sent_), &sent)) return false;
  out_sent_ += sent;
  if (out_sent_ < out_.size()) {
    WaitToWrite();
    return true;
  }
  out_sent_ = 0;
  out_.clear();
  if (out_.capacity() > kBytesKept) out_.shrink_to_fit();
  return true;
}

// Sends what the socket takes now. MSG_NOSIGNAL: a closed peer is an error, not SIGPIPE. False: the
// connection is lost.
bool RedisConnection::Send(std::string_view bytes, size_t* sent) {
  if (bytes.empty()) return true;
  const ssize_t size = send(context_->c.fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (size < 0 && errno != EAGAIN && errno != EINTR) {
    return Lose(absl::UnavailableError(std::strerror(errno)));
  }
  *sent = static_cast<size_t>(std::max<ssize_t>(size, 0));
  is_full_ = *sent < bytes.size();
  return true;
}

}  // namespace kvatlas
