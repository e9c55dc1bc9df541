// How does a leaf that was killed know in seconds what it knew before? It writes down every minute
// what it holds, with each stream's position, and restores it when it starts.
//
//     start   1. `Restore`: the youngest checkpoint that can be read; holders are there, degraded
//                until heard
//             2. `RestoreEngines`, once it is known that no replica tells better, before the
//                directory opens
//             3. publishers say hello and go on behind the position, engines replay from theirs;
//                without a hello the lease ends it
//             4. `Start`: from now on one is written every `every`
//
// *Place*: a leaf with --checkpoint_dir has one.
// *Truth*: each holder is a consistent cut with its position; cuts of different holders are of
// different moments, as streams are. A checkpoint that cannot be read is logged with the reason and
// the next older one is taken; without any the leaf starts empty and streams are asked for
// snapshots. An error while writing leaves the older ones, is logged and counted, and writing is
// tried again after `every`.
// *Threads*: any; one for the writing, of low priority, which is paced: a quarter of one core until
// half of `every` is over.
// *Cost*: a checkpoint is written whole each time. A holder's writer waits while its blocks are
// copied; queries do not wait.
// *Bounds*: `keep` files; in memory one holder's blocks, or one engine's names.

#ifndef KVATLAS_INDEXER_CHECKPOINT_CHECKPOINTER_H_
#define KVATLAS_INDEXER_CHECKPOINT_CHECKPOINTER_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"
#include "indexer/checkpoint/checkpoint_file.h"
#include "indexer/checkpoint/engine_restore.h"
#include "indexer/checkpoint/file_layer.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {

struct CheckpointOptions {
  std::string directory;  // empty: no checkpoints
  Duration every = std::chrono::minutes(1);
  uint32_t keep = 3;
  std::string cell;  // filled in by the leaf, as what follows
  std::string replica;
  HashContract contract;
  FileLayer* files = &FileLayer::Real();
  std::function<uint64_t()> wall_time_ns = WallTimeNs;  // for the age of what is restored
};

struct CheckpointReport {
  uint64_t number = 0;
  std::string path;
  CheckpointCounts counts;
  Duration took{0};
  Duration age{0};  // of one restored: since it was begun, by the wall clock
};

struct CheckpointStats {
  uint64_t written = 0;
  uint64_t failed = 0;
  uint64_t refused = 0;  // checkpoints that could not be read
  CheckpointReport last;
  absl::Status last_error = {};             // of the last write
  absl::Status restore_error = {};          // the youngest one's, where none could be read
  std::optional<Duration> age = {};         // since the last one was begun
  std::optional<uint64_t> free_bytes = {};  // of its disk, when it was last written to
};

class Checkpointer {
 public:
  // Registry, directory and metrics outlive it. `directory` may be null: no engines.
  Checkpointer(CheckpointOptions options, HolderRegistry* registry, EngineDirectory* directory,
               Metrics* metrics);
  ~Checkpointer();  // Stop(), without a last one

  // Makes the directory and locks it for this process; to be called first. FAILED_PRECONDITION:
  // another process has it. INVALID_ARGUMENT: it cannot be made, or written to.
  absl::Status Open();

  // Restores the holders of streams from the youngest checkpoint that can be read. NOT_FOUND: there
  // is none. DATA_LOSS: none that is there can be read; the message says why the youngest cannot.
  // FAILED_PRECONDITION: another process writes there.
  absl::StatusOr<CheckpointReport> Restore();

  // Restores engines' registrations, names and positions from the checkpoint that `Restore` took;
  // of engines of flags those that flags still name (`engine_restore.h`). OK also where it has no
  // engines.
  absl::Status RestoreEngines(const NamedByFlags& named = nullptr);

  void Start();

  // Writes a checkpoint, after the one under way, at full speed; or `paced` as periodic ones are,
  // which lowers the calling thread's priority for good. UNAVAILABLE: stopped, or not started while
  // engines are to come back. Others: the disk's.
  absl::StatusOr<CheckpointReport> WriteNow(bool paced = false);

  // Ends the thread and the checkpoint that it is writing, then writes a last one if `write_last`
  // and if engines were opened (`Start`). Idempotent.
  void Stop(bool write_last);

  CheckpointStats Stats() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_CHECKPOINT_CHECKPOINTER_H_
