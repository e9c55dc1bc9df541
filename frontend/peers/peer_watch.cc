#include "frontend/peers/peer_watch.h"

#include "indexer/service/log.h"

namespace kvatlas {

void PeerWatch::Ended(const absl::Status& status) {
  if (absl::IsUnavailable(status)) return Failed(std::string(status.message()));
  if (absl::IsCancelled(status)) return;
  if (!absl::IsDeadlineExceeded(status)) return Answered();
  if (late_.fetch_add(1, std::memory_order_relaxed) + 1 >= kLateMax) Failed("no answer in time");
}

void PeerWatch::Failed(const std::string& reason) {
  is_reached_.store(false, std::memory_order_relaxed);
  MutexLock lock(&mutex_);
  const Time now = clock_->Now();
  const bool again = is_unreachable_;
  if (again && now - said_at_ < kSayAgain) return;
  is_unreachable_ = true;
  reason_ = reason;
  said_at_ = now;
  Log(LogLevel::kWarning, again ? "still unreachable" : "unreachable",
      {{"peer", what_}, {"address", address_}, {"reason", reason}});
}

PeerState PeerWatch::Get() const {
  MutexLock lock(&mutex_);
  if (is_unreachable_) return {address_, "unreachable", reason_};
  const bool reached = is_reached_.load(std::memory_order_relaxed);
  return {address_, reached ? "connected" : "connecting"};
}

void PeerWatch::Reached() {
  MutexLock lock(&mutex_);
  if (is_reached_.exchange(true, std::memory_order_relaxed)) return;
  Log(LogLevel::kInfo, is_unreachable_ ? "reached again" : "reached",
      {{"peer", what_}, {"address", address_}});
  is_unreachable_ = false;
}

}  // namespace kvatlas
