#include "indexer/transport/redis/redis_link.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"
#include "indexer/net/redis_client.h"
#include "indexer/stream/validate.h"
#include "indexer/telemetry/log.h"
#include "indexer/transport/redis/redis_entry.h"
#include "indexer/transport/redis/redis_keys.h"
#include "indexer/transport/redis/redis_scripts.h"
#include "indexer/transport/redis/redis_shards.h"

namespace kvatlas {
namespace {

constexpr char kNewsMax[] = "1000";
constexpr Duration kBackBlock = std::chrono::seconds(1);
constexpr Duration kBackRetry = std::chrono::milliseconds(100);
constexpr Duration kBackoffInitial = std::chrono::milliseconds(50);
constexpr Duration kBackoffMax = std::chrono::seconds(1);
// A reader that asks for a snapshot so soon after one looks again.
constexpr Duration kSnapshotFresh = std::chrono::milliseconds(500);
constexpr size_t kReadersMax = 256;
// Of registrations in a row, before the link waits.
constexpr int kDisbelievedMax = 3;

LogLimiter& LinkLog() {
  static LogLimiter& limiter = *new LogLimiter(std::chrono::seconds(10));
  return limiter;
}

// The fields of a stream's entry as a map.
std::map<std::string, std::string> FieldsOf(const RedisReply& entry) {
  std::map<std::string, std::string> fields;
  if (entry.elements.size() < 2) return fields;
  const std::vector<RedisReply>& flat = entry.elements[1].elements;
  for (size_t i = 0; i + 1 < flat.size(); i += 2) fields[flat[i].text] = flat[i + 1].text;
  return fields;
}

}  // namespace

// A connection, as the observer knows it, has a number (`connection`); answers to commands of an
// earlier one are ignored. `mutex` is not held while the observer or the client is called back;
// `client` takes its own below it.
class RedisLink::Core {
 public:
  Core(const RedisLogOptions& options, const Clock* clock, RedisConnectFn connect)
      : options_(options), clock_(*clock), connect_(std::move(connect)) {}

  void Start(SenderLinkObserver* observer);
  bool Write(const SenderMessage& message);
  void Reset();
  void Stop(Duration flush_for);
  bool Confirmed(BatchNumber number) const;
  RedisLinkStats Stats() const;

 private:
  using Reply = absl::StatusOr<RedisReply>;
  struct Kept {
    RedisEntryId id;
    Time at;
    size_t bytes;
  };
  struct Reader {
    BatchNumber applied = 0;
    Time heard{0};
  };
  // The stream that this link carries, from its first hello on.
  struct Stream {
    std::string name;
    RedisStreamKeys keys;
    Epoch epoch;
    uint64_t instance_id;
    Hello hello;
    uint64_t signed_by;   // generation of the keys, in the registration
    int disbelieved = 0;  // registrations that no key of ours signed, since the last welcome
    std::string Owner() const { return RedisPadded(epoch) + RedisHex(instance_id); }
  };

  RedisSeal SealOf(const Stream& stream, bool snapshot = false) const {
    return {.keys = options_.redis.record_keys.get(),
            .cell = options_.cell,
            .stream = stream.name,
            .snapshot = snapshot};
  }
  uint64_t KeysGeneration() const {
    return options_.redis.record_keys == nullptr ? 0 : options_.redis.record_keys->generation();
  }
  std::string RegistrationOf(const Stream& stream) const {
    return EncodeRedisEntry(stream.hello, RedisEntryId::Of(stream.epoch, 0), SealOf(stream));
  }

  // On the client's thread.
  void OnRedis(const absl::Status& state);
  void Connect();
  void Disconnect(uint64_t connection, const absl::Status& why);
  void OnShards(uint64_t connection, const Reply& reply);
  void OnHelloReply(uint64_t connection, const Reply& reply);
  bool MadeUp(const std::vector<RedisReply>& refused) const;
  void OnMadeUp(uint64_t connection, const std::string& registration);
  void OnEntryReply(uint64_t connection, const RedisEntryId& id, bool log, size_t bytes,
                    const Reply& reply);
  void OnSnapshotIn(uint64_t connection, const RedisEntryId& id);
  void OnHeartbeatReply(uint64_t connection, const Reply& reply);
  void DeliverAck(uint64_t connection);
  void ReadBack(uint64_t connection);
  void OnBack(uint64_t connection, const Reply& reply);
  void OnReaderSaid(const std::map<std::string, std::string>& said,
                    std::vector<ReceiverMessage>* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellWritable(uint64_t connection);
  bool Current(uint64_t connection) const {
    MutexLock lock(&mutex_);
    return connected_ && connection == connection_ && !stopped_;
  }

  bool SayAny(const SenderMessage& message) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Say(const Hello& hello) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool SayHello(const std::string& disbelieved) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Say(const Batch& batch) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Say(const SnapshotPart& part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Say(const Heartbeat& heartbeat) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Say(const Goodbye& goodbye) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds an entry to log or snapshot; false: no room.
  bool Add(const std::string& key, const SenderMessage& message, const RedisEntryId& id)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Send(RedisArgs args, RedisCallback callback) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Keep(const RedisEntryId& id, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void GiveBackHalf() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropReaders(Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RedisLogOptions options_;
  const Clock& clock_;
  const RedisConnectFn connect_;

  mutable Mutex mutex_;
  CondVar idle_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool redis_up_ ABSL_GUARDED_BY(mutex_) = false;
  bool connected_ ABSL_GUARDED_BY(mutex_) = false;
  bool backing_off_ ABSL_GUARDED_BY(mutex_) = false;
  bool wants_room_ ABSL_GUARDED_BY(mutex_) = false;
  bool snapshot_waits_ ABSL_GUARDED_BY(mutex_) = false;  // for its parts to be in
  bool ack_due_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t connection_ ABSL_GUARDED_BY(mutex_) = 0;
  Duration backoff_ ABSL_GUARDED_BY(mutex_) = kBackoffInitial;
  std::optional<Stream> stream_ ABSL_GUARDED_BY(mutex_);
  std::string back_from_ ABSL_GUARDED_BY(mutex_);  // id last read
  size_t outstanding_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t outstanding_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  BatchNumber written_ ABSL_GUARDED_BY(mutex_) = 0;  // acknowledged by Redis
  uint64_t parts_out_ ABSL_GUARDED_BY(mutex_) = 0;   // of the snapshot, unacknowledged
  std::optional<SnapshotPart> marker_ ABSL_GUARDED_BY(mutex_);
  BatchNumber snapshot_in_ ABSL_GUARDED_BY(mutex_) = 0;  // `as_of` of the last complete one
  Time snapshot_at_ ABSL_GUARDED_BY(mutex_){0};
  std::deque<Kept> kept_ ABSL_GUARDED_BY(mutex_);  // in the log
  uint64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  Time looked_ ABSL_GUARDED_BY(mutex_){0};
  mutable std::map<std::string, Reader> readers_ ABSL_GUARDED_BY(mutex_);
  RedisLinkStats stats_ ABSL_GUARDED_BY(mutex_);
  std::string refused_by_ ABSL_GUARDED_BY(mutex_);  // the reader of `last_refusal`
  // Immutable from `Start` on.
  SenderLinkObserver* observer_ = nullptr;
  std::unique_ptr<RedisCommands> client_;
};

// ---- Any thread ----

void RedisLink::Core::Start(SenderLinkObserver* observer) {
  observer_ = observer;
  // The state may be told before the pointer is set; the mutex makes observers wait.
  MutexLock lock(&mutex_);
  client_ = connect_(options_.redis, [this](const absl::Status& state) { OnRedis(state); });
}

bool RedisLink::Core::Write(const SenderMessage& message) {
  MutexLock lock(&mutex_);
  if (!connected_ || stopped_) return false;
  const bool hello = std::holds_alternative<Hello>(message);
  const bool full = outstanding_ > 0 && (outstanding_ >= 2 * options_.credit_batches ||
                                         outstanding_bytes_ >= options_.buffer_bytes_max);
  if (full || snapshot_waits_ || (!hello && !stream_.has_value())) {
    wants_room_ = true;
    return false;
  }
  if (SayAny(message)) return true;
  wants_room_ = true;
  return false;
}

bool RedisLink::Core::SayAny(const SenderMessage& message) {
  if (const auto* hello = std::get_if<Hello>(&message)) return Say(*hello);
  if (const auto* batch = std::get_if<Batch>(&message)) return Say(*batch);
  if (const auto* part = std::get_if<SnapshotPart>(&message)) return Say(*part);
  if (const auto* heartbeat = std::get_if<Heartbeat>(&message)) return Say(*heartbeat);
  return Say(std::get<Goodbye>(message));
}

bool RedisLink::Core::Send(RedisArgs args, RedisCallback callback) {
  size_t bytes = 0;
  for (const std::string& arg : args) bytes += arg.size();
  const uint64_t connection = connection_;
  absl::Status sent = client_->Send(
      std::move(args), [this, bytes, connection, callback = std::move(callback)](Reply reply) {
        {
          MutexLock lock(&mutex_);
          --outstanding_;
          outstanding_bytes_ -= bytes;
          if (outstanding_ == 0) idle_.SignalAll();
        }
        callback(std::move(reply));
        TellWritable(connection);
      });
  if (!sent.ok()) return false;
  ++outstanding_;
  outstanding_bytes_ += bytes;
  stats_.bytes_written += bytes;
  return true;
}

bool RedisLink::Core::Say(const Hello& hello) {
  const std::string name = RedisStreamName(hello.holder, hello.domain);
  const std::string tag = RedisTag(options_.cell, RedisShardOf(name, options_.shards));
  if (stream_.has_value() && stream_->epoch != hello.epoch) {
    kept_.clear();
    kept_bytes_ = 0;
    written_ = snapshot_in_ = 0;
    readers_.clear();
  }
  stream_.emplace(Stream{name, RedisStreamKeys(tag, name), hello.epoch, hello.instance_id, hello,
                         KeysGeneration()});
  RecordKeys* const keys = options_.redis.record_keys.get();
  if (keys == nullptr || !keys->Sign(hello.holder.name, "", "").mac.empty()) return SayHello("");
  const absl::Status none = absl::FailedPreconditionError(
      "no key of log_key signs for worker " + hello.holder.name +
      ": expected the cell's, or worker:" + hello.holder.name + ":… (kvatlas pki record-key)");
  client_->RunAfter(Duration(0),
                    [this, connection = connection_, none] { Disconnect(connection, none); });
  return true;
}

bool RedisLink::Core::SayHello(const std::string& disbelieved) {
  const Stream& stream = *stream_;
  const Hello& hello = stream.hello;
  const uint64_t connection = connection_;
  return Send(
      {"EVAL", kRedisHelloScript, "5", stream.keys.streams, stream.keys.news, stream.keys.log,
       stream.keys.snap, stream.keys.back, stream.name, RedisPadded(hello.epoch),
       RedisHex(hello.instance_id), RegistrationOf(stream), std::to_string(hello.epoch),
       std::to_string(options_.log_ttl / std::chrono::milliseconds(1)), kNewsMax,
       RedisPadded(RedisEntryId::Before(hello.epoch, hello.last_sent + 1).seq),
       RedisPadded(clock_.WallNs() + kEpochAheadMax / Duration(1)),
       std::to_string(options_.lease_ttl / std::chrono::milliseconds(1)), disbelieved},
      [this, connection](const Reply& reply) { OnHelloReply(connection, reply); });
}

bool RedisLink::Core::Add(const std::string& key, const SenderMessage& message,
                          const RedisEntryId& id) {
  const bool log = key == stream_->keys.log;
  std::string bytes = EncodeRedisEntry(message, id, SealOf(*stream_, /*snapshot=*/!log));
  const size_t size = bytes.size();
  RedisArgs args = {"XADD", key};
  if (log) {
    const Time now = clock_.Now();
    while (!kept_.empty() && (kept_.size() >= options_.log_entries_max ||
                              kept_bytes_ + size > options_.log_bytes_max ||
                              now - kept_.front().at > options_.log_age_max)) {
      kept_bytes_ -= kept_.front().bytes;
      kept_.pop_front();
    }
    // What the log does not go on from is of no use.
    if (snapshot_in_ > 0 && !kept_.empty() && kept_.front().id.number() > snapshot_in_ + 1) {
      Send({"UNLINK", stream_->keys.snap}, [](const Reply&) {});
      snapshot_in_ = 0;
    }
    args.push_back("NOMKSTREAM");
    if (!kept_.empty()) {
      args.insert(args.end(), {"MINID", "~", kept_.front().id.ToString()});
    }
  }
  args.insert(args.end(), {id.ToString(), kRedisEntryField, std::move(bytes)});
  const uint64_t connection = connection_;
  return Send(std::move(args), [this, connection, id, log, size](const Reply& reply) {
    OnEntryReply(connection, id, log, size, reply);
  });
}

// A stream that is never silent sends no heartbeats; it needs them all the same.
bool RedisLink::Core::Say(const Batch& batch) {
  const RedisEntryId id = RedisEntryId::Of(stream_->epoch, batch.number);
  if (!Add(stream_->keys.log, batch, id)) return false;
  if (clock_.Now() - looked_ >= options_.look_every) Say(Heartbeat{.last_sent = batch.number});
  return true;
}

bool RedisLink::Core::Say(const SnapshotPart& part) {
  if (!Add(stream_->keys.snap, part, RedisEntryId::Of(stream_->epoch, part.as_of, part.part))) {
    return false;
  }
  ++parts_out_;
  if (!part.last) return true;
  snapshot_waits_ = true;  // until its marker is on the way
  marker_ = part;
  marker_->stored.clear();
  return true;
}

// A registration outlives the key that signed it: it is signed again when the keys changed, for
// leaves that start later.
bool RedisLink::Core::Say(const Heartbeat& heartbeat) {
  const uint64_t connection = connection_;
  const RedisStreamKeys& keys = stream_->keys;
  looked_ = clock_.Now();
  const uint64_t generation = KeysGeneration();
  const bool again = generation != stream_->signed_by;
  const bool sent =
      Send({"EVAL", kRedisHeartbeatScript, "5", keys.streams, keys.news, keys.log, keys.snap,
            keys.back, stream_->name, stream_->Owner(), std::to_string(stream_->epoch),
            std::to_string(heartbeat.last_sent),
            std::to_string(options_.log_ttl / std::chrono::milliseconds(1)), kNewsMax,
            again ? RegistrationOf(*stream_) : ""},
           [this, connection](const Reply& reply) { OnHeartbeatReply(connection, reply); });
  if (sent) stream_->signed_by = generation;
  return sent;
}

bool RedisLink::Core::Say(const Goodbye& goodbye) {
  const RedisStreamKeys& keys = stream_->keys;
  const RedisEntryId last = RedisEntryId::Last(stream_->epoch);
  return Send({"EVAL", kRedisGoodbyeScript, "5", keys.streams, keys.news, keys.log, keys.snap,
               keys.back, stream_->name, stream_->Owner(), std::to_string(stream_->epoch), kNewsMax,
               EncodeRedisEntry(goodbye, last, SealOf(*stream_))},
              [](const Reply&) {});
}

void RedisLink::Core::Reset() {
  uint64_t connection;
  {
    MutexLock lock(&mutex_);
    if (client_ == nullptr || !connected_) return;
    connection = connection_;
  }
  client_->RunAfter(Duration(0), [this, connection] {
    Disconnect(connection, absl::UnavailableError("reset by the sender"));
  });
}

void RedisLink::Core::Stop(Duration flush_for) {
  {
    MutexLock lock(&mutex_);
    if (client_ == nullptr) return;
    const Time until = clock_.Now() + flush_for;
    while (outstanding_ > 0 && connected_ && !stopped_) {
      const Duration left = until - clock_.Now();
      if (left <= Duration(0)) break;
      idle_.WaitFor(&mutex_, left);
    }
    stopped_ = true;
  }
  client_->Stop();
}

bool RedisLink::Core::Confirmed(BatchNumber number) const {
  MutexLock lock(&mutex_);
  DropReaders(clock_.Now());
  return !readers_.empty() &&
         std::all_of(readers_.begin(), readers_.end(),
                     [&](const auto& reader) { return reader.second.applied >= number; });
}

void RedisLink::Core::DropReaders(Time now) const {
  std::erase_if(readers_, [&](const auto& reader) {
    return now - reader.second.heard > options_.reader_ttl;
  });
}

RedisLinkStats RedisLink::Core::Stats() const {
  MutexLock lock(&mutex_);
  DropReaders(clock_.Now());
  RedisLinkStats stats = stats_;
  stats.readers = readers_.size();
  return stats;
}

// ---- Connections ----

void RedisLink::Core::OnRedis(const absl::Status& state) {
  uint64_t lost = 0;
  bool in_vain = false;
  {
    MutexLock lock(&mutex_);
    redis_up_ = state.ok();
    if (!state.ok() && connected_) lost = connection_;
    if (!state.ok()) stats_.last_loss = state;
    in_vain = !state.ok() && lost == 0 && !stopped_;
  }
  if (in_vain) observer_->OnUnreachable(state);
  if (lost != 0) Disconnect(lost, state);
  if (state.ok()) Connect();
}

void RedisLink::Core::Connect() {
  uint64_t connection;
  {
    MutexLock lock(&mutex_);
    if (stopped_ || connected_ || backing_off_ || !redis_up_) return;
    connection = ++connection_;
    connected_ = true;
    wants_room_ = snapshot_waits_ = ack_due_ = false;
    parts_out_ = 0;
    marker_.reset();
    RedisShardsQuestion question = AskForRedisShards(options_.cell, options_.shards);
    Send(std::move(question.write_if_absent), [](const Reply&) {});
    Send(std::move(question.read),
         [this, connection](const Reply& reply) { OnShards(connection, reply); });
  }
}

void RedisLink::Core::OnShards(uint64_t connection, const Reply& reply) {
  if (!Current(connection)) return;
  const absl::Status agreed = CheckRedisShards(reply, options_.shards);
  if (!agreed.ok()) return Disconnect(connection, agreed);
  observer_->OnConnected();
}

void RedisLink::Core::Disconnect(uint64_t connection, const absl::Status& why) {
  Duration wait;
  {
    MutexLock lock(&mutex_);
    if (!connected_ || connection != connection_ || stopped_) return;
    connected_ = false;
    backing_off_ = true;
    wait = backoff_;
    backoff_ = std::min(2 * backoff_, kBackoffMax);
    ++stats_.losses;
    stats_.last_loss = why;
  }
  observer_->OnDisconnected(why);
  client_->RunAfter(wait, [this] {
    {
      MutexLock lock(&mutex_);
      backing_off_ = false;
    }
    Connect();
  });
}

void RedisLink::Core::TellWritable(uint64_t connection) {
  {
    MutexLock lock(&mutex_);
    if (!wants_room_ || !connected_ || connection != connection_ || stopped_ || snapshot_waits_ ||
        outstanding_ > options_.credit_batches ||
        outstanding_bytes_ > options_.buffer_bytes_max / 2) {
      return;
    }
    wants_room_ = false;
  }
  observer_->OnWritable();
}

// ---- Answers ----

void RedisLink::Core::OnHelloReply(uint64_t connection, const Reply& reply) {
  if (!Current(connection)) return;
  if (!reply.ok()) return Disconnect(connection, reply.status());
  const std::vector<RedisReply>& fields = reply->elements;
  if (fields.size() >= 3 && fields[0].text == "refused") {
    if (MadeUp(fields)) return OnMadeUp(connection, fields[4].text);
    return observer_->OnMessage(Refuse{.code = absl::StatusCode::kFailedPrecondition,
                                       .reason = "a younger epoch is in Redis",
                                       .epoch = ParseUint64(fields[1].text).value_or(0),
                                       .instance_id = ParseUint64(fields[2].text, 16).value_or(0),
                                       .lapsed = fields.size() > 3 && fields[3].text == "1"});
  }
  if (fields.size() == 1 && fields[0].text == "ahead") {
    return observer_->OnMessage(Refuse{
        .code = absl::StatusCode::kFailedPrecondition,
        .reason = "the epoch is more than a day ahead of Redis' clock: set the clocks right"});
  }
  const auto last = fields.size() < 4 ? std::nullopt : RedisEntryId::Parse(fields[1].text);
  if (!last.has_value()) {
    return Disconnect(connection, absl::DataLossError("Redis answers the hello with nonsense"));
  }
  {
    MutexLock lock(&mutex_);
    if (fields[2].text == "new") {
      kept_.clear();
      kept_bytes_ = 0;
      snapshot_in_ = 0;
    }
    written_ = last->number();
    stream_->disbelieved = 0;
    back_from_ = fields[3].text;
  }
  observer_->OnMessage(
      Welcome{.next = last->number() + 1, .snapshot = false, .credit = options_.credit_batches});
  ReadBack(connection);
}

// Is the younger epoch for which Redis refuses a hello one that no key of ours signed? Without a
// registration it is the log's alone, and its sender, if there is one, registers again with its
// next heartbeat.
bool RedisLink::Core::MadeUp(const std::vector<RedisReply>& refused) const {
  if (options_.redis.record_keys == nullptr || refused.size() < 5) return false;
  const std::string_view registration = refused[4].text;
  const auto epoch = ParseUint64(refused[1].text);
  if (registration.size() < kRedisOwnerBytes || !epoch.has_value()) return true;
  MutexLock lock(&mutex_);
  const absl::StatusOr<SenderMessage> message = DecodeRedisEntry(
      registration.substr(kRedisOwnerBytes), RedisEntryId::Of(*epoch, 0), SealOf(*stream_));
  const Hello* const hello = message.ok() ? std::get_if<Hello>(&*message) : nullptr;
  return hello == nullptr || hello->epoch != *epoch ||
         RedisHex(hello->instance_id) != refused[2].text ||
         RedisStreamName(hello->holder, hello->domain) != stream_->name;
}

// The hello is said again, at once while that helps.
void RedisLink::Core::OnMadeUp(uint64_t connection, const std::string& registration) {
  LogEvery(LinkLog(), "made up", LogLevel::kError,
           "redis has a younger epoch of this stream that no key of ours signed",
           {{"redis", RedisHosts(options_.redis)}, {"cell", options_.cell}});
  {
    MutexLock lock(&mutex_);
    if (!connected_ || connection != connection_ || stopped_) return;
    if (stream_->disbelieved++ < kDisbelievedMax && SayHello(registration)) return;
  }
  Disconnect(connection, absl::UnavailableError(
                             "registrations of this stream are made up in Redis, again and again: "
                             "give each cell a user of its own"));
}

void RedisLink::Core::OnEntryReply(uint64_t connection, const RedisEntryId& id, bool log,
                                   size_t bytes, const Reply& reply) {
  if (!Current(connection)) return;
  if (!reply.ok()) {
    if (absl::IsResourceExhausted(reply.status())) {
      MutexLock lock(&mutex_);
      GiveBackHalf();
    }
    return Disconnect(connection, reply.status());
  }
  if (reply->is_nil()) return Disconnect(connection, absl::DataLossError("the log is gone"));
  bool snapshot_in = false, post_ack = false;
  {
    MutexLock lock(&mutex_);
    ++stats_.entries_written;
    backoff_ = kBackoffInitial;
    if (!log) {
      snapshot_in = --parts_out_ == 0 && marker_.has_value();
    } else {
      written_ = std::max(written_, id.number());
      Keep(id, bytes);
      post_ack = !std::exchange(ack_due_, true);
    }
  }
  if (snapshot_in) OnSnapshotIn(connection, id);
  // Once for all that are answered together.
  if (post_ack) client_->RunAfter(Duration(0), [this, connection] { DeliverAck(connection); });
}

// All its parts are in: the marker, which readers wait for, and the one before goes.
void RedisLink::Core::OnSnapshotIn(uint64_t connection, const RedisEntryId& id) {
  {
    MutexLock lock(&mutex_);
    const RedisEntryId first = RedisEntryId::Of(id.epoch, id.number());
    if (!Add(stream_->keys.log, *std::exchange(marker_, std::nullopt), first)) return;
    Send({"XTRIM", stream_->keys.snap, "MINID", first.ToString()}, [](const Reply&) {});
    Send({"PEXPIRE", stream_->keys.snap,
          std::to_string(options_.log_ttl / std::chrono::milliseconds(1))},
         [](const Reply&) {});
    snapshot_in_ = id.number();
    snapshot_at_ = clock_.Now();
    snapshot_waits_ = false;
    ++stats_.snapshots_written;
  }
  TellWritable(connection);
}

void RedisLink::Core::Keep(const RedisEntryId& id, size_t bytes) {
  kept_.push_back({id, clock_.Now(), bytes});
  kept_bytes_ += bytes;
}

// Redis is full: what is old in this log makes room for what is new.
void RedisLink::Core::GiveBackHalf() {
  if (kept_.size() < 2) return;
  kept_.erase(kept_.begin(), kept_.begin() + static_cast<int64_t>(kept_.size() / 2));
  kept_bytes_ = 0;
  for (const Kept& kept : kept_) kept_bytes_ += kept.bytes;
  Send({"XTRIM", stream_->keys.log, "MINID", kept_.front().id.ToString()}, [](const Reply&) {});
}

void RedisLink::Core::OnHeartbeatReply(uint64_t connection, const Reply& reply) {
  if (!Current(connection)) return;
  if (!reply.ok()) return Disconnect(connection, reply.status());
  const auto back = RedisEntryId::Parse(reply->text);
  if (!back.has_value()) {
    return Disconnect(connection, absl::DataLossError("the log is gone, or another process's"));
  }
  {
    // Redis lost what flows back, and its clock, which makes the ids, went back: they start below
    // what was read.
    MutexLock lock(&mutex_);
    const auto from = RedisEntryId::Parse(back_from_);
    if (from.has_value() && *back < *from) back_from_ = "0-0";
  }
  DeliverAck(connection);
}

void RedisLink::Core::DeliverAck(uint64_t connection) {
  Ack ack;
  {
    MutexLock lock(&mutex_);
    if (!connected_ || connection != connection_ || stopped_) return;
    ack_due_ = false;
    ack = {.applied = written_, .credit = options_.credit_batches};
  }
  observer_->OnMessage(ack);
}

// ---- What flows back ----

void RedisLink::Core::ReadBack(uint64_t connection) {
  absl::Status sent;
  {
    MutexLock lock(&mutex_);
    if (!connected_ || connection != connection_ || stopped_) return;
    sent = client_->SendBlocking(
        {"XREAD", "COUNT", "256", "BLOCK",
         std::to_string(kBackBlock / std::chrono::milliseconds(1)), "STREAMS", stream_->keys.back,
         back_from_},
        kBackBlock, [this, connection](const Reply& reply) { OnBack(connection, reply); });
  }
  if (!sent.ok()) client_->RunAfter(kBackRetry, [this, connection] { ReadBack(connection); });
}

void RedisLink::Core::OnBack(uint64_t connection, const Reply& reply) {
  if (!Current(connection)) return;
  if (!reply.ok()) {
    return client_->RunAfter(kBackRetry, [this, connection] { ReadBack(connection); });
  }
  std::vector<ReceiverMessage> out;
  if (reply->is_array() && !reply->elements.empty() && reply->elements[0].elements.size() == 2) {
    MutexLock lock(&mutex_);
    for (const RedisReply& entry : reply->elements[0].elements[1].elements) {
      if (entry.elements.size() == 2) back_from_ = entry.elements[0].text;
      OnReaderSaid(FieldsOf(entry), &out);
    }
    // Callers that wait for `Confirmed` look again.
    out.push_back(Ack{.applied = written_, .credit = options_.credit_batches});
  }
  for (ReceiverMessage& message : out) {
    if (!Current(connection)) return;
    observer_->OnMessage(std::move(message));
  }
  ReadBack(connection);
}

// Fields: k (kind), r (reader), e (epoch), n (number).
void RedisLink::Core::OnReaderSaid(const std::map<std::string, std::string>& said,
                                   std::vector<ReceiverMessage>* out) {
  const auto field = [&](const char* name) {
    const auto it = said.find(name);
    return it == said.end() ? std::string() : it->second;
  };
  const std::string kind = field("k"), reader = field("r");
  const std::optional<uint64_t> number = ParseUint64(field("n"));
  if (ParseUint64(field("e")) != stream_->epoch) return;
  if (kind == "a" && number.has_value()) {
    if (!readers_.contains(reader) && readers_.size() >= kReadersMax) return;
    Reader& state = readers_[reader];
    state.applied = std::max(state.applied, *number);
    state.heard = clock_.Now();
    if (reader == refused_by_) stats_.last_refusal.clear();
  } else if (kind == "g") {
    readers_.erase(reader);
  } else if (kind == "n" && number.has_value()) {
    // The last snapshot that it has seen. One that it can only just not have seen helps it as well.
    const bool fresh = clock_.Now() - snapshot_at_ < kSnapshotFresh;
    if ((snapshot_in_ > *number && fresh) || snapshot_waits_) return;
    ++stats_.snapshots_asked;
    out->push_back(Need{.next = 0, .snapshot = true});
  } else if (kind == "r") {
    ++stats_.refusals;
    stats_.last_refusal = field("w");
    refused_by_ = reader;
    LogEvery(LinkLog(), reader, LogLevel::kWarning, "a reader refuses the stream",
             {{"stream", stream_->name}, {"reader", reader}, {"reason", field("w")}});
  }
}

// ---- The link ----

RedisLink::RedisLink(const RedisLogOptions& options)
    : RedisLink(options, &Clock::Real(), ConnectRedis) {}

RedisLink::RedisLink(const RedisLogOptions& options, const Clock* clock, RedisConnectFn connect)
    : core_(std::make_unique<Core>(options, clock, std::move(connect))) {}

RedisLink::~RedisLink() { Stop(std::chrono::nanoseconds(0)); }

void RedisLink::Start(SenderLinkObserver* observer) { core_->Start(observer); }
bool RedisLink::Write(const SenderMessage& message) { return core_->Write(message); }
void RedisLink::Reset() { core_->Reset(); }
void RedisLink::Stop(std::chrono::nanoseconds flush_for) { core_->Stop(flush_for); }
bool RedisLink::Confirmed(BatchNumber number) const { return core_->Confirmed(number); }
RedisLinkStats RedisLink::Stats() const { return core_->Stats(); }

}  // namespace kvatlas
