// Which services hold a lease in Redis? A source of a directory.
//
// *Truth*: `announcer.h` is the other side. When Redis comes back without its data, services that
// were known stay known for `DirectoryOptions::redis_grace`, in which those that live announce
// themselves again.

#ifndef KVATLAS_INDEXER_DISCOVERY_REDIS_SOURCE_H_
#define KVATLAS_INDEXER_DISCOVERY_REDIS_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "indexer/discovery/directory.h"
#include "indexer/discovery/directory_source.h"

namespace kvatlas {

// INVALID_ARGUMENT: no URL of Redis. In a list that commas separate, several hosts of one URL are
// separated by `|`.
absl::StatusOr<std::unique_ptr<DirectorySource>> MakeRedisSource(const std::string& url,
                                                                 const DirectoryOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_DISCOVERY_REDIS_SOURCE_H_
