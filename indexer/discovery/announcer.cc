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

// A renewal that failed is tried again sooner than the next is due.
constexpr Duration kRetryAfter = std::chrono::milliseconds(500);

}  // namespace

struct Announcer::State {
  State(AnnouncerOptions o, ServiceRecord r, RedisOptions redis)
      : options(std::move(o)),
        client(std::move(redis), [this](const absl::Status& state) { OnConnection(state); }),
        record(std::move(r)) {}

  // A Redis that comes back may have lost everything.
  void OnConnection(const absl::Status& state) {
    if (!state.ok()) return;
    MutexLock lock(&mutex);
    wanted = true;
    changed.Signal();
  }

  void Run() {
    while (true) {
      const absl::Status status = Announce();
      if (absl::IsFailedPrecondition(status) || !WaitForNext(status.ok())) return;
    }
  }

  // Sent with the mutex held, so that nothing is announced behind what `Stop` withdraws.
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

  // False: stop.
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
  // What a reader would refuse is refused here.
  if (absl::StatusOr<ServiceRecord> read = ServiceRecordFromJson(ToJson(record)); !read.ok())
    return read.status();
  auto state = std::make_unique<State>(std::move(options), std::move(record), *std::move(redis));
  State* const raw = state.get();
  std::unique_ptr<Announcer> announcer(new Announcer(std::move(state)));
  raw->thread = std::thread([raw] { raw->Run(); });
  return announcer;
}

Announcer::Announcer(std::unique_ptr<State> state) : state_(std::move(state)) {}

Announcer::~Announcer() {
  {
    MutexLock lock(&state_->mutex);
    state_->stopping = true;
    state_->changed.Signal();
  }
  state_->client.Stop();
  if (state_->thread.joinable()) state_->thread.join();
}

void Announcer::SetLoad(const Load& load) {
  MutexLock lock(&state_->mutex);
  state_->record.load = load;
}

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
  // The client gives up a call by its own timeout; the wait here may be shorter.
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
