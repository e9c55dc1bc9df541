#include "indexer/checkpoint/checkpoint_store.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <utility>

namespace kvatlas {
namespace {

constexpr std::string_view kPrefix = "checkpoint-";
constexpr size_t kDigits = 20;

// Nothing: not a checkpoint's name.
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

absl::StatusOr<uint64_t> CheckpointStore::NextNumber() const {
  const absl::StatusOr<std::vector<uint64_t>> numbers = Numbers();
  if (!numbers.ok()) return numbers.status();
  const uint64_t last = std::max(written_, numbers->empty() ? 0 : numbers->front());
  if (last == UINT64_MAX)
    return absl::FailedPreconditionError(PathOf(last) +
                                         " has the last possible number: move it away");
  return last + 1;
}

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

// One that cannot be removed now is tried again the next time.
void CheckpointStore::RemoveOld() {
  const absl::StatusOr<std::vector<uint64_t>> numbers = Numbers();
  if (!numbers.ok()) return;
  for (size_t i = keep_; i < numbers->size(); ++i)
    files_->Remove(PathOf((*numbers)[i])).IgnoreError();
}

}  // namespace kvatlas
