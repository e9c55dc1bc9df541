// The part of `HttpConnection` that decides about trust: the TLS handshake, and whether a request
// may take its route.

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "indexer/net/http_connection.h"
#include "indexer/net/http_host.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

QuotaKind QuotaOf(Verb verb) {
  return verb == Verb::kDump || verb == Verb::kSnapshot ? QuotaKind::kDumps : QuotaKind::kQueries;
}

}  // namespace

// Continues the handshake until it is done or has to wait for the socket. `header_timeout` bounds
// it as a whole: Start sets that deadline and nothing here extends it.
void HttpConnection::Handshake() {
  const auto again = [self = shared_from_this()](Error error) {
    if (!error) self->Handshake();
  };
  switch (socket_.Handshake()) {
    case HttpSocket::Step::kDone:
      return OnShaken();
    case HttpSocket::Step::kWantsRead:
      return socket_.tcp().async_wait(tcp::socket::wait_read, again);
    case HttpSocket::Step::kWantsWrite:
      return socket_.tcp().async_wait(tcp::socket::wait_write, again);
    case HttpSocket::Step::kPlainHttp:
      return RefusePlainHttp();
    case HttpSocket::Step::kFailed:
      return Close();
  }
}

// The chain is kept as PEM only where a policy reads it; the TLS library has verified it already.
void HttpConnection::OnShaken() {
  if (shared_->enforces) chain_pem_ = socket_.ChainPem();
  Read();
}

// Answers in clear: the client's first bytes were an HTTP request, so it does not speak TLS.
void HttpConnection::RefusePlainHttp() {
  constexpr std::string_view kAnswer =
      "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\n"
      "content-length: 51\r\n\r\nThis port speaks TLS: use https:// in place of http";
  Error ignored;
  socket_.tcp().write_some(asio::buffer(kAnswer.data(), kAnswer.size()), ignored);
  Linger();
}

// Reads from OpenSSL before it waits for the descriptor: OpenSSL may hold decrypted bytes of an
// earlier read, and then the descriptor never becomes readable for them.
void HttpConnection::ReadSecure() {
  if (!socket_.is_open()) return;
  Error error;
  const size_t bytes = socket_.Read(in_.get() + in_to_, in_bytes_ - in_to_, error);
  if (error == asio::error::would_block) {
    return socket_.tcp().async_wait(tcp::socket::wait_read, [self = shared_from_this()](Error e) {
      if (e) return self->OnRead(e, 0);
      self->ReadSecure();
    });
  }
  // Posted: OnRead may call this again, and a client that sends without pause would nest the calls
  // ever deeper.
  asio::post(loop_->io, [self = shared_from_this(), error, bytes] { self->OnRead(error, bytes); });
}

// The token of "Authorization: Bearer TOKEN"; empty: none.
std::string_view HttpConnection::Bearer() const {
  constexpr absl::string_view kScheme = "Bearer ";
  const std::string_view value = message_.authorization;
  if (!absl::StartsWithIgnoreCase({value.data(), value.size()}, kScheme)) return "";
  return value.substr(kScheme.size());
}

// Charges the unwritten bytes to the identity's quota of unread bytes, until Written drops
// `unread_`. False: the quota is exhausted.
bool HttpConnection::HoldUnread() {
  if (!shared_->enforces || unread_ != nullptr) return true;
  double bytes = 0;
  for (const asio::const_buffer& one : out_) bytes += static_cast<double>(one.size());
  absl::StatusOr<Security::Held> held =
      shared_->security->Hold(*identity_, {{QuotaKind::kUnreadBytes, bytes}}, peer_);
  if (held.ok()) unread_ = *std::move(held);
  return held.ok();
}

// 401 for UNAUTHENTICATED, 429 for an exhausted quota, else 403. `www-authenticate` asks for a
// token only where the client showed no credential at all.
HttpResponse HttpConnection::Refused(const absl::Status& status, bool presented) const {
  const bool who = absl::IsUnauthenticated(status);
  const bool much = absl::IsResourceExhausted(status);
  const int code = much ? 429 : who ? 401 : 403;
  const std::string text(status.message());
  HttpResponse response =
      shared_->options.error_body != nullptr ? Refusal(code, text) : HttpError(code, text);
  if (who && !presented) response.headers.emplace_back("www-authenticate", "Bearer");
  return response;
}

// The refusal of a request that may not take its route; nothing: it may. Checked in this order:
// 1. A connection on reserve may ask for vital routes alone: 503.
// 2. Without TLS and policy, on loopback: the Host must be one of ours (http_host.h), since a
//    browser sends requests of foreign pages.
// 3. Without a policy everything else is allowed, and the identity is anonymous. Health is always
//    allowed.
// 4. Authenticate certificate and token, else 401; then the verb by policy, else 403.
// 5. Quotas: the connection counts from its first allowed request; each request takes one of its
//    kind. Metrics take none.
std::optional<HttpResponse> HttpConnection::NotLetIn() {
  if (on_reserve_ && !route_->vital) return Refusal(503, "too many connections");
  if (shared_->open_to_browsers && *route_->verb != Verb::kHealth &&
      !IsOwnHost(message_.host, shared_->options.listen.host)) {
    return Refused(absl::PermissionDeniedError(NotOwnHost(message_.host)), /*presented=*/false);
  }
  if (!shared_->enforces) {
    request_.identity = identity_;
    return std::nullopt;
  }
  Security& security = *shared_->security;
  const std::string_view bearer = Bearer();
  const bool presented = !chain_pem_.empty() || !bearer.empty();
  request_.peer = peer_;
  request_.token_counted = false;
  request_.identity = std::make_shared<Identity>();
  if (*route_->verb == Verb::kHealth) return std::nullopt;
  auto identity = security.Authenticate(chain_pem_, bearer);
  if (!identity.ok()) {
    security.AuditUnknown(*route_->verb, peer_, identity.status());
    // Over a new connection the client may show another certificate.
    keep_alive_ = false;
    return Refused(identity.status(), presented);
  }
  identity_ = *identity;
  // True if the token made the identity: with the certificate alone the client would not be known.
  // Proxies then do not pass the token on.
  request_.token_counted = !bearer.empty() && identity_->role != IdentityRole::kAnonymous &&
                           (chain_pem_.empty() || !security.Authenticate(chain_pem_, "").ok());
  request_.identity = identity_;
  if (absl::Status bad = security.CheckMethod(*identity_, *route_->verb, peer_); !bad.ok())
    return Refused(bad, presented);
  if (connection_ == nullptr) {
    absl::StatusOr<Security::Held> held =
        security.Hold(*identity_, {{QuotaKind::kConnections, 1}}, peer_);
    if (!held.ok()) return Refused(held.status(), presented);
    connection_ = *std::move(held);
  }
  if (*route_->verb != Verb::kMetrics) {
    if (absl::Status bad = security.Take(*identity_, QuotaOf(*route_->verb), 1, peer_); !bad.ok())
      return Refused(bad, presented);
  }
  return std::nullopt;
}

}  // namespace kvatlas
