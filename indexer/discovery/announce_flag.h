// Is this process to be found by others, and where? The flags `--announce` and `--announce_lease`
// of every service.
//
// Example:
//   AnnounceFlag announce;
//   AddAnnounceFlags(service.flags(), &announce);
//   ...                                                  // once it listens:
//   absl::StatusOr<std::unique_ptr<Announcer>> announcer = StartAnnouncing(announce, record);   // null: not asked for

#ifndef KVATLAS_INDEXER_DISCOVERY_ANNOUNCE_FLAG_H_
#define KVATLAS_INDEXER_DISCOVERY_ANNOUNCE_FLAG_H_

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/discovery/announcer.h"
#include "indexer/discovery/service_record.h"
#include "indexer/process/flags.h"

namespace kvatlas {

struct AnnounceFlag {
  std::string redis;  // URL; empty: nowhere
  Duration lease_ttl = std::chrono::seconds(10);
};

void AddAnnounceFlags(FlagSet& flags, AnnounceFlag* announce);

// Epoch and instance are filled in. INVALID_ARGUMENT names the flag. Null when it is not asked for.
absl::StatusOr<std::unique_ptr<Announcer>> StartAnnouncing(const AnnounceFlag& announce,
                                                           ServiceRecord record);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_DISCOVERY_ANNOUNCE_FLAG_H_
