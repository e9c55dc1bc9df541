// The bytes of one HTTP connection, in clear or by TLS.
//
// Nothing here waits: what cannot be done now is `would_block`, and the caller waits for the
// descriptor. Both ways read and write on the same non-blocking descriptor, OpenSSL on top of it
// where the server has a certificate.
//
// *Threads*: one. *Cost*: without TLS a branch per call. *Bounds*: a TLS connection holds one
// record of up to 16 KiB that waits to be written.

#ifndef KVATLAS_INDEXER_NET_HTTP_SOCKET_H_
#define KVATLAS_INDEXER_NET_HTTP_SOCKET_H_

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/system/error_code.hpp>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

struct ssl_ctx_st;
struct ssl_st;

namespace kvatlas {

class HttpSocket {
 public:
  using Error = boost::system::error_code;
  using Buffers = std::array<boost::asio::const_buffer, 3>;

  // `tls` may be null.
  HttpSocket(boost::asio::ip::tcp::socket socket, const std::shared_ptr<ssl_ctx_st>& tls);
  ~HttpSocket();

  HttpSocket(const HttpSocket&) = delete;
  HttpSocket& operator=(const HttpSocket&) = delete;

  // For waiting, and for options.
  boost::asio::ip::tcp::socket& tcp() { return socket_; }
  // REQUIRES: without TLS.
  boost::asio::ip::tcp::socket Release() { return std::move(socket_); }
  bool is_open() const { return socket_.is_open(); }
  bool secure() const { return tls_ != nullptr; }
  void Close();

  enum class Step { kDone, kWantsRead, kWantsWrite, kPlainHttp, kFailed };
  // Goes on with the handshake. REQUIRES: secure.
  Step Handshake();
  // The client's certificate and its intermediates as PEM, once the handshake is done; empty: none.
  std::string ChainPem() const;

  // Bytes that were there; `would_block`: none; `eof`: the end.
  size_t Read(char* to, size_t size, Error& error);
  // How much of `buffers` is gone. With `would_block` the same bytes have to come again. 0 without
  // an error: call again.
  size_t Write(const Buffers& buffers, Error& error);
  // Writes a few bytes ahead of the next `Write`; drops them when nothing can be written now.
  void WriteAhead(const char* bytes, size_t size);
  void ShutdownSend();

 private:
  struct Free {
    void operator()(ssl_st* tls) const;
  };

  // Hands `waiting_` to OpenSSL.
  bool Flush(Error& error);
  Error ErrorOf(int result);

  boost::asio::ip::tcp::socket socket_;
  std::unique_ptr<ssl_st, Free> tls_;
  bool shaken_ = false;
  std::string waiting_;         // one record that OpenSSL has not taken yet
  bool waiting_counts_ = true;  // it is of `Write`
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_HTTP_SOCKET_H_
