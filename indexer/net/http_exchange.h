// One request of an `HttpServer` and the way back to its client, for a stream handler: code that
// waits for other services and answers piece by piece.
//
//   handler(exchange) ─▶ Begin ─▶ Write, Write, … ─▶ End      the next request of the connection
//                     ├▶ Answer                              all at once
//                     ╰▶ Cut                                 half an answer: the connection is closed
//
// *Truth*: what is written goes out as it comes, in the order of the calls; `done` is called when
// the socket has taken it, so a writer that makes the next piece only then holds one piece of
// memory for a slow client.
// *Threads*: everything on the thread of `io()`, which serves other connections too: nothing may
// wait there. `done` may be called before `Write` returns.
// *Bounds*: a piece that is not taken within the server's `write_timeout` closes the connection.
// *Lifetime*: the request is valid until `End`, `Answer` or `Cut`. When the client goes before
// that, `gone` is called once, no `done` after it, and every method is without effect from then on.
//
// Example:
//   http.Handle({.method = "*", .path = "/*", .stream = [](std::shared_ptr<HttpExchange> exchange)
//   {
//     exchange->Begin({.status = 200}, [exchange] { exchange->Write("hello", [exchange] {
//     exchange->End(); }); });
//   }});

#ifndef KVATLAS_INDEXER_NET_HTTP_EXCHANGE_H_
#define KVATLAS_INDEXER_NET_HTTP_EXCHANGE_H_

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "indexer/net/http_server.h"

namespace kvatlas {

class HttpConnection;

// The head of an answer. What belongs to the connection (connection, keep-alive, transfer-encoding,
// content-length) is the server's; such names must not be in `headers`.
struct HttpHead {
  int status = 200;
  std::string reason = {};   // empty: the usual one
  HttpHeaders headers = {};  // as they shall be sent
  std::optional<uint64_t> length =
      {};                // of the body; nothing: chunked, or until the end for old clients
  bool no_body = false;  // nothing follows, and nothing is said of a length unless it is given
};

class HttpExchange {
 public:
  using Done = std::function<void()>;

  explicit HttpExchange(std::shared_ptr<HttpConnection> connection);
  ~HttpExchange();  // one that was not brought to its end is cut

  HttpExchange(const HttpExchange&) = delete;
  HttpExchange& operator=(const HttpExchange&) = delete;

  const HttpRequest& request() const;
  std::string TakeBody();  // of the request, which has none from then on
  bool head_only() const;  // a HEAD; `request().method` is GET then
  boost::asio::io_context& io();

  void OnGone(Done gone) { on_gone_ = std::move(gone); }

  // REQUIRES: called once, before any `Write`. `piece` is the first piece, if there is one already:
  // it goes out with the head, and must stay valid until `done`.
  void Begin(HttpHead head, Done done) { Begin(std::move(head), {}, std::move(done)); }
  void Begin(HttpHead head, std::string_view piece, Done done);
  // REQUIRES: the write before is done. `piece` must stay valid until `done`.
  void Write(std::string_view piece, Done done);
  // REQUIRES: the last `done` was called, and the body has the announced length.
  void End();
  void Answer(HttpResponse response);
  void Cut();

 private:
  friend class HttpConnection;
  void Gone();

  std::shared_ptr<HttpConnection> connection_;  // null: over
  boost::asio::io_context* const io_;
  Done on_gone_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_HTTP_EXCHANGE_H_
