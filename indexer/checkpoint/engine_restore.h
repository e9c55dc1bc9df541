// Puts engines back into a directory from a replica's snapshot, a checkpoint or a dump:
// registrations, then for each stream its position, its ranks and its names.
//
// *Truth*: a replica that is alive told where its streams stand now. A checkpoint's positions are
// of an earlier time: what it tells is in no answer before the engine is connected, and degraded
// until its numbers go on from there, or a replay does. A dump has none: `EngineDirectory::Adopt`,
// unconfirmed. A checkpoint's stream that came from flags comes back only if flags still name it,
// at the same endpoint and as the same engine (adapter, salt, what its blocks are). A failure to
// restore something is logged, and the rest goes on.
// *Threads*: one. *Place*: before `EngineDirectory::Open`.

#ifndef KVATLAS_INDEXER_CHECKPOINT_ENGINE_RESTORE_H_
#define KVATLAS_INDEXER_CHECKPOINT_ENGINE_RESTORE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "indexer/checkpoint/replica_snapshot.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/kv_events/engine_worker.h"
#include "indexer/kv_events/stream_tracker.h"

namespace kvatlas {

// Whether this process's flags name this stream, which is not registered yet. Null: all engines of
// flags are registered already.
using NamedByFlags = std::function<bool(const EngineEntry&, const EngineListener&)>;

// Registers the listeners that are not registered yet. Logs those that cannot be, and continues.
void RegisterEngines(EngineDirectory* directory, const EngineEntry& entry);

class EngineRestorer : public SnapshotVisitor {
 public:
  enum class Source { kReplica, kCheckpoint, kDump };
  // The directory outlives it. Reading ends with RESOURCE_EXHAUSTED at the instance beyond
  // `instances_max`.
  EngineRestorer(EngineDirectory* directory, Source source, uint32_t instances_max = UINT32_MAX,
                 NamedByFlags named = nullptr);

  // A replica's were registered before, so that nothing is missed meanwhile; a checkpoint's are
  // here. RESOURCE_EXHAUSTED: one instance too many.
  absl::Status OnInstance(const EngineEntry& entry) override;
  // Without a position nothing was said on that stream yet.
  absl::Status OnPosition(const EngineEntry& entry, uint32_t rank,
                          const std::optional<StreamPosition>& position) override;
  absl::Status OnRank(const EngineEntry& entry, const EngineRankMark& mark) override;
  absl::Status OnName(const EngineEntry& entry, const EngineAlias& alias) override;

  // One name by itself. RESOURCE_EXHAUSTED as above; another reason for which it cannot be is
  // logged once.
  absl::Status Restore(const EngineEntry& entry, const EngineAlias& alias);

  // Afterwards all that was restored is in the index.
  void Finish() const;

  uint64_t restored() const { return restored_; }
  uint64_t refused() const { return refused_; }

 private:
  absl::Status Admit(const EngineEntry& entry);
  // Registers the checkpoint's stream where it is to be. False: there is no such stream now, or
  // another one.
  bool Comes(const EngineEntry& entry, const EngineListener& listener,
             const std::optional<EngineEntry>& registered);
  // Null: it cannot be. REQUIRES: admitted.
  EngineWorker* WorkerOf(const EngineEntry& entry);

  EngineDirectory* const directory_;
  const Source source_;
  const uint32_t instances_max_;
  const NamedByFlags named_;
  std::map<std::string, std::shared_ptr<EngineWorker>> workers_;  // null: it cannot be
  std::set<uint32_t> come_;  // ranks of a checkpoint's instance whose streams come back
  uint32_t stream_rank_ = 0;
  bool passes_ = false;  // this stream does not come back
  uint64_t lost_positions_ = 0;
  uint64_t lost_ranks_ = 0;
  uint64_t restored_ = 0;
  uint64_t refused_ = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_CHECKPOINT_ENGINE_RESTORE_H_
