// Idle connections and buffers, and one timer that sweeps over all calls of the thread instead of a
// timer per call.

#include "frontend/engine_client/engine_connections.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <iterator>
#include <utility>

#include "frontend/engine_client/engine_call.h"

namespace kvatlas {

// An eighth of the shortest timeout, and never rarer than four times a second nor more often than
// every millisecond.
EngineConnections::EngineConnections(const EngineCallOptions& options)
    : options_(options),
      sweep_every_(std::clamp<Duration>(
          std::min({options.connect_timeout, options.head_timeout, options.idle_timeout}) / 8,
          std::chrono::milliseconds(1), std::chrono::milliseconds(250))) {}

std::unique_ptr<char[]> EngineConnections::TakeBuffer() {
  if (buffers_.empty()) return std::unique_ptr<char[]>(new char[kBufferBytes]);
  std::unique_ptr<char[]> buffer = std::move(buffers_.back());
  buffers_.pop_back();
  return buffer;
}

void EngineConnections::PutBuffer(std::unique_ptr<char[]> buffer) {
  if (buffer != nullptr && buffers_.size() < kBuffersMax) buffers_.push_back(std::move(buffer));
}

// The timer runs only while there is a call to watch.
void EngineConnections::Watch(EngineCall* call, const boost::asio::any_io_executor& executor) {
  watched_.insert(call);
  if (!sweep_.has_value()) sweep_.emplace(executor);
  if (!sweeping_) SweepLater();
}

// `alive` is for a handler that is due already when the pool is destroyed: cancelling the timer is
// too late for it.
void EngineConnections::SweepLater() {
  sweeping_ = true;
  sweep_->expires_after(sweep_every_);
  sweep_->async_wait([this, alive = std::weak_ptr(alive_)](boost::system::error_code cancelled) {
    if (!cancelled && !alive.expired()) Sweep();
  });
}

// Ends the calls that are too late. Their callbacks may end other calls, begin new ones, and
// destroy the pool: so the late calls are gathered first and held, and `alive` is looked at after
// each.
void EngineConnections::Sweep() {
  sweeping_ = false;
  const Time now = Clock::Real().Now();
  std::vector<std::shared_ptr<EngineCall>> late;
  for (EngineCall* const call : watched_) {
    if (now >= call->deadline_) late.push_back(call->shared_from_this());
  }
  const std::weak_ptr<const bool> alive = alive_;
  for (const std::shared_ptr<EngineCall>& call : late) {
    call->CheckDeadline(now);
    if (alive.expired()) return;  // the last call's owner had the pool too
  }
  if (!watched_.empty() && !sweeping_) SweepLater();
}

// The latest first: the one the engine closes last. If even that is too old, so are all others. A
// peek tells a connection that is open and silent (it would block) from one that was closed or that
// has unexpected bytes; these are dropped.
std::optional<EngineConnections::Socket> EngineConnections::Take(const std::string& authority,
                                                                 Time now) {
  const auto found = idle_.find(authority);
  if (found == idle_.end()) return std::nullopt;
  std::deque<Idle>& idle = found->second;
  std::optional<Socket> taken;
  while (!idle.empty() && !taken.has_value()) {
    Idle last = std::move(idle.back());
    idle.pop_back();
    if (now - last.since > options_.keep_idle) {
      idle.clear();
      break;
    }
    char byte;
    boost::system::error_code error;
    last.socket.receive(boost::asio::buffer(&byte, 1), Socket::message_peek, error);
    if (error == boost::asio::error::would_block || error == boost::asio::error::try_again)
      taken = std::move(last.socket);
  }
  if (idle.empty()) idle_.erase(found);
  return taken;
}

// Closes what is too old, of all engines, so that no timer is needed for it; then keeps this one.
void EngineConnections::Put(const std::string& authority, Socket socket, Time now) {
  for (auto of = idle_.begin(); of != idle_.end();) {
    while (!of->second.empty() && now - of->second.front().since > options_.keep_idle)
      of->second.pop_front();
    of = of->second.empty() ? idle_.erase(of) : std::next(of);
  }
  if (options_.idle_per_engine == 0) return;
  std::deque<Idle>& idle = idle_[authority];
  if (idle.size() >= options_.idle_per_engine) idle.pop_front();
  idle.push_back({.socket = std::move(socket), .since = now});
}

}  // namespace kvatlas
