// The identity of the peer of a connection: a role and a name, proved by a certificate of the
// fleet's CA or by a bearer token.
//   Certificates carry it as URI SAN  spiffe://TRUST_DOMAIN/kvatlas/ROLE/NAME
// where NAME is CELL/WORKER for a worker and CELL/REPLICA for a leaf. For a PKI without SPIFFE the
// policy file maps DNS SANs and common names to identities (`policy.h`).
//
// Text form, as in policy files, logs and audit lines: "worker/CELL/NAME", "leaf/CELL/REPLICA",
// "node/NAME", "frontend/NAME", "gateway/NAME", "operator/NAME", "viewer/NAME", "anonymous". A leaf
// without a replica name is "leaf/CELL/-".
//
// *Threads*: values.

#ifndef KVATLAS_INDEXER_SECURITY_IDENTITY_H_
#define KVATLAS_INDEXER_SECURITY_IDENTITY_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "indexer/base/clock.h"

namespace kvatlas {

enum class IdentityRole : uint8_t {
  kAnonymous,  // no certificate and no token
  kWorker,     // an engine's publisher
  kLeaf,
  kNode,  // of the hierarchy
  kFrontend,
  kGateway,   // asks a frontend
  kOperator,  // changes things
  kViewer,    // reads what has no hashes
};
inline constexpr int kIdentityRoles = 8;

std::string_view RoleName(IdentityRole role);

struct Identity {
  IdentityRole role = IdentityRole::kAnonymous;
  std::string cell = {};    // of workers and leaves
  std::string name = {};    // a leaf's: its replica, "-" for the empty one
  std::string tenant = {};  // that the credential is bound to; empty: what the policy says
  // Names that a policy may revoke beside the identity: "serial:HEX", "sha256:HEX" of a
  // certificate, "token:NAME".
  std::vector<std::string> credential = {};
  int64_t not_after_unix_s = 0;  // when the credential expires; 0: never

  std::string Text() const;
};

// Reads the text form. INVALID_ARGUMENT, saying what was expected.
absl::StatusOr<Identity> ParseIdentity(std::string_view text);

// UNAUTHENTICATED in the same words whatever the reason. The reason, and the identity that the
// credential names, if it names one, are for the audit log.
absl::Status CredentialRefused(absl::string_view reason, const Identity* of = nullptr);
struct CredentialRefusal {
  std::string identity;  // empty: it names none
  std::string reason;
};
// The reason of a refusal; of another status its message.
CredentialRefusal WhyRefused(const absl::Status& refused);

// The names in a certificate, and its validity.
struct CertificateNames {
  std::vector<std::string> uris;
  std::vector<std::string> dns;
  std::vector<std::string> ips;  // "10.0.0.1", "::1"
  std::string common_name;
  std::string serial;  // hexadecimal, lower case, without leading zeros
  std::string sha256;  // of the DER form, hexadecimal, lower case
  int64_t not_before_unix_s = 0;
  int64_t not_after_unix_s = 0;
};

// Reads the first certificate in `pem`. INVALID_ARGUMENT, if there is none.
absl::StatusOr<CertificateNames> ReadCertificate(std::string_view pem);

// Reads a SPIFFE URI of `trust_domain`. INVALID_ARGUMENT, if it is not of the form above.
absl::StatusOr<Identity> ParseSpiffeId(std::string_view uri, std::string_view trust_domain);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SECURITY_IDENTITY_H_
