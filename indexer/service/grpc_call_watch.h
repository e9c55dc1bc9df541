// Does one client keep more calls alive than it may? Closes its connection.
//
// A client may reset a call as soon as it has begun it, and does not count it any more; gRPC 1.51 takes milliseconds to be rid
// of it, and reads new ones meanwhile. Nor does gRPC hold a client to the limit of streams before the client has acknowledged it
// (RFC 9113, 6.5.3). Either way calls of a few kilobytes pile up without end.
//
// *Truth*: gRPC's own figures (channelz) of the calls of each connection that are not destroyed yet. Those of the whole server are
// read whenever the process has taken `kWorkUnlooked` of processors, since no flood begins without, and every `kWatchCloselyEvery` while
// many calls are open or fail; then those of each connection too. A client that keeps to the limit and cancels hundreds of calls a second
// stays below the bound.
// What a closed connection leaves behind is destroyed by and by: `settling` says so until `kSettleMax` has passed in which none of
// it was destroyed, so that its client does not come again before. Then the memory goes back to the system.
// *Threads*: one of its own; `settling` any.
// *Cost*: 50 us a time, most of it gRPC's making of JSON, and a wake-up, which a virtual machine may make as dear: a hundredth of what the
// process does, and nothing at rest. A look at all connections, as many for each: at most a tenth of a processor, unless so many calls
// were begun since the last one and did not succeed that a connection could be beyond its bound.
// *Bounds*: `calls_max` per connection, and what comes within `kWorkUnlooked`. All connections together: `kCrowdedConnections`
// times as many, of each but those beyond `kCallsUncounted`; then the one with the most is closed.

#ifndef KVATLAS_INDEXER_SERVICE_GRPC_CALL_WATCH_H_
#define KVATLAS_INDEXER_SERVICE_GRPC_CALL_WATCH_H_

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
#include "indexer/service/log.h"

namespace kvatlas {

inline constexpr Duration kWorkUnlooked = std::chrono::milliseconds(10);
// Where the system does not tell of processor time, and while a connection that was closed leaves something behind.
inline constexpr Duration kWatchEvery = std::chrono::milliseconds(10);
// While many calls are open or fail, and for a moment after.
inline constexpr Duration kWatchCloselyEvery = std::chrono::milliseconds(1);
inline constexpr Duration kWatchCloselyFor = std::chrono::milliseconds(100);
inline constexpr Duration kSettleMax = std::chrono::seconds(1);
inline constexpr int64_t kCrowdedConnections = 8;
inline constexpr int64_t kCallsUncounted = 32;

// The gRPC servers of this process, by gRPC's numbers.
std::vector<int64_t> GrpcServerIds();

class GrpcCallWatch {
 public:
  // Watches those of `servers` until it is destroyed.
  GrpcCallWatch(std::vector<int64_t> servers, int64_t calls_max);
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
  // Until the process has done something, or it stops.
  void WaitForWork(bool told);
  Need LookNeeded();
  void Look();
  std::vector<Connection> Connections(const Server& server) const;
  void CloseSome(std::vector<Connection> connections);
  void Settle(const std::vector<Connection>& connections);

  const int64_t calls_max_;
  std::atomic<bool> settling_{false};
  // Of the thread.
  std::vector<Server> servers_;
  // What the thread meant to wait, altogether: a clock that hardly moves while the process is kept from running, and what a closed
  // connection left is not destroyed either.
  Duration waited_{0};
  std::map<int64_t, Closed> closed_;  // by number of the connection
  LogLimiter limiter_{std::chrono::seconds(10)};
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<pid_t> thread_id_{0};  // the system's, once it can be woken
  std::thread thread_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SERVICE_GRPC_CALL_WATCH_H_
