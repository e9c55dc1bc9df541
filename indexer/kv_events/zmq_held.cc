// libzmq holds the bytes that the system says were read of its connections, less the bytes of
// messages that were taken. Both only grow while the socket lives.

#include "indexer/kv_events/zmq_held.h"

#include <algorithm>
#include <chrono>
#include <optional>

namespace kvatlas {

void ZmqHeld::Connected(int fd) {
  Disconnected(fd);  // one of that number before
  connections_.push_back({.socket = WatchSocket(fd)});
}

void ZmqHeld::Disconnected(int fd) {
  std::erase_if(connections_, [&](const Connection& connection) {
    if (connection.socket.fd != fd) return false;
    gone_bytes_ += connection.bytes;
    return true;
  });
}

bool ZmqHeld::Has(int fd) const {
  return std::any_of(connections_.begin(), connections_.end(),
                     [fd](const Connection& connection) { return connection.socket.fd == fd; });
}

// Nothing waits: all that ended connections brought was taken or dropped by libzmq.
void ZmqHeld::Emptied() { taken_ = std::max(taken_, gone_bytes_); }

// The time since the last call counts as taken for heartbeats, in whole seconds. `taken_` never
// exceeds what was read: a surplus would hide bytes to come.
uint64_t ZmqHeld::Bytes(Time now) {
  uint64_t read = gone_bytes_;
  for (Connection& connection : connections_) {
    if (const std::optional<uint64_t> bytes = BytesRead(connection.socket); bytes.has_value())
      connection.bytes = *bytes;
    read += connection.bytes;
  }
  const auto seconds = (now - freed_at_) / std::chrono::seconds(1);
  if (freed_at_ == Time(0) || seconds > 0) {
    if (freed_at_ != Time(0)) taken_ += static_cast<uint64_t>(seconds) * kBytesPerSecondFree;
    freed_at_ = now;
  }
  // `taken_` counts more than was taken (`kFrameBytes`).
  taken_ = std::min(taken_, read);
  return read - taken_;
}

void ZmqHeld::CutConnections() {
  for (const Connection& connection : connections_) CutSocket(connection.socket);
}

}  // namespace kvatlas
