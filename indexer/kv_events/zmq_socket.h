// libzmq for the rest of this folder: sockets, messages and monitors that clean up after themselves
// and return a Status.
//
// *Threads*: a socket belongs to one thread at a time; handing it over needs a lock between.
//
// Example:
//   absl::StatusOr<ZmqSocket> socket = ZmqSocket::Make(context.get(), ZMQ_SUB);
//   if (!socket.ok() || !socket->Connect("tcp://h:5557").ok()) return …;
//   ZmqFrames frames;
//   while (frames.Receive(*socket) == ZmqFrames::Result::kMessage) Use(frames.number(),
//   frames.payload());

#ifndef KVATLAS_INDEXER_KV_EVENTS_ZMQ_SOCKET_H_
#define KVATLAS_INDEXER_KV_EVENTS_ZMQ_SOCKET_H_

#include <zmq.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/kv_events/zmq_held.h"
#include "indexer/security/curve.h"

namespace kvatlas {

// "context: what libzmq says", as UNAVAILABLE.
absl::Status ZmqError(std::string_view context);

// Options of every socket of ours.
struct ZmqSocketOptions {
  int receive_hwm = 256;
  Duration heartbeat{0};  // 0: none
  Duration reconnect_min = std::chrono::milliseconds(100);
  Duration reconnect_max = std::chrono::seconds(5);
  int64_t message_bytes_max = -1;  // a peer that sends a larger one is disconnected
  CurveKeys curve = {};            // of the side that connects; used with a server's key
};

class ZmqSocket {
 public:
  ZmqSocket() = default;
  ~ZmqSocket() { Close(); }
  ZmqSocket(ZmqSocket&& other) noexcept : socket_(other.socket_) { other.socket_ = nullptr; }
  ZmqSocket& operator=(ZmqSocket&& other) noexcept;

  // `type`: ZMQ_SUB, … UNAVAILABLE: no more sockets or file descriptors.
  static absl::StatusOr<ZmqSocket> Make(void* context, int type);

  // Linger 0, IPv6, TCP keepalive, and `options`.
  absl::Status Configure(const ZmqSocketOptions& options);
  // Before it connects: to the server that has this key, and no other.
  absl::Status Encrypt(const CurveKeys& own, const std::string& server_key);
  absl::Status Set(int option, int value);
  absl::Status Set(int option, std::string_view value);

  absl::Status Connect(const std::string& endpoint);
  absl::Status Bind(const std::string& endpoint);
  // The address last bound, with the port that was taken.
  std::string LastEndpoint() const;

  // Readable when the socket's state may have changed; edge-triggered: receive until there is
  // nothing.
  int fd() const;

  // Never blocks.
  absl::Status Send(std::string_view frame, bool more);

  void Close();
  explicit operator bool() const { return socket_ != nullptr; }
  void* get() const { return socket_; }

 private:
  void* socket_ = nullptr;
};

// The last two frames of a multipart message, in the library's own memory: whatever comes before
// them, the payload is the last and its number the one before.
class ZmqFrames {
 public:
  enum class Result : uint8_t { kMessage, kNothing, kFailed };

  ZmqFrames();
  ~ZmqFrames();
  ZmqFrames(const ZmqFrames&) = delete;
  ZmqFrames& operator=(const ZmqFrames&) = delete;

  // Takes one whole message, never waits. The views below are valid until the next call. `first`:
  // the first frame is copied there.
  Result Receive(const ZmqSocket& socket, std::string* first = nullptr);

  size_t count() const { return count_; }
  size_t bytes() const { return bytes_; }  // of all its frames
  std::string_view payload() const { return Frame(last_); }
  std::string_view before() const { return Frame(1 - last_); }  // REQUIRES: count() > 1
  // `before()` as 8 bytes, big-endian, if it is that.
  std::optional<uint64_t> number() const;
  // The descriptor of the connection that it came over, which is libzmq's; -1: it has none.
  int descriptor() const;

 private:
  friend class ZmqOrigin;

  std::string_view Frame(size_t index) const;

  mutable std::array<zmq_msg_t, 2> frames_;
  size_t last_ = 0;
  size_t count_ = 0;
  size_t bytes_ = 0;
};

// The connection that a message came over: tells which of the messages that wait in one socket are
// from before it was connected again.
class ZmqOrigin {
 public:
  ZmqOrigin() { zmq_msg_init(&frame_); }
  ~ZmqOrigin() { zmq_msg_close(&frame_); }
  ZmqOrigin(const ZmqOrigin&) = delete;
  ZmqOrigin& operator=(const ZmqOrigin&) = delete;

  // Remembers the connection of the message that was received last.
  void Take(const ZmqFrames& frames);
  void Forget();
  bool known() const { return known_; }
  // The message that was received last came over the connection remembered. False where that is
  // unknown.
  bool IsOf(const ZmqFrames& frames) const;

 private:
  // An address of libzmq's that stands for a message's connection: one for all of a connection's
  // messages, and no other connection's while one of them is kept.
  static const char* Connection(zmq_msg_t* frame) { return zmq_msg_gets(frame, "Socket-Type"); }

  mutable zmq_msg_t frame_;
  bool known_ = false;
};

// Connections that come and go at a socket.
class ZmqMonitor {
 public:
  struct Changes {
    // Since the last call.
    uint32_t arrived = 0;
    uint32_t departed = 0;
    bool connected = false;  // now
    // The peer accepted but spoke no ZeroMQ; since the last one that arrived.
    bool strangers = false;
    // The library ended a connection and does not connect again: the peer broke the protocol, or
    // sent more than it may.
    bool gave_up = false;
    std::vector<int> departed_fds = {};  // connections that ended
  };

  // Before the socket binds or connects.
  absl::Status Watch(void* context, ZmqSocket* socket);
  // Before the socket is closed. A socket goes on telling while it closes, and the library's I/O
  // thread would wait for ever for a reader: nothing of any other socket would move.
  void End(ZmqSocket* socket);
  int fd() const { return events_.fd(); }
  // Bytes held of its connections, which come and go with `Poll`.
  ZmqHeld& held() { return held_; }
  Changes Poll();

 private:
  ZmqSocket events_;
  uint32_t peers_ = 0;
  uint32_t failed_ = 0;  // handshakes whose disconnection is still to come
  bool strangers_ = false;
  bool gave_up_ = false;
  ZmqHeld held_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_ZMQ_SOCKET_H_
