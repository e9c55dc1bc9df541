#include "indexer/security/record_keys.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "indexer/base/clock.h"
#include "indexer/security/secret_file.h"

namespace kvatlas {
namespace {

constexpr size_t kKeyBytesMin = 16;
constexpr std::string_view kWorkerPrefix = "worker:";
constexpr std::string_view kWorkerKeyContext = "key of a worker";
// Workers' keys that are remembered; at the bound all are made again.
constexpr size_t kWorkersMax = 1 << 16;

using MacContext = std::unique_ptr<EVP_MAC_CTX, decltype(&EVP_MAC_CTX_free)>;

const uint8_t* Bytes(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

// Empty: the file is not there, which changes nothing.
std::string StampOf(const std::string& path) {
  struct stat status = {};
  if (stat(path.c_str(), &status) != 0) return "";
  return absl::StrCat(status.st_ino, ":", status.st_size, ":", status.st_mtim.tv_sec, ":",
                      status.st_mtim.tv_nsec);
}

}  // namespace

// An HMAC that has its key already and is copied for each record.
class RecordKeys::Key {
 public:
  // `worker`: the worker that the key is for; none for a cell's key.
  explicit Key(std::string_view key, std::optional<std::string> worker = std::nullopt)
      : worker_(std::move(worker)), keyed_(nullptr, EVP_MAC_CTX_free) {
    const std::unique_ptr<EVP_MAC, decltype(&EVP_MAC_free)> hmac(
        EVP_MAC_fetch(nullptr, OSSL_MAC_NAME_HMAC, nullptr), EVP_MAC_free);
    char digest[] = "SHA256";
    const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest, 0),
                                 OSSL_PARAM_construct_end()};
    keyed_.reset(EVP_MAC_CTX_new(hmac.get()));
    if (keyed_ != nullptr && EVP_MAC_init(keyed_.get(), Bytes(key), key.size(), params) != 1)
      keyed_.reset();
  }

  bool ok() const { return keyed_ != nullptr; }
  const std::optional<std::string>& worker() const { return worker_; }

  // The MAC over the length of the context, the context and the record. The length keeps two pairs
  // apart whose concatenations are equal. Empty: OpenSSL failed.
  std::string Of(std::string_view context, std::string_view record) const {
    const MacContext mac(EVP_MAC_CTX_dup(keyed_.get()), EVP_MAC_CTX_free);
    const std::string size = absl::StrCat(context.size(), ":");
    std::string out(kRecordMacBytes, '\0');
    size_t written = 0;
    const bool good =
        mac != nullptr && EVP_MAC_update(mac.get(), Bytes(size), size.size()) == 1 &&
        EVP_MAC_update(mac.get(), Bytes(context), context.size()) == 1 &&
        EVP_MAC_update(mac.get(), Bytes(record), record.size()) == 1 &&
        EVP_MAC_final(mac.get(), reinterpret_cast<uint8_t*>(out.data()), &written, out.size()) == 1;
    return good && written == kRecordMacBytes ? out : "";
  }

  // The bytes of the worker's key. No context of a record is this one.
  std::string OfWorker(std::string_view worker) const { return Of(kWorkerKeyContext, worker); }

 private:
  const std::optional<std::string> worker_;
  MacContext keyed_;
};

// Names of workers may contain ':', so the key is what follows the last one.
absl::StatusOr<RecordKeys::KeyPtr> RecordKeys::Parse(std::string_view line) {
  if (!line.starts_with(kWorkerPrefix)) {
    if (line.size() < kKeyBytesMin)
      return absl::InvalidArgumentError(
          absl::StrCat("a key has at least ", kKeyBytesMin, " characters (openssl rand -hex 32)"));
    return std::make_shared<const Key>(line);
  }
  line.remove_prefix(kWorkerPrefix.size());
  const size_t colon = line.rfind(':');
  const std::string_view hex = colon == line.npos ? "" : line.substr(colon + 1);
  const bool good = hex.size() == 2 * kRecordMacBytes &&
                    hex.find_first_not_of("0123456789abcdef") == hex.npos && colon > 0;
  if (!good)
    return absl::InvalidArgumentError(
        "a worker's key is worker:NAME: and 64 digits, as kvatlas pki record-key makes it");
  return std::make_shared<const Key>(
      absl::HexStringToBytes(absl::string_view(hex.data(), hex.size())),
      std::string(line.substr(0, colon)));
}

absl::StatusOr<RecordKeys::Keys> RecordKeys::Load(const std::string& path) {
  absl::StatusOr<std::string> text = ReadSecretFile(path);
  if (!text.ok()) return text.status();
  Keys keys;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty()) continue;
    absl::StatusOr<KeyPtr> key = Parse(std::string_view(line.data(), line.size()));
    if (!key.ok())
      return absl::InvalidArgumentError(absl::StrCat(path, ": ", key.status().message()));
    if (!(*key)->ok()) return absl::InternalError("OpenSSL has no HMAC");
    keys.push_back(*std::move(key));
  }
  if (keys.empty() || keys.size() > kRecordKeysMax)
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected 1 to ", kRecordKeysMax,
                                                   " keys, one a line, found ", keys.size()));
  return keys;
}

absl::StatusOr<std::shared_ptr<RecordKeys>> RecordKeys::Read(const std::string& path) {
  std::shared_ptr<RecordKeys> keys(new RecordKeys(path));
  const std::string stamp = StampOf(path);
  absl::StatusOr<Keys> loaded = Load(path);
  if (!loaded.ok()) return absl::InvalidArgumentError(loaded.status().message());
  MutexLock lock(&keys->mutex_);
  keys->keys_ = *std::move(loaded);
  keys->stamp_ = stamp;
  return keys;
}

// A bad file keeps the old keys. Its stamp is not kept, so it is looked at again in a second: it
// may have been read while it was written.
void RecordKeys::LookAtFile() {
  MutexLock lock(&mutex_);
  const std::string stamp = StampOf(path_);
  if (stamp.empty() || stamp == stamp_) return;
  absl::StatusOr<Keys> loaded = Load(path_);
  if (!loaded.ok()) return;  // written just now, or bad: it is looked at again
  keys_ = *std::move(loaded);
  of_workers_.clear();
  stamp_ = stamp;
  ++generation_;
}

uint64_t RecordKeys::generation() {
  KeysNow();
  MutexLock lock(&mutex_);
  return generation_;
}

// The first caller in each second looks at the file; the others use the keys that are there.
// Returns copies of pointers, so that keys may be replaced while a MAC is computed.
RecordKeys::Keys RecordKeys::KeysNow() {
  const int64_t now_s = Clock::Real().Now() / std::chrono::seconds(1);
  if (looked_s_.exchange(now_s, std::memory_order_relaxed) != now_s) LookAtFile();
  MutexLock lock(&mutex_);
  return keys_;
}

// A worker's key as such, or the one that a cell's key makes for it. The HMAC of a new one is set
// up outside the lock. It is remembered only if its cell's key still counts: `of_workers_` is keyed
// by its address, which may be reused once it is gone.
RecordKeys::KeyPtr RecordKeys::OfWorker(const KeyPtr& key, std::string_view worker) {
  if (key->worker().has_value()) return *key->worker() == worker ? key : nullptr;
  std::pair<const Key*, std::string> name(key.get(), worker);
  {
    MutexLock lock(&mutex_);
    const auto found = of_workers_.find(name);
    if (found != of_workers_.end()) return found->second;
  }
  const KeyPtr made = std::make_shared<const Key>(key->OfWorker(worker), std::string(worker));
  if (!made->ok()) return nullptr;
  MutexLock lock(&mutex_);
  const bool of_now = std::find(keys_.begin(), keys_.end(), key) != keys_.end();
  if (of_workers_.size() >= kWorkersMax) of_workers_.clear();
  if (of_now) of_workers_[std::move(name)] = made;
  return made;
}

// The first key of the file that is good for the worker; a cell's key is good for all. The caller
// sends `by` with the record, so that Verify knows which kind to try.
RecordKeys::Signature RecordKeys::Sign(std::string_view worker, std::string_view context,
                                       std::string_view record) {
  for (const KeyPtr& key : KeysNow()) {
    if (!key->worker().has_value()) return {.by = By::kCell, .mac = key->Of(context, record)};
    if (*key->worker() == worker) return {.by = By::kWorker, .mac = key->Of(context, record)};
  }
  return {};
}

// Tries all keys of that kind, for the time of a rotation. The MACs are compared in constant time.
bool RecordKeys::Verify(By by, std::string_view worker, std::string_view context,
                        std::string_view record, std::string_view mac) {
  if (mac.size() != kRecordMacBytes) return false;
  const Keys keys = KeysNow();
  return std::any_of(keys.begin(), keys.end(), [&](const KeyPtr& key) {
    if (by == By::kCell && key->worker().has_value()) return false;
    const KeyPtr signer = by == By::kCell ? key : OfWorker(key, worker);
    const std::string own = signer == nullptr ? "" : signer->Of(context, record);
    return own.size() == mac.size() && CRYPTO_memcmp(own.data(), mac.data(), mac.size()) == 0;
  });
}

// One line for each of the cell's keys, in their order, so that rotation works the same for both
// files.
absl::Status RecordKeys::WriteOfWorker(const std::string& cell_path, std::string_view worker,
                                       const std::string& path) {
  const absl::StatusOr<Keys> keys = Load(cell_path);
  if (!keys.ok()) return keys.status();
  if (worker.empty() || worker.find('\n') != worker.npos)
    return absl::InvalidArgumentError("expected a worker's name");
  // A worker's keys are made again when the cell's change, and can be; the cell's own would be
  // lost.
  if (access(path.c_str(), F_OK) == 0) {
    const absl::StatusOr<Keys> before = Load(path);
    const bool of_worker =
        before.ok() && std::all_of(before->begin(), before->end(),
                                   [](const KeyPtr& key) { return key->worker().has_value(); });
    if (!of_worker)
      return absl::AlreadyExistsError(
          absl::StrCat(path, " exists already, and has no keys of a worker: use another name"));
  }
  std::string text;
  for (const KeyPtr& key : *keys) {
    if (key->worker().has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          cell_path, ": expected the keys of a cell, found that of worker ", *key->worker()));
    }
    absl::StrAppend(&text, absl::string_view(kWorkerPrefix.data(), kWorkerPrefix.size()),
                    absl::string_view(worker.data(), worker.size()), ":",
                    absl::BytesToHexString(key->OfWorker(worker)), "\n");
  }
  return WriteFileByRename(path, text, 0600);
}

}  // namespace kvatlas
