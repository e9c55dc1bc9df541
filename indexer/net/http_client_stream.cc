#include "indexer/net/http_client_stream.h"

#include <openssl/ssl.h>

#include "absl/strings/str_cat.h"
#include "indexer/net/grpc_credentials.h"
#include "indexer/security/identity.h"
#include "indexer/security/x509_text.h"

namespace kvatlas {

absl::Status HttpClientStream::PrepareTls(const Address& to, Security* security) {
  if (security->tls() == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("https://", to.ToString(), " needs the CA of its certificate: --tls_ca=FILE"));
  }
  PrepareTls(to, security->tls()->client().get());
  return absl::OkStatus();
}

// The context is shared by all connections to servers of the same files; Asio's wrapper frees one
// reference when it goes. The server's name goes out as SNI; CheckServer checks the certificate's
// names.
void HttpClientStream::PrepareTls(const Address& to, ssl_ctx_st* client) {
  SSL_CTX_up_ref(client);
  context_.emplace(client);  // which takes that reference
  tls_.emplace(tcp_, *context_);
  SSL_set_tlsext_host_name(tls_->native_handle(), to.host.c_str());
}

absl::Status HttpClientStream::CheckServer(const Address& to) const {
  // Not const in Asio, though it changes nothing.
  ssl_st* const tls =
      const_cast<boost::asio::ssl::stream<boost::beast::tcp_stream&>&>(*tls_).native_handle();
  X509* const certificate = SSL_get0_peer_certificate(tls);
  if (certificate == nullptr) return absl::UnauthenticatedError("the server has no certificate");
  const absl::StatusOr<CertificateNames> names = ReadCertificate(PemOf(certificate));
  if (!names.ok()) return names.status();
  return CheckServerNames(to.ToString(), names->uris, names->dns, names->ips);
}

}  // namespace kvatlas
