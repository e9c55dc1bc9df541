// Files in memory that lose power: they remember what was made durable, and forget the rest in
// every way a real disk may.
//
// *Truth*: counts every operation that changes something. At the operation of `CutAt` the power
// goes: it and all after it fail. `AfterCut` gives the disk as it is then: bytes that were not
// synced are there, are gone, or are torn: any prefix, in sectors of which some were never written;
// names that were not synced are the old ones or the new ones, one by one.
// *Threads*: none.

#ifndef KVATLAS_INDEXER_CHECKPOINT_FAULT_FILES_H_
#define KVATLAS_INDEXER_CHECKPOINT_FAULT_FILES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/checkpoint/file_layer.h"

namespace kvatlas {

class FaultFiles : public FileLayer {
 public:
  struct File {
    std::string bytes;
    std::string durable;  // as of the last sync
  };
  using FilePtr = std::shared_ptr<File>;
  using Names = std::map<std::string, FilePtr>;

  absl::Status MakeDirectory(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& directory) override;
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status SyncDirectory(const std::string& directory) override;
  absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path) override;
  absl::StatusOr<uint64_t> FreeBytes(const std::string& directory) override;

  // ---- What the test says ----

  // Operations so far that change something.
  uint64_t operations() const { return operations_; }
  // The power goes at that one; nothing: never.
  void CutAt(std::optional<uint64_t> operation) { cut_at_ = operation; }
  // Bytes that still fit; beyond, writing is RESOURCE_EXHAUSTED.
  void SetRoom(std::optional<uint64_t> bytes) { room_ = bytes; }
  void SetWritable(bool writable) { writable_ = writable; }
  // A disk as it may be after the cut: what is not durable goes as `choice` says.
  enum class Unsynced { kGone, kThere, kTorn };
  std::unique_ptr<FaultFiles> AfterCut(Unsynced choice, std::mt19937_64* random) const;

  // A file's bytes, to look at or to spoil.
  std::string* BytesOf(const std::string& path);
  std::vector<std::string> Paths() const;

 private:
  class Writable;
  class Readable;

  // One more operation; an error when the power is gone.
  absl::Status Step();

  // A change of names that the directory's sync makes durable.
  struct Change {
    std::string path;
    FilePtr file;  // null: removed
  };

  Names names_;
  Names durable_names_;
  std::vector<std::vector<Change>>
      changes_;  // since the last sync; those of one operation go together
  uint64_t operations_ = 0;
  std::optional<uint64_t> cut_at_;
  std::optional<uint64_t> room_;
  bool writable_ = true;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_CHECKPOINT_FAULT_FILES_H_
