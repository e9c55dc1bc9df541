// Signs and checks the records of logs in Redis, so that only the fleet can write them: an HMAC
// over each record, by a key that Redis does not have.
//
// *Format* of the file (mode 0640 at most): a key a line, `kRecordKeysMax` at most. A cell's key is
// at least 16 bytes of text (`openssl rand -hex 32`): it signs for every worker of the cell, and
// checks what any of them signed. A worker's key, worker:NAME:HEX, is made of a cell's key and the
// name (`kvatlas pki record-key`): it signs and checks for that worker alone, so that a worker that
// has no other key cannot speak for another. The first that is good for a worker signs; any of them
// is accepted. *Rotation*, without a record that is refused: add the new key as the second line
// everywhere; put it first everywhere; take the old one out when no record of it is left in the
// logs. The file is looked at once a second; a bad one keeps the old keys.
// *Truth*: a record that verifies was signed with one of the keys, for this worker and this
// context: its stream and its place in the log.
// *Threads*: any. *Cost*: a microsecond and SHA-256 of the record.

#ifndef KVATLAS_INDEXER_SECURITY_RECORD_KEYS_H_
#define KVATLAS_INDEXER_SECURITY_RECORD_KEYS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
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

  // By the cell's key, or by the worker's own.
  enum class By : uint8_t { kCell, kWorker };

  struct Signature {
    By by = By::kCell;
    std::string mac;  // empty: no key here signs for this worker
  };
  Signature Sign(std::string_view worker, std::string_view context, std::string_view record);
  bool Verify(By by, std::string_view worker, std::string_view context, std::string_view record,
              std::string_view mac);

  // Writes the file of a worker that goes with the cell's, key by key. INVALID_ARGUMENT: there is a
  // worker's key in that.
  static absl::Status WriteOfWorker(const std::string& cell_path, std::string_view worker,
                                    const std::string& path);

  // Looks at the file now, as happens once a second otherwise.
  void LookAtFile();

  // Changes when the keys do: what lasts, such as a registration, is to be signed again then.
  uint64_t generation();

 private:
  class Key;
  using KeyPtr = std::shared_ptr<const Key>;
  using Keys = std::vector<KeyPtr>;

  explicit RecordKeys(std::string path) : path_(std::move(path)) {}
  static absl::StatusOr<KeyPtr> Parse(std::string_view line);
  static absl::StatusOr<Keys> Load(const std::string& path);
  Keys KeysNow();
  // The key of a worker that `key` is good for; null: it is not.
  KeyPtr OfWorker(const KeyPtr& key, std::string_view worker);

  const std::string path_;
  std::atomic<int64_t> looked_s_{0};
  Mutex mutex_;
  Keys keys_ ABSL_GUARDED_BY(mutex_);
  // Workers' keys that were made of cells' keys; forgotten when the keys change.
  std::map<std::pair<const Key*, std::string>, KeyPtr> of_workers_ ABSL_GUARDED_BY(mutex_);
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  std::string stamp_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SECURITY_RECORD_KEYS_H_
