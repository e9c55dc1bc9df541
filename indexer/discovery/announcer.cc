// Renews one record's lease in Redis. The thread runs `Announce` in a loop; setters change `record`
// under `mutex` and may wake it. Callbacks of the Redis client run on its own thread.

#include "indexer/discovery/announcer.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "indexer/base/mutex.h"
#include "indexer/discovery/redis_leases.h"
#include "indexer/net/redis_client.h"
#include "indexer/net/redis_url.h"

namespace kvatlas {
namespace {

// A failed renewal is tried again after this, or when the next one is due if that is sooner.
constexpr Duration kRetryAfter = std::chrono::milliseconds(500);

}  // namespace

struct Announcer::State {
  State(AnnouncerOptions o, ServiceRecord r, RedisOptions redis)
      : options(std::move(o)),
        client(std::move(redis), [this](const absl::Status& state) { OnConnection(state); }),
        record(std::move(r)) {}

  // Called by the client at each change of its connection. A Redis that comes back may have lost
  // everything, so the record is announced at once.
  void OnConnection(const absl::Status& state) {
    if (!state.ok()) return;
    MutexLock lock(&mutex);
    wanted = true;
    changed.Signal();
  }

  // Until `Stop`, or until a younger process of the same id took over: two that renewed in turn
  // would replace each other for ever.
  void Run() {
    while (true) {
      const absl::Status status = Announce();
      if (absl::IsFailedPrecondition(status) || !WaitForNext(status.ok())) return;
    }
  }

  // One announcement and its reply. The command is handed to the client under `mutex` and only if
  // not `stopping`: `Stop` sets that under the same mutex before it sends the withdrawal, so no
  // announcement can follow it. `answer` is shared: the client may still call back after this has
  // returned an error.
  absl::StatusOr<RedisReply> Send() {
    struct Answer {
      Mutex mutex;
      CondVar changed;
      std::optional<absl::StatusOr<RedisReply>> reply ABSL_GUARDED_BY(mutex);
    };
    auto answer = std::make_shared<Answer>();
    {
      MutexLock lock(&mutex);
      if (stopping) return absl::CancelledError("stopping");
      const absl::Status sent =
          client.Send(AnnounceCommand(options.prefix, record, options.lease_ttl),
                      [answer](absl::StatusOr<RedisReply> reply) {
                        MutexLock lock(&answer->mutex);
                        answer->reply = std::move(reply);
                        answer->changed.Signal();
                      });
      if (!sent.ok()) return sent;
    }
    MutexLock lock(&answer->mutex);
    while (!answer->reply.has_value()) answer->changed.Wait(&answer->mutex);
    return *std::move(answer->reply);
  }

  absl::Status Announce() {
    absl::StatusOr<RedisReply> reply = Send();
    absl::Status status = reply.ok() ? ReadAnnounceReply(*reply) : reply.status();
    MutexLock lock(&mutex);
    ++(status.ok() ? stats.renewals : stats.failures);
    if (status.ok()) renewed_at = options.clock->Now();
    stats.status = status;
    return status;
  }

  // A third of the lease after a success, so that renewals may fail for two thirds of it. False:
  // stop.
  bool WaitForNext(bool renewed) {
    const Duration due =
        renewed ? options.lease_ttl / 3 : std::min<Duration>(options.lease_ttl / 3, kRetryAfter);
    MutexLock lock(&mutex);
    while (!stopping && !wanted && changed.WaitFor(&mutex, due)) {
    }
    wanted = false;
    return !stopping;
  }

  const AnnouncerOptions options;
  mutable Mutex mutex;
  CondVar changed;
  bool wanted ABSL_GUARDED_BY(mutex) = false;
  bool stopping ABSL_GUARDED_BY(mutex) = false;
  AnnouncerStats stats ABSL_GUARDED_BY(mutex);
  std::optional<Time> renewed_at ABSL_GUARDED_BY(mutex);
  RedisClient client;
  ServiceRecord record ABSL_GUARDED_BY(mutex);
  std::thread thread;
};

absl::StatusOr<std::unique_ptr<Announcer>> Announcer::Start(AnnouncerOptions options,
                                                            ServiceRecord record) {
  std::string url = options.redis;
  std::replace(url.begin(), url.end(), '|', ',');
  absl::StatusOr<RedisOptions> redis = ParseRedisUrl(url);
  if (!redis.ok()) return redis.status();
  if (options.lease_ttl < std::chrono::milliseconds(100))
    return absl::InvalidArgumentError("lease_ttl is below 100ms");
  // A record that readers would refuse is refused here, where its owner sees it.
  if (absl::StatusOr<ServiceRecord> read = ServiceRecordFromJson(ToJson(record)); !read.ok())
    return read.status();
  // The client connects in the background: Redis need not be there.
  auto state = std::make_unique<State>(std::move(options), std::move(record), *std::move(redis));
  State* const raw = state.get();
  std::unique_ptr<Announcer> announcer(new Announcer(std::move(state)));
  raw->thread = std::thread([raw] { raw->Run(); });
  return announcer;
}

Announcer::Announcer(std::unique_ptr<State> state) : state_(std::move(state)) {}

// Without withdrawing: the lease ends by itself. `client.Stop` ends a `Send` that waits.
Announcer::~Announcer() {
  {
    MutexLock lock(&state_->mutex);
    state_->stopping = true;
    state_->changed.Signal();
  }
  state_->client.Stop();
  if (state_->thread.joinable()) state_->thread.join();
}

// Sent with the next renewal: a load is not worth a command of its own.
void Announcer::SetLoad(const Load& load) {
  MutexLock lock(&state_->mutex);
  state_->record.load = load;
}

// Announced at once, if it changed.
void Announcer::SetServes(std::vector<std::string> serves) {
  if (serves.size() > kServiceServesMax) serves.resize(kServiceServesMax);
  MutexLock lock(&state_->mutex);
  if (state_->record.serves == serves) return;
  state_->record.serves = std::move(serves);
  state_->wanted = true;
  state_->changed.Signal();
}

void Announcer::Renew() {
  MutexLock lock(&state_->mutex);
  state_->wanted = true;
  state_->changed.Signal();
}

AnnouncerStats Announcer::Stats() const {
  MutexLock lock(&state_->mutex);
  AnnouncerStats stats = state_->stats;
  if (state_->renewed_at.has_value())
    stats.age = state_->options.clock->Now() - *state_->renewed_at;
  return stats;
}

void Announcer::Stop(Duration timeout) {
  ServiceRecord record;
  {
    MutexLock lock(&state_->mutex);
    if (state_->stopping) return;
    state_->stopping = true;
    state_->changed.Signal();
    record = state_->record;
  }
  // Shared with the callback, which may come after this function has given up: the client's own
  // timeout may be longer than `timeout`.
  struct Done {
    Mutex mutex;
    CondVar changed;
    bool done ABSL_GUARDED_BY(mutex) = false;
  };
  auto done = std::make_shared<Done>();
  const absl::Status sent = state_->client.Send(WithdrawCommand(state_->options.prefix, record),
                                                [done](const absl::StatusOr<RedisReply>&) {
                                                  MutexLock lock(&done->mutex);
                                                  done->done = true;
                                                  done->changed.Signal();
                                                });
  if (sent.ok()) {
    const Time until = Clock::Real().Now() + timeout;
    MutexLock lock(&done->mutex);
    while (!done->done) {
      const Duration left = until - Clock::Real().Now();
      if (left <= Duration::zero() || !done->changed.WaitFor(&done->mutex, left)) break;
    }
  }
  state_->client.Stop();
  if (state_->thread.joinable()) state_->thread.join();
}

}  // namespace kvatlas
