// The commands by which services are announced and found in Redis, and how their answers are read.
// They are scripts, so that each is one step to all clients.
//
// *Truth*: ends of leases are by Redis' own clock. A script prunes what has run out before it
// answers.
// *Threads*: pure functions.
// *Cost*: announcing is constant; reading is one small answer when nothing changed, else
// everything.

#ifndef KVATLAS_INDEXER_DISCOVERY_REDIS_LEASES_H_
#define KVATLAS_INDEXER_DISCOVERY_REDIS_LEASES_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/discovery/service_record.h"
#include "indexer/net/redis_client.h"
#include "indexer/net/redis_reply.h"

namespace kvatlas {

// Makes the record known for so long.
RedisArgs AnnounceCommand(const std::string& prefix, const ServiceRecord& record,
                          Duration lease_ttl);
// FAILED_PRECONDITION: a younger one is alive.
absl::Status ReadAnnounceReply(const RedisReply& reply);

// Forgets it, unless it is another incarnation's by now.
RedisArgs WithdrawCommand(const std::string& prefix, const ServiceRecord& record);

// Everything known, or nothing but the version when that is still `known_version`.
RedisArgs ReadCommand(const std::string& prefix, ServiceKind kind,
                      const std::string& known_version);

struct LeasesAnswer {
  std::string version;  // another after every change of a record
  std::string born;     // another when Redis lost its data; empty: there is none
  // Nothing: as at that version. Entries that are no records are left out, and counted.
  std::optional<std::vector<ServiceRecord>> records;
  size_t malformed = 0;
};

absl::StatusOr<LeasesAnswer> ReadReadReply(const RedisReply& reply);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_DISCOVERY_REDIS_LEASES_H_
