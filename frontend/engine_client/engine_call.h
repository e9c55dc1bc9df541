// How is one request sent to an engine, and how does its answer come back piece by piece? HTTP/1.1
// over connections that are kept, for one I/O thread.
//
//   Start ─▶ (idle connection or connect) ─▶ request written ─╮
//                                                             ├▶ OnHead ─▶ OnPiece ─▶ Resume ─▶ OnPiece … ─▶ OnEnd
//                                          answer is read  ◀──╯        ╰────────── OnFailed ──────────╯
//
// *Truth*: pieces are the body's bytes as they come, without their framing. Nothing is read ahead
// of a piece that was not resumed from, so a slow taker slows the engine. An idle connection that
// the engine had closed meanwhile is replaced by a new one without a word, unless something was
// written to it: nothing that an engine may have got is sent again.
// *Reach*: only addresses within `EngineReach` are connected to.
// *Threads*: everything on the thread of `io`.
// *Bounds*: `EngineCallOptions`; one buffer of 64 KiB, which the head of an answer must fit into;
// `kPassingAnswersMax`.
// *Lifetime*: a call lives until it has ended, failed or was cancelled; `EngineCallbacks` are not
// called after that. A callback may cancel its call: what it captured lives until it returns. The
// pool outlives the calls.

#ifndef KVATLAS_FRONTEND_ENGINE_CLIENT_ENGINE_CALL_H_
#define KVATLAS_FRONTEND_ENGINE_CLIENT_ENGINE_CALL_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "frontend/engine_client/engine_connections.h"
#include "frontend/engine_client/engine_reach.h"
#include "indexer/base/clock.h"
#include "indexer/net/http_server.h"

namespace kvatlas {

// Answers with a status of 1xx before the one that counts.
inline constexpr int kPassingAnswersMax = 16;

struct EngineCallRequest {
  EngineUrl url;
  std::string method;
  std::string target;   // with the query
  HttpHeaders headers;  // without those of the connection; host and content-length are added
  std::shared_ptr<const std::string> body;
};

struct EngineHead {
  int status = 0;
  std::string reason;
  HttpHeaders headers;  // without those of the connection and the length
  std::optional<uint64_t> length;
  bool no_body = false;  // by its status or method
  // Some of the body came with the head: the first piece follows `Resume` at once.
  bool piece_follows = false;
};

struct EngineCallbacks {
  std::function<void(EngineHead)> on_head;
  std::function<void(std::string_view)> on_piece;  // valid until `Resume`, which must follow
  std::function<void()> on_end;
  // `answered`: its head had come. DEADLINE_EXCEEDED: too late; UNAVAILABLE: not reached, or broken
  // off: these name no address, since clients may be told. PERMISSION_DENIED: it is outside, and
  // nothing was sent.
  std::function<void(const absl::Status& why, bool answered)> on_failed;
};

class EngineCall : public std::enable_shared_from_this<EngineCall> {
 public:
  EngineCall(boost::asio::io_context* io, EngineConnections* pool, EngineCallRequest request,
             EngineCallbacks callbacks);
  ~EngineCall();

  void Start();
  // Something of the request may have reached the engine.
  bool sent() const { return sent_; }
  // Goes on after `on_head` and each `on_piece`. Not `begun`: what was read is nothing that the
  // engine had to work for, so that the next piece may take as long as the head may, as the first
  // one does.
  void Resume(bool begun = true);
  void Cancel();

 private:
  friend class EngineConnections;
  using Error = boost::system::error_code;
  class Parser;

  void Connect();
  void ConnectTo(const boost::asio::ip::tcp::resolver::results_type& found);
  bool Reaches(const boost::asio::ip::tcp::endpoint& endpoint) const;
  void Send();
  void Read();
  void OnRead(Error error, size_t bytes);
  void Parse();
  bool ParseSome();
  void Deliver();
  void OnEof();
  void Finish();
  void Broken(const std::string& what);
  void Fail(absl::Status why);
  void SetDeadline(Duration timeout, const char* what);
  void Unwatch();
  void CheckDeadline(Time now);
  std::string Authority() const { return request_.url.authority(); }

  EngineConnections* const pool_;
  EngineCallRequest request_;
  // Shared with the one that runs. Null: the call is over.
  std::shared_ptr<const EngineCallbacks> callbacks_;
  boost::asio::ip::tcp::socket socket_;
  std::optional<boost::asio::ip::tcp::resolver> resolver_;
  Time deadline_ = Time::max();
  bool watched_ = false;   // by the pool, which need not be there any more when the call was over
  const char* late_ = "";  // what was not there by then

  std::string head_out_;
  std::unique_ptr<char[]> in_;  // what was read and not parsed is [in_from_, in_to_)
  size_t in_from_ = 0;
  size_t in_to_ = 0;
  std::unique_ptr<Parser> parser_;
  int passing_answers_ = 0;
  bool reused_ = false;  // an idle connection
  bool sent_ = false;    // writing was begun
  bool write_over_ = false;
  bool any_written_ = false;  // valid when `write_over_`
  bool written_ = false;      // the whole request
  std::optional<std::string> broken_while_writing_;
  bool received_ = false;  // anything
  bool answered_ = false;  // the head was delivered
  bool resumed_ = false;   // since the head
  bool begun_ = false;     // what the engine works for comes
  bool over_ = false;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ENGINE_CLIENT_ENGINE_CALL_H_
