// The questions of SGLang's router to its KV indexer, answered from a leaf's index: names of pages
// become blocks, blocks become holders, holders become addresses.
//
//   MatchExternalKvPrefix ─▶ SglangBlockHashes: leading names that are known ─▶ HolderRegistry::FindOverlaps ─▶ addresses, the deepest first
//
// *Place*: `KvIndexerService` puts it on the wire. One domain, since the interface names none.
// *Truth*: as `HolderRegistry::FindOverlaps` of the blocks that the names mean: never more than a
// worker reuses. What is not known (the domain, a name, a worker's address) is no match and never
// an error: the router answers 503 to its user for every status but UNAVAILABLE, DEADLINE_EXCEEDED,
// CANCELLED, RESOURCE_EXHAUSTED and OUT_OF_RANGE, and takes the least loaded worker for those.
// *Threads*: any. *Cost*: a prefix query is one probe a block, the index's walk, and two texts a
// worker.
// *Bounds*: `kKvIndexerHashesMax` hashes of a prefix query, `kKvIndexerListMax` of any other call,
// counts of `kHitCountsMax` pages.

#ifndef KVATLAS_INDEXER_COMPAT_SGLANG_KV_INDEXER_H_
#define KVATLAS_INDEXER_COMPAT_SGLANG_KV_INDEXER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/domain.h"
#include "indexer/base/mutex.h"
#include "indexer/kv_events/sglang_block_hash.h"
#include "indexer/registry/holder_registry.h"
#include "proto/kv_indexer/v1/kv_indexer.pb.h"

namespace kvatlas {

// A hash has 8 bytes: 8 MiB.
inline constexpr int kKvIndexerHashesMax = 1 << 20;
inline constexpr int kKvIndexerListMax = 16384;
inline constexpr size_t kHitCountsMax = 1 << 20;

// "MODEL" or "MODEL=TENANT". INVALID_ARGUMENT: no model.
absl::StatusOr<Domain> ParseKvIndexerModel(std::string_view text);

struct KvIndexerOptions {
  std::optional<Domain> domain = {};  // of which it answers; nothing: it answers UNAVAILABLE
  bool counts_disk = false;           // blocks on disk are held, too; device and host always are
  uint32_t in_flight_max = 32;        // prefix queries; beyond it RESOURCE_EXHAUSTED at once
  PageNamesOptions names = {};
};

class KvIndexer {
 public:
  // The registry outlives it. REQUIRES: `names` unless there is no domain; they outlive it.
  KvIndexer(const KvIndexerOptions& options, const HolderRegistry* registry,
            const SglangBlockHashes* names);

  // `trust` lists the workers in the answer that are not exact,
  // "worker-3/0=degraded,worker-4/0=stale", in at most about a kilobyte. INVALID_ARGUMENT: no
  // hashes. RESOURCE_EXHAUSTED: too many. UNAVAILABLE: no domain was named.
  absl::Status MatchPrefix(const kv_indexer::v1::MatchExternalKvPrefixRequest& request,
                           kv_indexer::v1::MatchExternalKvPrefixResponse* response,
                           std::string* trust) const;

  // Each hash of the request once, by worker and tier; workers without an address too.
  // RESOURCE_EXHAUSTED; UNAVAILABLE.
  absl::Status Match(const kv_indexer::v1::MatchExternalKvRequest& request,
                     kv_indexer::v1::MatchExternalKvResponse* response);

  // Hits that `Match` counted since the start. RESOURCE_EXHAUSTED.
  absl::Status HitCounts(const kv_indexer::v1::GetExternalKvHitCountsRequest& request,
                         kv_indexer::v1::GetExternalKvHitCountsResponse* response) const;

 private:
  void CountHits(const absl::flat_hash_map<int64_t, bool>& matched);

  const KvIndexerOptions options_;
  const HolderRegistry* const registry_;
  const SglangBlockHashes* const names_;

  mutable Mutex mutex_;
  absl::flat_hash_map<int64_t, uint64_t> hits_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_COMPAT_SGLANG_KV_INDEXER_H_
