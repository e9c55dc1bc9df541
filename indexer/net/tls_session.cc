// A client's TLS over two memory BIOs: Receive puts bytes from the socket into `from_server_`, and
// Take moves what OpenSSL wants to send from `to_server_` to the caller. A memory BIO takes any
// amount, so no call ever waits or is partial. Each call clears OpenSSL's queue of errors first,
// which is shared by all sessions of a thread.

#include "indexer/net/tls_session.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>

#include "indexer/base/engine_addresses.h"

namespace kvatlas {
namespace {

constexpr size_t kAtOnce = 16 << 10;  // a record of TLS

// The reason for a failure: that of the certificate's verification where there is one, since
// OpenSSL's own error then says no more than "certificate verify failed".
absl::Status Failed(ssl_st* ssl) {
  const long verified = SSL_get_verify_result(ssl);
  std::string why = verified == X509_V_OK ? "" : X509_verify_cert_error_string(verified);
  if (why.empty()) {
    char text[256] = "closed";
    if (const unsigned long error = ERR_get_error(); error != 0)
      ERR_error_string_n(error, text, sizeof(text));
    why = text;
  }
  ERR_clear_error();
  return absl::UnavailableError("TLS: " + why);
}

}  // namespace

// The host is checked as an address or as a name, never both. SNI goes out for names alone: RFC
// 6066 allows no addresses there. The first flight (the client's hello) is in `out` at the return.
absl::StatusOr<std::unique_ptr<TlsSession>> TlsSession::Start(
    const std::shared_ptr<ssl_ctx_st>& context, const std::string& host, std::string* out) {
  std::unique_ptr<TlsSession> session(new TlsSession);
  session->ssl_ = {SSL_new(context.get()), SSL_free};
  ssl_st* const ssl = session->ssl_.get();
  if (ssl == nullptr) return absl::ResourceExhaustedError("no TLS session");
  session->from_server_ = BIO_new(BIO_s_mem());
  session->to_server_ = BIO_new(BIO_s_mem());
  SSL_set_bio(ssl, session->from_server_, session->to_server_);  // which owns them
  SSL_set_verify(ssl, SSL_VERIFY_PEER, nullptr);
  SSL_set_connect_state(ssl);
  const bool numeric = IsNumericHost(host);
  const bool named = numeric ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str()) == 1
                             : SSL_set1_host(ssl, host.c_str()) == 1 &&
                                   SSL_set_tlsext_host_name(ssl, host.c_str()) == 1;
  if (!named) return absl::InvalidArgumentError("TLS: not a host to be checked: " + host);
  std::string none;
  if (absl::Status bad = session->Receive("", &none, out); !bad.ok()) return bad;
  return session;
}

// 1. Feeds the bytes. 2. Continues the handshake; when it is done, `ready`. 3. Reads all whole
//    records. 4. Takes what has to be sent, also after a failure: an alert tells the server why.
// The end of the connection without close_notify is not seen here, but by the caller's socket.
absl::Status TlsSession::Receive(std::string_view bytes, std::string* plain, std::string* out) {
  if (!bytes.empty()) BIO_write(from_server_, bytes.data(), static_cast<int>(bytes.size()));
  ERR_clear_error();
  absl::Status status;
  if (!ready_) {
    const int done = SSL_do_handshake(ssl_.get());
    if (done == 1) {
      ready_ = true;
    } else if (SSL_get_error(ssl_.get(), done) != SSL_ERROR_WANT_READ) {
      status = Failed(ssl_.get());
    }
  }
  while (ready_ && status.ok() && !ended_) {
    char buffer[kAtOnce];
    const int got = SSL_read(ssl_.get(), buffer, sizeof(buffer));
    if (got > 0) {
      plain->append(buffer, static_cast<size_t>(got));
      continue;
    }
    const int error = SSL_get_error(ssl_.get(), got);
    if (error == SSL_ERROR_WANT_READ) break;
    ended_ = error == SSL_ERROR_ZERO_RETURN;
    if (!ended_) status = Failed(ssl_.get());
  }
  Take(out);
  return status;
}

absl::Status TlsSession::Write(std::string_view plain, std::string* out) {
  ERR_clear_error();
  // A memory has room for everything: each record is written whole.
  for (size_t from = 0; from < plain.size(); from += kAtOnce) {
    const std::string_view piece = plain.substr(from, kAtOnce);
    const int put = SSL_write(ssl_.get(), piece.data(), static_cast<int>(piece.size()));
    if (put != static_cast<int>(piece.size())) return Failed(ssl_.get());
  }
  Take(out);
  return absl::OkStatus();
}

void TlsSession::Take(std::string* out) {
  const size_t waiting = BIO_ctrl_pending(to_server_);
  if (waiting == 0) return;
  const size_t had = out->size();
  out->resize(had + waiting);
  const int got = BIO_read(to_server_, out->data() + had, static_cast<int>(waiting));
  out->resize(had + static_cast<size_t>(std::max(got, 0)));
}

}  // namespace kvatlas
