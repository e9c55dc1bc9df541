// A directory of numbered checkpoint files: naming, the durable write and the removal of old ones.
// The file LOCK in it belongs to the process that writes there.

#include "indexer/checkpoint/checkpoint_store.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

namespace kvatlas {
namespace {

constexpr std::string_view kPrefix = "checkpoint-";
// Enough for any 64-bit number; leading zeros make names sort as numbers.
constexpr size_t kDigits = 20;

// The number in a checkpoint's name; nothing for any other name, for one that overflows and for the
// temporary file.
std::optional<uint64_t> NumberOf(const std::string& name) {
  if (name.size() != kPrefix.size() + kDigits || name.compare(0, kPrefix.size(), kPrefix) != 0)
    return std::nullopt;
  uint64_t number = 0;
  for (const char digit : name.substr(kPrefix.size())) {
    const uint64_t value = static_cast<uint64_t>(digit - '0');
    if (digit < '0' || digit > '9' || number > (UINT64_MAX - value) / 10) return std::nullopt;
    number = 10 * number + value;
  }
  return number;
}

}  // namespace

CheckpointStore::CheckpointStore(FileLayer* files, std::string directory, uint32_t keep)
    : files_(files),
      directory_(std::move(directory)),
      temporary_(directory_ + "/checkpoint.tmp"),
      keep_(std::max<uint32_t>(keep, 1)) {}

// The lock is held until this object is destroyed, also when a later write fails. Only the owner of
// the lock removes the temporary file: it is no other process's.
absl::Status CheckpointStore::Open() {
  if (lock_ != nullptr) return absl::OkStatus();
  if (absl::Status made = files_->MakeDirectory(directory_); !made.ok()) return made;
  absl::StatusOr<std::unique_ptr<FileLock>> lock = files_->Lock(directory_ + "/LOCK");
  if (!lock.ok()) return lock.status();
  lock_ = *std::move(lock);
  files_->Remove(temporary_).IgnoreError();  // most often there is none
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint64_t>> CheckpointStore::Numbers() const {
  const absl::StatusOr<std::vector<std::string>> names = files_->List(directory_);
  if (!names.ok()) return names.status();
  std::vector<uint64_t> numbers;
  for (const std::string& name : *names)
    if (const std::optional<uint64_t> number = NumberOf(name)) numbers.push_back(*number);
  std::sort(numbers.rbegin(), numbers.rend());
  return numbers;
}

std::string CheckpointStore::PathOf(uint64_t number) const {
  char digits[kDigits + 1];
  std::snprintf(digits, sizeof digits, "%020llu", static_cast<unsigned long long>(number));
  return directory_ + "/" + std::string(kPrefix) + digits;
}

// Above `written_` too: a number is not used twice even if its file has been removed by hand since.
absl::StatusOr<uint64_t> CheckpointStore::NextNumber() const {
  const absl::StatusOr<std::vector<uint64_t>> numbers = Numbers();
  if (!numbers.ok()) return numbers.status();
  const uint64_t last = std::max(written_, numbers->empty() ? 0 : numbers->front());
  if (last == UINT64_MAX)
    return absl::FailedPreconditionError(PathOf(last) +
                                         " has the last possible number: move it away");
  return last + 1;
}

// 1. `WriteTemporary`: the temporary file is filled and synced.
// 2. It is renamed to its number. Until here an error leaves the older checkpoints as they were.
// 3. The directory is synced: only now does the new name survive a power cut.
// 4. `RemoveOld`, only after the sync: a removal that reached the disk before the new name would
//    leave one checkpoint less, or none.
// If step 3 fails the file is there under its number, perhaps not durably: the write is reported as
// failed, nothing is removed, and the number counts as used.
absl::Status CheckpointStore::Write(uint64_t number,
                                    const std::function<absl::Status(WritableFile*)>& fill) {
  absl::Status status = WriteTemporary(fill);
  if (status.ok()) status = files_->Rename(temporary_, PathOf(number));
  if (!status.ok()) {
    files_->Remove(temporary_).IgnoreError();  // its room is needed
    return status;
  }
  written_ = std::max(written_, number);
  status = files_->SyncDirectory(directory_);
  if (status.ok()) RemoveOld();
  return status;
}

absl::Status CheckpointStore::WriteTemporary(
    const std::function<absl::Status(WritableFile*)>& fill) {
  const absl::StatusOr<std::unique_ptr<WritableFile>> file = files_->Create(temporary_);
  if (!file.ok()) return file.status();
  absl::Status status = fill(file->get());
  return status.ok() ? (*file)->Sync() : status;
}

// Keeps the `keep_` youngest. A file that cannot be removed is tried again after the next write.
void CheckpointStore::RemoveOld() {
  const absl::StatusOr<std::vector<uint64_t>> numbers = Numbers();
  if (!numbers.ok()) return;
  for (size_t i = keep_; i < numbers->size(); ++i)
    files_->Remove(PathOf((*numbers)[i])).IgnoreError();
}

}  // namespace kvatlas
