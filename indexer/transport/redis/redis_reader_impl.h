// The state of a `RedisReader` and the division of its work; private to it.
//
//   redis_reader.cc         its thread, finding and opening streams (1, 2), what sessions reply
//   redis_reader_follow.cc  reading logs (3), replay and snapshots (4, 5), heartbeats (6)

#ifndef KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_READER_IMPL_H_
#define KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_READER_IMPL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/net/connection_watch.h"
#include "indexer/net/redis_commands.h"
#include "indexer/net/redis_reply.h"
#include "indexer/security/security.h"
#include "indexer/stream/link.h"
#include "indexer/stream/messages.h"
#include "indexer/telemetry/log.h"
#include "indexer/transport/redis/redis_entry.h"
#include "indexer/transport/redis/redis_keys.h"
#include "indexer/transport/redis/redis_log_options.h"
#include "indexer/transport/redis/redis_reader.h"

namespace kvatlas {

inline constexpr Duration kRedisReadRetry = std::chrono::milliseconds(100);
inline constexpr size_t kRedisEntriesPerStreamMax = 128;  // of a round
inline constexpr size_t kRedisRoundEntries = 1024;        // where no reply was too large
inline constexpr char kRedisBackMax[] = "1000";           // entries of what flows back

inline LogLimiter& RedisReaderLog() {
  static LogLimiter& limiter = *new LogLimiter(std::chrono::seconds(10));
  return limiter;
}

inline std::optional<RedisEntryId> RedisIdOf(const RedisReply& entry) {
  return entry.elements.size() == 2 ? RedisEntryId::Parse(entry.elements[0].text) : std::nullopt;
}

// Everything without a guard belongs to the reader's thread, which works off `tasks_`. Answers of
// Redis come as tasks; one that belongs to an earlier life of its stream (`life`) is dropped.
class RedisReader::Impl {
 public:
  Impl(const RedisLogOptions& options, const std::string& name, StreamAcceptor* acceptor,
       const Clock* clock, const RedisConnectFn& connect, bool threaded);
  ~Impl() { Stop(); }

  void Stop();
  // One turn of the reader's thread.
  void Step();
  RedisReaderStats Stats() const;

 private:
  using Reply = absl::StatusOr<RedisReply>;

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
    size_t count = kRedisEntriesPerStreamMax;  // of this round, per stream
    size_t entries_max = kRedisRoundEntries;   // of a round: halved when its reply was too large
    size_t rounds_until_more = 0;              // then `entries_max` is doubled
    size_t entries_asked = 0;                  // of this round
    std::unordered_set<std::string> left_out;  // streams that this round does not read
    Time read_at{0};                           // not before
    std::unordered_set<std::string> heartbeats;
  };

  void Run();
  void SayGoodbye();
  void Post(std::function<void()> task);
  // Sends a command whose answer is a task.
  void Ask(RedisArgs args, std::function<void(const Reply&)> then);
  void AskOf(const Stream& stream, RedisArgs args, std::function<void(Stream*, const Reply&)> then);
  void Tell(RedisArgs args);
  void Tick(Time now);
  void LookAtPolicy();

  void OnRedis(const absl::Status& state);
  void Silence();
  void AskForShards();
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
  static void GrowRound(Shard* shard);
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

  // Decodes an entry of that stream. Signatures that are not ours are counted.
  absl::StatusOr<SenderMessage> Decode(std::string_view bytes, const RedisEntryId& id,
                                       std::string_view stream, bool snapshot = false);

  Stream* OfLife(uint64_t life) {
    const auto it = lives_.find(life);
    return it == lives_.end() ? nullptr : it->second;
  }
  template <typename Change>
  void Count(Change change) {
    MutexLock lock(&stats_mutex_);
    change(stats_);
  }

  // OK if the policy allows the hello to a worker of its name in this cell. Audited.
  absl::Status Allowed(const Hello& hello);
  std::shared_ptr<const Identity> IdentityOf(const Hello& hello) const;

  const RedisLogOptions options_;
  const std::shared_ptr<Security> security_ = Security::OfProcess();
  std::shared_ptr<const AccessPolicy> policy_ =
      security_->policy();  // that streams were checked by
  const std::string reader_;
  StreamAcceptor* const acceptor_;
  const Clock* const clock_;
  ConnectionWatch watch_;

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
  // Replies of sessions by life; only the last of their acks.
  std::unordered_map<uint64_t, BatchNumber> acks_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<uint64_t, ReceiverMessage>> replies_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::unique_ptr<RedisCommands> client_;
  std::thread thread_;  // none: the owner of the reader calls `Step`
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_REDIS_REDIS_READER_IMPL_H_
