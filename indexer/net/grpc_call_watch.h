// Closes the connection of a gRPC client that keeps more calls alive than it may, or sends more
// bytes than it may without a call or a message.
//
// A client may reset a call as soon as it has begun it, and then does not count it any more; gRPC
// 1.51 takes milliseconds to destroy it, and reads new ones meanwhile. Nor does gRPC hold a client
// to the limit of streams before the client has acknowledged it (RFC 9113, 6.5.3). Either way calls
// of a few kilobytes pile up without end.
//
// Nor does gRPC 1.51 bound what a connection sends without a message: a block of headers that does
// not end is kept as it comes, before anything of ours is asked, policy and `ResourceQuota`
// included. What the system counts as received and read of each connection
// (`ConnectionListener::Senders`) is therefore held against what became of it: calls that began,
// messages that came. One is closed when nothing came of `unasked_bytes_max` that it sent and no
// call was ever begun, of `kUnfinishedUnlooked` while it has no call, of `unfinished_bytes_max`
// while it has one; of `kUnfinishedUncounted` and `kUnfinishedUnlooked` while memory is critical.
// While all together have sent more than `kCrowdedConnections` times `unfinished_bytes_max`, or
// `kUnfinishedCritical`, the one with the most is closed. The budget of the process counts such
// bytes as it counts everything: they are resident.
//
// *Truth*: gRPC's own figures (channelz) of the calls of each connection that are not destroyed
// yet. Those of the whole server are read whenever the process has taken `kWorkUnlooked` of
// processors, since no flood begins without, and every `kWatchCloselyEvery` while many calls are
// open or fail; then those of each connection too. A client that keeps to the limit and cancels
// hundreds of calls a second stays below the bound.
// The calls of a closed connection are destroyed gradually: `settling` is true until none is left
// or `kSettleMax` has passed without any being destroyed, so that its client cannot connect again
// before. Then the memory goes back to the system.
// *Threads*: one of its own; `settling` any.
// *Cost*: 50 us a time, most of it gRPC's making of JSON, and a wake-up, which a virtual machine
// may make as dear: a hundredth of what the process does, and nothing at rest. The bytes of
// connections are looked at as often, for a fiftieth of a processor at most: two system calls for
// each, and 50 us where one has sent megabytes. A look at all connections, as many for each: at
// most a tenth of a processor, unless so many calls were begun since the last one and did not
// succeed that a connection could be beyond its bound.
// *Bounds*: `calls_max` per connection, and what comes within `kWorkUnlooked`. All connections
// together: `kCrowdedConnections` times as many, of each but those beyond `kCallsUncounted`; then
// the one with the most is closed.

#ifndef KVATLAS_INDEXER_NET_GRPC_CALL_WATCH_H_
#define KVATLAS_INDEXER_NET_GRPC_CALL_WATCH_H_

#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/net/connection_account.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {

inline constexpr Duration kWorkUnlooked = std::chrono::milliseconds(10);
// Where the system has no timer of processor time, and while closed connections settle.
inline constexpr Duration kWatchEvery = std::chrono::milliseconds(10);
// While many calls are open or fail, and for a moment after.
inline constexpr Duration kWatchCloselyEvery = std::chrono::milliseconds(1);
inline constexpr Duration kWatchCloselyFor = std::chrono::milliseconds(100);
inline constexpr Duration kSettleMax = std::chrono::seconds(1);
inline constexpr int64_t kCrowdedConnections = 8;
inline constexpr int64_t kCallsUncounted = 32;
// Bytes that a connection which has made calls may send before its progress is checked. The bytes
// that come for a refused call fit too: as much as its window allows.
inline constexpr uint64_t kUnfinishedUnlooked = uint64_t{4} << 20;
// Senders of fewer bytes are not looked at.
inline constexpr uint64_t kUnfinishedUncounted = uint64_t{64} << 10;
// The bound of all connections together while memory is critical.
inline constexpr uint64_t kUnfinishedCritical = uint64_t{64} << 20;

// The gRPC servers of this process, by gRPC's numbers.
std::vector<int64_t> GrpcServerIds();

struct GrpcCallLimits {
  int64_t calls_max = 0;              // of a connection
  uint64_t unasked_bytes_max = 0;     // `ConnectionListenerOptions::may_send`, too
  uint64_t unfinished_bytes_max = 0;  // of messages that have not all come
};

class GrpcCallWatch {
 public:
  // Watches those of `servers`, whose connections `listener` accepts, until it is destroyed.
  GrpcCallWatch(std::vector<int64_t> servers, const GrpcCallLimits& limits,
                ConnectionListener* listener);
  ~GrpcCallWatch();
  GrpcCallWatch(const GrpcCallWatch&) = delete;
  GrpcCallWatch& operator=(const GrpcCallWatch&) = delete;

  // A new connection should wait.
  bool settling() const { return settling_.load(std::memory_order_relaxed); }

 private:
  struct Connection {
    int64_t calls = 0;
    int64_t id = 0;
    std::string name;
  };
  struct Server {
    int64_t id;
    // Calls, ever.
    int64_t not_succeeded = 0;
    int64_t not_succeeded_at_look = 0;
  };
  struct Closed {
    int64_t calls;   // that are left
    Duration until;  // of `waited_`; then it is not waited for any more
  };
  enum class Need { kNone, kSoon, kNow };

  bool stopping() {
    MutexLock lock(&mutex_);
    return stopping_;
  }
  void Run();
  // Until the process has used processor time, or it stops.
  void WaitForWork(bool told);
  Need LookNeeded();
  void Look();
  std::vector<Connection> Connections(const Server& server) const;
  void CloseSome(std::vector<Connection> connections);
  void Settle(const std::vector<Connection>& connections);
  struct Unfinished {
    ConnectionListener::Sender sender;
    bool in_call = false;
  };
  void LookAtBytes();
  uint64_t BytesMax(const Unfinished& one, bool critical) const;
  // False: nothing came of what it has sent since the last time.
  bool HasProgressed(Unfinished* one) const;
  int64_t SocketOf(const Address& peer) const;

  const GrpcCallLimits limits_;
  ConnectionListener* const listener_;
  std::atomic<bool> settling_{false};
  // The members below belong to the thread.
  std::vector<Server> servers_;
  // The sum of the pauses that the thread meant to make: a clock that hardly moves while the
  // process is kept from running, when gRPC cannot destroy calls either.
  Duration waited_{0};
  std::map<int64_t, Closed> closed_;  // by number of the connection
  Time bytes_at_{0};                  // when to look again
  LogLimiter limiter_{std::chrono::seconds(10)};
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<pid_t> thread_id_{0};  // the system's, once it can be woken
  std::thread thread_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_GRPC_CALL_WATCH_H_
