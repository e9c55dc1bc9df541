#include "indexer/discovery/announce_flag.h"

#include <utility>

#include "indexer/net/redis_url.h"

namespace kvatlas {

void AddAnnounceFlags(FlagSet& flags, AnnounceFlag* announce) {
  flags
      .Add("announce", &announce->redis,
           "URL of the Redis where others find this process, redis://HOST:PORT or @FILE; empty: "
           "nowhere")
      .Check([](const std::string& url) { return ParseRedisUrl(url).status(); });
  flags.Add("announce_lease", &announce->lease_ttl,
            "silence after which it is not found there any more", std::chrono::milliseconds(100));
}

// Epoch and instance are new at each start, so that a process that starts again replaces its former
// record at once.
absl::StatusOr<std::unique_ptr<Announcer>> StartAnnouncing(const AnnounceFlag& announce,
                                                           ServiceRecord record) {
  if (announce.redis.empty()) return nullptr;
  record.epoch = WallTimeNs();
  record.instance_id = RandomInstanceId();
  AnnouncerOptions options;
  options.redis = announce.redis;
  options.lease_ttl = announce.lease_ttl;
  auto announcer = Announcer::Start(std::move(options), std::move(record));
  if (announcer.ok()) return announcer;
  return absl::InvalidArgumentError("--announce: " + std::string(announcer.status().message()));
}

}  // namespace kvatlas
