// One HTTP connection of the server: reads a request, has it answered, writes the answer, then the
// next; lingers at the end.
//
//   Read ─▶ ParseOne ─▶ Route ─┬▶ Answer ─────────────────────┬▶ Send ─▶ Written ─┬▶ Next ─▶ ParseOne …
//                             ╰▶ refused, the body is dropped ╯   ▲               ╰▶ SendMore ─╮
//                                                                 ╰──────── OnPiece ◀──────────╯
//
// A stream handler answers through an exchange instead: BeginExchange, WriteExchange, …, EndExchange ─▶ Next. Meanwhile the
// connection watches whether its client goes away.
//
// *Threads*: everything on its loop's thread, except the handlers that run on the pool: while one
// does, the loop touches neither the request nor the answer.
// *Lifetime*: it owns itself through its one pending operation, and ends on its loop's thread.

#ifndef KVATLAS_INDEXER_NET_HTTP_CONNECTION_H_
#define KVATLAS_INDEXER_NET_HTTP_CONNECTION_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "indexer/base/clock.h"
#include "indexer/net/connection_account.h"
#include "indexer/net/http_exchange.h"
#include "indexer/net/http_parser.h"
#include "indexer/net/http_pool.h"
#include "indexer/net/http_router.h"
#include "indexer/net/http_server.h"
#include "indexer/net/http_socket.h"
#include "indexer/telemetry/process_memory.h"

namespace kvatlas {

// Bytes of the input buffer; larger only where a header needs it.
inline constexpr size_t kHttpInputBytes = 32 << 10;

class HttpConnection;

// State shared by the connections of all loops.
struct HttpShared {
  explicit HttpShared(HttpServerOptions server_options)
      : options(Fitting(std::move(server_options))),
        pool(options.queue_max),
        vital_pool(options.queue_max),
        security(options.security != nullptr ? options.security : Security::OfProcess()),
        enforces(security->enforces()),
        open_to_browsers(!enforces && Tls() == nullptr && IsLoopbackHost(options.listen.host)) {}

  // The context of new connections; null: they are not encrypted.
  std::shared_ptr<ssl_ctx_st> Tls() const {
    return security->tls() == nullptr ? nullptr : security->tls()->server();
  }

  static HttpServerOptions Fitting(HttpServerOptions options) {
    options.bodies_bytes_max = std::min<uint64_t>(options.bodies_bytes_max, MemoryLimitBytes() / 8);
    return options;
  }

  HttpPool& PoolOf(const HttpRoute& route) { return route.vital ? vital_pool : pool; }

  const HttpServerOptions options;
  HttpRouter router;  // immutable once the server runs
  HttpPool pool;
  HttpPool vital_pool;
  const std::shared_ptr<Security> security;
  const bool enforces;
  const bool open_to_browsers;  // of this machine, whichever page sent them
  std::atomic<size_t> connections{0};
  std::atomic<size_t> bodies_bytes{0};
};

// The connections of one I/O thread, and what they share; of that thread alone.
struct HttpLoop {
  std::unordered_set<HttpConnection*> connections;  // outlives `io`, with which the last ones go
  boost::asio::io_context io{1};
  // Takes a connection back after each answer, since its next request may belong to an I/O thread.
  // Null: connections stay on this loop.
  std::function<void(boost::asio::ip::tcp::socket, ConnectionListener::Busy)> hand_back = nullptr;
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  // Counts itself in `shared`, which outlives it as the loop does.
  // `busy` may be null.
  HttpConnection(boost::asio::ip::tcp::socket socket, ConnectionListener::Busy busy,
                 HttpShared* shared, HttpLoop* loop);
  ~HttpConnection();

  HttpConnection(const HttpConnection&) = delete;
  HttpConnection& operator=(const HttpConnection&) = delete;

  void Start();
  // For a connection beyond all bounds: it may ask for a vital route and nothing else.
  void StartOnReserve() {
    on_reserve_ = true;
    Start();
  }
  void Close();
  // Closes it when it is too late.
  void CheckDeadline(Time now) {
    if (now >= deadline_) Close();
  }

 private:
  friend class HttpExchange;
  using Error = boost::system::error_code;
  enum class Step : uint8_t {
    kWantsInput,  // to be read
    kAnswered,    // the answer is written: on to the next request
    kElsewhere,   // something is pending that goes on by itself, or the connection ends
  };

  void Handshake();
  void OnShaken();
  void RefusePlainHttp();
  void Read();
  void MoveInput();
  void ResizeInput(size_t bytes);
  void ReadSecure();
  void OnRead(Error error, size_t bytes);
  void Parse();
  Step ParseOne();
  void ForgetLastRequest();
  Step RefuseWhatTheParserDid(Error error);

  std::optional<Step> Route();
  HttpResponse Refused(const absl::Status& status, bool presented) const;
  std::optional<HttpResponse> NotLetIn();
  std::string_view Bearer() const;
  bool HoldUnread();
  std::optional<Step> CheckBody();
  size_t BodyBytesMax() const {
    return route_ == nullptr ? kHttpBodyBytesMax : route_->body_bytes_max;
  }
  void RefuseLater(HttpResponse response);
  Step RefuseNow(HttpResponse response);
  HttpResponse Refusal(int status, std::string_view text) const;
  void SayContinue();

  Step Answer();
  Step AnswerOnPool();
  bool AnsweredQuickly();
  static void Call(const HttpHandler& handler, const HttpRequest& request, HttpResponse* response);

  Step Send();
  void BuildHead();
  bool Write();
  void WriteLater();
  Step Written();
  Step SendMore();
  void OnPiece(bool more, bool failed);
  bool Next();
  void GoOn(Step step);
  Step StartExchange();
  void BeginExchange(const HttpHead& head, std::string_view piece, std::function<void()> done);
  void WriteExchange(std::string_view piece, std::function<void()> done);
  void EndExchange();
  void AnswerExchange(HttpResponse response);
  void CutExchange();
  void SendExchange(std::string_view piece, std::function<void()> done);
  void StartExchangeWrite(std::function<void()> done);
  void WatchClient();
  bool ReadAhead();
  void BuildExchangeHead(const HttpHead& head);

  void Linger();
  void Discard(size_t discarded);
  void SetDeadline(Duration from_now);
  void ReserveBody(uint64_t bytes);
  bool BodiesFit() const;
  HttpResponse TooManyBodies() const;
  void SetBusy(bool busy) {
    if (busy_ != nullptr) busy_->store(busy, std::memory_order_relaxed);
  }

  HttpSocket socket_;
  std::string chain_pem_;                     // of the client, where there is a policy
  std::string peer_;                          // likewise
  bool on_reserve_ = false;                   // of the reserve
  std::shared_ptr<const Identity> identity_;  // of the request; never null
  std::unique_ptr<Security::OpenCall> call_;  // of an exchange, where there is a policy
  Security::Held connection_;                 // from the first request that was let in
  Security::Held unread_;                     // what is written and not taken yet
  const ConnectionListener::Busy busy_;  // while it is answered, and the client takes the answer
  HttpShared* const shared_;
  HttpLoop* const loop_;
  Time deadline_ = Time::max();

  std::unique_ptr<char[]> in_;  // what was read and not parsed is [in_from_, in_to_)
  size_t in_bytes_ = 0;
  size_t in_from_ = 0;
  size_t in_to_ = 0;

  HttpMessage message_;
  std::optional<HttpParser> parser_;  // of the request being read
  bool routed_ = false;
  const HttpRoute* route_ = nullptr;  // null: refused, `response_` says how
  HttpObserver* observer_ = nullptr;
  size_t body_reserved_ = 0;
  HttpRequest request_;
  Time started_{0};
  bool head_only_ = false;
  bool keep_alive_ = false;
  bool http_1_1_ = true;

  HttpResponse response_;
  std::string allow_;
  bool chunked_ = false;
  std::string head_;
  std::string piece_;
  std::array<boost::asio::const_buffer, 3> out_;  // yet to be written
  size_t out_from_ = 0;                           // buffers before it are written
  uint32_t turn_ = 0;  // requests answered since the loop last had a chance to serve others
  std::array<char, 4096> discard_;

  std::weak_ptr<HttpExchange> exchange_;  // of the request being answered
  std::function<void()> exchange_done_;   // of what is being written
  bool exchanging_ = false;
  uint64_t exchanges_ = 0;  // tells a watch of an earlier one
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_HTTP_CONNECTION_H_
