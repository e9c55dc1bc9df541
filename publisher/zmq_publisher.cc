// Two threads meet in the ring: the publisher's encodes batches and appends them with a number
// (`Append`), the socket thread sends them (`Run`). The ring is also the memory for replays. A
// batch's bytes are shared between the ring and ZeroMQ's queues, never copied.

#include "publisher/zmq_publisher.h"

#include <sys/eventfd.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "indexer/base/big_endian.h"
#include "indexer/base/mutex.h"
#include "indexer/security/curve.h"

namespace kvatlas {
namespace {

constexpr std::string_view kTcp = "tcp://";
// Bytes of a batch and blocks of an event, beyond which they are cut: consumers have bounds of
// their own.
constexpr size_t kBatchBytes = 1 << 20;
constexpr size_t kEventBlocksMax = 1024;
// One turn of live batches and of one replay, before the others get theirs.
constexpr size_t kLiveTurn = 256;
constexpr size_t kReplayTurn = 64;
// A replay whose client reads nothing is tried again after this, and given up after
// `kReplayPatience`.
constexpr std::chrono::milliseconds kReplayRetry(5);
constexpr std::chrono::seconds kReplayPatience(30);
// The number of the end marker of a replay, vLLM's -1.
constexpr uint64_t kEndNumber = ~uint64_t{0};

using Payload = std::shared_ptr<const std::string>;

struct NumberedBatch {
  uint64_t number = 0;
  Payload payload;
};

// HOST and PORT of a tcp endpoint; nothing when it is none.
std::optional<std::pair<std::string_view, std::string_view>> TcpParts(std::string_view endpoint) {
  if (!endpoint.starts_with(kTcp)) return std::nullopt;
  endpoint.remove_prefix(kTcp.size());
  const size_t colon = endpoint.rfind(':');
  if (colon == std::string_view::npos || colon == 0 || colon + 1 == endpoint.size()) {
    return std::nullopt;
  }
  return std::pair(endpoint.substr(0, colon), endpoint.substr(colon + 1));
}

// The kernel chooses the port; it is the same for no two ranks, so it is not counted up.
bool TakesFreePort(std::string_view port) { return port == "0" || port == "*"; }

absl::Status BadEndpoint(std::string_view endpoint, std::string_view why) {
  return absl::InvalidArgumentError("ZMQ endpoint \"" + std::string(endpoint) +
                                    "\": " + std::string(why));
}

// A ZeroMQ socket, closed with its owner. Sockets are not thread-safe: all calls from one thread at
// a time.
class Socket {
 public:
  Socket(void* context, int type) : socket_(zmq_socket(context, type)) {}
  ~Socket() { zmq_close(socket_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  void* get() const { return socket_; }
  void Set(int option, int value) { zmq_setsockopt(socket_, option, &value, sizeof(value)); }

  // INVALID_ARGUMENT for an endpoint that cannot be right, UNAVAILABLE for one that is taken or not
  // there.
  absl::Status Attach(const std::string& endpoint, bool bind) {
    const int failed =
        bind ? zmq_bind(socket_, endpoint.c_str()) : zmq_connect(socket_, endpoint.c_str());
    if (failed == 0) return absl::OkStatus();
    const int why = zmq_errno();
    return absl::Status(why == EINVAL || why == EPROTONOSUPPORT || why == ENOCOMPATPROTO
                            ? absl::StatusCode::kInvalidArgument
                            : absl::StatusCode::kUnavailable,
                        std::string(bind ? "cannot bind " : "cannot connect to ") + endpoint +
                            ": " + zmq_strerror(why));
  }

  std::string LastEndpoint() const {
    std::array<char, 512> text;
    size_t size = text.size();
    if (zmq_getsockopt(socket_, ZMQ_LAST_ENDPOINT, text.data(), &size) != 0 || size == 0) return "";
    return std::string(text.data(), size - 1);
  }

  // As the server of CURVE.
  void Encrypt(const std::string& secret_key) {
    Set(ZMQ_CURVE_SERVER, 1);
    zmq_setsockopt(socket_, ZMQ_CURVE_SECRETKEY, secret_key.data(), secret_key.size());
  }

  // False, with zmq_errno: not sent.
  bool Send(std::string_view frame, bool more) {
    return zmq_send(socket_, frame.data(), frame.size(), ZMQ_DONTWAIT | (more ? ZMQ_SNDMORE : 0)) >=
           0;
  }

  // The bytes are shared, not copied: ZeroMQ deletes its reference when the last subscriber has got
  // the message, on one of its own threads.
  bool SendLast(const Payload& payload) {
    auto* const kept = new Payload(payload);
    zmq_msg_t message;
    zmq_msg_init_data(
        &message, const_cast<char*>(payload->data()), payload->size(),
        [](void*, void* hint) { delete static_cast<Payload*>(hint); }, kept);
    const bool sent = zmq_msg_send(&message, socket_, ZMQ_DONTWAIT) >= 0;
    if (!sent) zmq_msg_close(&message);
    return sent;
  }

  // All frames of the next message; empty: none waits. Further frames than `kFramesMax` are read
  // and dropped, so that a peer cannot make one message large.
  std::vector<std::string> Receive() {
    constexpr size_t kFramesMax = 8;
    std::vector<std::string> frames;
    for (int more = 1; more != 0;) {
      zmq_msg_t message;
      zmq_msg_init(&message);
      if (zmq_msg_recv(&message, socket_, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&message);
        return {};
      }
      more = zmq_msg_more(&message);
      if (frames.size() < kFramesMax) {
        frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)),
                            zmq_msg_size(&message));
      }
      zmq_msg_close(&message);
    }
    return frames;
  }

 private:
  void* const socket_;
};

// Waits until every socket is closed: the context is destroyed after both sockets.
struct ContextDeleter {
  void operator()(void* context) const { zmq_ctx_term(context); }
};

}  // namespace

absl::StatusOr<std::string> ZmqEndpointOfRank(std::string_view endpoint, uint32_t rank) {
  if (endpoint.starts_with("inproc://") || endpoint.starts_with("ipc://")) {
    if (endpoint.ends_with("://")) return BadEndpoint(endpoint, "no name");
    return std::string(endpoint) + (rank == 0 ? "" : "_dp" + std::to_string(rank));
  }
  if (!endpoint.starts_with(kTcp)) return BadEndpoint(endpoint, "neither tcp, ipc nor inproc");
  const auto parts = TcpParts(endpoint);
  if (!parts) return BadEndpoint(endpoint, "not tcp://HOST:PORT");
  const auto [host, port] = *parts;
  if (TakesFreePort(port)) return std::string(endpoint);
  uint32_t number = 0;
  if (!absl::SimpleAtoi(absl::string_view(port.data(), port.size()), &number) || number == 0 ||
      number > 65535) {
    return BadEndpoint(endpoint, "port is not in 0..65535");
  }
  if (uint64_t{number} + rank > 65535) {
    return BadEndpoint(endpoint, "port of rank " + std::to_string(rank) + " would be beyond 65535");
  }
  return std::string(kTcp) + std::string(host) + ":" + std::to_string(number + rank);
}

// With `kAuto` a tcp endpoint binds by its host and port; of the others ipc and inproc bind.
bool ZmqBinds(std::string_view endpoint, ZmqAttach attach) {
  if (attach != ZmqAttach::kAuto) return attach == ZmqAttach::kBind;
  const auto parts = TcpParts(endpoint);
  if (!parts) return endpoint.starts_with("inproc://") || endpoint.starts_with("ipc://");
  const auto [host, port] = *parts;
  return host == "0.0.0.0" || host.find('*') != std::string_view::npos ||
         host.find("::") != std::string_view::npos || TakesFreePort(port);
}

// Locks: `mutex_` alone, never during a call to ZeroMQ. The sockets belong to the thread while it
// runs, and to `Start` and `Stop` before and after.
class ZmqPublisher::Impl {
 public:
  Impl(const ZmqPublisherOptions& options, uint32_t block_size, uint32_t rank)
      : options_(options),
        block_size_(block_size),
        encoder_(options.form, block_size, rank),
        context_(zmq_ctx_new()) {}
  ~Impl() {
    Stop(Duration(0));
    pub_.reset();
    router_.reset();
    if (wake_fd_ >= 0) close(wake_fd_);
  }

  absl::Status Start(const std::string& endpoint, const std::string& replay_endpoint);
  void Add(const Record& record);
  void Remove(Tier tier, std::span<const uint64_t> hashes);
  void Flush();
  ZmqPublisherStats Stats() const;
  void Stop(Duration flush_for);

 private:
  struct Replay {
    std::string client;
    uint64_t next = 0;
    uint64_t end = 0;  // batches before it; later ones come to the client live
    Time moved_at{0};  // when the client last took something
  };

  absl::Status Open(std::unique_ptr<Socket>* socket, int type, const std::string& endpoint,
                    bool bind, std::string* attached);
  void AddRun(const Record& record);
  void Append(std::string payload) ABSL_LOCKS_EXCLUDED(mutex_);
  void DropOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // The thread.
  void Run();
  // The batches to be sent next; empty: all is sent.
  std::vector<NumberedBatch> TakeLive() ABSL_LOCKS_EXCLUDED(mutex_);
  void SendLive(const std::vector<NumberedBatch>& batches);
  void TakeRequests();
  // The replay's next batches. False: it is over.
  bool Continue(Replay* replay);
  std::vector<NumberedBatch> TakeOld(const Replay& replay) const ABSL_LOCKS_EXCLUDED(mutex_);
  bool SendTo(const Replay& replay, uint64_t number, const Payload& payload,
              const std::string& topic);
  void Wait(std::chrono::milliseconds at_most);

  const ZmqPublisherOptions options_;
  const uint32_t block_size_;
  ZmqEventEncoder encoder_;  // the caller's

  const std::unique_ptr<void, ContextDeleter> context_;
  std::unique_ptr<Socket> pub_;
  std::unique_ptr<Socket> router_;  // null: no replay
  int wake_fd_ = -1;
  std::string endpoint_;  // immutable after Start
  std::string replay_endpoint_;
  std::string curve_secret_;    // likewise
  std::deque<Replay> replays_;  // the thread's

  mutable Mutex mutex_;
  std::deque<NumberedBatch> ring_ ABSL_GUARDED_BY(mutex_);  // by number, not all of which exist
  size_t ring_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t unsent_ ABSL_GUARDED_BY(mutex_) = 0;  // the thread took all before
  bool asleep_ ABSL_GUARDED_BY(mutex_) = false;  // or about to be: wants a wake-up
  Time stop_at_ ABSL_GUARDED_BY(mutex_) = Time::max();
  ZmqPublisherStats stats_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

// Keys, context, sockets, then the thread: an endpoint in use is an error of `Create`.
absl::Status ZmqPublisher::Impl::Start(const std::string& endpoint,
                                       const std::string& replay_endpoint) {
  if (!options_.curve_key.empty()) {
    absl::StatusOr<CurveKeys> keys = ReadCurveKeys(options_.curve_key);
    if (!keys.ok()) return keys.status();
    if (!ZmqBinds(endpoint, options_.attach))
      return absl::InvalidArgumentError(
          "curve_key: " + endpoint + " dials out, and only one that binds can be known by a key");
    curve_secret_ = std::move(keys->secret_key);
  }
  if (context_ == nullptr) return absl::ResourceExhaustedError("no ZMQ context");
  wake_fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (wake_fd_ < 0) return absl::ResourceExhaustedError("no eventfd");
  absl::Status status =
      Open(&pub_, ZMQ_PUB, endpoint, ZmqBinds(endpoint, options_.attach), &endpoint_);
  if (status.ok() && !replay_endpoint.empty()) {
    status = Open(&router_, ZMQ_ROUTER, replay_endpoint, /*bind=*/true, &replay_endpoint_);
  }
  if (status.ok()) thread_ = std::thread([this] { Run(); });
  return status;
}

// Options before `Attach`, since most count only for connections made later.
absl::Status ZmqPublisher::Impl::Open(std::unique_ptr<Socket>* socket, int type,
                                      const std::string& endpoint, bool bind,
                                      std::string* attached) {
  *socket = std::make_unique<Socket>(context_.get(), type);
  if ((*socket)->get() == nullptr) return absl::ResourceExhaustedError("no ZMQ socket");
  (*socket)->Set(ZMQ_LINGER, 0);
  (*socket)->Set(ZMQ_SNDHWM, options_.send_hwm);
  (*socket)->Set(ZMQ_TCP_KEEPALIVE, 1);
  if (endpoint.find('[') != std::string::npos) (*socket)->Set(ZMQ_IPV6, 1);
  if (!curve_secret_.empty()) (*socket)->Encrypt(curve_secret_);
  if (type == ZMQ_ROUTER) {
    // Without it ZeroMQ drops messages to a slow or gone client in silence; with it `Send` fails,
    // with EAGAIN or EHOSTUNREACH, and the replay is tried again or given up.
    (*socket)->Set(ZMQ_ROUTER_MANDATORY, 1);
    // Requests are a few bytes.
    (*socket)->Set(ZMQ_MAXMSGSIZE, 4096);
  }
  if (absl::Status status = (*socket)->Attach(endpoint, bind); !status.ok()) return status;
  *attached = bind ? (*socket)->LastEndpoint() : endpoint;
  return absl::OkStatus();
}

// Order is kept: an engine's own batch flushes what was encoded before it. A clear is flushed at
// once.
void ZmqPublisher::Impl::Add(const Record& record) {
  switch (record.kind) {
    case Record::kStored:
      AddRun(record);
      break;
    case Record::kRemoved:
      Remove(record.tier, record.hashes);
      break;
    case Record::kStoredHashed:
    case Record::kRemovedHashed:
    case Record::kStoredSide:
    case Record::kRemovedSide: {
      MutexLock lock(&mutex_);
      ++stats_.calls_untold;
      break;
    }
    case Record::kCleared:
      encoder_.AllCleared();
      Flush();
      break;
    case Record::kLayout:
    case Record::kLoad:
      break;
    case Record::kEngineBatch:
      Flush();
      if (!record.payload.empty()) Append(std::string(record.payload));
      break;
  }
}

// A run of more than `kEventBlocksMax` blocks becomes several events, each after the last block of
// the one before.
void ZmqPublisher::Impl::AddRun(const Record& record) {
  std::optional<uint64_t> parent;
  if (record.has_parent) parent = record.parent;
  for (size_t at = 0; at < record.hashes.size(); at += kEventBlocksMax) {
    const size_t count = std::min(kEventBlocksMax, record.hashes.size() - at);
    const auto hashes = record.hashes.subspan(at, count);
    encoder_.Stored({.tier = record.tier,
                     .hashes = hashes,
                     .parent = parent,
                     .tokens = record.tokens.empty()
                                   ? record.tokens
                                   : record.tokens.subspan(at * block_size_, count * block_size_),
                     .lora_name = record.lora_name,
                     .cache_salt = record.cache_salt});
    parent = hashes.back();
    if (encoder_.bytes() >= kBatchBytes) Flush();
  }
}

void ZmqPublisher::Impl::Remove(Tier tier, std::span<const uint64_t> hashes) {
  for (size_t at = 0; at < hashes.size(); at += kEventBlocksMax) {
    encoder_.Removed(tier, hashes.subspan(at, std::min(kEventBlocksMax, hashes.size() - at)));
    if (encoder_.bytes() >= kBatchBytes) Flush();
  }
}

void ZmqPublisher::Impl::Flush() {
  if (encoder_.events() > 0) Append(encoder_.Finish(static_cast<double>(WallTimeNs()) * 1e-9));
}

// Numbers the batch and puts it into the ring, dropping the oldest beyond the ring's bounds. A
// batch larger than the ring still uses up a number: consumers see a gap, and no silent loss. A
// sleeping socket thread is woken by the eventfd, which costs a system call only then.
void ZmqPublisher::Impl::Append(std::string payload) {
  auto shared = std::make_shared<const std::string>(std::move(payload));
  {
    MutexLock lock(&mutex_);
    if (stop_at_ != Time::max()) return;
    const uint64_t number = next_number_++;
    if (shared->size() > options_.ring_bytes_max) {
      ++stats_.batches_lost;
      return;
    }
    ring_bytes_ += shared->size();
    ring_.push_back({number, std::move(shared)});
    while (ring_.size() > options_.ring_batches_max || ring_bytes_ > options_.ring_bytes_max) {
      DropOldest();
    }
    if (!std::exchange(asleep_, false)) return;
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
}

// A batch that was not sent yet is lost.
void ZmqPublisher::Impl::DropOldest() {
  if (ring_.front().number >= unsent_) ++stats_.batches_lost;
  ring_bytes_ -= ring_.front().payload->size();
  ring_.pop_front();
}

// The socket thread. Each round: a turn of live batches, new requests, a turn of each replay in
// order. It sleeps only when a round moved nothing, and sets `asleep_` under the lock that `Append`
// takes, so that no wake-up is missed. On stop it sends until all is sent or the time is up.
void ZmqPublisher::Impl::Run() {
  for (;;) {
    const std::vector<NumberedBatch> live = TakeLive();
    SendLive(live);
    if (router_ != nullptr) TakeRequests();
    bool moved = !live.empty();
    for (size_t turns = replays_.size(); turns > 0; --turns) {
      Replay replay = std::move(replays_.front());
      replays_.pop_front();
      const uint64_t before = replay.next;
      const bool going_on = Continue(&replay);
      moved |= replay.next != before;
      if (going_on) replays_.push_back(std::move(replay));
    }
    {
      MutexLock lock(&mutex_);
      const bool all_sent = unsent_ == next_number_;
      const bool stopping = stop_at_ != Time::max();
      if (stopping && (all_sent || Clock::Real().Now() >= stop_at_)) return;
      if (moved || !all_sent) continue;
      asleep_ = true;
    }
    Wait(replays_.empty() ? std::chrono::milliseconds(-1) : kReplayRetry);
  }
}

// Until a batch, a request or the timeout; -1: none. Replays that are stuck are retried by the
// timeout.
void ZmqPublisher::Impl::Wait(std::chrono::milliseconds at_most) {
  std::array<zmq_pollitem_t, 2> items = {
      zmq_pollitem_t{.socket = nullptr, .fd = wake_fd_, .events = ZMQ_POLLIN, .revents = 0},
      zmq_pollitem_t{.socket = router_ == nullptr ? nullptr : router_->get(),
                     .fd = 0,
                     .events = ZMQ_POLLIN,
                     .revents = 0}};
  zmq_poll(items.data(), router_ == nullptr ? 1 : 2, at_most.count());
  uint64_t wakes = 0;
  [[maybe_unused]] const ssize_t drained = read(wake_fd_, &wakes, sizeof(wakes));
}

// At most `kLiveTurn` batches from `unsent_` on. The ring is sorted by number but has gaps, hence
// the search.
std::vector<NumberedBatch> ZmqPublisher::Impl::TakeLive() {
  std::vector<NumberedBatch> batches;
  MutexLock lock(&mutex_);
  auto at = std::partition_point(ring_.begin(), ring_.end(),
                                 [this](const NumberedBatch& batch) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                                   return batch.number < unsent_;
                                 });
  for (; at != ring_.end() && batches.size() < kLiveTurn; ++at) batches.push_back(*at);
  unsent_ = at == ring_.end() ? next_number_ : at->number;
  stats_.batches_sent += batches.size();
  return batches;
}

// A PUB socket never waits: a subscriber that it cannot reach loses the message.
void ZmqPublisher::Impl::SendLive(const std::vector<NumberedBatch>& batches) {
  for (const NumberedBatch& batch : batches) {
    pub_->Send(options_.topic, /*more=*/true);
    pub_->Send(BigEndian(batch.number), /*more=*/true);
    pub_->SendLast(batch.payload);
  }
}

// Reads all requests that wait: [client, "", number]. A client that asks again gets only the new
// answer. A replay ends at what was sent live so far, so that nothing is missed between the two.
void ZmqPublisher::Impl::TakeRequests() {
  for (;;) {
    std::vector<std::string> frames = router_->Receive();
    if (frames.empty()) return;
    const bool fits = frames.size() == 3 && frames[1].empty() && frames[2].size() == 8;
    // An earlier question of this client is void.
    std::erase_if(replays_, [&](const Replay& replay) { return replay.client == frames[0]; });
    MutexLock lock(&mutex_);
    if (!fits || replays_.size() >= kReplaysMax) {
      ++stats_.replays_refused;
      continue;
    }
    ++stats_.replays;
    replays_.push_back({.client = std::move(frames[0]),
                        .next = FromBigEndian(frames[2]),
                        .end = unsent_,
                        .moved_at = Clock::Real().Now()});
  }
}

// Batches that the ring has dropped are skipped: the client sees the gap in the numbers.
std::vector<NumberedBatch> ZmqPublisher::Impl::TakeOld(const Replay& replay) const {
  std::vector<NumberedBatch> batches;
  MutexLock lock(&mutex_);
  auto at = std::partition_point(ring_.begin(), ring_.end(), [&](const NumberedBatch& batch) {
    return batch.number < replay.next;
  });
  for (; at != ring_.end() && at->number < replay.end && batches.size() < kReplayTurn; ++at) {
    batches.push_back(*at);
  }
  return batches;
}

// Sends a turn of the replay, and the end marker when nothing is left. A client that takes nothing
// is given up after `kReplayPatience`, one that has gone at once.
bool ZmqPublisher::Impl::Continue(Replay* replay) {
  const std::vector<NumberedBatch> batches = TakeOld(*replay);
  size_t sent = 0;
  bool ended = false;
  while (sent < batches.size() &&
         SendTo(*replay, batches[sent].number, batches[sent].payload, options_.topic)) {
    replay->next = batches[sent++].number + 1;
  }
  if (batches.empty()) {
    ended = SendTo(*replay, kEndNumber, std::make_shared<const std::string>(), "");
  }
  const bool stuck = sent < batches.size() || (batches.empty() && !ended);
  const bool gone = stuck && zmq_errno() != EAGAIN;
  const Time now = Clock::Real().Now();
  if (sent > 0) {
    replay->moved_at = now;
    MutexLock lock(&mutex_);
    stats_.batches_replayed += sent;
  }
  return !ended && !gone && now - replay->moved_at < kReplayPatience;
}

// One message to one client. Only the first frame, the client's address, can fail: ZeroMQ takes a
// message whole.
bool ZmqPublisher::Impl::SendTo(const Replay& replay, uint64_t number, const Payload& payload,
                                const std::string& topic) {
  if (!router_->Send(replay.client, /*more=*/true)) return false;
  router_->Send("", /*more=*/true);
  if (options_.replay_layout == ZmqReplayLayout::kTopic) router_->Send(topic, /*more=*/true);
  router_->Send(BigEndian(number), /*more=*/true);
  router_->SendLast(payload);
  return true;
}

ZmqPublisherStats ZmqPublisher::Impl::Stats() const {
  MutexLock lock(&mutex_);
  ZmqPublisherStats stats = stats_;
  stats.endpoint = endpoint_;
  stats.replay_endpoint = replay_endpoint_;
  stats.next_number = next_number_;
  stats.ring_batches = ring_.size();
  stats.ring_bytes = ring_bytes_;
  return stats;
}

// The linger lets ZeroMQ write its queues for at most a second more after the socket is closed.
void ZmqPublisher::Impl::Stop(Duration flush_for) {
  if (!thread_.joinable()) return;
  Flush();
  {
    MutexLock lock(&mutex_);
    stop_at_ = Clock::Real().Now() + flush_for;
  }
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_fd_, &one, sizeof(one));
  thread_.join();
  const auto linger = std::chrono::duration_cast<std::chrono::milliseconds>(flush_for);
  pub_->Set(ZMQ_LINGER, static_cast<int>(std::clamp<int64_t>(linger.count(), 0, 1000)));
}

ZmqPublisher::ZmqPublisher(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ZmqPublisher::~ZmqPublisher() = default;

absl::StatusOr<std::unique_ptr<ZmqPublisher>> ZmqPublisher::Create(
    const ZmqPublisherOptions& options, uint32_t block_size, uint32_t rank) {
  if (options.ring_batches_max == 0 || options.ring_bytes_max == 0 || options.send_hwm < 1) {
    return absl::InvalidArgumentError("ZMQ ring and send_hwm: at least 1");
  }
  absl::StatusOr<std::string> endpoint = ZmqEndpointOfRank(options.endpoint, rank);
  if (!endpoint.ok()) return endpoint.status();
  absl::StatusOr<std::string> replay_endpoint = std::string();
  if (!options.replay_endpoint.empty()) {
    replay_endpoint = ZmqEndpointOfRank(options.replay_endpoint, rank);
    if (!replay_endpoint.ok()) return replay_endpoint.status();
  }
  auto impl = std::make_unique<Impl>(options, block_size, rank);
  if (absl::Status status = impl->Start(*endpoint, *replay_endpoint); !status.ok()) return status;
  return std::unique_ptr<ZmqPublisher>(new ZmqPublisher(std::move(impl)));
}

void ZmqPublisher::Add(const Record& record) { impl_->Add(record); }
void ZmqPublisher::Remove(Tier tier, std::span<const uint64_t> hashes) {
  impl_->Remove(tier, hashes);
}
void ZmqPublisher::Flush() { impl_->Flush(); }
ZmqPublisherStats ZmqPublisher::Stats() const { return impl_->Stats(); }
void ZmqPublisher::Stop(Duration flush_for) { impl_->Stop(flush_for); }

}  // namespace kvatlas
