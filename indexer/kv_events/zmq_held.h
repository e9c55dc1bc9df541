// Estimates how many bytes libzmq holds that a peer has sent and that were not taken as messages
// yet.
//
// libzmq 4.3.4 bounds a frame (ZMQ_MAXMSGSIZE) and the number of whole messages that wait
// (ZMQ_RCVHWM), and not the frames of a message that does not end: they are kept until it does
// (pipe_t::write counts a message at its last frame). None of its options or events says how much
// that is. The system does: what a TCP connection has received and its owner has read, less what
// came out of the socket.
//
// *Truth*: bytes of the wire. Each frame taken counts for `kFrameBytes` beside what it carries,
// more than any header (10 bytes; CURVE's 43), and each second for `kBytesPerSecondFree`
// (heartbeats): it errs towards less. An empty frame is 2 bytes here and 64 in memory. Connections
// that the system does not count so (ipc://, inproc://) hold nothing here.
// *Threads*: none. *Cost*: three system calls a connection in `Bytes`, two additions in `Took`.

#ifndef KVATLAS_INDEXER_KV_EVENTS_ZMQ_HELD_H_
#define KVATLAS_INDEXER_KV_EVENTS_ZMQ_HELD_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/net/connection_account.h"

namespace kvatlas {

class ZmqHeld {
 public:
  static constexpr uint64_t kFrameBytes = 64;

  // A connection of the socket's, by its descriptor, which is libzmq's.
  void Connected(int fd);
  void Disconnected(int fd);
  bool Has(int fd) const;
  // A message with so many frames and bytes came out of the socket.
  void Took(size_t frames, size_t bytes) { taken_ += bytes + frames * kFrameBytes; }
  // None waits: of connections that are gone nothing is held any more, since what they had begun
  // was dropped with them.
  void Emptied();
  // Another socket.
  void Clear() { *this = ZmqHeld(); }

  uint64_t Bytes(Time now);

  // Ends the connections: libzmq then drops what they have begun. For a socket that must stay,
  // which listens.
  void CutConnections();

 private:
  struct Connection {
    WatchedSocket socket;
    uint64_t bytes = 0;  // read, when it was last looked at
  };
  std::vector<Connection> connections_;
  uint64_t gone_bytes_ = 0;  // of those that are gone
  uint64_t taken_ = 0;       // of all that was read
  Time freed_at_{0};
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_ZMQ_HELD_H_
