// In clear every call is one system call. With TLS, OpenSSL works on the same non-blocking
// descriptor, and `waiting_` holds one record that OpenSSL has been offered: OpenSSL requires that
// a write which could not be finished is repeated with the same bytes, while the caller may come
// back with other buffers that start with those bytes.
//
// OpenSSL keeps errors in a queue per thread. Every call is therefore preceded by ERR_clear_error,
// so that SSL_get_error does not report an error of another connection.

#include "indexer/net/http_socket.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <boost/asio/error.hpp>
#include <climits>

#include "indexer/security/x509_text.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

// The largest record of TLS: more at once would only be split.
constexpr size_t kRecordBytes = 16 << 10;

}  // namespace

void HttpSocket::Free::operator()(ssl_st* tls) const { SSL_free(tls); }

// PARTIAL_WRITE: SSL_write returns after each record. MOVING_WRITE_BUFFER: a repeated write may
// come from another address, since `waiting_` may move. RELEASE_BUFFERS: idle connections hold no
// read and write buffers.
HttpSocket::HttpSocket(tcp::socket socket, const std::shared_ptr<ssl_ctx_st>& tls)
    : socket_(std::move(socket)), tls_(tls == nullptr ? nullptr : SSL_new(tls.get())) {
  if (tls_ == nullptr) return;
  SSL_set_fd(tls_.get(), socket_.native_handle());
  SSL_set_mode(tls_.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                               SSL_MODE_RELEASE_BUFFERS);
}

HttpSocket::~HttpSocket() = default;

void HttpSocket::Close() {
  Error ignored;
  socket_.close(ignored);
}

// kPlainHttp: OpenSSL recognised the first bytes as an HTTP request in clear.
HttpSocket::Step HttpSocket::Handshake() {
  ERR_clear_error();
  const int result = SSL_accept(tls_.get());
  if (result == 1) {
    shaken_ = true;
    return Step::kDone;
  }
  const int why = SSL_get_error(tls_.get(), result);
  if (why == SSL_ERROR_WANT_READ) return Step::kWantsRead;
  if (why == SSL_ERROR_WANT_WRITE) return Step::kWantsWrite;
  const int reason = ERR_GET_REASON(ERR_peek_error());
  ERR_clear_error();
  return reason == SSL_R_HTTP_REQUEST ? Step::kPlainHttp : Step::kFailed;
}

std::string HttpSocket::ChainPem() const {
  X509* const own = tls_ == nullptr ? nullptr : SSL_get0_peer_certificate(tls_.get());
  if (own == nullptr) return "";
  std::string pem = PemOf(own);
  STACK_OF(X509)* const chain = SSL_get_peer_cert_chain(tls_.get());
  // At a server OpenSSL's chain does not contain the peer's own certificate, so it is put first.
  for (int i = 0; i < sk_X509_num(chain); ++i) pem += PemOf(sk_X509_value(chain, i));
  return pem;
}

// `would_block` for both directions: callers wait for the direction of their own call.
HttpSocket::Error HttpSocket::ErrorOf(int result) {
  const int why = SSL_get_error(tls_.get(), result);
  ERR_clear_error();
  if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) return asio::error::would_block;
  if (why == SSL_ERROR_ZERO_RETURN) return asio::error::eof;
  return asio::error::connection_reset;
}

size_t HttpSocket::Read(char* to, size_t size, Error& error) {
  if (tls_ == nullptr) return socket_.read_some(asio::buffer(to, size), error);
  ERR_clear_error();
  const int got = SSL_read(tls_.get(), to, static_cast<int>(std::min<size_t>(size, INT_MAX)));
  error = got > 0 ? Error() : ErrorOf(got);
  return got > 0 ? static_cast<size_t>(got) : 0;
}

// True: `waiting_` is empty. Else `error` says why; what is left must be offered again.
bool HttpSocket::Flush(Error& error) {
  error = {};
  size_t gone = 0;
  while (gone < waiting_.size()) {
    ERR_clear_error();
    const int wrote =
        SSL_write(tls_.get(), waiting_.data() + gone, static_cast<int>(waiting_.size() - gone));
    if (wrote <= 0) {
      error = ErrorOf(wrote);
      break;
    }
    gone += static_cast<size_t>(wrote);
  }
  waiting_.erase(0, gone);
  return waiting_.empty();
}

// 1. Bytes from an earlier call are flushed first. They are a prefix of `buffers`, which the caller
//    still holds, and so count as written now, unless WriteAhead put them there.
// 2. Else up to one record is copied from `buffers` and offered.
// An error after some progress is left for the next call, which meets it again.
size_t HttpSocket::Write(const Buffers& buffers, Error& error) {
  if (tls_ == nullptr) return socket_.write_some(buffers, error);
  const size_t before = waiting_counts_ ? waiting_.size() : 0;
  if (!waiting_.empty()) {
    const bool done = Flush(error);
    const size_t gone = before == 0 ? 0 : before - waiting_.size();
    if (!done && gone > 0 && error == asio::error::would_block) error = {};
    if (done) waiting_counts_ = true;
    return gone;
  }
  for (const asio::const_buffer& one : buffers) {
    const size_t room = kRecordBytes - waiting_.size();
    waiting_.append(static_cast<const char*>(one.data()), std::min(room, one.size()));
  }
  const size_t taken = waiting_.size();
  Flush(error);
  const size_t gone = taken - waiting_.size();
  if (gone > 0 && error == asio::error::would_block) error = {};
  return gone;
}

// Bytes that OpenSSL has not taken stay in `waiting_`, marked as not part of the caller's buffers.
// Where a record waits already, the bytes are dropped: they may not come between its parts.
void HttpSocket::WriteAhead(const char* bytes, size_t size) {
  Error ignored;
  if (tls_ == nullptr) {
    socket_.write_some(asio::buffer(bytes, size), ignored);
    return;
  }
  if (!waiting_.empty()) return;
  waiting_.assign(bytes, size);
  waiting_counts_ = Flush(ignored);
}

// A close_notify first, where the handshake is done: without it a client cannot tell the end from a
// cut.
void HttpSocket::ShutdownSend() {
  Error ignored;
  if (tls_ != nullptr && shaken_) {
    ERR_clear_error();
    SSL_shutdown(tls_.get());
    ERR_clear_error();
  }
  socket_.shutdown(tcp::socket::shutdown_send, ignored);
}

}  // namespace kvatlas
