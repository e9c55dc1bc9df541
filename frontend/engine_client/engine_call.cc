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

class EngineCall::Parser : public http::basic_parser<false> {
 public:
  explicit Parser(bool to_head) {
    header_limit(kInputBytes);
    body_limit(std::numeric_limits<uint64_t>::max());
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
    unsigned port = 0;
    if (!absl::SimpleAtoi(request_.url.port, &port) || port > 65535)
      return Fail(absl::UnavailableError("no such port"));
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

bool EngineCall::Reaches(const tcp::endpoint& endpoint) const {
  const EngineReach& reach = pool_->options().reach;
  return reach.given->Contains(Authority()) || reach.addresses.Contains(endpoint.data());
}

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

// The answer is read while the request is written: an engine may refuse before it has read it all.
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

void EngineCall::OnEof() {
  if (!received_ || !parser_->is_header_done()) return Broken("closed before an answer");
  Error error;
  parser_->put_eof(error);
  if (error || !parser_->is_done()) return Broken("broken off");
  Deliver();
}

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

// What there is, one thing at a time: the head, a piece, the end; else more is read.
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

void EngineCall::Resume(bool begun) {
  if (over_) return;
  // After the head the piece that came with it is still to be delivered.
  if (resumed_) {
    parser_->piece.clear();
    begun_ = begun;
  }
  resumed_ = true;
  // What was read and could not be parsed before its piece was taken.
  if (in_from_ < in_to_ && !parser_->is_done() && parser_->piece.empty()) return Parse();
  Deliver();
}

void EngineCall::Finish() {
  over_ = true;
  Unwatch();
  pool_->PutBuffer(std::move(in_));
  if (parser_->keep_alive() && written_ && in_from_ == in_to_)
    pool_->Put(Authority(), std::move(socket_), Clock::Real().Now());
  std::exchange(callbacks_, nullptr)->on_end();
}

void EngineCall::Cancel() {
  over_ = true;
  Unwatch();
  if (resolver_.has_value()) resolver_->cancel();
  Error ignored;
  socket_.close(ignored);
  callbacks_ = nullptr;
}

// A kept connection that took no byte was closed by the engine while it was idle. One that took
// some may have brought the engine its request: an engine must not get it twice.
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

void EngineCall::Fail(absl::Status why) {
  const std::shared_ptr<const EngineCallbacks> callbacks = callbacks_;
  Cancel();
  callbacks->on_failed(why, answered_);
}

// 0: none.
void EngineCall::SetDeadline(Duration timeout, const char* what) {
  deadline_ = timeout == Duration(0) ? Time::max() : Clock::Real().Now() + timeout;
  late_ = what;
}

void EngineCall::CheckDeadline(Time now) {
  if (over_ || now < deadline_) return;
  Fail(absl::DeadlineExceededError(std::string(late_) + " in time"));
}

}  // namespace kvatlas
