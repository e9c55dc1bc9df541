// `Core` is the link. Any thread says messages (`Write` and the `Say` functions), which become
// commands; the client's thread hears the answers (`On...`) and calls the observer. The numbers in
// README.md, "The protocol", are: 1 `SayHello` and `OnHelloReply`, 2 `Add` and `OnEntryReply`,
// 3 `Say(SnapshotPart)` and `OnSnapshotIn`, 4 `Say(Heartbeat)`, 5 `ReadBack`, 6 `Say(Goodbye)`.

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
// How long Redis keeps a read of what flows back open without news.
constexpr Duration kBackBlock = std::chrono::seconds(1);
constexpr Duration kBackRetry = std::chrono::milliseconds(100);
constexpr Duration kBackoffInitial = std::chrono::milliseconds(50);
constexpr Duration kBackoffMax = std::chrono::seconds(1);
// A need that comes so soon after a complete snapshot is not passed on: its reader has just not
// seen that one, and asks again if it does not help.
constexpr Duration kSnapshotFresh = std::chrono::milliseconds(500);
// Readers whose acknowledgements are kept; further ones are not waited for.
constexpr size_t kReadersMax = 256;
// Registrations that are not believed in a row, before the link waits.
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

// A connection, as the observer knows it, has a number (`connection_`). Each answer carries the
// number of its command's connection, and answers of an earlier one are ignored: a log that was
// made anew must not be acknowledged by replies from before.
//
// `mutex_` is not held while the observer is called. Commands are sent under it; the client takes
// its own lock below it and calls back without it.
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
  // An entry of the log that Redis has acknowledged.
  struct Kept {
    RedisEntryId id;
    Time at;
    size_t bytes;
  };
  // A reader of this stream, by what it told: the last batch it applied, and when that was.
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

  // The place of entries is signed with them: no entry can be moved to another stream, or between
  // log and snapshot.
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
  BatchNumber written_ ABSL_GUARDED_BY(mutex_) = 0;             // acknowledged by Redis
  uint64_t parts_out_ ABSL_GUARDED_BY(mutex_) = 0;              // of the snapshot, unacknowledged
  std::optional<SnapshotPart> marker_ ABSL_GUARDED_BY(mutex_);  // the last part, without blocks
  BatchNumber snapshot_in_ ABSL_GUARDED_BY(mutex_) = 0;         // `as_of` of the last complete one
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
  // The client may report its state before `client_` is set; the mutex makes that callback wait.
  MutexLock lock(&mutex_);
  client_ = connect_(options_.redis, [this](const absl::Status& state) { OnRedis(state); });
}

// Takes a message, or returns false and tells later that there is room (`TellWritable`). One
// message is always taken when nothing is outstanding. `snapshot_waits_` holds everything back
// between the last part of a snapshot and its marker, so that the log has the marker directly
// behind the batches before it.
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

// Sends a command and counts it as outstanding until its answer. False: the client has no
// connection. The answer is counted before `callback`, so that `Stop` waits for no answer that has
// come.
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

// Remembers the stream. A new epoch forgets the log, snapshot and readers of the older one. Without
// a key that signs for this worker the hello could only be refused by readers: the connection ends
// with the reason, from the client's thread, since `Write` must not call the observer.
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

// The arguments are those of `kRedisHelloScript`, in its order. The largest id that this sender can
// have written, and its clock's largest epoch, let the script tell foreign entries from its own.
// `disbelieved`: the registration that `OnMadeUp` does not believe, or empty.
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

// Adds an entry to the log or a snapshot. For the log:
// 1. Entries beyond the bounds leave `kept_`, and MINID trims them in Redis with the same command.
// 2. A snapshot is of use only if the log goes on behind it: else it is removed, and readers ask
//    for another.
// 3. NOMKSTREAM: a log that is gone is not made by a batch, since its hello would be missing. The
//    nil answer ends the connection (`OnEntryReply`).
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

// A stream that is never silent sends no heartbeats of its own. One is added every `look_every`: it
// prolongs the keys and checks that they are still this sender's.
bool RedisLink::Core::Say(const Batch& batch) {
  const RedisEntryId id = RedisEntryId::Of(stream_->epoch, batch.number);
  if (!Add(stream_->keys.log, batch, id)) return false;
  if (clock_.Now() - looked_ >= options_.look_every) Say(Heartbeat{.last_sent = batch.number});
  return true;
}

// Parts go to their own key. The marker follows once Redis has acknowledged all of them
// (`OnEntryReply`), so a reader that sees it finds them all.
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

// Signed for an id that no entry of the log has, so that it cannot be made of one.
bool RedisLink::Core::Say(const Goodbye& goodbye) {
  const RedisStreamKeys& keys = stream_->keys;
  const RedisEntryId last = RedisEntryId::Last(stream_->epoch);
  return Send({"EVAL", kRedisGoodbyeScript, "5", keys.streams, keys.news, keys.log, keys.snap,
               keys.back, stream_->name, stream_->Owner(), std::to_string(stream_->epoch), kNewsMax,
               EncodeRedisEntry(goodbye, last, SealOf(*stream_))},
              [](const Reply&) {});
}

// On the client's thread, since observers are called from there alone.
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

// Waits until Redis has answered everything, or for `flush_for`. After `client_->Stop` no callback
// runs.
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

// False without a reader: then nothing has applied the batch. A reader that is silent for
// `reader_ttl` is not waited for.
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

// The client reconnects by itself and reports each change. A loss without a connection of ours is
// only "unreachable".
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

// The number of shards is checked before the observer hears of the connection: with another number
// its stream would lie where no reader looks.
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

// Ends the connection once: other answers with its number come too late. Redis itself may stay
// connected. After the backoff the next connection begins with a hello.
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

// At half of what `Write` admits, so that one call makes room for many messages.
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

// 1. Refused: by a registration that is made up (`OnMadeUp`), or rightly, which the sender handles
//    like any refusal.
// 2. Ahead: the epoch is beyond Redis' clock; a refusal without an epoch, which makes the sender go
//    back to its own clock.
// 3. Welcome: the last id of the log names the next batch. A new log has nothing of what was kept.
// Then what flows back is read, from where it stood at the hello.
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

// True if no key of ours signed the younger epoch for which Redis refuses a hello. Without a
// registration the log alone has that epoch; its sender, if there is one, registers again with its
// next heartbeat. Without keys every registration is believed.
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

// Says the hello again, naming the registration that is not to be believed. After `kDisbelievedMax`
// in a row the connection ends and waits for the backoff: a process writes them as fast as we do.
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

// The acknowledgement of one entry, in the order in which they were sent.
// 1. Errors end the connection, and the next hello finds out what the log has. OOM gives half of
//    the log back first.
// 2. A part of a snapshot: the last outstanding one completes it (`OnSnapshotIn`).
// 3. A batch: it is kept for the bounds, and one `Ack` is posted for all that are answered together
//    (`DeliverAck`).
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

// All parts are in. The marker goes to the log under the snapshot's number, then the parts of older
// snapshots are trimmed, and writing goes on.
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

// Redis is full: the older half of this log makes room for new entries. Readers that still needed
// it get a snapshot.
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

// Acknowledges the highest number in Redis; receivers may be far behind it (`Confirmed`).
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

// A blocking read, renewed by its own answer (`OnBack`): one is under way at a time, as long as the
// connection lasts.
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

// The messages for the observer are collected under the mutex and delivered without it. An
// acknowledgement is added so that pumps which wait for `Confirmed` look again.
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
    out.push_back(Ack{.applied = written_, .credit = options_.credit_batches});
  }
  for (ReceiverMessage& message : out) {
    if (!Current(connection)) return;
    observer_->OnMessage(std::move(message));
  }
  ReadBack(connection);
}

// Fields: k (kind), r (reader), e (epoch), n (number), w (why). Kinds: a (applied up to n), g
// (goodbye), n (needs a snapshot, n being the last one that it used), r (refuses the stream).
// Entries of another epoch are old and ignored.
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
    // `number` is the last snapshot that the reader used. A newer one that was completed just now,
    // or is being written, helps it as well as another would.
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
