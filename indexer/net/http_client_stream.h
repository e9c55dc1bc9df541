// The stream of an HTTP client, in clear or by TLS with this process's files.
//
// A stream as Beast's functions take it, over one connection. By TLS the server's chain is checked
// against the CA file of the process's `Security`, or of another context, and its names as
// `CheckServerNames` says; our own certificate, if there is one, is shown.
//
// *Threads*: one. Steps are started, then the caller runs the context.

#ifndef KVATLAS_INDEXER_NET_HTTP_CLIENT_STREAM_H_
#define KVATLAS_INDEXER_NET_HTTP_CLIENT_STREAM_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "indexer/base/address.h"
#include "indexer/security/security.h"

namespace kvatlas {

class HttpClientStream {
 public:
  using executor_type = boost::beast::tcp_stream::executor_type;

  explicit HttpClientStream(boost::asio::io_context& context) : tcp_(context) {}

  executor_type get_executor() { return tcp_.get_executor(); }
  boost::beast::tcp_stream& tcp() { return tcp_; }
  template <typename D>
  void expires_after(D duration) {
    tcp_.expires_after(duration);
  }
  void cancel() { tcp_.cancel(); }

  // From now on TLS, once `async_handshake` is done. FAILED_PRECONDITION: the process has no TLS
  // files.
  absl::Status PrepareTls(const Address& to, Security* security);
  // The same with a client's context of another plane, as `TlsFiles::client` gives it.
  void PrepareTls(const Address& to, ssl_ctx_st* client);
  template <typename Handler>
  void async_handshake(Handler&& handler) {
    tls_->async_handshake(boost::asio::ssl::stream_base::client, std::forward<Handler>(handler));
  }
  // After the handshake. UNAUTHENTICATED: another server than the one asked for.
  absl::Status CheckServer(const Address& to) const;

  template <typename Buffers, typename Handler>
  void async_read_some(const Buffers& buffers, Handler&& handler) {
    if (tls_.has_value()) {
      tls_->async_read_some(buffers, std::forward<Handler>(handler));
    } else {
      tcp_.async_read_some(buffers, std::forward<Handler>(handler));
    }
  }
  template <typename Buffers, typename Handler>
  void async_write_some(const Buffers& buffers, Handler&& handler) {
    if (tls_.has_value()) {
      tls_->async_write_some(buffers, std::forward<Handler>(handler));
    } else {
      tcp_.async_write_some(buffers, std::forward<Handler>(handler));
    }
  }

 private:
  boost::beast::tcp_stream tcp_;
  std::optional<boost::asio::ssl::context> context_;
  std::optional<boost::asio::ssl::stream<boost::beast::tcp_stream&>> tls_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_HTTP_CLIENT_STREAM_H_
