// The watch's thread. Each round it waits (Run), compares the bytes of connections with their
// progress (LookAtBytes), decides by the servers' figures whether connections have to be counted
// (LookNeeded), and then counts and closes some (Look).
//
// The figures come from gRPC's channelz in its JSON; NextText and NumberOf read the few fields that
// are needed. Everything without a guard belongs to the watch's thread.

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

// Calls that may fail, over all connections, before a look at each connection is due.
constexpr int64_t kFailuresUnlooked = 64;

// The signal that wakes the watching thread. The thread blocks it and takes it with sigtimedwait,
// so it never runs a handler; no other thread is sent it.
int WakeSignal() { return SIGRTMIN + 3; }

sigset_t WakeSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, WakeSignal());
  return signals;
}

// While it exists, the thread that made it is sent the signal each time the process has used `work`
// of processor time, over all its threads. A flood of calls costs processor time, so the thread
// wakes for each flood and never at rest. `ticks` is false where the system has no such timer.
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

// The longest wait between two rounds, whatever the timer does.
constexpr Duration kRestMax = std::chrono::seconds(1);

// After a look the thread rests for 9 times the processor time it took: a tenth of a processor at
// most.
constexpr int kRestPerLook = 9;
// After a look at bytes, 49 times: a fiftieth of a processor at most, or a tenth while memory is
// critical.
constexpr int kRestPerLookAtBytes = 49;

// Processor time of this thread.
Duration ProcessorTime() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

// An answer of channelz. Its numbers are strings in quotes, and it contains no text chosen by a
// client, so a search for `"key":"` is safe.
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

// The peer's address in the name of a socket: "chttp2 ipv4:127.0.0.1:80", "chttp2
// ipv6:%5B::1%5D:80".
std::string AddressIn(std::string_view name) {
  const size_t start = name.find("ipv");
  if (start == name.npos || name.size() < start + 5) return "";
  name.remove_prefix(start + 5);
  return absl::StrReplaceAll(absl::string_view(name.data(), name.size()),
                             {{"%5B", "["}, {"%5D", "]"}});
}

}  // namespace

// channelz answers in pages: the next one begins at the last id + 1, and an empty one is the end.
// Ids come in ascending order.
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

// Wakes the thread in either of its waits: on the condition variable, and in sigtimedwait by the
// signal.
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

// The thread:
// 1. At rest it waits for work (WaitForWork). While calls are many or fail (`closely_until`), or
//    while closed connections settle, it waits for a short fixed time.
// 2. LookAtBytes, which limits itself.
// 3. LookNeeded reads the figures of the whole servers. kNow: a connection could be beyond its
//    bound, look at once. kSoon: look after the rest that the last look earned. kNone: no look,
//    unless closed connections settle.
// 4. Look.
// `waited_` adds up the pauses rather than reading a clock: see its declaration.
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

// Waits for the signal. `told`: the timer sends it; otherwise the wait is a short poll.
void GrpcCallWatch::WaitForWork(bool told) {
  const sigset_t signals = WakeSignals();
  const Duration wait = told ? kRestMax : kWatchEvery;
  const timespec until = {.tv_sec = wait / std::chrono::seconds(1),
                          .tv_nsec = (wait % std::chrono::seconds(1)).count()};
  sigtimedwait(&signals, nullptr, &until);
}

// Reads two kinds of figures of each server. `not_succeeded`: calls that are open or failed; its
// growth since the last look bounds what one connection can have added. `open`: calls under way
// now. More than half of `calls_max` new ones: a connection that was at half may be at its bound.
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

// The figure of the look is kept before connections are read, so that calls which begin meanwhile
// count for the next round.
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

// The connections of a server with more than `kCallsUncounted` open calls, and those that were
// closed and settle. One call of channelz for each connection, and one for each page.
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

// Closes connections with more than `calls_max` calls; then, while all together have more than
// `kCrowdedConnections` times as many, the one with the most. Sorted by calls, so the first that
// may stay ends the loop. A closed one counts as settling until Settle drops it.
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

// Forgets closed connections that gRPC has destroyed, or whose calls did not become fewer for
// `kSettleMax`. When none is left, the memory goes back to the system and new connections are
// accepted.
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
  // Calls are allocated on one thread and freed on another, and the allocator keeps such memory.
  // Without the trim the next flood would come on top.
  malloc_trim(0);
  settling_.store(false, std::memory_order_relaxed);
}

// 1. `listener_->Senders` has the connections that sent more than `kUnfinishedUncounted` since
//    their last progress.
// 2. Those within what they may send are skipped, unless memory is critical or the sum is beyond
//    `all_max`.
// 3. HasProgressed asks gRPC what became of the bytes. Calls or messages: the count starts again
//    (`Progressed`).
// 4. The rest, largest first, is closed if beyond its own bound (BytesMax), or while the sum is
//    beyond `all_max`.
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

// The bound of one connection: in a call, the messages that may be under way; between calls, more
// if it has ever made one; little while memory is critical.
uint64_t GrpcCallWatch::BytesMax(const Unfinished& one, bool critical) const {
  if (critical) return one.in_call ? kUnfinishedUnlooked : kUnfinishedUncounted;
  if (one.in_call) return limits_.unfinished_bytes_max;
  return one.sender.progress > 0 ? std::max(kUnfinishedUnlooked, limits_.unasked_bytes_max)
                                 : limits_.unasked_bytes_max;
}

// True if streams were started or messages received since the last time. Also sets `in_call`.
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

// gRPC's number of the connection from this peer; 0: not known. Reads the list of all connections,
// once for each sender: the number is kept in `Sender::id`.
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
