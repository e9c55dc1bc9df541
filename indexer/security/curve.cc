#include "indexer/security/curve.h"

#include <zmq.h>

#include "absl/strings/str_cat.h"
#include "indexer/security/secret_file.h"

namespace kvatlas {
namespace {

// Z85 writes 4 bytes as 5 characters.
constexpr size_t kKeyText = 40;
constexpr size_t kKeyBytes = 32;

}  // namespace

absl::StatusOr<CurveKeys> MakeCurveKeys() {
  char public_key[kKeyText + 1];
  char secret_key[kKeyText + 1];
  if (zmq_curve_keypair(public_key, secret_key) != 0)
    return absl::UnimplementedError(absl::StrCat("CURVE: ", zmq_strerror(zmq_errno())));
  return CurveKeys{.public_key = public_key, .secret_key = secret_key};
}

// The public key is computed, so that the file cannot contain a pair that does not fit.
absl::StatusOr<CurveKeys> ReadCurveKeys(const std::string& path) {
  absl::StatusOr<std::string> secret = ReadSecretFile(path);
  if (!secret.ok()) return secret.status();
  if (absl::Status bad = CheckCurveKey(*secret); !bad.ok())
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", bad.message(), " (kvatlas pki curve FILE makes one)"));
  char public_key[kKeyText + 1];
  if (zmq_curve_public(public_key, secret->c_str()) != 0)
    return absl::UnimplementedError(absl::StrCat("CURVE: ", zmq_strerror(zmq_errno())));
  return CurveKeys{.public_key = public_key, .secret_key = *std::move(secret)};
}

absl::Status CheckCurveKey(std::string_view key) {
  uint8_t bytes[kKeyBytes];
  const bool good =
      key.size() == kKeyText && zmq_z85_decode(bytes, std::string(key).c_str()) != nullptr;
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "expected a CURVE key, 40 characters of Z85; found ", key.size(), " characters"));
}

}  // namespace kvatlas
