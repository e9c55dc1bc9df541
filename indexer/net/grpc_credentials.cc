// Server and channel credentials from the process's TLS files, which gRPC's
// FileWatcherCertificateProvider reads again by itself, and the check of a server's names that
// replaces gRPC's own.

#include "indexer/net/grpc_credentials.h"

#include <arpa/inet.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <map>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "indexer/base/mutex.h"
#include "indexer/security/pki.h"
#include "indexer/security/security.h"

namespace kvatlas {
namespace {

using grpc::experimental::FileWatcherCertificateProvider;

constexpr unsigned kReadFilesEverySeconds = 1;

absl::string_view Absl(std::string_view text) { return {text.data(), text.size()}; }

// Without a port and the brackets of IPv6.
// Two or more colons without brackets: an IPv6 address without a port.
std::string HostOf(std::string_view target) {
  if (const size_t slash = target.rfind('/'); slash != std::string_view::npos) {
    target.remove_prefix(slash + 1);  // of "dns:///HOST:PORT"
  }
  if (target.starts_with('[')) return std::string(target.substr(1, target.find(']') - 1));
  const size_t colon = target.find(':');
  const bool port = colon != std::string_view::npos && target.find(':', colon + 1) == target.npos;
  return std::string(port ? target.substr(0, colon) : target);
}

// 4 or 16 bytes; empty: not an address. Texts of one address may differ, its bytes do not.
std::string AddressBytes(const std::string& text) {
  unsigned char bytes[16];
  if (inet_pton(AF_INET, text.c_str(), bytes) == 1) return {bytes, bytes + 4};
  if (inet_pton(AF_INET6, text.c_str(), bytes) == 1) return {bytes, bytes + 16};
  return "";
}

// "*.example" stands for exactly one label, and only at the front (RFC 6125).
bool MatchesDns(std::string_view host, std::string_view pattern) {
  if (!pattern.starts_with("*.")) return absl::EqualsIgnoreCase(Absl(host), Absl(pattern));
  const size_t dot = host.find('.');
  return dot != std::string_view::npos && dot > 0 &&
         absl::EqualsIgnoreCase(Absl(host.substr(dot)), Absl(pattern.substr(1)));
}

bool ServingRole(const Identity& identity) {
  return identity.role == IdentityRole::kLeaf || identity.role == IdentityRole::kNode ||
         identity.role == IdentityRole::kFrontend;
}

std::vector<std::string> Strings(const std::vector<grpc::string_ref>& refs) {
  std::vector<std::string> strings;
  for (const grpc::string_ref& ref : refs) strings.emplace_back(ref.data(), ref.size());
  return strings;
}

// Runs within the handshake, after gRPC has checked the chain; it answers at once (true), so
// `Cancel` has nothing to do.
class ServerVerifier final : public grpc::experimental::ExternalCertificateVerifier {
 public:
  bool Verify(grpc::experimental::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)>, grpc::Status* status) override {
    const grpc::string_ref target = request->target_name();
    const absl::Status bad =
        CheckServerNames({target.data(), target.size()}, Strings(request->uri_names()),
                         Strings(request->dns_names()), Strings(request->ip_names()));
    *status = bad.ok()
                  ? grpc::Status::OK
                  : grpc::Status(grpc::StatusCode::UNAUTHENTICATED, std::string(bad.message()));
    return true;
  }
  void Cancel(grpc::experimental::TlsCustomVerificationCheckRequest*) override {}
};

std::shared_ptr<FileWatcherCertificateProvider> MakeProvider(const TlsPaths& paths) {
  if (paths.certificate.empty()) {
    return std::make_shared<FileWatcherCertificateProvider>(paths.ca, kReadFilesEverySeconds);
  }
  return std::make_shared<FileWatcherCertificateProvider>(paths.key, paths.certificate, paths.ca,
                                                          kReadFilesEverySeconds);
}

}  // namespace

// A SPIFFE ID decides alone: with the role of a serving process the certificate is good for any
// address, with another role for none. Without one, the address or DNS name that was dialled must
// be in the certificate.
absl::Status CheckServerNames(std::string_view target, const std::vector<std::string>& uris,
                              const std::vector<std::string>& dns,
                              const std::vector<std::string>& ips) {
  for (const std::string& uri : uris) {
    constexpr std::string_view kScheme = "spiffe://";
    if (!uri.starts_with(kScheme)) continue;
    const std::string trust_domain =
        uri.substr(kScheme.size(), uri.find('/', kScheme.size()) - kScheme.size());
    const absl::StatusOr<Identity> identity = ParseSpiffeId(uri, trust_domain);
    if (identity.ok() && ServingRole(*identity)) return absl::OkStatus();
    return absl::UnauthenticatedError(
        absl::StrCat("the server's certificate is of ", uri,
                     ", expected a leaf, a node or a frontend: wrong certificate there, or another "
                     "process at this address"));
  }
  const std::string host = HostOf(target);
  if (const std::string address = AddressBytes(host); !address.empty()) {
    for (const std::string& ip : ips) {
      if (AddressBytes(ip) == address) return absl::OkStatus();
    }
  } else {
    for (const std::string& name : dns) {
      if (MatchesDns(host, name)) return absl::OkStatus();
    }
  }
  return absl::UnauthenticatedError(absl::StrCat(
      "the server's certificate does not name ", host, " (it has ", dns.size(), " DNS names, ",
      ips.size(), " addresses and no SPIFFE ID): issue one that does"));
}

// A client's certificate is verified if it sends one, but not required: a client without one may
// show a token.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(
    const std::shared_ptr<Security>& security) {
  if (security->tls() == nullptr) return grpc::InsecureServerCredentials();
  grpc::experimental::TlsServerCredentialsOptions options(
      MakeProvider(security->tls()->AcceptedPaths()));
  options.watch_identity_key_cert_pairs();
  options.watch_root_certs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

// For a port whose clients do not know the fleet's CA. The files are checked once here; changes are
// read by gRPC.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeOwnServerCredentials(
    const std::string& certificate, const std::string& key) {
  if (certificate.empty() != key.empty())
    return absl::InvalidArgumentError("a certificate and its key are needed, or none of the two");
  std::shared_ptr<grpc::experimental::CertificateProviderInterface> provider;
  if (certificate.empty()) {
    const absl::StatusOr<SelfSigned> made = MakeSelfSigned();
    if (!made.ok()) return made.status();
    provider = std::make_shared<grpc::experimental::StaticDataCertificateProvider>(
        std::vector<grpc::experimental::IdentityKeyCertPair>{
            {.private_key = made->key, .certificate_chain = made->certificate}});
  } else {
    // gRPC would only log it, and refuse every handshake.
    if (absl::Status bad = CheckKeyPair(certificate, key); !bad.ok()) return bad;
    provider =
        std::make_shared<FileWatcherCertificateProvider>(key, certificate, kReadFilesEverySeconds);
  }
  grpc::experimental::TlsServerCredentialsOptions options(std::move(provider));
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  return grpc::experimental::TlsServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(Security* security) {
  if (security->tls() == nullptr) return grpc::InsecureChannelCredentials();
  using Key = std::tuple<std::string, std::string, std::string>;
  static auto* const mutex = new Mutex;
  // Bounded by the sets of files: a process has one, a test a few.
  static auto* const made = new std::map<Key, std::shared_ptr<grpc::ChannelCredentials>>;
  const TlsPaths paths = security->tls()->AcceptedPaths();
  MutexLock lock(mutex);
  std::shared_ptr<grpc::ChannelCredentials>& credentials =
      (*made)[{paths.certificate, paths.key, paths.ca}];
  if (credentials != nullptr) return credentials;
  grpc::experimental::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(MakeProvider(paths));
  options.watch_root_certs();
  if (!paths.certificate.empty()) options.watch_identity_key_cert_pairs();
  options.set_certificate_verifier(
      grpc::experimental::ExternalCertificateVerifier::Create<ServerVerifier>());
  // The name was checked by ServerVerifier; gRPC would compare the call's host with the DNS names
  // again, which certificates with a SPIFFE ID do not need to have.
  options.set_check_call_host(false);
  credentials = grpc::experimental::TlsCredentials(options);
  return credentials;
}

}  // namespace kvatlas
