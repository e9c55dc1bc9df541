// How is one request sent to an engine, and how does its answer come back piece by piece? HTTP/1.1 over connections that are
// kept, for one I/O thread.
//
//   Start ─▶ (idle connection or connect) ─▶ request written ─╮
//                                                             ├▶ OnHead ─▶ OnPiece ─▶ Resume ─▶ OnPiece … ─▶ OnEnd
//                                          answer is read  ◀──╯        ╰────────── OnFailed ──────────╯
//
// *Truth*: pieces are the body's bytes as they come, without their framing. Nothing is read ahead of a piece that was not
// resumed from, so a slow taker slows the engine. An idle connection that the engine had closed meanwhile is replaced by a new
// one without a word, unless something was written to it: nothing that an engine may have got is sent again.
// *Reach*: a url comes from the announcer of a worker, so only addresses within `EngineReach` are connected to: a numeric one is
// checked, a name is resolved, and those of its addresses that are outside are left out.
// *Threads*: everything on the thread of `io`.
// *Bounds*: `EngineCallOptions`; one buffer of 64 KiB, which the head of an answer must fit into. Timeouts are kept to an eighth
// of the shortest: a pool has one timer for all of its calls.
// *Lifetime*: a call lives until it has ended, failed or was cancelled; `EngineCallbacks` are not called after that. The pool
// outlives the calls.

#ifndef KVATLAS_FRONTEND_PEERS_ENGINE_CALL_H_
#define KVATLAS_FRONTEND_PEERS_ENGINE_CALL_H_

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/service/engine_addresses.h"
#include "indexer/service/http_server.h"

namespace kvatlas {

// "http://HOST[:PORT][/PREFIX]" of an engine.
struct EngineUrl {
  std::string host;
  std::string port;
  std::string prefix;  // of every target; without a slash at its end

  // INVALID_ARGUMENT: another scheme, or no host.
  static absl::StatusOr<EngineUrl> Parse(std::string_view url);
  std::string authority() const;
};

// `EngineUrl::authority` of the engines that flags name: wherever they are. *Threads*: any.
class GivenEngines {
 public:
  bool Contains(const std::string& authority) const {
    MutexLock lock(&mutex_);
    return authorities_.contains(authority);
  }
  void Set(std::set<std::string> authorities) {
    MutexLock lock(&mutex_);
    authorities_ = std::move(authorities);
  }
  std::set<std::string> authorities() const {
    MutexLock lock(&mutex_);
    return authorities_;
  }

 private:
  mutable Mutex mutex_;
  std::set<std::string> authorities_ ABSL_GUARDED_BY(mutex_);
};

// Which engines may be called? Copies share who is given.
struct EngineReach {
  EngineAddresses addresses;  // of urls that workers say of themselves
  std::shared_ptr<GivenEngines> given = std::make_shared<GivenEngines>();

  // PERMISSION_DENIED: a numeric host outside. A name is OK: its addresses are checked when they are known.
  absl::Status Check(const EngineUrl& url) const;
};

struct EngineCallOptions {
  EngineReach reach = {};
  Duration connect_timeout = std::chrono::seconds(1);
  Duration head_timeout = std::chrono::minutes(10);  // from the request to the head of its answer
  Duration idle_timeout = std::chrono::minutes(2);   // between two pieces of an answer
  size_t idle_per_engine = 32;                       // connections kept
  Duration keep_idle = std::chrono::seconds(4);      // engines' servers close theirs after 5
};

class EngineCall;

// What the calls of one I/O thread share: idle connections, buffers, and the timer of their deadlines.
class EnginePool {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  explicit EnginePool(const EngineCallOptions& options);

  const EngineCallOptions& options() const { return options_; }
  // One that still seems open.
  std::optional<Socket> Take(const std::string& authority, Time now);
  void Put(const std::string& authority, Socket socket, Time now);

 private:
  friend class EngineCall;
  static constexpr size_t kBuffersMax = 64;
  std::unique_ptr<char[]> TakeBuffer();
  void PutBuffer(std::unique_ptr<char[]> buffer);
  void Watch(EngineCall* call, const boost::asio::any_io_executor& executor);
  void Unwatch(EngineCall* call) { watched_.erase(call); }
  void SweepLater();
  void Sweep();

  struct Idle {
    Socket socket;
    Time since{0};
  };
  const EngineCallOptions options_;
  const Duration sweep_every_;
  std::map<std::string, std::deque<Idle>> idle_;  // the latest last
  std::vector<std::unique_ptr<char[]>> buffers_;
  std::unordered_set<EngineCall*> watched_;
  std::optional<boost::asio::steady_timer> sweep_;  // while there is something to watch
  bool sweeping_ = false;
  // What a sweep that is due already when the pool ends looks at.
  const std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

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
  // Of the body, what came with the head: the first piece follows `Resume` at once.
  bool piece_follows = false;
};

struct EngineCallbacks {
  std::function<void(EngineHead)> on_head;
  std::function<void(std::string_view)> on_piece;  // valid until `Resume`, which must follow
  std::function<void()> on_end;
  // `answered`: its head had come. DEADLINE_EXCEEDED: too late; UNAVAILABLE: not reached, or broken off: these name no address,
  // since clients may be told. PERMISSION_DENIED: it is outside, and nothing was sent.
  std::function<void(const absl::Status& why, bool answered)> on_failed;
};

// The values of the fields `connection`.
std::vector<std::string> HopsOf(const HttpHeaders& headers);
// A header field that is between two neighbours only: by its name, or by `HopsOf` its message.
bool IsHopByHop(std::string_view name, const std::vector<std::string>& hops);

class EngineCall : public std::enable_shared_from_this<EngineCall> {
 public:
  EngineCall(boost::asio::io_context* io, EnginePool* pool, EngineCallRequest request,
             EngineCallbacks callbacks);
  ~EngineCall();

  void Start();
  // Something of the request may have reached the engine.
  bool sent() const { return sent_; }
  // Goes on after `on_head` and each `on_piece`.
  void Resume();
  void Cancel();

 private:
  friend class EnginePool;
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

  EnginePool* const pool_;
  EngineCallRequest request_;
  EngineCallbacks callbacks_;
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
  bool reused_ = false;  // an idle connection
  bool sent_ = false;    // writing was begun
  bool write_over_ = false;
  bool any_written_ = false;  // valid when `write_over_`
  bool written_ = false;      // the whole request
  std::optional<std::string> broken_while_writing_;
  bool received_ = false;  // anything
  bool answered_ = false;  // the head was delivered
  bool resumed_ = false;   // since the head
  bool over_ = false;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PEERS_ENGINE_CALL_H_
