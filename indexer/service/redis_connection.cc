#include "indexer/service/redis_connection.h"

#include <hiredis/async.h>
#include <hiredis/hiredis.h>
#include <sys/epoll.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace kvatlas {
namespace {

constexpr Duration kPingEvery = std::chrono::seconds(5);

RedisReply ToReply(const redisReply& from) {
  RedisReply reply;
  reply.integer = from.type == REDIS_REPLY_INTEGER ? from.integer : 0;
  switch (from.type) {
    case REDIS_REPLY_STRING:
      reply.kind = RedisReply::Kind::kString;
      break;
    case REDIS_REPLY_STATUS:
      reply.kind = RedisReply::Kind::kStatus;
      break;
    case REDIS_REPLY_ERROR:
      reply.kind = RedisReply::Kind::kError;
      break;
    case REDIS_REPLY_INTEGER:
      reply.kind = RedisReply::Kind::kInteger;
      break;
    case REDIS_REPLY_ARRAY:
      reply.kind = RedisReply::Kind::kArray;
      break;
    default:
      break;
  }
  if (reply.kind == RedisReply::Kind::kArray) {
    reply.elements.reserve(from.elements);
    for (size_t i = 0; i < from.elements; ++i) reply.elements.push_back(ToReply(*from.element[i]));
  } else if (from.str != nullptr && reply.kind != RedisReply::Kind::kNil &&
             reply.kind != RedisReply::Kind::kInteger) {
    reply.text.assign(from.str, from.len);
  }
  return reply;
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

// What hiredis calls. It runs only inside `Start`, `Write`, `OnEvents` and `Close`.
struct RedisConnection::Hooks {
  static RedisConnection* Of(const redisAsyncContext* context) {
    return static_cast<RedisConnection*>(context->data);
  }
  static RedisConnection* Of(void* data) { return static_cast<RedisConnection*>(data); }

  static void AddRead(void* data) { Of(data)->SetEvents(Of(data)->events_ | EPOLLIN); }
  static void DelRead(void* data) { Of(data)->SetEvents(Of(data)->events_ & ~uint32_t{EPOLLIN}); }
  static void AddWrite(void* data) { Of(data)->SetEvents(Of(data)->events_ | EPOLLOUT); }
  static void DelWrite(void* data) { Of(data)->SetEvents(Of(data)->events_ & ~uint32_t{EPOLLOUT}); }
  static void Cleanup(void* data) { Of(data)->OnGone(); }
  static void Connected(const redisAsyncContext* context, int status) {
    Of(context)->OnConnect(status == REDIS_OK);
  }
  static void Answered(redisAsyncContext* context, void* reply, void*) {
    Of(context)->OnAnswer(reply);
  }
};

RedisConnection::RedisConnection(int epoll_fd, uint64_t id, const Address& address,
                                 const RedisOptions* options, Role role, Owner* owner)
    : epoll_fd_(epoll_fd),
      id_(id),
      address_(address),
      options_(options),
      role_(role),
      owner_(owner) {}

RedisConnection::~RedisConnection() { Close(absl::CancelledError("stopped")); }

void RedisConnection::Start(Time now) {
  connect_deadline_ = now + options_->connect_timeout;
  redisAsyncContext* context = redisAsyncConnect(address_.host.c_str(), address_.port);
  if (context == nullptr || context->err != 0) {
    why_ = absl::UnavailableError(address_.ToString() + ": " +
                                  (context == nullptr ? "out of memory" : context->errstr));
    if (context != nullptr) redisAsyncFree(context);
    closed_ = true;
    return FailAll();
  }
  context_ = context;
  fd_ = context->c.fd;
  context->data = this;
  context->ev.data = this;
  context->ev.addRead = Hooks::AddRead;
  context->ev.delRead = Hooks::DelRead;
  context->ev.addWrite = Hooks::AddWrite;
  context->ev.delWrite = Hooks::DelWrite;
  context->ev.cleanup = Hooks::Cleanup;
  redisAsyncSetConnectCallback(context, Hooks::Connected);  // watches for the connection to be made
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
  std::vector<const char*> args;
  std::vector<size_t> sizes;
  for (const std::string& arg : command->args) {
    args.push_back(arg.data());
    sizes.push_back(arg.size());
  }
  last_write_ = now;
  command->deadline = now + options_->command_timeout + command->block_for;
  in_flight_.push_back(std::move(command));
  const int status = redisAsyncCommandArgv(
      context_, Hooks::Answered, nullptr, static_cast<int>(args.size()), args.data(), sizes.data());
  if (status != REDIS_OK) close_due_ = true;  // it is closing
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
  inside_ = true;
  const bool failed = (events & (EPOLLERR | EPOLLHUP)) != 0;
  // A connection attempt ends with its socket writable; hiredis reads the error there.
  if (context_ != nullptr && ((events & EPOLLOUT) != 0 || (failed && !ready_)) &&
      (events_ & EPOLLOUT) != 0) {
    redisAsyncHandleWrite(context_);
  }
  if (context_ != nullptr && ((events & EPOLLIN) != 0 || failed)) redisAsyncHandleRead(context_);
  inside_ = false;
  if (close_due_) Close(why_);
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
  if (context_ != nullptr) {
    redisAsyncFree(context_);  // answers what is in flight with nothing, and ends in `OnGone`
  } else {
    OnGone();
  }
}

void RedisConnection::OnConnect(bool connected) {
  if (connected) {
    Introduce(Clock::Real().Now());
  } else if (why_.ok()) {
    why_ = absl::UnavailableError(address_.ToString() + ": " + context_->c.errstr);
  }
}

void RedisConnection::OnAnswer(void* reply) {
  if (reply == nullptr) {
    // The connection is going; `OnGone` follows and answers.
    if (why_.ok() && context_->c.err != 0) {
      why_ = absl::UnavailableError(address_.ToString() + ": " + context_->c.errstr);
    }
    return;
  }
  std::unique_ptr<RedisCommand> command = std::move(in_flight_.front());
  in_flight_.pop_front();
  const redisReply& answer = *static_cast<const redisReply*>(reply);
  std::string error;
  absl::StatusOr<RedisReply> result = RedisReply();
  if (answer.type == REDIS_REPLY_ERROR) {
    error.assign(answer.str, answer.len);
    result = RedisErrorToStatus(error);
  } else {
    result = ToReply(answer);
  }
  if (command->callback) {
    return owner_->OnReply(this, std::move(command), std::move(result), error);
  }
  if (!ready_) OnIntroduced(result);
}

void RedisConnection::OnIntroduced(const absl::StatusOr<RedisReply>& reply) {
  if (!reply.ok()) {
    if (why_.ok()) {
      why_ = absl::Status(reply.status().code(),
                          address_.ToString() + ": " + std::string(reply.status().message()));
    }
    close_due_ = true;
    return;
  }
  if (--introductions_left_ > 0) return;
  if (role_ == Role::kMaster && (reply->elements.empty() || reply->elements[0].text != "master")) {
    why_ = absl::UnavailableError(address_.ToString() + ": not the master any more");
    close_due_ = true;
    return;
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

// hiredis lets go of the socket.
void RedisConnection::OnGone() {
  if (context_ != nullptr) {
    if (why_.ok()) {
      const bool said = context_->c.err != 0 && context_->c.errstr[0] != '\0';
      why_ = absl::UnavailableError(address_.ToString() + ": " +
                                    (said ? context_->c.errstr : "the connection was closed"));
    }
    SetEvents(0);
    context_ = nullptr;
  }
  closed_ = true;
  close_due_ = ready_ = false;
  FailAll();
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
