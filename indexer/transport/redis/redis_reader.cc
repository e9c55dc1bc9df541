#include "indexer/transport/redis/redis_reader.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "indexer/base/mutex.h"
#include "indexer/service/log.h"
#include "indexer/service/redis_client.h"
#include "indexer/stream/validate.h"
#include "indexer/transport/redis/redis_entry.h"
#include "indexer/transport/redis/redis_keys.h"
#include "indexer/transport/redis/redis_scripts.h"

namespace kvatlas {
namespace {

using Reply = absl::StatusOr<RedisReply>;

constexpr Duration kBlock = std::chrono::seconds(1);
constexpr Duration kTick = std::chrono::milliseconds(20);
constexpr Duration kReadRetry = std::chrono::milliseconds(100);
constexpr Duration kWantFor = std::chrono::seconds(5);  // a need is repeated every second
constexpr Duration kFlushFor = std::chrono::milliseconds(200);
constexpr size_t kRoundEntries = 1024;
constexpr size_t kEntriesPerStreamMax = 128;
constexpr char kPartsPerPage[] = "16";
constexpr size_t kOpeningMax = 64;
constexpr char kBackMax[] = "1000";
constexpr char kWakeTtlMs[] = "3600000";

LogLimiter& ReaderLog() {
  static LogLimiter& limiter = *new LogLimiter(std::chrono::seconds(10));
  return limiter;
}

// The one field of an entry of ours; null: it is none.
const std::string* MessageOf(const RedisReply& entry) {
  if (entry.elements.size() != 2) return nullptr;
  const std::vector<RedisReply>& flat = entry.elements[1].elements;
  for (size_t i = 0; i + 1 < flat.size(); i += 2) {
    if (flat[i].text == kRedisEntryField) return &flat[i + 1].text;
  }
  return nullptr;
}

std::string FieldOf(const RedisReply& entry, std::string_view name) {
  if (entry.elements.size() != 2) return {};
  const std::vector<RedisReply>& flat = entry.elements[1].elements;
  for (size_t i = 0; i + 1 < flat.size(); i += 2) {
    if (flat[i].text == name) return flat[i + 1].text;
  }
  return {};
}

std::optional<RedisEntryId> IdOf(const RedisReply& entry) {
  return entry.elements.size() == 2 ? RedisEntryId::Parse(entry.elements[0].text) : std::nullopt;
}

// What a reader goes by; the rest of a hello changes with every connection of the sender.
bool SameStream(const Hello& a, const Hello& b) {
  return a.epoch == b.epoch && a.instance_id == b.instance_id && a.block_size == b.block_size &&
         a.contract_id == b.contract_id && a.schedule == b.schedule && a.address == b.address &&
         a.labels == b.labels;
}

}  // namespace

// Everything without a guard belongs to the reader's thread, which works off `tasks_`. Answers of Redis come as tasks;
// one that belongs to an earlier life of its stream (`life`) is dropped.
class RedisReader::Impl {
 public:
  Impl(const RedisLogOptions& options, const std::string& name, StreamAcceptor* acceptor,
       const Clock* clock);
  ~Impl() { Stop(); }

  void Stop();
  RedisReaderStats Stats() const;

 private:
  enum class Mode {
    kOpening,    // the log is asked for its ends
    kFollowing,  // read by its shard's round
    kSeeking,    // is the number that is missed in the log?
    kSnapshot,   // being looked for, or read
    kRefused,    // until `retry_at`
  };
  struct Stream {
    Stream(std::string stream_name, uint32_t stream_shard, std::string_view tag)
        : name(std::move(stream_name)), shard(stream_shard), keys(tag, name) {}

    const std::string name;
    const uint32_t shard;
    const RedisStreamKeys keys;
    Hello hello;
    uint64_t life = 0;  // of its session; in `lives_` while there is one
    std::unique_ptr<ReceiverSession> session;
    Mode mode = Mode::kOpening;
    RedisEntryId position;                 // read so far
    uint64_t follows_from = 0;             // rounds before are not its own
    BatchNumber fed = 0;                   // given to the receiver without a gap
    std::optional<BatchNumber> heartbeat;  // not yet given
    uint64_t heartbeat_round = 0;          // once this round has been read
    BatchNumber ack = 0;
    bool ack_due = false;
    BatchNumber snapshot_used = 0;  // `as_of` of the last one that was read
    Time wants_snapshot_until{0};
    Time retry_at{0};
    bool no_log = false;                // when it was last opened
    std::optional<Time> missing_since;  // its registration
    Time heard{0};
    bool transport_lost = false;
  };
  struct Shard {
    std::string tag, news_key, streams_key, wake_key;
    std::string news_from = "$";
    std::string wake_from = "0-0";
    bool found = false;  // registrations were read since Redis is there
    bool reading = false;
    bool woken = false;
    uint64_t round = 0;
    size_t count = kEntriesPerStreamMax;  // of this round, per stream
    Time read_at{0};                      // not before
    std::unordered_set<std::string> heartbeats;
  };

  void Run();
  void Post(std::function<void()> task);
  // Sends a command whose answer is a task.
  void Ask(RedisArgs args, std::function<void(const Reply&)> then);
  void AskOf(const Stream& stream, RedisArgs args, std::function<void(Stream*, const Reply&)> then);
  void Tell(RedisArgs args);
  void Tick(Time now);

  void OnRedis(const absl::Status& state);
  void Silence();
  void OnShards(const Reply& reply);
  void Find(uint32_t shard);
  void OnFound(uint32_t shard, const Reply& reply);
  void Register(uint32_t shard, const std::string& name, const std::string& registration);
  void OpenSome();
  void Open(Stream* stream);
  void OnOpen(Stream* stream, const Reply& reply);
  void Refused(Stream* stream, const std::string& why);
  void EndSession(Stream* stream);
  void Forget(const std::string& name);

  void Follow(Stream* stream, const RedisEntryId& position);
  void Read(uint32_t shard);
  void OnRead(uint32_t shard, uint64_t round, const Reply& reply);
  void TakeNews(uint32_t shard, const RedisReply& entry);
  void TakeEntries(Stream* stream, const RedisReply& entries);
  void TakeMarker(Stream* stream, const SnapshotPart& marker, size_t bytes);
  void GiveHeartbeats(Shard* shard, uint64_t round,
                      const std::unordered_set<std::string>& unfinished);
  // False: the session is over.
  bool Feed(Stream* stream, SenderMessage message, size_t bytes);

  void OnNeed(Stream* stream, const Need& need);
  void LookForSnapshot(Stream* stream);
  void OnLastPart(Stream* stream, const Reply& reply);
  void ReadParts(Stream* stream, BatchNumber as_of, const std::string& from);
  void OnParts(Stream* stream, BatchNumber as_of, const Reply& reply);
  void AskForSnapshot(Stream* stream);

  void DrainReplies();
  void On(Stream* stream, const ReceiverMessage& message);
  void SendAcks();

  Stream* OfLife(uint64_t life) {
    const auto it = lives_.find(life);
    return it == lives_.end() ? nullptr : it->second;
  }
  template <typename Change>
  void Count(Change change) {
    MutexLock lock(&stats_mutex_);
    change(stats_);
  }

  const RedisLogOptions options_;
  const std::string reader_;
  StreamAcceptor* const acceptor_;
  const Clock* const clock_;

  std::vector<Shard> shards_;
  std::unordered_map<std::string, std::unique_ptr<Stream>> streams_;
  std::unordered_map<std::string, Stream*> by_log_;
  std::unordered_map<uint64_t, Stream*> lives_;
  std::unordered_set<std::string> acks_due_;
  std::deque<std::string> to_open_;
  size_t opening_ = 0;
  uint64_t next_life_ = 1;
  uint64_t redis_life_ = 0;  // of the connection to Redis
  bool up_ = false;
  bool silent_ = false;  // since a loss of Redis, until a round was read
  Time tick_at_{0};
  Time find_at_{0};
  Time shards_at_{0};  // when the number of shards is to be looked at again; 0: it was right
  std::optional<Time> back_since_;

  mutable Mutex stats_mutex_;
  RedisReaderStats stats_ ABSL_GUARDED_BY(stats_mutex_);

  Mutex mutex_;
  CondVar work_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  // What sessions replied, by life; of acks only the last.
  std::unordered_map<uint64_t, BatchNumber> acks_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<uint64_t, ReceiverMessage>> replies_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::unique_ptr<RedisClient> client_;
  std::thread thread_;
};

RedisReader::Impl::Impl(const RedisLogOptions& options, const std::string& name,
                        StreamAcceptor* acceptor, const Clock* clock)
    : options_(options),
      reader_(name + "-" + RedisHex(RandomInstanceId())),
      acceptor_(acceptor),
      clock_(clock),
      shards_(options.shards) {
  for (uint32_t i = 0; i < options_.shards; ++i) {
    Shard& shard = shards_[i];
    shard.tag = RedisTag(options_.cell, i);
    shard.news_key = shard.tag + ":news";
    shard.streams_key = shard.tag + ":streams";
    shard.wake_key = shard.tag + ":wake:" + reader_;
  }
  stats_.status = absl::UnavailableError("not connected yet");
  // Tasks wait until the thread is there, and the thread until this is done.
  client_ = std::make_unique<RedisClient>(options_.redis, [this](const absl::Status& state) {
    Post([this, state] { OnRedis(state); });
  });
  thread_ = std::thread([this] { Run(); });
}

void RedisReader::Impl::Stop() {
  {
    MutexLock lock(&mutex_);
    if (std::exchange(stopping_, true)) return;
    work_.Signal();
  }
  thread_.join();
  client_->Stop();
}

void RedisReader::Impl::Run() {
  while (true) {
    std::deque<std::function<void()>> tasks;
    {
      MutexLock lock(&mutex_);
      if (tasks_.empty() && acks_.empty() && replies_.empty() && !stopping_) {
        work_.WaitFor(&mutex_, kTick);
      }
      if (stopping_) break;
      tasks.swap(tasks_);
    }
    for (const std::function<void()>& task : tasks) {
      task();
      DrainReplies();
    }
    DrainReplies();
    SendAcks();
    if (up_) OpenSome();
    if (const Time now = clock_->Now(); now >= tick_at_) {
      tick_at_ = now + kTick;
      Tick(now);
    }
  }
  for (auto& [name, stream] : streams_) {
    if (stream->session == nullptr) continue;
    Tell({"XADD", stream->keys.back, "MAXLEN", "~", kBackMax, "*", "k", "g", "r", reader_, "e",
          std::to_string(stream->hello.epoch)});
    EndSession(stream.get());
  }
  for (const Shard& shard : shards_) Tell({"UNLINK", shard.wake_key});
  const Time until = Clock::Real().Now() + kFlushFor;
  while (up_ && client_->Stats().outstanding > shards_.size() && Clock::Real().Now() < until) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void RedisReader::Impl::Post(std::function<void()> task) {
  MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
  work_.Signal();
}

void RedisReader::Impl::Ask(RedisArgs args, std::function<void(const Reply&)> then) {
  auto shared = std::make_shared<std::function<void(const Reply&)>>(std::move(then));
  const absl::Status sent = client_->Send(std::move(args), [this, shared](Reply reply) {
    Post([shared, reply = std::move(reply)] { (*shared)(reply); });
  });
  if (!sent.ok()) Post([shared, sent] { (*shared)(sent); });
}

void RedisReader::Impl::AskOf(const Stream& stream, RedisArgs args,
                              std::function<void(Stream*, const Reply&)> then) {
  Ask(std::move(args), [this, life = stream.life, then = std::move(then)](const Reply& reply) {
    if (Stream* same = OfLife(life)) then(same, reply);
  });
}

void RedisReader::Impl::Tell(RedisArgs args) {
  client_->Send(std::move(args), [](const Reply&) {}).IgnoreError();
}

RedisReaderStats RedisReader::Impl::Stats() const {
  MutexLock lock(&stats_mutex_);
  return stats_;
}

// ---- Time ----

void RedisReader::Impl::Tick(Time now) {
  if (!up_) return;
  if (shards_at_ != Time(0) && now >= shards_at_) {
    shards_at_ = Time(0);
    Ask({"GET", RedisShardsKey(options_.cell)}, [this](const Reply& reply) { OnShards(reply); });
    return;
  }
  if (find_at_ != Time(0) && now >= find_at_) {
    find_at_ = now + options_.find_every;
    for (uint32_t i = 0; i < shards_.size(); ++i) Find(i);
  }
  for (uint32_t i = 0; i < shards_.size(); ++i) {
    if (!shards_[i].reading && shards_[i].found && now >= shards_[i].read_at) Read(i);
  }
  const bool lease_over = back_since_.has_value() && now - *back_since_ >= options_.lease_ttl;
  if (lease_over) back_since_.reset();
  uint64_t following = 0;
  std::vector<std::string> missing;
  for (auto& [name, stream] : streams_) {
    if (stream->mode == Mode::kFollowing) ++following;
    if (stream->mode == Mode::kRefused && now >= stream->retry_at) {
      stream->mode = Mode::kOpening;
      to_open_.push_back(name);
    }
    if (lease_over && std::exchange(stream->transport_lost, false) && stream->session) {
      stream->session->OnTransportLost(false);
    }
    if (stream->missing_since.has_value() && !silent_ && !back_since_.has_value() &&
        now - std::max(*stream->missing_since, stream->heard) >= options_.lease_ttl) {
      missing.push_back(name);
    }
  }
  for (const std::string& name : missing) Forget(name);
  Count([&](RedisReaderStats& stats) {
    stats.streams = streams_.size();
    stats.streams_following = following;
  });
}

// ---- 1. Find ----

void RedisReader::Impl::OnRedis(const absl::Status& state) {
  Count([&](RedisReaderStats& stats) {
    stats.connected = state.ok();
    stats.status = state;
  });
  if (state.ok()) {
    up_ = true;
    find_at_ = Time(0);
    const std::string key = RedisShardsKey(options_.cell);
    Tell({"SETNX", key, std::to_string(options_.shards)});
    Ask({"GET", key}, [this](const Reply& reply) { OnShards(reply); });
    return;
  }
  if (!std::exchange(up_, false)) return;
  ++redis_life_;
  LogEvery(ReaderLog(), options_.cell, LogLevel::kWarning, "redis is away",
           {{"cell", options_.cell}, {"reason", state}});
  for (Shard& shard : shards_) shard.found = false;
  Silence();
  Count([](RedisReaderStats& stats) { ++stats.losses; });
}

// Nobody is heard, and it is not their fault.
void RedisReader::Impl::Silence() {
  back_since_.reset();
  silent_ = true;
  for (auto& [name, stream] : streams_) {
    if (stream->session && !std::exchange(stream->transport_lost, true)) {
      stream->session->OnTransportLost(true);
    }
  }
}

void RedisReader::Impl::OnShards(const Reply& reply) {
  if (!up_) return;
  const Time now = clock_->Now();
  const bool right = reply.ok() && reply->text == std::to_string(options_.shards);
  if (!right) {
    shards_at_ = now + options_.hello_retry;
    const absl::Status why = !reply.ok()
                                 ? reply.status()
                                 : absl::FailedPreconditionError("the cell has " + reply->text +
                                                                 " shards in Redis, not " +
                                                                 std::to_string(options_.shards));
    LogEvery(ReaderLog(), "shards", LogLevel::kError, "cannot read from redis", {{"reason", why}});
    return Count([&](RedisReaderStats& stats) { stats.status = why; });
  }
  find_at_ = now;
}

// The place in the news first, so that what is registered meanwhile is found there.
void RedisReader::Impl::Find(uint32_t shard) {
  const uint64_t life = redis_life_;
  Tell({"PEXPIRE", shards_[shard].wake_key, kWakeTtlMs});
  if (!shards_[shard].found) {
    Ask({"XREVRANGE", shards_[shard].news_key, "+", "-", "COUNT", "1"},
        [this, shard, life](const Reply& reply) {
          if (life != redis_life_ || !reply.ok()) return;
          const std::optional<RedisEntryId> id =
              reply->elements.empty() ? std::nullopt : IdOf(reply->elements[0]);
          shards_[shard].news_from = id.has_value() ? id->ToString() : "0-0";
        });
  }
  Ask({"HGETALL", shards_[shard].streams_key}, [this, shard, life](const Reply& reply) {
    if (life == redis_life_) OnFound(shard, reply);
  });
}

void RedisReader::Impl::OnFound(uint32_t shard, const Reply& reply) {
  if (!reply.ok()) {
    find_at_ = clock_->Now() + kReadRetry;
    return;
  }
  std::unordered_set<std::string> names;
  for (size_t i = 0; i + 1 < reply->elements.size(); i += 2) {
    names.insert(reply->elements[i].text);
    Register(shard, reply->elements[i].text, reply->elements[i + 1].text);
  }
  for (auto& [name, stream] : streams_) {
    if (stream->shard != shard || names.contains(name) || stream->missing_since.has_value()) {
      continue;
    }
    stream->missing_since = clock_->Now();
  }
  shards_[shard].found = true;
}

void RedisReader::Impl::Register(uint32_t shard, const std::string& name,
                                 const std::string& registration) {
  constexpr size_t kOwner = 36;  // padded epoch and instance
  const auto epoch = ParseUint64(std::string_view(registration).substr(0, 20));
  if (registration.size() < kOwner || !epoch.has_value()) return;
  absl::StatusOr<SenderMessage> message =
      DecodeRedisEntry(std::string_view(registration).substr(kOwner), RedisEntryId::Of(*epoch, 0));
  const Hello* hello = message.ok() ? std::get_if<Hello>(&*message) : nullptr;
  if (hello == nullptr || hello->epoch != *epoch ||
      RedisStreamName(hello->holder, hello->domain) != name) {
    LogEvery(ReaderLog(), name, LogLevel::kWarning, "a registration in redis cannot be read",
             {{"stream", name}, {"reason", message.status()}});
    return Count([](RedisReaderStats& stats) { ++stats.entries_damaged; });
  }
  auto& stream = streams_[name];
  if (stream == nullptr && streams_.size() > options_.streams_max) {
    streams_.erase(name);
    LogEvery(ReaderLog(), LogLevel::kError, "too many streams in redis", {{"stream", name}});
    return;
  }
  if (stream == nullptr) {
    stream = std::make_unique<Stream>(name, shard, shards_[shard].tag);
    by_log_[stream->keys.log] = stream.get();
  } else if (SameStream(stream->hello, *hello)) {
    stream->missing_since.reset();
    if (std::exchange(stream->no_log, false)) stream->retry_at = Time(0);
    return;
  }
  EndSession(stream.get());
  stream->missing_since.reset();
  stream->hello = *hello;
  stream->mode = Mode::kOpening;
  stream->snapshot_used = 0;
  stream->heartbeat.reset();
  to_open_.push_back(name);
}

// ---- 2. Open ----

void RedisReader::Impl::OpenSome() {
  while (opening_ < kOpeningMax && !to_open_.empty()) {
    const auto it = streams_.find(to_open_.front());
    to_open_.pop_front();
    if (it != streams_.end() && it->second->mode == Mode::kOpening && it->second->life == 0) {
      Open(it->second.get());
    }
  }
}

void RedisReader::Impl::Open(Stream* stream) {
  stream->life = next_life_++;
  lives_[stream->life] = stream;
  ++opening_;
  Ask({"EVAL", kRedisOpenScript, "2", stream->keys.log, stream->keys.streams, stream->name},
      [this, life = stream->life](const Reply& reply) {
        --opening_;
        if (Stream* same = OfLife(life)) OnOpen(same, reply);
      });
}

void RedisReader::Impl::OnOpen(Stream* stream, const Reply& reply) {
  if (!reply.ok() || reply->elements.size() != 2) {
    // No log: its sender is long gone, or says hello again when it notices.
    stream->no_log = true;
    return Refused(stream, "");
  }
  const auto first = RedisEntryId::Parse(reply->elements[0].text);
  const auto last = RedisEntryId::Parse(reply->elements[1].text);
  if (!last.has_value() || last->epoch != stream->hello.epoch) {
    stream->no_log = true;
    return Refused(stream, "");
  }
  Hello hello = stream->hello;
  hello.last_sent = std::min<BatchNumber>(last->number(), kBatchNumberMax - 1);
  hello.first_kept = hello.last_sent + 1;
  if (first.has_value() && first->epoch == hello.epoch) {
    // The first entry of an epoch is its hello.
    hello.first_kept = std::clamp<BatchNumber>(first->number(), 1, hello.last_sent + 1);
  }
  stream->position = RedisEntryId::Before(hello.epoch, hello.last_sent + 1);
  const uint64_t life = stream->life;
  stream->session = acceptor_->Accept([this, life](ReceiverMessage message) {
    MutexLock lock(&mutex_);
    if (const Ack* ack = std::get_if<Ack>(&message)) {
      acks_[life] = ack->applied;
    } else {
      replies_.emplace_back(life, std::move(message));
    }
    work_.Signal();
  });
  if (stream->session == nullptr) return Refused(stream, "not accepted");
  const absl::Status status = stream->session->OnMessage(hello);
  DrainReplies();  // the welcome
  if (OfLife(life) == nullptr || stream->mode == Mode::kRefused) return;
  if (!status.ok()) Refused(stream, std::string(status.message()));
}

// `why` is told to the sender, unless it is empty.
void RedisReader::Impl::Refused(Stream* stream, const std::string& why) {
  if (!why.empty()) {
    Count([](RedisReaderStats& stats) { ++stats.streams_refused; });
    Tell({"XADD", stream->keys.back, "MAXLEN", "~", kBackMax, "*", "k", "r", "r", reader_, "e",
          std::to_string(stream->hello.epoch), "n", "0", "w", why});
  }
  EndSession(stream);
  stream->mode = Mode::kRefused;
  stream->retry_at = clock_->Now() + options_.hello_retry;
}

void RedisReader::Impl::EndSession(Stream* stream) {
  lives_.erase(stream->life);
  stream->life = 0;
  stream->session.reset();
  stream->transport_lost = false;
  stream->ack_due = false;
  acks_due_.erase(stream->name);
  shards_[stream->shard].heartbeats.erase(stream->name);
}

void RedisReader::Impl::Forget(const std::string& name) {
  const auto it = streams_.find(name);
  if (it == streams_.end()) return;
  EndSession(it->second.get());
  by_log_.erase(it->second->keys.log);
  streams_.erase(it);
}

// ---- 3. Follow ----

void RedisReader::Impl::Follow(Stream* stream, const RedisEntryId& position) {
  stream->mode = Mode::kFollowing;
  stream->position = position;
  Shard& shard = shards_[stream->shard];
  stream->follows_from = shard.round + (shard.reading ? 1 : 0);
  if (shard.reading && !std::exchange(shard.woken, true)) {
    Tell({"XADD", shard.wake_key, "MAXLEN", "1", "*", "w", "1"});
  }
}

void RedisReader::Impl::Read(uint32_t index) {
  Shard& shard = shards_[index];
  ++shard.round;
  std::vector<const Stream*> followed;
  for (const auto& [name, stream] : streams_) {
    if (stream->shard == index && stream->mode == Mode::kFollowing)
      followed.push_back(stream.get());
  }
  shard.count = std::clamp<size_t>(kRoundEntries / std::max<size_t>(followed.size(), 1), 1,
                                   kEntriesPerStreamMax);
  RedisArgs args = {"XREAD",
                    "COUNT",
                    std::to_string(shard.count),
                    "BLOCK",
                    std::to_string(kBlock / std::chrono::milliseconds(1)),
                    "STREAMS"};
  args.push_back(shard.news_key);
  args.push_back(shard.wake_key);
  for (const Stream* stream : followed) args.push_back(stream->keys.log);
  args.push_back(shard.news_from);
  args.push_back(shard.wake_from);
  for (const Stream* stream : followed) args.push_back(stream->position.ToString());
  const uint64_t round = shard.round;
  shard.woken = false;
  shard.reading = true;
  const absl::Status sent =
      client_->SendBlocking(std::move(args), kBlock, [this, index, round](Reply reply) {
        Post([this, index, round, reply = std::move(reply)] { OnRead(index, round, reply); });
      });
  if (!sent.ok()) Post([this, index, round, sent] { OnRead(index, round, sent); });
}

// Where everybody stands is known before anything is applied, so that the next round is on its way meanwhile.
void RedisReader::Impl::OnRead(uint32_t index, uint64_t round, const Reply& reply) {
  Shard& shard = shards_[index];
  shard.reading = false;
  if (!reply.ok()) Silence();
  if (!reply.ok() || !shard.found) {
    shard.read_at = clock_->Now() + kReadRetry;
    return;
  }
  if (std::exchange(silent_, false)) back_since_ = clock_->Now();
  Count([](RedisReaderStats& stats) { ++stats.rounds; });
  const RedisReply* news = nullptr;
  std::vector<std::pair<uint64_t, const RedisReply*>> logs;
  std::unordered_set<std::string> unfinished;
  for (const RedisReply& of_key : reply->elements) {
    if (of_key.elements.size() != 2 || of_key.elements[1].elements.empty()) continue;
    const std::string& key = of_key.elements[0].text;
    const RedisReply& entries = of_key.elements[1];
    const std::string& last =
        entries.elements.back().elements.empty() ? key : entries.elements.back().elements[0].text;
    if (key == shard.wake_key) {
      shard.wake_from = last;
    } else if (key == shard.news_key) {
      shard.news_from = last;
      news = &entries;
    } else if (const auto it = by_log_.find(key); it != by_log_.end()) {
      Stream* stream = it->second;
      if (stream->mode != Mode::kFollowing || stream->follows_from > round) continue;
      const auto id = RedisEntryId::Parse(last);
      if (id.has_value()) stream->position = *id;
      logs.emplace_back(stream->life, &entries);
      if (entries.elements.size() >= shard.count) unfinished.insert(stream->name);
    }
  }
  Read(index);
  for (const auto& [life, entries] : logs) {
    if (Stream* stream = OfLife(life)) TakeEntries(stream, *entries);
    DrainReplies();
  }
  if (news != nullptr) {
    for (const RedisReply& entry : news->elements) TakeNews(index, entry);
  }
  GiveHeartbeats(&shard, round, unfinished);
}

void RedisReader::Impl::TakeEntries(Stream* stream, const RedisReply& entries) {
  const uint64_t life = stream->life;
  stream->heard = clock_->Now();
  uint64_t bytes = 0, damaged = 0;
  for (const RedisReply& entry : entries.elements) {
    const std::optional<RedisEntryId> id = IdOf(entry);
    const std::string* text = MessageOf(entry);
    absl::StatusOr<SenderMessage> message = absl::DataLossError("not an entry of ours");
    if (id.has_value() && text != nullptr) message = DecodeRedisEntry(*text, *id);
    if (text != nullptr) bytes += text->size();
    if (!message.ok()) {
      ++damaged;
      LogEvery(ReaderLog(), stream->name, LogLevel::kWarning, "an entry in redis cannot be read",
               {{"stream", stream->name}, {"reason", message.status()}});
    } else if (id->epoch != stream->hello.epoch) {
      // Of an epoch whose hello is in the news to come.
    } else if (Batch* batch = std::get_if<Batch>(&*message)) {
      const BatchNumber number = batch->number;
      if (number != id->number()) {
        ++damaged;
      } else if (Feed(stream, *std::move(message), text->size())) {
        if (number == stream->fed + 1) stream->fed = number;
      }
    } else if (const auto* marker = std::get_if<SnapshotPart>(&*message)) {
      if (marker->as_of == id->number()) TakeMarker(stream, *marker, text->size());
    }
    if (OfLife(life) == nullptr) break;
    if (stream->mode != Mode::kFollowing) {
      if (id.has_value()) stream->position = *id;  // the rest is read again
      break;
    }
  }
  Count([&](RedisReaderStats& stats) {
    stats.entries_read += entries.elements.size();
    stats.bytes_read += bytes;
    stats.entries_damaged += damaged;
  });
}

// A snapshot of what was held after batch `as_of` is in Redis.
void RedisReader::Impl::TakeMarker(Stream* stream, const SnapshotPart& marker, size_t bytes) {
  if (marker.as_of <= stream->fed) return;
  const bool wanted = clock_->Now() < stream->wants_snapshot_until;
  if (wanted || marker.as_of > stream->fed + 1) return LookForSnapshot(stream);
  // Nothing happened since the batch before.
  Batch batch{.number = marker.as_of,
              .events = {},
              .load = marker.load,
              .digest = marker.digest,
              .degraded = marker.degraded};
  if (Feed(stream, std::move(batch), bytes)) stream->fed = marker.as_of;
}

bool RedisReader::Impl::Feed(Stream* stream, SenderMessage message, size_t bytes) {
  if (stream->session == nullptr) return false;
  if (bytes > 0) stream->session->OnWireBytes(bytes);
  const absl::Status status = stream->session->OnMessage(std::move(message));
  if (!status.ok()) Refused(stream, std::string(status.message()));
  return status.ok();
}

void RedisReader::Impl::TakeNews(uint32_t index, const RedisReply& entry) {
  const std::string kind = FieldOf(entry, "k"), name = FieldOf(entry, "s");
  const auto it = streams_.find(name);
  Stream* stream = it == streams_.end() ? nullptr : it->second.get();
  const auto epoch = ParseUint64(FieldOf(entry, "e"));
  const bool same = stream != nullptr && epoch == stream->hello.epoch;
  if (kind == "g") {
    if (same && stream->session != nullptr) stream->session->OnMessage(Goodbye{}).IgnoreError();
    if (same) Forget(name);
    return;
  }
  if (kind == "b" && same) {
    const auto number = ParseUint64(FieldOf(entry, "n"));
    if (!number.has_value() || stream->session == nullptr) return;
    stream->missing_since.reset();
    stream->heartbeat = std::min<BatchNumber>(*number, kBatchNumberMax);
    stream->heartbeat_round = shards_[index].round;
    shards_[index].heartbeats.insert(name);
    return;
  }
  if (kind != "b" && kind != "h") return;
  Ask({"HGET", shards_[index].streams_key, name}, [this, index, name](const Reply& reply) {
    if (!reply.ok() || !reply->is_string()) return;
    Register(index, name, reply->text);
    // The log may be another one now, with smaller ids than were read in the one before.
    const auto same = streams_.find(name);
    if (same == streams_.end() || same->second->mode != Mode::kFollowing) return;
    Stream* stream = same->second.get();
    Follow(stream, RedisEntryId::Before(stream->hello.epoch, stream->fed + 1));
  });
}

// A heartbeat names the last batch of its time. It is given once that was read, or could have been.
void RedisReader::Impl::GiveHeartbeats(Shard* shard, uint64_t round,
                                       const std::unordered_set<std::string>& unfinished) {
  std::vector<std::string> given;
  for (const std::string& name : shard->heartbeats) {
    const auto it = streams_.find(name);
    Stream* stream = it == streams_.end() ? nullptr : it->second.get();
    if (stream == nullptr || !stream->heartbeat.has_value()) {
      given.push_back(name);
      continue;
    }
    const bool read = *stream->heartbeat <= stream->fed;
    const bool could = stream->mode == Mode::kFollowing && stream->heartbeat_round <= round &&
                       stream->follows_from <= round && !unfinished.contains(name);
    if (read || could) given.push_back(name);
  }
  for (const std::string& name : given) {
    shard->heartbeats.erase(name);
    const auto it = streams_.find(name);
    if (it == streams_.end() || !it->second->heartbeat.has_value()) continue;
    const BatchNumber last = *std::exchange(it->second->heartbeat, std::nullopt);
    Feed(it->second.get(), Heartbeat{.last_sent = last}, 0);
  }
}

// ---- 4. and 5. Replay, snapshots ----

void RedisReader::Impl::OnNeed(Stream* stream, const Need& need) {
  if (stream->mode != Mode::kFollowing) return;  // it is being looked for; the receiver asks again
  if (need.snapshot) return LookForSnapshot(stream);
  stream->mode = Mode::kSeeking;
  const RedisEntryId wanted = RedisEntryId::Of(stream->hello.epoch, need.next);
  AskOf(*stream, {"XRANGE", stream->keys.log, wanted.ToString(), "+", "COUNT", "1"},
        [this, wanted](Stream* same, const Reply& reply) {
          const std::optional<RedisEntryId> found =
              reply.ok() && !reply->elements.empty() ? IdOf(reply->elements[0]) : std::nullopt;
          if (!found.has_value() || *found != wanted || !MessageOf(reply->elements[0]) ||
              !DecodeRedisEntry(*MessageOf(reply->elements[0]), wanted).ok()) {
            return LookForSnapshot(same);
          }
          Count([](RedisReaderStats& stats) { ++stats.replays; });
          same->fed = wanted.number() - 1;
          Follow(same, RedisEntryId::Before(wanted.epoch, wanted.number()));
        });
}

void RedisReader::Impl::LookForSnapshot(Stream* stream) {
  stream->mode = Mode::kSnapshot;
  AskOf(*stream, {"XREVRANGE", stream->keys.snap, "+", "-", "COUNT", "1"},
        [this](Stream* same, const Reply& reply) { OnLastPart(same, reply); });
}

void RedisReader::Impl::OnLastPart(Stream* stream, const Reply& reply) {
  const std::optional<RedisEntryId> id =
      reply.ok() && !reply->elements.empty() ? IdOf(reply->elements[0]) : std::nullopt;
  const std::string* text = id.has_value() ? MessageOf(reply->elements[0]) : nullptr;
  if (text != nullptr && id->epoch == stream->hello.epoch) {
    const absl::StatusOr<SenderMessage> message = DecodeRedisEntry(*text, *id);
    const SnapshotPart* part = message.ok() ? std::get_if<SnapshotPart>(&*message) : nullptr;
    if (part != nullptr && part->last && part->as_of == id->number() &&
        part->as_of > stream->snapshot_used && part->as_of >= stream->fed) {
      return ReadParts(stream, part->as_of, RedisEntryId::Of(id->epoch, part->as_of).ToString());
    }
  }
  AskForSnapshot(stream);
}

void RedisReader::Impl::ReadParts(Stream* stream, BatchNumber as_of, const std::string& from) {
  AskOf(*stream, {"XRANGE", stream->keys.snap, from, "+", "COUNT", kPartsPerPage},
        [this, as_of](Stream* same, const Reply& reply) { OnParts(same, as_of, reply); });
}

void RedisReader::Impl::OnParts(Stream* stream, BatchNumber as_of, const Reply& reply) {
  if (!reply.ok()) return AskForSnapshot(stream);
  const uint64_t life = stream->life;
  uint64_t bytes = 0;
  std::optional<RedisEntryId> last_id;
  bool last = false;
  for (const RedisReply& entry : reply->elements) {
    const std::optional<RedisEntryId> id = IdOf(entry);
    const std::string* text = MessageOf(entry);
    if (!id.has_value() || text == nullptr || id->number() != as_of) break;
    absl::StatusOr<SenderMessage> message = DecodeRedisEntry(*text, *id);
    const SnapshotPart* part = message.ok() ? std::get_if<SnapshotPart>(&*message) : nullptr;
    if (part == nullptr || part->as_of != as_of || part->part != id->part()) break;
    last_id = id;
    last = part->last;
    bytes += text->size();
    if (!Feed(stream, *std::move(message), text->size()) || last) break;
  }
  Count([&](RedisReaderStats& stats) {
    stats.bytes_read += bytes;
    if (last) ++stats.snapshots_read;
  });
  if (OfLife(life) == nullptr) return;
  if (last) {
    stream->snapshot_used = as_of;
    stream->fed = as_of;
    stream->wants_snapshot_until = Time(0);
    return Follow(stream, RedisEntryId::Before(stream->hello.epoch, as_of + 1));
  }
  // Replaced, or damaged.
  if (!last_id.has_value()) return AskForSnapshot(stream);
  ReadParts(stream, as_of, RedisEntryId::Of(last_id->epoch, as_of, last_id->part() + 1).ToString());
}

// The log is followed meanwhile: a marker says when the snapshot is there.
void RedisReader::Impl::AskForSnapshot(Stream* stream) {
  stream->wants_snapshot_until = clock_->Now() + kWantFor;
  Count([](RedisReaderStats& stats) { ++stats.snapshots_asked; });
  Tell({"XADD", stream->keys.back, "MAXLEN", "~", kBackMax, "*", "k", "n", "r", reader_, "e",
        std::to_string(stream->hello.epoch), "n", std::to_string(stream->snapshot_used)});
  Follow(stream, stream->position);
}

// ---- What sessions reply ----

void RedisReader::Impl::DrainReplies() {
  std::unordered_map<uint64_t, BatchNumber> acks;
  std::vector<std::pair<uint64_t, ReceiverMessage>> replies;
  {
    MutexLock lock(&mutex_);
    acks.swap(acks_);
    replies.swap(replies_);
  }
  for (const auto& [life, applied] : acks) {
    Stream* stream = OfLife(life);
    if (stream == nullptr) continue;
    stream->ack = applied;
    stream->ack_due = true;
    acks_due_.insert(stream->name);
  }
  for (const auto& [life, message] : replies) {
    if (Stream* stream = OfLife(life)) On(stream, message);
  }
}

void RedisReader::Impl::On(Stream* stream, const ReceiverMessage& message) {
  if (const Welcome* welcome = std::get_if<Welcome>(&message)) {
    stream->fed = std::max<BatchNumber>(welcome->next, 1) - 1;
    stream->ack = stream->fed;
    stream->ack_due = true;
    acks_due_.insert(stream->name);
    if (welcome->snapshot) return LookForSnapshot(stream);
    return Follow(stream, RedisEntryId::Before(stream->hello.epoch, stream->fed + 1));
  }
  if (const Need* need = std::get_if<Need>(&message)) return OnNeed(stream, *need);
  if (const Refuse* refuse = std::get_if<Refuse>(&message)) Refused(stream, refuse->reason);
}

void RedisReader::Impl::SendAcks() {
  for (const std::string& name : std::exchange(acks_due_, {})) {
    const auto it = streams_.find(name);
    if (it == streams_.end() || !std::exchange(it->second->ack_due, false)) continue;
    const Stream& stream = *it->second;
    Tell({"XADD", stream.keys.back, "MAXLEN", "~", kBackMax, "*", "k", "a", "r", reader_, "e",
          std::to_string(stream.hello.epoch), "n", std::to_string(stream.ack)});
  }
}

// ---- The reader ----

RedisReader::RedisReader(const RedisLogOptions& options, const std::string& name,
                         StreamAcceptor* acceptor, const Clock* clock)
    : impl_(std::make_unique<Impl>(options, name, acceptor, clock)) {}

RedisReader::~RedisReader() = default;

void RedisReader::Stop() { impl_->Stop(); }
RedisReaderStats RedisReader::Stats() const { return impl_->Stats(); }

}  // namespace kvatlas
