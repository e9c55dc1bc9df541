// Was a record of a log in Redis written by one of the fleet? An HMAC over each record, by a key that Redis does not have.
//
// *Format* of the file (mode 0640 at most): a key a line, at least 16 bytes of text each, `kRecordKeysMax` at most
// (`openssl rand -hex 32`). The first signs; any of them is accepted.
// *Rotation*, without a record that is refused: add the new key as the second line everywhere; put it first everywhere; take the old one
// out when no record of it is left in the logs. The file is looked at once a second; a bad one keeps the old keys.
// *Truth*: a record that verifies was signed with one of the keys, for this context: its stream and its place in the log.
// *Threads*: any. *Cost*: a microsecond and SHA-256 of the record.

#ifndef KVATLAS_INDEXER_SERVICE_SECURITY_RECORD_KEYS_H_
#define KVATLAS_INDEXER_SERVICE_SECURITY_RECORD_KEYS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

inline constexpr size_t kRecordKeysMax = 4;
inline constexpr size_t kRecordMacBytes = 32;

class RecordKeys {
 public:
  // INVALID_ARGUMENT names the file and what is wrong with it, not what is in it.
  static absl::StatusOr<std::shared_ptr<RecordKeys>> Read(const std::string& path);

  std::string Sign(std::string_view context, std::string_view record);
  bool Verify(std::string_view context, std::string_view record, std::string_view mac);

  // As if a second had gone by.
  void LookAtFile();

  // Changes when the keys do: what lasts, such as a registration, is to be signed again then.
  uint64_t generation();

 private:
  class Key;
  using Keys = std::vector<std::shared_ptr<const Key>>;

  explicit RecordKeys(std::string path) : path_(std::move(path)) {}
  static absl::StatusOr<Keys> Load(const std::string& path);
  Keys KeysNow();

  const std::string path_;
  std::atomic<int64_t> looked_s_{0};
  Mutex mutex_;
  Keys keys_ ABSL_GUARDED_BY(mutex_);
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string stamp_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SERVICE_SECURITY_RECORD_KEYS_H_
