#include "frontend/cluster_client/peer_watch.h"

namespace kvatlas {

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

void PeerWatch::NotConnected() {
  MutexLock lock(&mutex_);
  if (connection_.Get().state == ConnectionState::kConnecting)
    connection_.Set(ConnectionState::kUnreachable, "no connection can be made");
  connection_.Tick();
}

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

void PeerWatch::Reached() {
  MutexLock lock(&mutex_);
  if (is_reached_.exchange(true, std::memory_order_relaxed)) return;
  connection_.Set(ConnectionState::kConnected);
}

}  // namespace kvatlas
