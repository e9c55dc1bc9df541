// Others find this process by its record in Redis, under a lease that is renewed while it lives.
//
// *Truth*: a record is there within a lease's third of its start, and is gone a lease after its
// process died, or at once on `Stop`. If two processes have the same (kind, name, replica), the
// younger epoch wins; the older one learns it with its next renewal and stops announcing. Time is
// Redis' own, so clocks need not agree.
// *Threads*: any thread may call everything. One thread of its own, and the Redis client's.
// *Cost*: one command each `lease_ttl / 3`.
// *Bounds*: the record's (`service_record.h`).
// *Format*: keys `PREFIX:{KIND}:records`, a hash from id to 20 digits of epoch, 16 hexadecimal ones
// of the instance, then the record's JSON without its load; `…:loads`, a hash from id to the load's
// JSON; `…:leases`, a sorted set of ids by the millisecond at which they end; `…:version`, which
// grows with every change of records; `…:born`, when all this began.
//
// Example:
//   auto announcer = Announcer::Start({.redis = "redis://10.0.0.9:6379"}, record);
//   (*announcer)->SetLoad(load);       // told with the next renewal
//   (*announcer)->Stop();              // withdraws it

#ifndef KVATLAS_INDEXER_DISCOVERY_ANNOUNCER_H_
#define KVATLAS_INDEXER_DISCOVERY_ANNOUNCER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/discovery/service_record.h"

namespace kvatlas {

struct AnnouncerOptions {
  std::string redis;  // URL
  std::string prefix = "kvatlas";
  Duration lease_ttl = std::chrono::seconds(10);
  const Clock* clock = &Clock::Real();
};

struct AnnouncerStats {
  uint64_t renewals = 0;
  uint64_t failures = 0;
  std::optional<Duration> age;  // since the last renewal
  // FAILED_PRECONDITION: replaced by a younger process of the same id, for good. Else why the last
  // renewal failed.
  absl::Status status;
};

class Announcer {
 public:
  // INVALID_ARGUMENT: the URL or the record is none. Redis need not be reachable.
  static absl::StatusOr<std::unique_ptr<Announcer>> Start(AnnouncerOptions options,
                                                          ServiceRecord record);
  ~Announcer();  // without withdrawing

  Announcer(const Announcer&) = delete;
  Announcer& operator=(const Announcer&) = delete;

  void SetLoad(const Load& load);
  void SetServes(std::vector<std::string> serves);

  // Renews at once instead of when it is due; does not wait.
  void Renew();

  AnnouncerStats Stats() const;

  // Withdraws the record, waiting at most so long, and ends. Idempotent.
  void Stop(Duration timeout = std::chrono::seconds(1));

 private:
  struct State;
  explicit Announcer(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_DISCOVERY_ANNOUNCER_H_
