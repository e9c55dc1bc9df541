// The client's side of a TLS connection, without a socket: bytes in, bytes out, which the caller
// receives and sends.
//
//   plain ─▶ Write ─▶ `out`, to be sent        received ─▶ Receive ─▶ plain
//
// *Truth*: nothing is in clear before `ready`; the server's certificate is of a CA of the context,
// and names `host`: a DNS name or an address.
// *Threads*: one.

#ifndef KVATLAS_INDEXER_NET_TLS_SESSION_H_
#define KVATLAS_INDEXER_NET_TLS_SESSION_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct bio_st;      // BIO
struct ssl_ctx_st;  // SSL_CTX
struct ssl_st;      // SSL

namespace kvatlas {

class TlsSession {
 public:
  // Appends to `out` what is to be sent first.
  static absl::StatusOr<std::unique_ptr<TlsSession>> Start(
      const std::shared_ptr<ssl_ctx_st>& context, const std::string& host, std::string* out);

  // Appends what was in `bytes` to `plain`, and to `out` what the protocol wants to be answered.
  // UNAVAILABLE says what is wrong with the server; `ended`: it has said that nothing will follow.
  absl::Status Receive(std::string_view bytes, std::string* plain, std::string* out);
  // REQUIRES: ready.
  absl::Status Write(std::string_view plain, std::string* out);

  bool ready() const { return ready_; }
  bool ended() const { return ended_; }

 private:
  TlsSession() : ssl_(nullptr, nullptr) {}
  void Take(std::string* out);

  std::unique_ptr<ssl_st, void (*)(ssl_st*)> ssl_;
  bio_st* from_server_ = nullptr;  // both of `ssl_`
  bio_st* to_server_ = nullptr;
  bool ready_ = false;
  bool ended_ = false;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_TLS_SESSION_H_
