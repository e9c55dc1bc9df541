// The service account of the pod that this process is in: the API server's address from environment
// variables, token, CA and namespace from files that Kubernetes mounts.

#include "indexer/discovery/k8s_account.h"

#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "indexer/security/secret_file.h"

namespace kvatlas {
namespace {

constexpr size_t kFileBytesMax = 64 << 10;

std::string Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

// A small file of the account's directory, without blanks around it. An error says what the pod's
// spec needs.
absl::StatusOr<std::string> K8sAccount::File(const std::string& name) const {
  absl::StatusOr<std::string> text = ReadFileUpTo(options_.account_dir + "/" + name, kFileBytesMax);
  if (!text.ok()) {
    return absl::FailedPreconditionError(
        std::string(text.status().message()) +
        "; the pod needs its service account's token (automountServiceAccountToken: true)");
  }
  return std::string(absl::StripAsciiWhitespace(*text));
}

absl::StatusOr<std::string> K8sAccount::Url() const {
  if (!options_.url.empty()) return options_.url;
  const std::string host = Variable("KUBERNETES_SERVICE_HOST");
  const std::string port = Variable("KUBERNETES_SERVICE_PORT");
  if (host.empty() || port.empty()) {
    return absl::FailedPreconditionError(
        "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: this process is in no "
        "pod of Kubernetes");
  }
  // The variable has an IPv6 address without brackets, which a URL needs.
  const bool bare_ipv6 = host.find(':') != std::string::npos && host.front() != '[';
  return "https://" + (bare_ipv6 ? "[" + host + "]" : host) + ":" + port;
}

absl::StatusOr<std::string> K8sAccount::Namespace() const { return File("namespace"); }

// Called before each request: the token is read anew, as Kubernetes replaces it; the CA file is
// read once and again only when it has changed. A URL of plain HTTP (tests) takes the token but no
// CA.
absl::Status K8sAccount::Authorize(const std::string& url, HttpFetchOptions* options) {
  const absl::StatusOr<std::string> token = File("token");
  if (!token.ok()) return token.status();
  options->authorization = "Bearer " + *token;
  if (!url.starts_with("https://")) return absl::OkStatus();
  bool changed = false;
  if (ca_ == nullptr) {
    absl::StatusOr<std::unique_ptr<TlsFiles>> ca =
        TlsFiles::Read({.ca = options_.account_dir + "/ca.crt"});
    if (!ca.ok()) return ca.status();
    ca_ = *std::move(ca);
  } else if (absl::Status bad = ca_->Look(&changed); !bad.ok()) {
    return bad;
  }
  options->tls_client = ca_->client();
  return absl::OkStatus();
}

}  // namespace kvatlas
