// Is this hierarchy node or leaf there? Judges by how questions to it end, and has a
// `ConnectionWatch` say so in the log: when it is reached or no longer, at once and with the
// reason, and once a minute as long as it is not.
//
// *Truth*: a peer that answers anything is there. It is unreachable when a question ends
// UNAVAILABLE, when `kLateMax` in a row end without an answer in time, or when a connection to it
// fails. A peer that is not asked anything counts as there again when a connection to it stands,
// unless it had been unreachable for not answering in time.
// *Threads*: any. *Cost*: of an answer one atomic read, as long as nothing changes.

#ifndef KVATLAS_FRONTEND_CLUSTER_CLIENT_PEER_WATCH_H_
#define KVATLAS_FRONTEND_CLUSTER_CLIENT_PEER_WATCH_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/net/connection_watch.h"

namespace kvatlas {

struct PeerState {
  std::string address;
  std::string state;        // "connecting", "connected", "unreachable"
  std::string reason = {};  // of the last one
};

class PeerWatch {
 public:
  static constexpr uint32_t kLateMax = 16;
  // Where questions fail more often, they alone decide.
  static constexpr Duration kQuietMin = std::chrono::seconds(5);

  // `what`: "hierarchy node", "leaf"; a literal.
  PeerWatch(const char* what, std::string address, const Clock* clock = &Clock::Real())
      : connection_(what, std::move(address), {}, clock), clock_(clock) {}

  void Answered() {
    late_.store(0, std::memory_order_relaxed);
    if (!is_reached_.load(std::memory_order_relaxed)) Reached();
  }
  // A question ended so.
  void Ended(const absl::Status& status);
  // No connection can be made.
  void Failed(const std::string& reason);
  // The same, before any question was asked: nothing but that is known.
  void NotConnected();
  // A connection stands.
  void ConnectionStands();

  // "connecting": nothing was asked yet.
  PeerState Get() const;
  bool reached() const { return is_reached_.load(std::memory_order_relaxed); }

 private:
  void Reached();

  // The last state of `connection_`, to be read without a lock.
  std::atomic<bool> is_reached_{false};
  std::atomic<uint32_t> late_{0};
  mutable Mutex mutex_;
  ConnectionWatch connection_ ABSL_GUARDED_BY(mutex_);
  const Clock* const clock_;
  Time failed_at_ ABSL_GUARDED_BY(mutex_){};
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_CLUSTER_CLIENT_PEER_WATCH_H_
