// How does a process in a pod reach the API server of its cluster, and as which account? What
// Kubernetes puts into every pod: an address in variables; token, CA and namespace in files.
//
// *Truth*: the token is read anew for each request, since Kubernetes replaces it well before it
// expires; the CA file when it changed.
// *Threads*: one at a time, but for `Namespace`.

#ifndef KVATLAS_INDEXER_DISCOVERY_K8S_ACCOUNT_H_
#define KVATLAS_INDEXER_DISCOVERY_K8S_ACCOUNT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "indexer/discovery/directory.h"
#include "indexer/net/http_fetch.h"
#include "indexer/security/tls_files.h"

namespace kvatlas {

class K8sAccount {
 public:
  explicit K8sAccount(K8sOptions options) : options_(std::move(options)) {}

  // FAILED_PRECONDITION: this process is in no pod, or has no service account; says what is
  // missing.
  absl::StatusOr<std::string> Url() const;
  absl::StatusOr<std::string> Namespace() const;
  // Fills in token and CA.
  absl::Status Authorize(const std::string& url, HttpFetchOptions* options);

 private:
  absl::StatusOr<std::string> File(const std::string& name) const;

  const K8sOptions options_;
  std::unique_ptr<TlsFiles> ca_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_DISCOVERY_K8S_ACCOUNT_H_
