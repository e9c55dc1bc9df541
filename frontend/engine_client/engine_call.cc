// One call: a parser of answers (Beast's, which calls back for each part), and a state machine
// around one socket.
//   Start ─▶ Connect ─▶ ConnectTo ─▶ Send ─▶ Read ─▶ OnRead ─▶ Parse ─▶ Deliver ─▶ … ─▶ Finish
//       ╰──── an idle connection ────▲        ▲        Resume ────▲  │
//                                             ╰──────────────────────╯ nothing to deliver
// Every way ends in `Finish`, `Fail` or `Cancel`, each of which sets `over_`; handlers that run
// later see it and return. Every handler holds a `shared_ptr`, so the call lives until the last of
// them.

#include "frontend/engine_client/engine_call.h"

#include <array>
#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "frontend/engine_client/hop_by_hop.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;

constexpr size_t kInputBytes = EngineConnections::kBufferBytes;

}  // namespace

// ---- Answers ----

// Collects head, fields and the body's bytes since the last delivery. One parser per answer, so a
// passing one (1xx) takes a new parser.
class EngineCall::Parser : public http::basic_parser<false> {
 public:
  explicit Parser(bool to_head) {
    // The head is bounded by the buffer, the body not at all: it is passed on piece by piece.
    header_limit(kInputBytes);
    body_limit(std::numeric_limits<uint64_t>::max());
    // Parses the body in the same `put` as the head; `skip`: an answer to HEAD has no body whatever
    // its length says.
    eager(true);
    skip(to_head);
  }

  EngineHead head;
  HttpHeaders fields;
  std::string piece;

 private:
  using Error = boost::beast::error_code;
  using View = boost::beast::string_view;

  void on_request_impl(http::verb, View, View, int, Error&) override {}
  void on_response_impl(int status, View reason, int, Error&) override {
    head.status = status;
    head.reason.assign(reason.data(), reason.size());
  }
  void on_field_impl(http::field, View name, View value, Error&) override {
    if (is_header_done()) return;  // a trailer
    fields.emplace_back(std::string(name.data(), name.size()),
                        std::string(value.data(), value.size()));
  }
  void on_header_impl(Error&) override {}
  void on_body_init_impl(const boost::optional<uint64_t>&, Error&) override {}
  std::size_t on_body_impl(View body, Error&) override {
    piece.append(body.data(), body.size());
    return body.size();
  }
  void on_chunk_header_impl(uint64_t, View, Error&) override {}
  std::size_t on_chunk_body_impl(uint64_t, View body, Error&) override {
    piece.append(body.data(), body.size());
    return body.size();
  }
  void on_finish_impl(Error&) override {}
};

// ---- The call ----

EngineCall::EngineCall(asio::io_context* io, EngineConnections* pool, EngineCallRequest request,
                       EngineCallbacks callbacks)
    : pool_(pool),
      request_(std::move(request)),
      callbacks_(std::make_shared<const EngineCallbacks>(std::move(callbacks))),
      socket_(*io) {}

EngineCall::~EngineCall() { Unwatch(); }

void EngineCall::Unwatch() {
  if (std::exchange(watched_, false)) pool_->Unwatch(this);
}

// Makes the request's head and takes a connection: an idle one if the pool has one that still seems
// open, else a new one. The deadline of an idle connection begins in `Send`.
void EngineCall::Start() {
  parser_ = std::make_unique<Parser>(request_.method == "HEAD");
  in_ = pool_->TakeBuffer();
  watched_ = true;
  pool_->Watch(this, socket_.get_executor());
  absl::StrAppend(&head_out_, request_.method, " ", request_.url.prefix, request_.target,
                  " HTTP/1.1\r\nhost: ", Authority(), "\r\n");
  for (const auto& [name, value] : request_.headers)
    absl::StrAppend(&head_out_, name, ": ", value, "\r\n");
  const size_t body = request_.body == nullptr ? 0 : request_.body->size();
  if (body > 0 || (request_.method != "GET" && request_.method != "HEAD"))
    absl::StrAppend(&head_out_, "content-length: ", body, "\r\n");
  head_out_ += "\r\n";
  if (auto idle = pool_->Take(Authority(), Clock::Real().Now())) {
    socket_ = *std::move(idle);
    reused_ = true;
    return Send();
  }
  Connect();
}

// A new connection. A numeric host is checked against `EngineReach` and used as it is; a name is
// resolved, and its addresses are checked in `ConnectTo`. Called again by `Broken` for a kept
// connection that turned out to be closed.
void EngineCall::Connect() {
  reused_ = false;
  if (absl::Status outside = pool_->options().reach.Check(request_.url); !outside.ok()) {
    // Not from within `Start`.
    return asio::post(socket_.get_executor(), [self = shared_from_this(), outside] {
      if (!self->over_) self->Fail(outside);
    });
  }
  SetDeadline(pool_->options().connect_timeout, "no connection");
  Error error;
  const asio::ip::address numeric = asio::ip::make_address(request_.url.host, error);
  if (!error) {
    uint32_t port = 0;
    (void)absl::SimpleAtoi(request_.url.port, &port);  // `EngineUrl::Parse` has read it
    return ConnectTo(tcp::resolver::results_type::create(
        tcp::endpoint(numeric, static_cast<uint16_t>(port)), request_.url.host, request_.url.port));
  }
  resolver_.emplace(socket_.get_executor());
  resolver_->async_resolve(
      request_.url.host, request_.url.port, tcp::resolver::numeric_service,
      [self = shared_from_this()](Error failed, const tcp::resolver::results_type& found) {
        if (self->over_) return;
        if (failed) return self->Broken(failed.message());
        self->ConnectTo(found);
      });
}

// Engines that flags name may be anywhere; others only within the addresses that are allowed.
bool EngineCall::Reaches(const tcp::endpoint& endpoint) const {
  const EngineReach& reach = pool_->options().reach;
  return reach.given->Contains(Authority()) || reach.addresses.Contains(endpoint.data());
}

// Checking the resolved addresses and connecting to exactly these leaves no room for another answer
// of DNS in between.
void EngineCall::ConnectTo(const tcp::resolver::results_type& found) {
  std::vector<tcp::endpoint> within;
  for (const auto& entry : found)
    if (Reaches(entry.endpoint())) within.push_back(entry.endpoint());
  if (within.empty() && !found.empty()) {
    const std::string first = found.begin()->endpoint().address().to_string();
    return Fail(absl::PermissionDeniedError(absl::StrCat(
        Authority(), ": ", pool_->options().reach.addresses.Outside(first).message())));
  }
  asio::async_connect(socket_, within,
                      [self = shared_from_this()](Error error, const tcp::endpoint&) {
                        if (self->over_) return;
                        if (error) return self->Broken(error.message());
                        Error ignored;
                        self->socket_.set_option(tcp::no_delay(true), ignored);
                        self->socket_.non_blocking(true, ignored);
                        self->Send();
                      });
}

// Writes the request, and reads the answer meanwhile: an engine may refuse before it has read it
// all. `out` is copied into the operation; head and body live in the call. The deadline covers
// both, up to the head of the answer.
void EngineCall::Send() {
  SetDeadline(pool_->options().head_timeout, "no answer");
  sent_ = true;
  const std::array<asio::const_buffer, 2> out = {
      asio::buffer(head_out_),
      request_.body == nullptr ? asio::const_buffer() : asio::buffer(*request_.body)};
  asio::async_write(socket_, out, [self = shared_from_this()](Error error, size_t bytes) {
    if (self->over_) return;
    self->written_ = !error;  // else reading says what happened
    self->write_over_ = true;
    self->any_written_ = bytes > 0;
    if (self->broken_while_writing_.has_value()) self->Broken(*self->broken_while_writing_);
  });
  Read();
}

// Reads behind what is not parsed. A full buffer without progress is a head that is too large: the
// parser takes the bytes of a body as they come.
void EngineCall::Read() {
  if (in_from_ > 0) {
    std::memmove(in_.get(), in_.get() + in_from_, in_to_ - in_from_);
    in_to_ -= in_from_;
    in_from_ = 0;
  }
  if (in_to_ == kInputBytes) return Broken("its head is too large");
  socket_.async_read_some(
      asio::buffer(in_.get() + in_to_, kInputBytes - in_to_),
      [self = shared_from_this()](Error error, size_t bytes) { self->OnRead(error, bytes); });
}

void EngineCall::OnRead(Error error, size_t bytes) {
  if (over_) return;
  if (error == asio::error::eof) return OnEof();
  if (error) return Broken(error.message());
  received_ = true;
  in_to_ += bytes;
  Parse();
}

// The end of the connection ends a body without a length; in any other place it is a failure.
void EngineCall::OnEof() {
  if (!received_ || !parser_->is_header_done()) return Broken("closed before an answer");
  Error error;
  parser_->put_eof(error);
  if (error || !parser_->is_done()) return Broken("broken off");
  Deliver();
}

// A loop instead of a recursion, for passing answers that lie behind each other in the buffer.
void EngineCall::Parse() {
  while (ParseSome()) {
  }
}

// True: a passing answer (100 Continue) was read, and what follows may be there already.
bool EngineCall::ParseSome() {
  Error error;
  while (in_from_ < in_to_ && !parser_->is_done() && !error) {
    in_from_ += parser_->put(asio::const_buffer(in_.get() + in_from_, in_to_ - in_from_), error);
  }
  if (error && error != http::error::need_more) {
    Broken("not HTTP: " + error.message());
    return false;
  }
  if (parser_->is_done() && parser_->head.status / 100 == 1 && parser_->head.status != 101) {
    if (++passing_answers_ > kPassingAnswersMax) {
      Broken("it answers 1xx without end");
      return false;
    }
    parser_ = std::make_unique<Parser>(request_.method == "HEAD");
    if (in_from_ < in_to_) return true;
    Read();
    return false;
  }
  Deliver();
  return false;
}

// Hands out one thing: the head, a piece, or the end; with nothing at hand more is read. After the
// head and each piece nothing happens until `Resume`, so a slow taker slows the engine by TCP's
// flow control. `callbacks` keeps the functions alive while one of them runs and may `Cancel` the
// call.
void EngineCall::Deliver() {
  if (over_) return;
  if (!parser_->is_header_done()) return Read();
  const std::shared_ptr<const EngineCallbacks> callbacks = callbacks_;
  if (!answered_) {
    // 101 too: nothing asked for another protocol.
    if (const int status = parser_->head.status; status < 200 || status > 599)
      return Broken(absl::StrCat("it answers with status ", status));
    answered_ = true;
    SetDeadline(Duration(0), "");  // until `Resume`
    EngineHead head = std::move(parser_->head);
    // RFC 9110, 8.6: a 204 has none.
    if (parser_->content_length().has_value() && head.status != 204)
      head.length = *parser_->content_length();
    head.no_body = request_.method == "HEAD" || head.status == 204 || head.status == 304;
    head.piece_follows = !parser_->piece.empty();
    std::erase_if(parser_->fields, [hops = HopsOf(parser_->fields)](const auto& field) {
      return IsHopByHop(field.first, hops) || absl::EqualsIgnoreCase(field.first, "content-length");
    });
    head.headers = std::move(parser_->fields);
    return callbacks->on_head(std::move(head));
  }
  if (!parser_->piece.empty()) {
    SetDeadline(Duration(0), "");  // the taker's time
    return callbacks->on_piece(parser_->piece);
  }
  if (parser_->is_done()) return Finish();
  // Engines send the head of a stream before they look at the prompt: as far as patience goes, its
  // first event is the answer.
  if (begun_) {
    SetDeadline(pool_->options().idle_timeout, "silent: nothing more of its answer");
  } else {
    SetDeadline(pool_->options().head_timeout, "nothing of its answer after the head");
  }
  Read();
}

// The first `Resume` follows the head and takes no piece away; each later one has taken the piece.
void EngineCall::Resume(bool begun) {
  if (over_) return;
  // After the head the piece that came with it is still to be delivered.
  if (resumed_) {
    parser_->piece.clear();
    begun_ = begun;
  }
  resumed_ = true;
  // Bytes that were read, and could not be parsed before the piece ahead of them was taken.
  if (in_from_ < in_to_ && !parser_->is_done() && parser_->piece.empty()) return Parse();
  Deliver();
}

// The answer is complete. The connection is kept if both sides are through with it: the whole
// request written, nothing unread, and the engine willing.
void EngineCall::Finish() {
  over_ = true;
  Unwatch();
  pool_->PutBuffer(std::move(in_));
  if (parser_->keep_alive() && written_ && in_from_ == in_to_)
    pool_->Put(Authority(), std::move(socket_), Clock::Real().Now());
  std::exchange(callbacks_, nullptr)->on_end();
}

// Nothing is called back. The buffer is not given back to the pool: a pending read may still write
// into it, so it goes with the call.
void EngineCall::Cancel() {
  over_ = true;
  Unwatch();
  if (resolver_.has_value()) resolver_->cancel();
  Error ignored;
  socket_.close(ignored);
  callbacks_ = nullptr;
}

// The connection broke before the answer was complete. A kept connection that took no byte was
// closed by the engine while it was idle, and the request goes over a new one. A kept connection
// that took some may have brought the engine its request: an engine must not get it twice. Whether
// a byte was taken is known only when the write is over, so a break during the write waits for it.
void EngineCall::Broken(const std::string& what) {
  if (reused_ && !received_) {
    Error ignored;
    if (!write_over_) {
      broken_while_writing_ = what;
      socket_.close(ignored);  // ends the write, which says how far it came
      return;
    }
    if (!any_written_) {
      socket_.close(ignored);
      write_over_ = sent_ = false;
      broken_while_writing_ = std::nullopt;
      return Connect();
    }
  }
  Fail(absl::UnavailableError(what));
}

// The callbacks are held: `Cancel` lets go of them.
void EngineCall::Fail(absl::Status why) {
  const std::shared_ptr<const EngineCallbacks> callbacks = callbacks_;
  Cancel();
  callbacks->on_failed(why, answered_);
}

// Takes the place of the deadline before. 0: none. The pool's sweep looks at it (`CheckDeadline`),
// so setting one costs no timer.
void EngineCall::SetDeadline(Duration timeout, const char* what) {
  deadline_ = timeout == Duration(0) ? Time::max() : Clock::Real().Now() + timeout;
  late_ = what;
}

void EngineCall::CheckDeadline(Time now) {
  if (over_ || now < deadline_) return;
  Fail(absl::DeadlineExceededError(std::string(late_) + " in time"));
}

}  // namespace kvatlas
