// One TLS handshake with a server, without trusting it, to read its certificate.

#include "tools/kvatlas/tls_look.h"

#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <chrono>
#include <optional>
#include <utility>

#include "indexer/net/grpc_credentials.h"
#include "indexer/security/x509_text.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

// `checked`: there is a CA to judge the chain by. The chain's verdict is read after the handshake,
// which `verify_none` lets go on.
void ReadServer(SSL* tls, const Address& to, bool checked, TlsLook* look) {
  X509* const certificate = SSL_get0_peer_certificate(tls);
  if (certificate == nullptr) {
    look->chain_error = "the server shows no certificate";
    return;
  }
  absl::StatusOr<CertificateNames> names = ReadCertificate(PemOf(certificate));
  if (!names.ok()) {
    look->chain_error = std::string(names.status().message());
    return;
  }
  look->names = *std::move(names);
  const long verified = SSL_get_verify_result(tls);
  if (checked && verified != X509_V_OK) look->chain_error = X509_verify_cert_error_string(verified);
  look->name = CheckServerNames(to.ToString(), look->names.uris, look->names.dns, look->names.ips);
}

}  // namespace

TlsLook LookAtTls(const Address& to, const std::string& ca_path, Duration timeout) {
  TlsLook look;
  asio::io_context io;
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(timeout);
  error_code error;
  // Runs the one operation that was begun; `expires_after` bounds it.
  const auto run = [&] {
    io.restart();
    io.run();
  };
  const auto found = asio::ip::tcp::resolver(io).resolve(to.host, std::to_string(to.port), error);
  if (error) {
    look.connected = absl::UnavailableError("resolving " + to.host + ": " + error.message());
    return look;
  }
  asio::ssl::context context(asio::ssl::context::tls_client);
  // A CA that cannot be read leaves the chain unchecked; the command has refused such a file
  // before.
  error_code no_ca;
  if (!ca_path.empty()) context.load_verify_file(ca_path, no_ca);
  context.set_verify_mode(asio::ssl::verify_none);
  asio::ssl::stream<boost::beast::tcp_stream> stream(io, context);
  stream.next_layer().expires_after(limit);
  stream.next_layer().async_connect(found, [&](const error_code& e, const auto&) { error = e; });
  run();
  if (error) {
    look.connected = absl::UnavailableError(error.message());
    return look;
  }
  // The name that clients dial: servers may choose their certificate by it.
  SSL_set_tlsext_host_name(stream.native_handle(), to.host.c_str());
  // gRPC's servers take no connection without it.
  constexpr unsigned char kProtocols[] = "\x02h2\x08http/1.1";
  SSL_set_alpn_protos(stream.native_handle(), kProtocols, sizeof(kProtocols) - 1);
  stream.next_layer().expires_after(limit);
  stream.async_handshake(asio::ssl::stream_base::client, [&](const error_code& e) { error = e; });
  run();
  if (error) return look;
  look.speaks_tls = true;
  ReadServer(stream.native_handle(), to, !ca_path.empty() && !no_ca, &look);
  return look;
}

}  // namespace kvatlas
