#include "indexer/service/security/record_keys.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "indexer/base/clock.h"
#include "indexer/service/security/secret_file.h"

namespace kvatlas {
namespace {

constexpr size_t kKeyBytesMin = 16;

using MacContext = std::unique_ptr<EVP_MAC_CTX, decltype(&EVP_MAC_CTX_free)>;

const uint8_t* Bytes(std::string_view text) {
  return reinterpret_cast<const uint8_t*>(text.data());
}

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
  explicit Key(std::string_view key) : keyed_(nullptr, EVP_MAC_CTX_free) {
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

  // The context's length goes first, so that no byte of it can be taken for one of the record.
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

 private:
  MacContext keyed_;
};

absl::StatusOr<RecordKeys::Keys> RecordKeys::Load(const std::string& path) {
  absl::StatusOr<std::string> text = ReadSecretFile(path);
  if (!text.ok()) return text.status();
  Keys keys;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty()) continue;
    if (line.size() < kKeyBytesMin)
      return absl::InvalidArgumentError(absl::StrCat(path, ": a key has at least ", kKeyBytesMin,
                                                     " characters (openssl rand -hex 32)"));
    keys.push_back(std::make_shared<const Key>(std::string_view(line.data(), line.size())));
    if (!keys.back()->ok()) return absl::InternalError("OpenSSL has no HMAC");
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

void RecordKeys::LookAtFile() {
  MutexLock lock(&mutex_);
  const std::string stamp = StampOf(path_);
  if (stamp.empty() || stamp == stamp_) return;
  absl::StatusOr<Keys> loaded = Load(path_);
  if (!loaded.ok()) return;  // written just now, or bad: it is looked at again
  keys_ = *std::move(loaded);
  stamp_ = stamp;
  ++generation_;
}

uint64_t RecordKeys::generation() {
  KeysNow();
  MutexLock lock(&mutex_);
  return generation_;
}

RecordKeys::Keys RecordKeys::KeysNow() {
  const int64_t now_s = Clock::Real().Now() / std::chrono::seconds(1);
  if (looked_s_.exchange(now_s, std::memory_order_relaxed) != now_s) LookAtFile();
  MutexLock lock(&mutex_);
  return keys_;
}

std::string RecordKeys::Sign(std::string_view context, std::string_view record) {
  return KeysNow().front()->Of(context, record);
}

bool RecordKeys::Verify(std::string_view context, std::string_view record, std::string_view mac) {
  if (mac.size() != kRecordMacBytes) return false;
  const Keys keys = KeysNow();
  return std::any_of(keys.begin(), keys.end(), [&](const std::shared_ptr<const Key>& key) {
    const std::string own = key->Of(context, record);
    return own.size() == mac.size() && CRYPTO_memcmp(own.data(), mac.data(), mac.size()) == 0;
  });
}

}  // namespace kvatlas
