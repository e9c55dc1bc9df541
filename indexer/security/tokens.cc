// Listed tokens are compared by SHA-256. JWTs are verified with OpenSSL, without a library for
// JOSE: base64url, JSON, one signature, and the claims. Only the public-key algorithms that a key
// of the JWKS file is good for are tried, so a token cannot choose "none" or an HMAC with a public
// key as its secret.

#include "indexer/security/tokens.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/ecdsa.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/param_build.h>
#include <openssl/rand.h>
#include <openssl/rsa.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "indexer/security/secret_file.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;
using KeyPtr = std::shared_ptr<EVP_PKEY>;

constexpr size_t kTokenBytesMax = 8192;
constexpr size_t kFileBytesMax = 4 << 20;
constexpr int kRsaBitsMin = 2048;
constexpr int64_t kClockSkewSeconds = 30;  // of the issuer of JWTs

absl::string_view Absl(std::string_view text) { return {text.data(), text.size()}; }

std::string Sha256(std::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr);
  return {reinterpret_cast<const char*>(digest), size};
}

// base64url without padding. Only the canonical form is taken: another text for the same bytes
// would be a second name for one token.
std::optional<std::string> Decode(std::string_view text) {
  std::string bytes;
  if (text.find('=') != text.npos || text.find_first_of("+/ \r\n\t") != text.npos ||
      !absl::WebSafeBase64Unescape(Absl(text), &bytes)) {
    return std::nullopt;
  }
  std::string again;
  absl::WebSafeBase64Escape(bytes, &again);
  while (!again.empty() && again.back() == '=') again.pop_back();
  return again == text ? std::optional(bytes) : std::nullopt;
}

// One line of the tokens file.
struct Listed {
  std::string hash;  // 32 bytes
  Identity identity;
};

// Hash, identity, then options in any order. An unknown option is an error: "expires" misspelt
// would make a token that never ends.
absl::StatusOr<Listed> ParseLine(absl::string_view line) {
  const std::vector<std::string> words =
      absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  constexpr std::string_view kHash = "sha256:";
  Listed listed;
  if (words.size() < 2 || !words[0].starts_with(kHash) || words[0].size() != kHash.size() + 64 ||
      words[0].find_first_not_of("0123456789abcdef", kHash.size()) != std::string::npos) {
    return absl::InvalidArgumentError(
        "expected \"sha256:HEX IDENTITY [tenant=NAME] [name=NAME] [expires=YYYY-MM-DD]\" with 64 "
        "lower-case hexadecimal digits (kvatlas policy token)");
  }
  listed.hash = absl::HexStringToBytes(words[0].substr(kHash.size()));
  absl::StatusOr<Identity> identity = ParseIdentity(words[1]);
  if (!identity.ok()) return identity.status();
  listed.identity = *std::move(identity);
  for (size_t i = 2; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word.starts_with("tenant=")) {
      listed.identity.tenant = word.substr(7);
    } else if (word.starts_with("name=")) {
      listed.identity.credential.push_back("token:" + word.substr(5));
    } else if (word.starts_with("expires=")) {
      const absl::StatusOr<int64_t> end = TokenEnd(word.substr(8));
      if (!end.ok()) return end.status();
      listed.identity.not_after_unix_s = *end;
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", absl::CHexEscape(word),
                       "\": expected tenant=NAME, name=NAME or expires=YYYY-MM-DD"));
    }
  }
  return listed;
}

// Errors name the line, never its content: a token may have been pasted in place of its hash.
absl::StatusOr<std::vector<Listed>> ReadList(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFileUpTo(path, kFileBytesMax);
  if (!text.ok()) return text.status();
  std::vector<Listed> list;
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    absl::StatusOr<Listed> listed = ParseLine(line);
    if (!listed.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": ", listed.status().message()));
    }
    list.push_back(*std::move(listed));
  }
  return list;
}

// A key of the JWKS file with the algorithms that it may verify. `id` is "kid"; empty matches any
// token.
struct SigningKey {
  std::string id;
  std::vector<std::string> algorithms;
  KeyPtr key;
};

// Null: OpenSSL does not take the numbers.
KeyPtr FromData(const char* type, OSSL_PARAM_BLD* build) {
  const std::unique_ptr<OSSL_PARAM, decltype(&OSSL_PARAM_free)> params(
      OSSL_PARAM_BLD_to_param(build), OSSL_PARAM_free);
  const std::unique_ptr<EVP_PKEY_CTX, decltype(&EVP_PKEY_CTX_free)> context(
      EVP_PKEY_CTX_new_from_name(nullptr, type, nullptr), EVP_PKEY_CTX_free);
  EVP_PKEY* key = nullptr;
  if (context == nullptr || params == nullptr || EVP_PKEY_fromdata_init(context.get()) != 1 ||
      EVP_PKEY_fromdata(context.get(), &key, EVP_PKEY_PUBLIC_KEY, params.get()) != 1) {
    ERR_clear_error();
    return nullptr;
  }
  return {key, EVP_PKEY_free};
}

using BuildPtr = std::unique_ptr<OSSL_PARAM_BLD, decltype(&OSSL_PARAM_BLD_free)>;
using NumberPtr = std::unique_ptr<BIGNUM, decltype(&BN_free)>;

NumberPtr Number(const std::string& bytes) {
  return {BN_bin2bn(reinterpret_cast<const unsigned char*>(bytes.data()),
                    static_cast<int>(bytes.size()), nullptr),
          BN_free};
}

// Null below `kRsaBitsMin`: shorter keys can be factored.
KeyPtr RsaKey(const std::string& modulus, const std::string& exponent) {
  const BuildPtr build(OSSL_PARAM_BLD_new(), OSSL_PARAM_BLD_free);
  const NumberPtr n = Number(modulus);
  const NumberPtr e = Number(exponent);
  OSSL_PARAM_BLD_push_BN(build.get(), OSSL_PKEY_PARAM_RSA_N, n.get());
  OSSL_PARAM_BLD_push_BN(build.get(), OSSL_PKEY_PARAM_RSA_E, e.get());
  KeyPtr key = FromData("RSA", build.get());
  return key != nullptr && EVP_PKEY_get_bits(key.get()) >= kRsaBitsMin ? key : nullptr;
}

// P-256. The point in uncompressed form, 0x04 ‖ x ‖ y; OpenSSL checks that it is on the curve.
KeyPtr EcKey(const std::string& x, const std::string& y) {
  if (x.size() != 32 || y.size() != 32) return nullptr;
  const BuildPtr build(OSSL_PARAM_BLD_new(), OSSL_PARAM_BLD_free);
  const std::string point = "\x04" + x + y;
  OSSL_PARAM_BLD_push_utf8_string(build.get(), OSSL_PKEY_PARAM_GROUP_NAME, "prime256v1", 0);
  OSSL_PARAM_BLD_push_octet_string(build.get(), OSSL_PKEY_PARAM_PUB_KEY, point.data(),
                                   point.size());
  return FromData("EC", build.get());
}

KeyPtr Ed25519Key(const std::string& x) {
  KeyPtr key(
      EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr,
                                  reinterpret_cast<const unsigned char*>(x.data()), x.size()),
      EVP_PKEY_free);
  ERR_clear_error();
  return key;
}

std::string TextField(const Json& json, const char* name) {
  const auto found = json.find(name);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

// Nothing: a key for another purpose or of another kind, which may stand in the same file. An
// error: a key of our kinds that is broken.
absl::StatusOr<std::optional<SigningKey>> ReadKey(const Json& json) {
  if (!json.is_object()) return absl::InvalidArgumentError("expected an object");
  if (const std::string use = TextField(json, "use"); !use.empty() && use != "sig") {
    return std::optional<SigningKey>();
  }
  SigningKey key;
  key.id = TextField(json, "kid");
  const std::string type = TextField(json, "kty");
  const auto part = [&json](const char* name) {
    return Decode(TextField(json, name)).value_or("");
  };
  if (type == "RSA") {
    key.key = RsaKey(part("n"), part("e"));
    key.algorithms = {"RS256", "PS256"};
  } else if (type == "EC" && TextField(json, "crv") == "P-256") {
    key.key = EcKey(part("x"), part("y"));
    key.algorithms = {"ES256"};
  } else if (type == "OKP" && TextField(json, "crv") == "Ed25519") {
    key.key = Ed25519Key(part("x"));
    key.algorithms = {"EdDSA"};
  } else {
    return std::optional<SigningKey>();  // for others: keys of other kinds may stand beside
  }
  if (key.key == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("key \"", absl::CHexEscape(key.id), "\" of type ", type,
                     ": expected RSA of 2048 bits or more, EC P-256 or Ed25519 in base64url"));
  }
  // "alg" restricts the key to one algorithm; one that is not ours makes it a key for others.
  if (const std::string algorithm = TextField(json, "alg"); !algorithm.empty()) {
    const auto& known = key.algorithms;
    if (std::find(known.begin(), known.end(), algorithm) == known.end()) {
      return std::optional<SigningKey>();
    }
    key.algorithms = {algorithm};
  }
  return std::optional(std::move(key));
}

// A file without any usable key is refused: it would refuse every token.
absl::StatusOr<std::vector<SigningKey>> ReadJwks(const std::string& path) {
  absl::StatusOr<std::string> text = ReadFileUpTo(path, kFileBytesMax);
  if (!text.ok()) return text.status();
  const Json json = Json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("keys") || !json["keys"].is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": expected {\"keys\":[…]}"));
  }
  std::vector<SigningKey> keys;
  size_t number = 0;
  for (const Json& one : json["keys"]) {
    absl::StatusOr<std::optional<SigningKey>> key = ReadKey(one);
    if (!key.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": keys[", number, "]: ", key.status().message()));
    }
    if (key->has_value()) keys.push_back(**std::move(key));
    ++number;
  }
  if (!keys.empty()) return keys;
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": no key for RS256, PS256, ES256 or EdDSA among ", number));
}

// JWTs carry ES256 signatures as two numbers of 32 bytes; OpenSSL takes them in DER. Empty: another
// length, which Verify refuses.
std::string EcdsaToDer(const std::string& raw) {
  if (raw.size() != 64) return "";
  const std::unique_ptr<ECDSA_SIG, decltype(&ECDSA_SIG_free)> signature(ECDSA_SIG_new(),
                                                                        ECDSA_SIG_free);
  ECDSA_SIG_set0(signature.get(), Number(raw.substr(0, 32)).release(),
                 Number(raw.substr(32)).release());
  unsigned char* der = nullptr;
  const int size = i2d_ECDSA_SIG(signature.get(), &der);
  std::string bytes(reinterpret_cast<const char*>(der), size > 0 ? static_cast<size_t>(size) : 0);
  OPENSSL_free(der);
  return bytes;
}

// REQUIRES: `algorithm` is one of the key's. EdDSA hashes by itself, so it has no digest.
bool Verify(EVP_PKEY* key, const std::string& algorithm, std::string_view text,
            std::string signature) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        EVP_MD_CTX_free);
  EVP_PKEY_CTX* options = nullptr;
  const EVP_MD* const digest = algorithm == "EdDSA" ? nullptr : EVP_sha256();
  bool ok = EVP_DigestVerifyInit(context.get(), &options, digest, nullptr, key) == 1;
  if (ok && algorithm == "PS256") {
    ok = EVP_PKEY_CTX_set_rsa_padding(options, RSA_PKCS1_PSS_PADDING) > 0 &&
         EVP_PKEY_CTX_set_rsa_pss_saltlen(options, RSA_PSS_SALTLEN_DIGEST) > 0;
  }
  if (algorithm == "ES256") signature = EcdsaToDer(signature);
  ok = ok &&
       EVP_DigestVerify(context.get(), reinterpret_cast<const unsigned char*>(signature.data()),
                        signature.size(), reinterpret_cast<const unsigned char*>(text.data()),
                        text.size()) == 1;
  ERR_clear_error();
  return ok;
}

// "aud" is a string or a list of strings (RFC 7519 §4.1.3); one equal string is enough.
bool AudienceIs(const Json& claims, const std::string& audience) {
  const auto found = claims.find("aud");
  if (found == claims.end()) return false;
  if (found->is_string()) return *found == audience;
  if (!found->is_array()) return false;
  for (const Json& one : *found) {
    if (one.is_string() && one == audience) return true;
  }
  return false;
}

// Seconds since 1970. The range check keeps the conversion of a double defined.
std::optional<int64_t> TimeField(const Json& claims, const char* name) {
  const auto found = claims.find(name);
  if (found == claims.end() || !found->is_number()) return std::nullopt;
  const double seconds = found->get<double>();
  if (!(seconds >= 0 && seconds < 1e12)) return std::nullopt;
  return static_cast<int64_t>(seconds);
}

// A subject as a name of an identity: characters that names may not have become '_'. Two subjects
// may then have the same name; the policy can tell them apart by "kvatlas_identity".
std::string NameOf(const std::string& subject) {
  std::string name = subject;
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) &&
        std::string_view("-_.:@+~=").find(c) == std::string_view::npos) {
      c = '_';
    }
  }
  return name;
}

absl::Status Unknown() { return CredentialRefused("the bearer token is not known"); }
absl::Status NoGoodJwt(std::string_view why) {
  return CredentialRefused(absl::StrCat("the JWT is not good: ", Absl(why)));
}

// The tokens of the two files as they were read; immutable.
class FileTokens final : public Tokens {
 public:
  FileTokens(std::vector<Listed> listed, std::vector<SigningKey> keys, TokenFiles files)
      : listed_(std::move(listed)), keys_(std::move(keys)), files_(std::move(files)) {}

  // A listed token first: it needs a hash alone. Every line is compared, each in constant time.
  absl::StatusOr<Identity> IdentityOf(std::string_view token, int64_t now_unix_s) const override {
    if (token.empty() || token.size() > kTokenBytesMax) return Unknown();
    const std::string hash = Sha256(token);
    const Listed* found = nullptr;
    for (const Listed& one : listed_) {  // all of them, so that the time does not tell which
      if (CRYPTO_memcmp(one.hash.data(), hash.data(), hash.size()) == 0) found = &one;
    }
    if (found != nullptr) {
      if (found->identity.not_after_unix_s != 0 && found->identity.not_after_unix_s <= now_unix_s) {
        return CredentialRefused("the bearer token has expired", &found->identity);
      }
      return found->identity;
    }
    if (keys_.empty()) return Unknown();
    return OfJwt(token, now_unix_s);
  }

 private:
  // 1. Three parts of base64url. 2. A header without "crit": extensions that must be understood are
  //    not. 3. The signature. 4. Only then the claims are parsed.
  absl::StatusOr<Identity> OfJwt(std::string_view token, int64_t now) const {
    const size_t first = token.find('.');
    const size_t second = first == token.npos ? first : token.find('.', first + 1);
    if (second == token.npos || token.find('.', second + 1) != token.npos) return Unknown();
    const std::optional<std::string> head = Decode(token.substr(0, first));
    const std::optional<std::string> body = Decode(token.substr(first + 1, second - first - 1));
    const std::optional<std::string> signature = Decode(token.substr(second + 1));
    if (!head || !body || !signature) return NoGoodJwt("it is not base64url");
    const Json header = Json::parse(*head, nullptr, false);
    if (!header.is_object() || header.contains("crit")) return NoGoodJwt("its header");
    if (!SignedByUs(header, token.substr(0, second), *signature)) {
      return NoGoodJwt("no key of the JWKS file has signed it");
    }
    const Json claims = Json::parse(*body, nullptr, false);
    if (!claims.is_object()) return NoGoodJwt("its claims");
    return OfClaims(claims, now);
  }

  // Tries the keys that the header's "kid" names, or all, and only with an algorithm of the key's
  // own.
  bool SignedByUs(const Json& header, std::string_view text, const std::string& signature) const {
    const std::string algorithm = TextField(header, "alg");
    const std::string id = TextField(header, "kid");
    for (const SigningKey& key : keys_) {
      if (!id.empty() && key.id != id) continue;
      for (const std::string& good : key.algorithms) {
        if (good == algorithm && Verify(key.key.get(), algorithm, text, signature)) return true;
      }
    }
    return false;
  }

  // "exp", "iss", "aud" and "sub" are required. "exp" has no allowance for clocks that differ,
  // "nbf" has.
  absl::StatusOr<Identity> OfClaims(const Json& claims, int64_t now) const {
    const std::optional<int64_t> expires = TimeField(claims, "exp");
    if (!expires.has_value()) return NoGoodJwt("it has no \"exp\"");
    if (*expires <= now) return NoGoodJwt("it has expired");
    if (const std::optional<int64_t> from = TimeField(claims, "nbf");
        from.has_value() && *from > now + kClockSkewSeconds) {
      return NoGoodJwt("it is not valid yet");
    }
    if (TextField(claims, "iss") != files_.jwt_issuer) return NoGoodJwt("another issuer");
    if (!AudienceIs(claims, files_.jwt_audience)) return NoGoodJwt("another audience");
    const std::string subject = TextField(claims, "sub");
    if (subject.empty()) return NoGoodJwt("it has no \"sub\"");
    for (const char* const name : {"kvatlas_identity", "kvatlas_tenant"}) {
      if (claims.contains(name) && !claims[name].is_string()) {
        return NoGoodJwt("a claim of ours is no text");
      }
    }
    const std::string claimed = TextField(claims, "kvatlas_identity");
    absl::StatusOr<Identity> identity =
        ParseIdentity(claimed.empty() ? "gateway/" + NameOf(subject) : claimed);
    if (!identity.ok()) return NoGoodJwt("\"kvatlas_identity\" is not an identity");
    identity->tenant = TextField(claims, "kvatlas_tenant");
    identity->not_after_unix_s = *expires;
    identity->credential.push_back("token:" + subject);
    return identity;
  }

  const std::vector<Listed> listed_;
  const std::vector<SigningKey> keys_;
  const TokenFiles files_;
};

}  // namespace

// Issuer and audience are required with a JWKS file: the same keys usually sign tokens for other
// services too.
absl::StatusOr<std::shared_ptr<const Tokens>> Tokens::Read(const TokenFiles& files) {
  std::vector<Listed> listed;
  std::vector<SigningKey> keys;
  if (!files.tokens.empty()) {
    absl::StatusOr<std::vector<Listed>> read = ReadList(files.tokens);
    if (!read.ok()) return read.status();
    listed = *std::move(read);
  }
  if (!files.jwks.empty()) {
    if (files.jwt_issuer.empty() || files.jwt_audience.empty()) {
      return absl::InvalidArgumentError(
          "--jwks needs --jwt_issuer and --jwt_audience: a JWT for another service would count "
          "too");
    }
    absl::StatusOr<std::vector<SigningKey>> read = ReadJwks(files.jwks);
    if (!read.ok()) return read.status();
    keys = *std::move(read);
  }
  return std::shared_ptr<const Tokens>(
      std::make_shared<FileTokens>(std::move(listed), std::move(keys), files));
}

// The end of that day in UTC.
absl::StatusOr<int64_t> TokenEnd(std::string_view day) {
  tm parts = {};
  const std::string text(day);
  const char* const end = strptime(text.c_str(), "%Y-%m-%d", &parts);
  if (end == nullptr || *end != '\0') {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", absl::CHexEscape(text), "\": expected a day such as 2027-01-31"));
  }
  return static_cast<int64_t>(timegm(&parts)) + 24 * 60 * 60;
}

// Aborts if the system has no randomness: a guessable token must not leave.
std::string NewBearerToken() {
  unsigned char bytes[32];
  if (RAND_bytes(bytes, sizeof(bytes)) != 1) std::abort();
  std::string token;
  absl::WebSafeBase64Escape(absl::string_view(reinterpret_cast<const char*>(bytes), sizeof(bytes)),
                            &token);
  while (!token.empty() && token.back() == '=') token.pop_back();
  return token;
}

std::string TokenHash(std::string_view token) { return absl::BytesToHexString(Sha256(token)); }

}  // namespace kvatlas
