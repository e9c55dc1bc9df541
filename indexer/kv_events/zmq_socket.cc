// Thin wrappers of libzmq's calls. Every receive and send is without waiting (ZMQ_DONTWAIT): a lane
// never blocks in libzmq.

#include "indexer/kv_events/zmq_socket.h"

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "indexer/base/big_endian.h"
#include "indexer/base/durations.h"

namespace kvatlas {

absl::Status ZmqError(std::string_view context) {
  return absl::UnavailableError(std::string(context) + ": " + zmq_strerror(zmq_errno()));
}

ZmqSocket& ZmqSocket::operator=(ZmqSocket&& other) noexcept {
  if (this != &other) {
    Close();
    socket_ = std::exchange(other.socket_, nullptr);
  }
  return *this;
}

absl::StatusOr<ZmqSocket> ZmqSocket::Make(void* context, int type) {
  ZmqSocket socket;
  socket.socket_ = zmq_socket(context, type);
  if (socket.socket_ == nullptr) return ZmqError("zmq socket");
  // Without linger, closing a socket waits for nothing that is still to be sent.
  if (absl::Status set = socket.Set(ZMQ_LINGER, 0); !set.ok()) return set;
  return socket;
}

// A peer that answers no heartbeat for three of them is disconnected by libzmq, also one behind a
// network that drops packets silently.
absl::Status ZmqSocket::Configure(const ZmqSocketOptions& options) {
  const int heartbeat_ms = Milliseconds<int>(options.heartbeat);
  const std::pair<int, int> values[] = {
      {ZMQ_IPV6, 1},
      {ZMQ_RCVHWM, options.receive_hwm},
      {ZMQ_RECONNECT_IVL, Milliseconds<int>(options.reconnect_min)},
      {ZMQ_RECONNECT_IVL_MAX, Milliseconds<int>(options.reconnect_max)},
      {ZMQ_TCP_KEEPALIVE, 1},
      {ZMQ_HEARTBEAT_IVL, heartbeat_ms},
      {ZMQ_HEARTBEAT_TIMEOUT, 3 * heartbeat_ms},
      {ZMQ_HEARTBEAT_TTL, 3 * heartbeat_ms},
  };
  for (const auto& [option, value] : values) {
    if (absl::Status set = Set(option, value); !set.ok()) return set;
  }
  const int64_t bytes_max = options.message_bytes_max;
  if (zmq_setsockopt(socket_, ZMQ_MAXMSGSIZE, &bytes_max, sizeof(bytes_max)) != 0) {
    return ZmqError("zmq option");
  }
  return absl::OkStatus();
}

// CURVE's client side: the server's key says which server may answer.
absl::Status ZmqSocket::Encrypt(const CurveKeys& own, const std::string& server_key) {
  if (absl::Status set = Set(ZMQ_CURVE_SERVERKEY, server_key); !set.ok()) return set;
  if (absl::Status set = Set(ZMQ_CURVE_PUBLICKEY, own.public_key); !set.ok()) return set;
  return Set(ZMQ_CURVE_SECRETKEY, own.secret_key);
}

absl::Status ZmqSocket::Set(int option, int value) {
  if (zmq_setsockopt(socket_, option, &value, sizeof(value)) != 0) return ZmqError("zmq option");
  return absl::OkStatus();
}

absl::Status ZmqSocket::Set(int option, std::string_view value) {
  if (zmq_setsockopt(socket_, option, value.data(), value.size()) != 0) {
    return ZmqError("zmq option");
  }
  return absl::OkStatus();
}

absl::Status ZmqSocket::Connect(const std::string& endpoint) {
  if (zmq_connect(socket_, endpoint.c_str()) != 0) return ZmqError("connect to " + endpoint);
  return absl::OkStatus();
}

absl::Status ZmqSocket::Bind(const std::string& endpoint) {
  if (zmq_bind(socket_, endpoint.c_str()) != 0) return ZmqError("bind " + endpoint);
  return absl::OkStatus();
}

std::string ZmqSocket::LastEndpoint() const {
  char endpoint[1024];
  size_t size = sizeof(endpoint);
  if (zmq_getsockopt(socket_, ZMQ_LAST_ENDPOINT, endpoint, &size) != 0) return "";
  return endpoint;  // ends in NUL
}

int ZmqSocket::fd() const {
  int fd = -1;
  size_t size = sizeof(fd);
  if (zmq_getsockopt(socket_, ZMQ_FD, &fd, &size) != 0) return -1;
  return fd;
}

absl::Status ZmqSocket::Send(std::string_view frame, bool more) {
  const int flags = ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0);
  if (zmq_send(socket_, frame.data(), frame.size(), flags) < 0) return ZmqError("zmq send");
  return absl::OkStatus();
}

void ZmqSocket::Close() {
  if (socket_ != nullptr) zmq_close(std::exchange(socket_, nullptr));
}

ZmqFrames::ZmqFrames() {
  for (zmq_msg_t& frame : frames_) zmq_msg_init(&frame);
}

ZmqFrames::~ZmqFrames() {
  for (zmq_msg_t& frame : frames_) zmq_msg_close(&frame);
}

// Takes a whole message and keeps its last two frames in turns: whatever number of frames comes
// before, no memory grows. `first` is copied before its frame is overwritten.
ZmqFrames::Result ZmqFrames::Receive(const ZmqSocket& socket, std::string* first) {
  count_ = 0;
  bytes_ = 0;
  do {
    last_ = 1 - last_;
    // The later frames of a message are there when the first one is.
    while (zmq_msg_recv(&frames_[last_], socket.get(), ZMQ_DONTWAIT) < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN ? Result::kNothing : Result::kFailed;
    }
    if (count_++ == 0 && first != nullptr) *first = Frame(last_);
    bytes_ += zmq_msg_size(&frames_[last_]);
  } while (zmq_msg_more(&frames_[last_]) != 0);
  return Result::kMessage;
}

std::optional<uint64_t> ZmqFrames::number() const {
  const std::string_view bytes = count_ > 1 ? before() : std::string_view();
  if (bytes.size() != sizeof(uint64_t)) return std::nullopt;
  return FromBigEndian(bytes);
}

int ZmqFrames::descriptor() const { return zmq_msg_get(&frames_[last_], ZMQ_SRCFD); }

std::string_view ZmqFrames::Frame(size_t index) const {
  zmq_msg_t* frame = &frames_[index];
  return {static_cast<const char*>(zmq_msg_data(frame)), zmq_msg_size(frame)};
}

// Keeps a copy of the number's frame, which shares libzmq's metadata of the connection: its address
// stays in use, and no later connection can have it while it is remembered.
void ZmqOrigin::Take(const ZmqFrames& frames) {
  zmq_msg_copy(&frame_, &frames.frames_[1 - frames.last_]);  // the number's: a small one
  known_ = true;
}

void ZmqOrigin::Forget() {
  zmq_msg_close(&frame_);
  zmq_msg_init(&frame_);
  known_ = false;
}

bool ZmqOrigin::IsOf(const ZmqFrames& frames) const {
  if (!known_) return false;
  const char* const ours = Connection(&frame_);
  return ours != nullptr && ours == Connection(&frames.frames_[frames.last_]);
}

// Events come over a PAIR socket with a name that is unique in the process.
absl::Status ZmqMonitor::Watch(void* context, ZmqSocket* socket) {
  static std::atomic<uint64_t> names{0};
  const std::string name = "inproc://kvatlas-monitor-" + std::to_string(++names);
  constexpr int kEvents = ZMQ_EVENT_CONNECTED | ZMQ_EVENT_ACCEPTED | ZMQ_EVENT_HANDSHAKE_SUCCEEDED |
                          ZMQ_EVENT_DISCONNECTED | ZMQ_EVENT_CONNECT_RETRIED |
                          ZMQ_EVENT_HANDSHAKE_FAILED_NO_DETAIL |
                          ZMQ_EVENT_HANDSHAKE_FAILED_PROTOCOL | ZMQ_EVENT_HANDSHAKE_FAILED_AUTH;
  if (zmq_socket_monitor(socket->get(), name.c_str(), kEvents) != 0) return ZmqError("zmq monitor");
  absl::StatusOr<ZmqSocket> events = ZmqSocket::Make(context, ZMQ_PAIR);
  if (!events.ok()) return events.status();
  // libzmq's I/O thread blocks while this queue is full, and with it all sockets of the context: no
  // limit. `Poll` empties it.
  if (absl::Status set = events->Set(ZMQ_RCVHWM, 0); !set.ok()) return set;
  if (absl::Status connected = events->Connect(name); !connected.ok()) return connected;
  events_ = *std::move(events);
  return absl::OkStatus();
}

// See the header: the socket's monitor stops first, then our end closes.
void ZmqMonitor::End(ZmqSocket* socket) {
  if (*socket) zmq_socket_monitor(socket->get(), nullptr, 0);
  events_.Close();
}

// Reads all events that are there. libzmq reports CONNECTED or ACCEPTED for the TCP connection,
// then HANDSHAKE_SUCCEEDED or a failure, and DISCONNECTED at its end, in either case. `failed_`
// counts handshakes that failed and whose end is still to come, so that this end is not taken for a
// peer's.
ZmqMonitor::Changes ZmqMonitor::Poll() {
  Changes changes;
  ZmqFrames frames;
  while (events_ && frames.Receive(events_) == ZmqFrames::Result::kMessage) {
    // [event as u16 and value as u32, in the machine's order] [address]
    if (frames.count() != 2 || frames.before().size() < sizeof(uint16_t)) continue;
    uint16_t event;
    std::memcpy(&event, frames.before().data(), sizeof(event));
    int32_t value = -1;  // of these three a descriptor
    if (frames.before().size() >= sizeof(event) + sizeof(value))
      std::memcpy(&value, frames.before().data() + sizeof(event), sizeof(value));
    if (event == ZMQ_EVENT_CONNECTED || event == ZMQ_EVENT_ACCEPTED) {
      held_.Connected(value);
      continue;
    }
    if (event == ZMQ_EVENT_DISCONNECTED) {
      held_.Disconnected(value);
      changes.departed_fds.push_back(value);
    }
    gave_up_ = event == ZMQ_EVENT_DISCONNECTED;
    if (event == ZMQ_EVENT_CONNECT_RETRIED) continue;
    if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
      ++peers_;
      ++changes.arrived;
      strangers_ = false;
    } else if (event != ZMQ_EVENT_DISCONNECTED) {
      ++failed_;
      strangers_ = true;
    } else if (failed_ > 0) {
      --failed_;
    } else if (peers_ > 0) {
      --peers_;
      ++changes.departed;
    } else {
      strangers_ = true;  // an old protocol's form, in which libzmq takes any bytes for a greeting
    }
  }
  changes.connected = peers_ > 0;
  changes.strangers = strangers_;
  changes.gave_up = gave_up_;
  return changes;
}

}  // namespace kvatlas
