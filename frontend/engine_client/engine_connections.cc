#include "frontend/engine_client/engine_connections.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/error.hpp>
#include <iterator>
#include <utility>

#include "frontend/engine_client/engine_call.h"

namespace kvatlas {

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

void EngineConnections::Watch(EngineCall* call, const boost::asio::any_io_executor& executor) {
  watched_.insert(call);
  if (!sweep_.has_value()) sweep_.emplace(executor);
  if (!sweeping_) SweepLater();
}

void EngineConnections::SweepLater() {
  sweeping_ = true;
  sweep_->expires_after(sweep_every_);
  sweep_->async_wait([this, alive = std::weak_ptr(alive_)](boost::system::error_code cancelled) {
    if (!cancelled && !alive.expired()) Sweep();
  });
}

// A call that is too late ends itself, and maybe others, and new ones begin.
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
