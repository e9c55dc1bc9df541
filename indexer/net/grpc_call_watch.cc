#include "indexer/net/grpc_call_watch.h"

#include <grpc/grpc.h>
#include <grpc/support/alloc.h>
#include <malloc.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "indexer/base/address.h"
#include "indexer/net/connection_account.h"
#include "indexer/telemetry/process_memory.h"

namespace kvatlas {
namespace {

// So many calls may fail before connections are looked at because of it.
constexpr int64_t kFailuresUnlooked = 64;

// Wakes the thread that watches, and no other: there it is blocked and waited for.
int WakeSignal() { return SIGRTMIN + 3; }

sigset_t WakeSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, WakeSignal());
  return signals;
}

// While it exists, this thread is sent the signal whenever the process has taken so much of
// processors.
class WorkTimer {
 public:
  explicit WorkTimer(Duration work) {
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = WakeSignal();
    event._sigev_un._tid = static_cast<pid_t>(syscall(SYS_gettid));
    if (timer_create(CLOCK_PROCESS_CPUTIME_ID, &event, &timer_) != 0) return;
    made_ = true;
    itimerspec every{};
    every.it_value.tv_nsec = every.it_interval.tv_nsec = work.count();
    ticks_ = timer_settime(timer_, 0, &every, nullptr) == 0;
  }
  WorkTimer(const WorkTimer&) = delete;
  WorkTimer& operator=(const WorkTimer&) = delete;
  ~WorkTimer() {
    if (made_) timer_delete(timer_);
  }

  bool ticks() const { return ticks_; }

 private:
  timer_t timer_{};
  bool made_ = false;
  bool ticks_ = false;
};

// A look now and then, whatever the timer says.
constexpr Duration kRestMax = std::chrono::seconds(1);

// A thread that looks takes a tenth of a processor at most.
constexpr int kRestPerLook = 9;
// And one that looks at bytes a fiftieth, unless memory is critical.
constexpr int kRestPerLookAtBytes = 49;

// Of this thread.
Duration ProcessorTime() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// gRPC's answers are JSON of its own making, numbers in quotes, and name nothing that a client has
// chosen.
using Json = std::unique_ptr<char, decltype(&gpr_free)>;
Json Owned(char* json) { return {json, &gpr_free}; }

// The text behind `"key":"`, from `*at` on, which moves behind it; empty: there is none.
std::string_view NextText(std::string_view json, std::string_view key, size_t* at) {
  const std::string start = '"' + std::string(key) + "\":\"";
  const size_t found = json.find(start, *at);
  if (found == json.npos) return {};
  const size_t from = found + start.size();
  const size_t end = json.find('"', from);
  if (end == json.npos) return {};
  *at = end;
  return json.substr(from, end - from);
}

int64_t ToNumber(std::string_view text) {
  int64_t number = 0;
  return absl::SimpleAtoi(absl::string_view(text.data(), text.size()), &number) ? number : 0;
}

// 0 where it is not said.
int64_t NumberOf(std::string_view json, std::string_view key) {
  size_t at = 0;
  return ToNumber(NextText(json, key, &at));
}

// "chttp2 ipv4:127.0.0.1:80", "chttp2 ipv6:%5B::1%5D:80"
std::string AddressIn(std::string_view name) {
  const size_t start = name.find("ipv");
  if (start == name.npos || name.size() < start + 5) return "";
  name.remove_prefix(start + 5);
  return absl::StrReplaceAll(absl::string_view(name.data(), name.size()),
                             {{"%5B", "["}, {"%5D", "]"}});
}

}  // namespace

std::vector<int64_t> GrpcServerIds() {
  std::vector<int64_t> ids;
  for (bool more = true; more;) {
    const Json list = Owned(grpc_channelz_get_servers(ids.empty() ? 0 : ids.back() + 1));
    const std::string_view json(list == nullptr ? "" : list.get());
    size_t at = 0;
    more = false;
    for (std::string_view id; !(id = NextText(json, "serverId", &at)).empty(); more = true)
      ids.push_back(ToNumber(id));
  }
  return ids;
}

GrpcCallWatch::GrpcCallWatch(std::vector<int64_t> servers, const GrpcCallLimits& limits,
                             ConnectionListener* listener)
    : limits_(limits), listener_(listener) {
  for (const int64_t id : servers) servers_.push_back({.id = id});
  thread_ = std::thread([this] { Run(); });
}

GrpcCallWatch::~GrpcCallWatch() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.SignalAll();
  }
  if (const pid_t thread = thread_id_.load(); thread != 0)
    syscall(SYS_tgkill, getpid(), thread, WakeSignal());
  thread_.join();
}

void GrpcCallWatch::Run() {
  const sigset_t signals = WakeSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  thread_id_.store(static_cast<pid_t>(syscall(SYS_gettid)));
  const WorkTimer timer(kWorkUnlooked);
  Time look_again_at(0);
  Duration closely_until(0);
  while (true) {
    const bool closely = waited_ < closely_until;
    const bool rests = !closely && closed_.empty();
    const Duration pause = closely ? kWatchCloselyEvery : kWatchEvery;
    if (rests && !stopping()) WaitForWork(timer.ticks());
    {
      MutexLock lock(&mutex_);
      if (!stopping_ && !rests) wake_.WaitFor(&mutex_, pause);
      if (stopping_) return;
    }
    waited_ += pause;
    LookAtBytes();
    const Need need = LookNeeded();
    if (need != Need::kNone) closely_until = waited_ + kWatchCloselyFor;
    const bool wanted = need != Need::kNone || !closed_.empty();
    if (need != Need::kNow && (!wanted || Clock::Real().Now() < look_again_at)) continue;
    const Duration before = ProcessorTime();
    Look();
    // Not by the clock: a look that lost its processor to the very calls it is to find would be
    // followed by a long rest.
    look_again_at = Clock::Real().Now() + kRestPerLook * (ProcessorTime() - before);
  }
}

void GrpcCallWatch::WaitForWork(bool told) {
  const sigset_t signals = WakeSignals();
  const Duration wait = told ? kRestMax : kWatchEvery;
  const timespec until = {.tv_sec = wait / std::chrono::seconds(1),
                          .tv_nsec = (wait % std::chrono::seconds(1)).count()};
  sigtimedwait(&signals, nullptr, &until);
}

GrpcCallWatch::Need GrpcCallWatch::LookNeeded() {
  Need need = Need::kNone;
  for (Server& server : servers_) {
    const Json figures = Owned(grpc_channelz_get_server(server.id));
    if (figures == nullptr) continue;
    const std::string_view json(figures.get());
    server.not_succeeded = NumberOf(json, "callsStarted") - NumberOf(json, "callsSucceeded");
    const int64_t open = server.not_succeeded - NumberOf(json, "callsFailed");
    const int64_t more = server.not_succeeded - server.not_succeeded_at_look;
    if (more > limits_.calls_max / 2) return Need::kNow;
    if (open > limits_.calls_max || more > kFailuresUnlooked) need = Need::kSoon;
  }
  return need;
}

void GrpcCallWatch::Look() {
  std::vector<Connection> connections;
  for (Server& server : servers_) {
    server.not_succeeded_at_look = server.not_succeeded;
    std::vector<Connection> found = Connections(server);
    std::move(found.begin(), found.end(), std::back_inserter(connections));
  }
  Settle(connections);
  CloseSome(std::move(connections));
}

// Those with more than `kCallsUncounted` calls, and those that were closed.
std::vector<GrpcCallWatch::Connection> GrpcCallWatch::Connections(const Server& server) const {
  std::vector<Connection> found;
  for (int64_t next = 0;;) {
    const Json list = Owned(grpc_channelz_get_server_sockets(server.id, next, 0));
    const std::string_view json(list == nullptr ? "" : list.get());
    bool some = false;
    // {"name":"chttp2 ipv4:127.0.0.1:80","socketId":"7"}
    for (size_t at = 0;; some = true) {
      const std::string_view name = NextText(json, "name", &at);
      const std::string_view text = NextText(json, "socketId", &at);
      if (text.empty()) break;
      const int64_t id = ToNumber(text);
      next = id + 1;
      const Json figures = Owned(grpc_channelz_get_socket(id));
      if (figures == nullptr) continue;
      const std::string_view socket(figures.get());
      const int64_t calls = NumberOf(socket, "streamsStarted") -
                            NumberOf(socket, "streamsSucceeded") -
                            NumberOf(socket, "streamsFailed");
      if (calls > kCallsUncounted || closed_.contains(id))
        found.push_back({.calls = calls, .id = id, .name = std::string(name)});
    }
    if (!some || json.find("\"end\":true") != json.npos) return found;
  }
}

void GrpcCallWatch::CloseSome(std::vector<Connection> connections) {
  std::erase_if(connections, [&](const Connection& c) { return closed_.contains(c.id); });
  std::sort(connections.begin(), connections.end(),
            [](const Connection& a, const Connection& b) { return a.calls > b.calls; });
  int64_t counted = 0;
  for (const Connection& connection : connections) counted += connection.calls - kCallsUncounted;
  for (const Connection& connection : connections) {
    if (connection.calls <= limits_.calls_max && counted <= kCrowdedConnections * limits_.calls_max)
      return;
    counted -= connection.calls - kCallsUncounted;
    const std::string from = AddressIn(connection.name);
    const absl::StatusOr<Address> peer = Address::Parse(from);
    if (!peer.ok() || !CloseConnectionFrom(*peer, EndedFor::kCalls)) continue;
    closed_[connection.id] = {.calls = connection.calls, .until = waited_ + kSettleMax};
    settling_.store(true, std::memory_order_relaxed);
    LogEvery(limiter_, LogLevel::kWarning, "grpc connection closed",
             {{"peer", from}, {"reason", "too many calls"}, {"calls", connection.calls}});
  }
}

void GrpcCallWatch::Settle(const std::vector<Connection>& connections) {
  if (closed_.empty()) return;
  std::map<int64_t, Closed> left;
  for (const Connection& connection : connections) {
    const auto found = closed_.find(connection.id);
    if (found == closed_.end()) continue;
    const bool fewer = connection.calls < found->second.calls;
    const Duration until = fewer ? waited_ + kSettleMax : found->second.until;
    if (until > waited_) left[connection.id] = {.calls = connection.calls, .until = until};
  }
  closed_ = std::move(left);
  if (!closed_.empty()) return;
  // Of calls that are made on one thread and destroyed on another the allocator keeps all it ever
  // had: what the next connection takes would come on top.
  malloc_trim(0);
  settling_.store(false, std::memory_order_relaxed);
}

void GrpcCallWatch::LookAtBytes() {
  const Time now = Clock::Real().Now();
  if (now < bytes_at_) return;
  const Duration before = ProcessorTime();
  const bool critical = MemoryIsCritical();
  const uint64_t all_max =
      critical ? kUnfinishedCritical
               : static_cast<uint64_t>(kCrowdedConnections) * limits_.unfinished_bytes_max;
  std::vector<Unfinished> found;
  uint64_t all = 0;
  for (ConnectionListener::Sender& sender : listener_->Senders(kUnfinishedUncounted)) {
    all += sender.since;
    found.push_back({.sender = std::move(sender)});
  }
  const bool look_at_all = critical || all > all_max;
  std::erase_if(found, [&](Unfinished& one) {
    ConnectionListener::Sender& sender = one.sender;
    if (!look_at_all && sender.since <= sender.may_send) return true;
    if (!HasProgressed(&one)) return false;
    all -= sender.since;
    listener_->Progressed(sender, std::min(kUnfinishedUnlooked, BytesMax(one, critical)));
    return true;
  });
  std::sort(found.begin(), found.end(), [](const Unfinished& a, const Unfinished& b) {
    return a.sender.since > b.sender.since;
  });
  for (const Unfinished& one : found) {
    const uint64_t since = one.sender.since;
    if (since <= BytesMax(one, critical) && all <= all_max) continue;
    if (!CloseConnectionFrom(one.sender.peer, EndedFor::kBytes)) continue;
    all -= since;
    LogEvery(limiter_, LogLevel::kWarning, "grpc connection closed",
             {{"peer", one.sender.peer.ToString()},
              {"reason",
               one.in_call ? "too many bytes without a message" : "too many bytes without a call"},
              {"bytes", since}});
  }
  const int rest = critical ? kRestPerLook : kRestPerLookAtBytes;
  bytes_at_ = now + rest * (ProcessorTime() - before);
}

uint64_t GrpcCallWatch::BytesMax(const Unfinished& one, bool critical) const {
  if (critical) return one.in_call ? kUnfinishedUnlooked : kUnfinishedUncounted;
  if (one.in_call) return limits_.unfinished_bytes_max;
  return one.sender.progress > 0 ? std::max(kUnfinishedUnlooked, limits_.unasked_bytes_max)
                                 : limits_.unasked_bytes_max;
}

bool GrpcCallWatch::HasProgressed(Unfinished* one) const {
  ConnectionListener::Sender* const sender = &one->sender;
  if (sender->id == 0) sender->id = SocketOf(sender->peer);
  // Without a number it is not yet an HTTP/2 connection.
  const Json figures = Owned(sender->id == 0 ? nullptr : grpc_channelz_get_socket(sender->id));
  const std::string_view json(figures == nullptr ? "" : figures.get());
  const int64_t started = NumberOf(json, "streamsStarted");
  one->in_call = started > NumberOf(json, "streamsSucceeded") + NumberOf(json, "streamsFailed");
  const int64_t progress = started + NumberOf(json, "messagesReceived");
  return std::exchange(sender->progress, progress) != progress;
}

int64_t GrpcCallWatch::SocketOf(const Address& peer) const {
  const std::string wanted = peer.ToString();
  for (const Server& server : servers_) {
    bool some = true;
    for (int64_t next = 0; some;) {
      const Json list = Owned(grpc_channelz_get_server_sockets(server.id, next, 0));
      const std::string_view json(list == nullptr ? "" : list.get());
      some = false;
      for (size_t at = 0;; some = true) {
        const std::string_view name = NextText(json, "name", &at);
        const std::string_view id = NextText(json, "socketId", &at);
        if (id.empty()) break;
        next = ToNumber(id) + 1;
        if (AddressIn(name) == wanted) return next - 1;
      }
      some = some && json.find("\"end\":true") == json.npos;
    }
  }
  return 0;
}

}  // namespace kvatlas
