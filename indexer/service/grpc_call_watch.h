// Does one client keep more calls alive than it may? Closes its connection.
//
// A client may reset a call as soon as it has begun it, and does not count it any more; gRPC 1.51 takes milliseconds to be rid
// of it, and reads new ones meanwhile. Nor does gRPC hold a client to the limit of streams before the client has acknowledged it
// (RFC 9113, 6.5.3). Either way calls of a few kilobytes pile up without end.
//
// *Truth*: gRPC's own figures (channelz) of the calls of each connection that are not destroyed yet, every `kWatchEvery`. A client that
// keeps to the limit and cancels hundreds of calls a second stays below the bound.
// What a closed connection leaves behind is destroyed by and by: `settling` says so for up to `kSettleMax`, so that its client
// does not come again before. When none was closed for as long, the memory goes
// back to the system.
// *Threads*: one of its own; `settling` any.
// *Cost*: some microseconds each time; while many calls are open or fail, as many more for each connection, at most a tenth
// of a thread.
// *Bounds*: `calls_max` per connection, and what comes within `kWatchEvery`. All connections together: `kCrowdedConnections`
// times as many, of each but those beyond `kCallsUncounted`; then the one with the most is closed.

#ifndef KVATLAS_INDEXER_SERVICE_GRPC_CALL_WATCH_H_
#define KVATLAS_INDEXER_SERVICE_GRPC_CALL_WATCH_H_

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

inline constexpr Duration kWatchEvery = std::chrono::milliseconds(10);

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
    int64_t not_succeeded = 0;  // calls, ever, when connections were last looked at
  };

  void Run();
  bool WorthALook(Server* server) const;
  std::vector<Connection> Connections(const Server& server) const;
  void CloseSome(std::vector<Connection> connections);
  void Settle(const std::vector<Connection>& connections, Time now);

  const int64_t calls_max_;
  std::atomic<bool> settling_{false};
  // Of the thread.
  std::vector<Server> servers_;
  std::map<int64_t, Time> closed_;  // connections, and when they are not waited for any more
  Time trim_at_{0};                 // 0: not
  LogLimiter limiter_{std::chrono::seconds(10)};
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SERVICE_GRPC_CALL_WATCH_H_
