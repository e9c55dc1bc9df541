// The few operations by which checkpoints become durable on a disk, behind an interface, so that a
// test can cut the power at each of them.
//
// *Truth*: nothing is durable before `Sync` of the file, and no name before `SyncDirectory`;
// `Rename` replaces. A file that is created can be read and written by its owner alone. The last
// name of a path is never followed as a symbolic link; those above it are.
// *Threads*: any; a file has one user at a time. *Errors*: the system's reason is in the message.
// RESOURCE_EXHAUSTED: the disk is full. NOT_FOUND. PERMISSION_DENIED. FAILED_PRECONDITION: it is
// locked. UNAVAILABLE: any other.

#ifndef KVATLAS_INDEXER_CHECKPOINT_FILE_LAYER_H_
#define KVATLAS_INDEXER_CHECKPOINT_FILE_LAYER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvatlas {

class WritableFile {
 public:
  virtual ~WritableFile() = default;  // closes
  virtual absl::Status Append(std::string_view bytes) = 0;
  virtual absl::Status Sync() = 0;
};

class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  // Up to `size` bytes from there; 0: the end.
  virtual absl::StatusOr<size_t> Read(uint64_t offset, char* to, size_t size) const = 0;
};

// A lock that no other process has while this lives.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

class FileLayer {
 public:
  virtual ~FileLayer() = default;
  // Makes the directory and those above it that are missing.
  virtual absl::Status MakeDirectory(const std::string& path) = 0;
  // Names of files in it, in no order.
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& directory) = 0;
  // A new, empty file; an older one of that name is removed first.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  // Opens a regular file. UNAVAILABLE: it is something else.
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> Open(const std::string& path) = 0;
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  virtual absl::Status Remove(const std::string& path) = 0;
  virtual absl::Status SyncDirectory(const std::string& directory) = 0;
  virtual absl::StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& path) = 0;
  // Bytes that this process may still write to the file system of that directory.
  virtual absl::StatusOr<uint64_t> FreeBytes(const std::string& directory) = 0;

  // The machine's files.
  static FileLayer& Real();
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_CHECKPOINT_FILE_LAYER_H_
