// Identities of bearer tokens: tokens that a file lists by their hashes, and JWTs signed by keys of
// a JWKS file.
//
// *Format of the tokens file*, a line per token, # for comments:
//   sha256:HEX IDENTITY [tenant=NAME] [name=NAME] [expires=2027-01-31]
// where HEX is the SHA-256 of the token's bytes (`kvatlas policy token` makes a token and its
// line). Compared in constant time.
// *JWT*: RS256, PS256, ES256 and EdDSA; `exp` and `sub` are needed, `nbf` is honoured; `iss` and
// `aud` must be those given. The identity is the claim "kvatlas_identity", or "gateway/" and `sub`;
// the tenant is the claim "kvatlas_tenant". "none" and HMAC algorithms are refused.
//
// *Threads*: immutable.

#ifndef KVATLAS_INDEXER_SECURITY_TOKENS_H_
#define KVATLAS_INDEXER_SECURITY_TOKENS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "indexer/security/identity.h"

namespace kvatlas {

struct TokenFiles {
  std::string tokens = {};  // paths; empty: none
  std::string jwks = {};
  std::string jwt_issuer = {};    // required with `jwks`
  std::string jwt_audience = {};  // likewise
};

class Tokens {
 public:
  // INVALID_ARGUMENT names file, line and what was expected.
  static absl::StatusOr<std::shared_ptr<const Tokens>> Read(const TokenFiles& files);
  virtual ~Tokens() = default;

  // UNAUTHENTICATED says in general terms why not; never names the token.
  virtual absl::StatusOr<Identity> IdentityOf(std::string_view token, int64_t now_unix_s) const = 0;
};

// When a token with `expires=DAY` (YYYY-MM-DD) ends, in seconds since 1970. INVALID_ARGUMENT: no
// such day.
absl::StatusOr<int64_t> TokenEnd(std::string_view day);

// The hexadecimal SHA-256 that a line of the tokens file begins with.
std::string TokenHash(std::string_view token);

// 256 random bits in base64url.
std::string NewBearerToken();

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SECURITY_TOKENS_H_
