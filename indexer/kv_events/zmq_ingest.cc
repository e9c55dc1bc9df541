// Streams and the lanes that read them: which lane, which checks, and the calls of other threads.
// Streams themselves are in zmq_stream.cc, their threads in zmq_lane.cc.
//
// *Lock order*: `mutex_`, then a lane's, a shared socket's, a stream's. `Remove` and `Stop` wait
// for lanes without `mutex_`.

#include "indexer/kv_events/zmq_ingest.h"

#include <zmq.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "indexer/kv_events/stream_worker.h"
#include "indexer/kv_events/zmq_lane.h"
#include "indexer/kv_events/zmq_names.h"
#include "indexer/kv_events/zmq_shared.h"
#include "indexer/kv_events/zmq_stream.h"
#include "indexer/net/connection_account.h"
#include "indexer/security/security.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

constexpr uint32_t kLanesMax = 8;  // by default
constexpr uint32_t kLanesAskedMax = 256;
// libzmq's own limit of sockets; a stream takes three, and one more during a replay.
constexpr int kSocketsMax = 65535;

// As many lanes as cores, within the bounds, where no number is asked for.
size_t LaneCount(uint32_t asked) {
  if (asked > 0) return std::min(asked, kLanesAskedMax);
  return std::clamp(std::thread::hardware_concurrency(), 1u, kLanesMax);
}

absl::Status NoStream(ZmqStreamId stream) {
  return absl::NotFoundError("no stream " + std::to_string(stream));
}

}  // namespace

// A context given by the options is shared and not ended here. Shared sockets bind at once, so that
// engines can dial before the gate opens; a failure is in `status`.
ZmqIngest::ZmqIngest(ZmqIngestOptions options)
    : options_(std::move(options)),
      enforces_(Security::OfProcess()->enforces()),
      names_(std::make_unique<ZmqNames>(options_.addresses, options_.resolve,
                                        options_.reconnect_max)) {
  RaiseDescriptorLimit();  // a stream takes four descriptors, and one more during a replay
  if (options_.curve.has_value()) {
    curve_ = *options_.curve;
  } else if (absl::StatusOr<CurveKeys> made = MakeCurveKeys(); made.ok()) {
    curve_ = *std::move(made);
  }
  context_ = options_.zmq_context;
  if (context_ == nullptr) {
    context_ = zmq_ctx_new();
    own_context_ = true;
    zmq_ctx_set(context_, ZMQ_IO_THREADS, static_cast<int>(options_.io_threads));
    zmq_ctx_set(context_, ZMQ_MAX_SOCKETS, kSocketsMax);
  }
  const size_t lanes = LaneCount(options_.decode_threads);
  for (size_t i = 0; i < lanes; ++i) {
    lanes_.push_back(
        std::make_unique<ZmqLane>(options_.lane_bytes_max, options_.message_bytes_max));
  }
  {
    MutexLock lock(&mutex_);
    lane_streams_.resize(lanes);
  }
  for (const ZmqSharedSocket& socket : options_.shared) status_.Update(OpenShared(socket));
}

ZmqStreamSettings ZmqIngest::Settings() const {
  return {.context = context_,
          .socket = {.receive_hwm = options_.receive_hwm,
                     .heartbeat = options_.heartbeat,
                     .reconnect_min = options_.reconnect_min,
                     .reconnect_max = options_.reconnect_max,
                     .message_bytes_max = static_cast<int64_t>(options_.message_bytes_max),
                     .curve = curve_},
          .clock = options_.clock,
          .gate = &gate_};
}

// A socket that engines dial. Such sockets are spread over the lanes; a topic's stream is fed in
// the lane of its socket.
absl::Status ZmqIngest::OpenShared(const ZmqSharedSocket& socket) {
  const ZmqSource source = {.worker_name = socket.endpoint,
                            .endpoint = socket.endpoint,
                            .topic = socket.topic,
                            .bind = true,
                            .from_flags = true};
  if (absl::Status bad = CheckZmqSource(source, options_.addresses); !bad.ok()) return bad;
  if (absl::Status bad = CheckPlain(source); !bad.ok()) return bad;
  Shared shared{.topics = std::make_shared<ZmqShared>(socket),
                .stream = nullptr,
                .lane = shared_.size() % lanes_.size()};
  absl::StatusOr<std::shared_ptr<ZmqStream>> stream =
      ZmqStream::MakeShared(Settings(), source, shared.topics);
  if (!stream.ok()) return stream.status();
  shared.stream = *std::move(stream);
  lanes_[shared.lane]->Add(shared.stream);
  shared_.emplace(socket.endpoint, std::move(shared));
  return absl::OkStatus();
}

// All sockets are closed by then: `zmq_ctx_term` waits for every one of the context.
ZmqIngest::~ZmqIngest() {
  Stop();
  if (own_context_) zmq_ctx_term(context_);
}

absl::StatusOr<ZmqStreamId> ZmqIngest::Add(const ZmqSource& source,
                                           std::shared_ptr<EngineWorker> worker,
                                           std::optional<StreamPosition> resume) {
  const void* const group = worker.get();
  return Add(source, group,
             std::make_unique<StreamWorker>(source.worker_name, source.rank, std::move(worker)),
             resume);
}

absl::StatusOr<ZmqStreamId> ZmqIngest::Add(const ZmqSource& source, const void* group,
                                           std::unique_ptr<StreamWorker> worker,
                                           std::optional<StreamPosition> resume) {
  if (absl::Status bad = CheckZmqSource(source, options_.addresses); !bad.ok()) return bad;
  if (absl::Status bad = CheckPlain(source); !bad.ok()) return bad;
  const auto of = source.bind ? shared_.find(source.endpoint) : shared_.end();
  const Shared* const shared = of == shared_.end() ? nullptr : &of->second;
  MutexLock lock(&mutex_);
  if (stopped_) return absl::UnavailableError("stopped");
  // A topic's stream has to be in its socket's lane; others share a lane with their group.
  const size_t lane = shared != nullptr ? shared->lane : LaneOf(group);
  if (!lanes_[lane]->status().ok()) {
    return absl::UnavailableError(std::string(lanes_[lane]->status().message()));
  }
  absl::StatusOr<std::shared_ptr<ZmqStream>> stream =
      shared != nullptr
          ? ZmqStream::MakeFed(Settings(), source, options_.tracker, std::move(worker))
          : ZmqStream::Make(Settings(), source, options_.tracker, std::move(worker));
  if (!stream.ok()) return stream.status();
  if (resume) {
    if (absl::Status resumed = (*stream)->ResumeFrom(*resume); !resumed.ok()) return resumed;
  }
  lanes_[lane]->Add(*stream);
  if (!source.bind && !source.endpoint.starts_with("inproc://")) {
    // The names' threads hold the stream weakly: a removed one is not kept alive by a look-up.
    const std::weak_ptr<ZmqStream> poked = *stream;
    names_->Watch(*stream, [to = lanes_[lane].get(), poked] {
      if (std::shared_ptr<ZmqStream> found = poked.lock()) to->Poke(std::move(found));
    });
  }
  if (shared != nullptr) {
    shared->topics->Add(source.topic, *stream);
    lanes_[lane]->Poke(shared->stream);
  }
  entries_[++last_id_] = {.stream = *std::move(stream),
                          .lane = lane,
                          .group = group,
                          .shared = shared == nullptr ? nullptr : shared->topics,
                          .topic = source.topic};
  ++lane_streams_[lane];
  groups_[group].first = lane;
  ++groups_[group].second;
  return last_id_;
}

// Events in clear across a network: refused where the process has an access policy, unless
// `plain_engines` allows it; else a warning.
absl::Status ZmqIngest::CheckPlain(const ZmqSource& source) const {
  absl::Status plain = CheckEncrypted(source);
  if (plain.ok()) return plain;
  if (enforces_ && !options_.plain_engines) return plain;
  for (const std::string& endpoint : {source.endpoint, source.replay_endpoint}) {
    const absl::StatusOr<Address> address = TcpAddressOf(endpoint);
    if (address.ok() && !EngineAddresses::IsLoopback(address->host))  // said every minute
      Security::OfProcess()->MayGoInClear("engines", address->host, /*trusted=*/true).IgnoreError();
  }
  static LogLimiter limiter(std::chrono::minutes(10));
  LogEvery(limiter, "plain", LogLevel::kWarning, "engine events are not encrypted",
           {{"worker", source.worker_name}, {"reason", plain}});
  return absl::OkStatus();
}

// The group's lane, or that with the fewest streams.
size_t ZmqIngest::LaneOf(const void* group) const {
  const auto found = groups_.find(group);
  if (found != groups_.end()) return found->second.first;
  return std::min_element(lane_streams_.begin(), lane_streams_.end()) - lane_streams_.begin();
}

// The bookkeeping goes under the mutex; then the topic, so that nothing more is fed; then the lane,
// which waits for the turn under way.
void ZmqIngest::Remove(ZmqStreamId stream) {
  Entry entry;
  {
    MutexLock lock(&mutex_);
    const auto found = entries_.find(stream);
    if (found == entries_.end()) return;
    entry = std::move(found->second);
    entries_.erase(found);
    --lane_streams_[entry.lane];
    const auto group = groups_.find(entry.group);
    if (--group->second.second == 0) groups_.erase(group);
  }
  if (entry.shared != nullptr) entry.shared->Remove(entry.topic);
  lanes_[entry.lane]->Remove(entry.stream);
}

// A copy: the stream stays alive for the caller, and no lock is held while it is used.
std::optional<ZmqIngest::Entry> ZmqIngest::Find(ZmqStreamId stream) const {
  MutexLock lock(&mutex_);
  const auto found = entries_.find(stream);
  if (found == entries_.end()) return std::nullopt;
  return found->second;
}

absl::Status ZmqIngest::ResumeFrom(ZmqStreamId stream, const StreamPosition& position,
                                   bool earlier) {
  const std::optional<Entry> entry = Find(stream);
  if (!entry) return NoStream(stream);
  if (gate_.load(std::memory_order_acquire)) {
    return absl::FailedPreconditionError("the gate is open");
  }
  return entry->stream->ResumeFrom(position, earlier);
}

absl::Status ZmqIngest::Pause(ZmqStreamId stream) {
  const std::optional<Entry> entry = Find(stream);
  return entry ? entry->stream->Pause() : NoStream(stream);
}

absl::Status ZmqIngest::Resume(ZmqStreamId stream) {
  const std::optional<Entry> entry = Find(stream);
  if (!entry) return NoStream(stream);
  const absl::Status resumed = entry->stream->Resume();
  if (resumed.ok()) lanes_[entry->lane]->Poke(entry->stream);
  return resumed;
}

// Once. Lanes look at all their streams then, since messages that came before made their edges
// already.
void ZmqIngest::OpenGate() {
  if (gate_.exchange(true, std::memory_order_acq_rel)) return;
  for (const std::unique_ptr<ZmqLane>& lane : lanes_) lane->Poke(nullptr);
}

absl::Status ZmqIngest::WithPosition(
    ZmqStreamId stream, const std::function<void(std::optional<StreamPosition>)>& cut) {
  const std::optional<Entry> entry = Find(stream);
  if (!entry) return NoStream(stream);
  entry->stream->WithPosition(cut);
  return absl::OkStatus();
}

absl::StatusOr<ZmqStreamStats> ZmqIngest::Stats(ZmqStreamId stream) const {
  const std::optional<Entry> entry = Find(stream);
  if (!entry) return NoStream(stream);
  return entry->stream->Stats();
}

absl::StatusOr<std::string> ZmqIngest::BoundEndpoint(ZmqStreamId stream) const {
  const std::optional<Entry> entry = Find(stream);
  if (!entry) return NoStream(stream);
  if (entry->stream->bound_endpoint().empty()) {
    return absl::FailedPreconditionError("the stream connects");
  }
  return entry->stream->bound_endpoint();
}

// All streams are abandoned first, so that no lane starts another turn of one while others end.
void ZmqIngest::Stop() {
  std::map<ZmqStreamId, Entry> entries;
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
    entries.swap(entries_);
    lane_streams_.assign(lane_streams_.size(), 0);
    groups_.clear();
  }
  for (const auto& [id, entry] : entries) entry.stream->Abandon();
  names_->Stop();
  for (const std::unique_ptr<ZmqLane>& lane : lanes_) lane->Stop();
}

}  // namespace kvatlas
