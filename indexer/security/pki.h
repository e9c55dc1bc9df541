// A CA for trials and tests: a root, an intermediate that issues, and certificates of identities. A
// fleet has a PKI (SPIRE, cert-manager, step-ca). Also a self-signed certificate that clients do
// not check, for one port.
//
// *Format*: a folder with root.pem, root.key, ca.pem (what peers are checked against: the root),
// issuer.pem, issuer.key, and for each issued NAME: NAME.pem (the certificate, then the
// intermediate) and NAME.key. Keys are EC P-256, PEM, mode 0600. Certificates carry the SPIFFE ID
// of their identity and the DNS names and addresses asked for.
//
// *Threads*: one at a time for a folder.

#ifndef KVATLAS_INDEXER_SECURITY_PKI_H_
#define KVATLAS_INDEXER_SECURITY_PKI_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/security/tls_files.h"

namespace kvatlas {

struct PkiIssue {
  std::string identity;  // text form; empty: no SPIFFE ID
  std::string common_name = {};
  std::vector<std::string> dns = {"localhost"};
  std::vector<std::string> ips = {"127.0.0.1", "::1"};
  int64_t valid_from_s = -300;  // from now; clocks differ
  int64_t valid_for_s = 90 * 24 * 3600;
  std::string name = {};  // of the files; empty: the identity with - for /
};

// A certificate that only says that the connection is encrypted, for clients that take any. PEM.
struct SelfSigned {
  std::string certificate;
  std::string key;
};
absl::StatusOr<SelfSigned> MakeSelfSigned(int64_t valid_for_s = int64_t{10} * 365 * 24 * 3600);

// Checks that the key belongs to the certificate, both PEM files. INVALID_ARGUMENT names the file.
absl::Status CheckKeyPair(const std::string& certificate_path, const std::string& key_path);

class Pki {
 public:
  // Makes the folder and the CA. ALREADY_EXISTS, if there is one: nothing is overwritten.
  static absl::StatusOr<Pki> Create(std::string directory, std::string trust_domain,
                                    int64_t valid_for_s = int64_t{10} * 365 * 24 * 3600);
  // Opens a folder that `Create` made. NOT_FOUND without one.
  static absl::StatusOr<Pki> Open(std::string directory);

  // Writes certificate and key, each by rename, so that a process which watches the files sees
  // whole ones. Files issued before under the same name are replaced.
  absl::StatusOr<TlsPaths> Issue(const PkiIssue& issue) const;

  // policy.json in the folder: every role does its work for the empty tenant, with engines on
  // loopback and in private networks.
  absl::Status WriteExamplePolicy() const;
  std::string policy_path() const { return directory_ + "/policy.json"; }

  const std::string& trust_domain() const { return trust_domain_; }
  std::string ca_path() const { return directory_ + "/ca.pem"; }

 private:
  Pki(std::string directory, std::string trust_domain)
      : directory_(std::move(directory)), trust_domain_(std::move(trust_domain)) {}

  const std::string directory_;
  const std::string trust_domain_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SECURITY_PKI_H_
