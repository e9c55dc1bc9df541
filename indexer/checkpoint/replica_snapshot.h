// A leaf's knowledge of engines for another leaf to go on from: registrations and every engine's
// names, each stream with its position, as a stream of bytes.
//
//   header, then for each instance: the instance, then for each stream its position, its ranks and
//   its names; then the end
//
// *Format*: "KVAREP07", then records: kind (1 byte), length (u32), payload, xxh3 of kind, length
// and payload (u64);
// all little-endian. The header names the hash contract. Within a payload texts have a u32 length.
// An unknown kind of record is skipped, a payload may have more at its end, as an instance has keys
// and what came from flags; anything that older readers must not miss changes the magic. The end
// counts the records, so a cut stream is known.
// *Truth*: names of a stream belong to its position: a consistent cut each. Children follow their
// parents, so that chains are restored as runs. Parked orphans are not in it. A rank that several
// streams publish has no position of its own: its names are in doubt. Its writer is not trusted:
// records of another shape, impossible values and names of unknown streams are refused with their
// reason; what a name means is for `EngineWorker::Restore` to refuse.
// *Bounds*: writing copies one instance's names at a time, about 80 bytes each; a record has at
// most `kSnapshotRecordBytesMax`, and reading keeps one. An instance has at most
// `kSnapshotListenersMax` listeners, a snapshot `kSnapshotInstancesMax` instances and
// `kSnapshotNamesMax` names.

#ifndef KVATLAS_INDEXER_CHECKPOINT_REPLICA_SNAPSHOT_H_
#define KVATLAS_INDEXER_CHECKPOINT_REPLICA_SNAPSHOT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/hash.h"
#include "indexer/checkpoint/dynamo_dump.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/kv_events/engine_worker.h"
#include "indexer/kv_events/stream_tracker.h"

namespace kvatlas {

inline constexpr size_t kSnapshotRecordBytesMax = 1 << 20;
inline constexpr size_t kSnapshotListenersMax = 8192;
inline constexpr uint64_t kSnapshotInstancesMax = 1 << 17;
inline constexpr uint64_t kSnapshotNamesMax = uint64_t{1} << 28;
inline constexpr const char* kSnapshotContentType = "application/vnd.kvatlas.replica";

struct SnapshotStats {
  uint64_t instances = 0;
  uint64_t names = 0;
  uint64_t positions = 0;
};

// The snapshot, instance by instance; without `names`, the registrations alone. One call at a time.
// The directory outlives it, and so does `written`, which counts what the pieces told so far (may
// be null).
TextSource ReplicaSnapshotSource(const HashContract& contract, const EngineDirectory* directory,
                                 bool names, SnapshotStats* written = nullptr);

class SnapshotVisitor {
 public:
  virtual ~SnapshotVisitor() = default;
  // Anything but OK ends the reading with it. `listeners` has no statistics.
  virtual absl::Status OnInstance(const EngineEntry& entry) = 0;
  // The ranks and names that follow are that stream's.
  virtual absl::Status OnPosition(const EngineEntry& entry, uint32_t stream_rank,
                                  const std::optional<StreamPosition>& position) = 0;
  // What is known of a rank, before its names; possibly in several calls. `stream_rank` is filled
  // in, here and in names.
  virtual absl::Status OnRank(const EngineEntry& entry, const EngineRankMark& mark) = 0;
  virtual absl::Status OnName(const EngineEntry& entry, const EngineAlias& alias) = 0;
};

// DATA_LOSS: a checksum, a length or the end is not as it was written, or what is written cannot
// be. FAILED_PRECONDITION: another contract or version. INVALID_ARGUMENT: no snapshot at all.
absl::StatusOr<SnapshotStats> ReadReplicaSnapshot(const HashContract& contract,
                                                  const ReadChunk& read, SnapshotVisitor* visitor);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_CHECKPOINT_REPLICA_SNAPSHOT_H_
