// From how questions end to a peer's state. `is_reached_` repeats `connection_`'s state for readers
// without the lock; both change under it.

#include "frontend/cluster_client/peer_watch.h"

namespace kvatlas {

// UNAVAILABLE is a verdict; a deadline only one of `kLateMax` in a row; CANCELLED says nothing of
// the peer, since this side cancels. Anything else, also an error, is an answer.
void PeerWatch::Ended(const absl::Status& status) {
  if (absl::IsUnavailable(status)) {
    late_.store(0, std::memory_order_relaxed);
    return Failed(std::string(status.message()));
  }
  if (absl::IsCancelled(status)) return;
  if (!absl::IsDeadlineExceeded(status)) return Answered();
  if (late_.fetch_add(1, std::memory_order_relaxed) + 1 >= kLateMax) Failed("no answer in time");
}

void PeerWatch::Failed(const std::string& reason) {
  MutexLock lock(&mutex_);
  is_reached_.store(false, std::memory_order_relaxed);
  failed_at_ = clock_->Now();
  connection_.Set(ConnectionState::kUnreachable, reason);
}

// `Tick` repeats the line in the log once a minute, as long as the peer is away.
void PeerWatch::NotConnected() {
  MutexLock lock(&mutex_);
  if (connection_.Get().state == ConnectionState::kConnecting)
    connection_.Set(ConnectionState::kUnreachable, "no connection can be made");
  connection_.Tick();
}

// A connection is weak evidence: it counts neither for a peer that takes connections and answers
// nothing (`kLateMax`), nor within `kQuietMin` of a failure, when questions come often enough to
// decide.
void PeerWatch::ConnectionStands() {
  MutexLock lock(&mutex_);
  if (connection_.Get().state != ConnectionState::kUnreachable ||
      late_.load(std::memory_order_relaxed) >= kLateMax || clock_->Now() - failed_at_ < kQuietMin) {
    return;
  }
  is_reached_.store(true, std::memory_order_relaxed);
  connection_.Set(ConnectionState::kConnected);
}

PeerState PeerWatch::Get() const {
  MutexLock lock(&mutex_);
  const ConnectionStatus status = connection_.Get();
  PeerState state{connection_.endpoint(), std::string(ConnectionStateName(status.state)),
                  status.reason};
  // The address is there already.
  const std::string prefix = state.address + ": ";
  if (state.reason.starts_with(prefix)) state.reason.erase(0, prefix.size());
  return state;
}

// `exchange` again under the lock: of several answers at once one reports the change.
void PeerWatch::Reached() {
  MutexLock lock(&mutex_);
  if (is_reached_.exchange(true, std::memory_order_relaxed)) return;
  connection_.Set(ConnectionState::kConnected);
}

}  // namespace kvatlas
