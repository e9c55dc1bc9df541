// A directory of numbered checkpoint files, in which a new one appears whole or not at all.
//
//   write   1. checkpoint.tmp is created and filled   2. it is synced   3. it is renamed to checkpoint-<number>
//           4. the directory is synced                5. the oldest beyond `keep` are removed
//
// *Truth*: a name of that form is only ever given to a file whose bytes are durable, and nothing is
// removed before the name of a younger one is. So after a power cut at any moment there is the one
// before or the new one, whole.
// *Threads*: one. *Bounds*: `keep` files, and the one being written.

#ifndef KVATLAS_INDEXER_CHECKPOINT_CHECKPOINT_STORE_H_
#define KVATLAS_INDEXER_CHECKPOINT_CHECKPOINT_STORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/checkpoint/file_layer.h"

namespace kvatlas {

class CheckpointStore {
 public:
  // `files` outlives it.
  CheckpointStore(FileLayer* files, std::string directory, uint32_t keep);

  // Makes the directory where it is missing, takes it for this process alone and removes what an
  // interrupted write left. FAILED_PRECONDITION: another process has it. Others: the disk's. May be
  // called again after an error.
  absl::Status Open();

  // Numbers of those there, the youngest first. Statuses as `FileLayer`.
  absl::StatusOr<std::vector<uint64_t>> Numbers() const;

  std::string PathOf(uint64_t number) const;

  // One above all that are there or that this process wrote. FAILED_PRECONDITION: the last possible
  // number is there.
  absl::StatusOr<uint64_t> NextNumber() const;

  // Writes the checkpoint of that number. Errors are those of `fill` and of the disk; the older
  // ones are then all still there.
  absl::Status Write(uint64_t number, const std::function<absl::Status(WritableFile*)>& fill);

 private:
  absl::Status WriteTemporary(const std::function<absl::Status(WritableFile*)>& fill);
  void RemoveOld();

  FileLayer* const files_;
  const std::string directory_;
  const std::string temporary_;
  const uint32_t keep_;
  std::unique_ptr<FileLock> lock_;
  uint64_t written_ = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_CHECKPOINT_CHECKPOINT_STORE_H_
