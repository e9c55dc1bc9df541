// Polls the leases of one kind in Redis. Between polls `known_` is what was read last; after a loss
// of Redis' data, entries that are missing are kept until the grace is over.

#include "indexer/discovery/redis_source.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "indexer/discovery/redis_leases.h"
#include "indexer/discovery/waiting_source.h"
#include "indexer/net/redis_client.h"
#include "indexer/net/redis_url.h"

namespace kvatlas {
namespace {

// A poll returns nothing when no record changed, and loads change no version: every so many polls
// everything is asked for anyway, for the loads.
constexpr int kPollsPerFullAnswer = 10;

class RedisSource : public WaitingSource {
 public:
  RedisSource(RedisOptions redis, const DirectoryOptions& options)
      : redis_(std::move(redis)),
        prefix_(options.redis_prefix),
        kind_(options.kind),
        name_(options.name),
        poll_every_(options.poll_every),
        grace_(options.redis_grace),
        clock_(options.clock) {}
  ~RedisSource() override { Stop(); }

  void Start(Report report) override {
    client_ = std::make_unique<RedisClient>(redis_);
    WaitingSource::Start(std::move(report));
  }

 private:
  // The first poll asks for everything. `Refresh` polls at once.
  void Run() override {
    for (int polls = 0;; ++polls) {
      Poll(/*full=*/polls % kPollsPerFullAnswer == 0);
      if (!Wait(poll_every_)) return;
    }
  }

  // Ends a call to Redis that waits.
  void Interrupt() override {
    if (client_ != nullptr) client_->Stop();
  }

  // One poll and one report. A failure is reported and changes nothing. The grace begins when
  // `born` is another one than before, also when it is gone: an empty Redis has none until the
  // first service announces itself there, and that later change begins no second grace.
  void Poll(bool full) {
    const absl::StatusOr<RedisReply> reply =
        client_->Call(ReadCommand(prefix_, kind_, full ? "" : version_));
    if (!reply.ok()) return Tell(reply.status());
    absl::StatusOr<LeasesAnswer> answer = ReadReadReply(*reply);
    if (!answer.ok()) return Tell(answer.status());
    if (answer->born != born_ && !born_.empty()) grace_ends_ = clock_->Now() + grace_;
    born_ = answer->born;
    version_ = answer->version;
    if (answer->records.has_value()) Take(*std::move(answer->records));
    Tell(Known());
  }

  // Replaces what is known. During the grace, entries that are not in the answer stay, marked as
  // kept. With a name only that cell's or node's records count.
  void Take(std::vector<ServiceRecord> records) {
    const bool keep = grace_ends_.has_value();
    std::map<std::string, Entry> now;
    for (ServiceRecord& record : records) {
      std::string id = IdOf(record);
      if (!name_.empty() && record.name != name_) continue;
      now[std::move(id)] = {std::move(record), /*kept=*/false};
    }
    if (keep) {
      for (auto& [id, entry] : known_) now.try_emplace(id, Entry{std::move(entry.record), true});
    }
    known_ = std::move(now);
  }

  // Drops what is kept once the grace is over: services that live have announced themselves again
  // by then.
  std::vector<ServiceRecord> Known() {
    if (grace_ends_.has_value() && clock_->Now() >= *grace_ends_) {
      grace_ends_.reset();
      std::erase_if(known_, [](const auto& item) { return item.second.kept; });
    }
    std::vector<ServiceRecord> records;
    for (const auto& [id, entry] : known_) records.push_back(entry.record);
    return records;
  }

  struct Entry {
    ServiceRecord record;
    bool kept = false;  // not announced since the data was lost
  };

  const RedisOptions redis_;
  const std::string prefix_;
  const ServiceKind kind_;
  const std::string name_;
  const Duration poll_every_;
  const Duration grace_;
  const Clock* const clock_;
  std::unique_ptr<RedisClient> client_;  // immutable after Start
  // Only the source's thread uses these.
  std::string version_;
  std::string born_;
  std::optional<Time> grace_ends_;
  std::map<std::string, Entry> known_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DirectorySource>> MakeRedisSource(const std::string& url,
                                                                 const DirectoryOptions& options) {
  // '|' separates hosts within an entry, since ',' separates entries.
  std::string with_commas = url;
  std::replace(with_commas.begin(), with_commas.end(), '|', ',');
  absl::StatusOr<RedisOptions> redis = ParseRedisUrl(with_commas);
  if (!redis.ok()) return redis.status();
  return std::unique_ptr<DirectorySource>(
      std::make_unique<RedisSource>(*std::move(redis), options));
}

}  // namespace kvatlas
