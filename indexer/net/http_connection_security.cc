// The part of a connection that is about trust: the handshake, and who may take a route.

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

void HttpConnection::OnShaken() {
  if (shared_->enforces) chain_pem_ = socket_.ChainPem();
  Read();
}

// In clear, to a client that speaks nothing else.
void HttpConnection::RefusePlainHttp() {
  constexpr std::string_view kAnswer =
      "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: text/plain\r\n"
      "content-length: 51\r\n\r\nThis port speaks TLS: use https:// in place of http";
  Error ignored;
  socket_.tcp().write_some(asio::buffer(kAnswer.data(), kAnswer.size()), ignored);
  Linger();
}

// OpenSSL may hold bytes that the descriptor knows nothing of: it is asked first.
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
  // Not from within: a client that sends without end would be a recursion.
  asio::post(loop_->io, [self = shared_from_this(), error, bytes] { self->OnRead(error, bytes); });
}

// Of "Authorization: Bearer …"; empty: none.
std::string_view HttpConnection::Bearer() const {
  constexpr absl::string_view kScheme = "Bearer ";
  const std::string_view value = message_.authorization;
  if (!absl::StartsWithIgnoreCase({value.data(), value.size()}, kScheme)) return "";
  return value.substr(kScheme.size());
}

// False: the client has more answers that it does not read than it may.
bool HttpConnection::HoldUnread() {
  if (!shared_->enforces || unread_ != nullptr) return true;
  double bytes = 0;
  for (const asio::const_buffer& one : out_) bytes += static_cast<double>(one.size());
  absl::StatusOr<Security::Held> held =
      shared_->security->Hold(*identity_, {{QuotaKind::kUnreadBytes, bytes}}, peer_);
  if (held.ok()) unread_ = *std::move(held);
  return held.ok();
}

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

// What is answered to who may not take the route; nothing: it may.
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
