// The HTTP/1.1 state machine of one connection: reading, parsing, routing, answering, writing,
// lingering; the exchange part at the end serves stream handlers. The TLS handshake and the
// decision who may take a route are in http_connection_security.cc.
//
// Every function returns a `Step` or hands on to a pending operation. A pending operation holds
// `shared_from_this()`, so a connection with none left destroys itself; a `return` without a new
// operation ends it. All run on the loop's thread, except the two jobs that AnswerOnPool and
// SendMore give to the pool.

#include "indexer/net/http_connection.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/status.hpp>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace kvatlas {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;

// Requests that one connection has answered in a row (pipelining) before the loop serves its other
// connections.
constexpr uint32_t kTurnMax = 16;

// A body whose buffer is larger is counted in `HttpShared::bodies_bytes`, and its memory is freed
// after the request. Smaller buffers stay with the connection for its next request.
constexpr size_t kLargeBody = 256 << 10;

// After the last answer the connection reads and drops further input, for at most this time and
// this many bytes. To close at once would send a reset while input is unread, and the reset may
// discard the answer at the client.
constexpr std::chrono::seconds kLinger(2);
constexpr size_t kLingerBytesMax = 16 << 20;

constexpr char kPlainText[] = "text/plain; charset=utf-8";

// application/json or application/….+json, parameters aside.
bool IsJson(std::string_view type) {
  if (type == "application/json") return true;
  type = type.substr(0, type.find(';'));
  while (!type.empty() && type.back() == ' ') type.remove_suffix(1);
  const absl::string_view text(type.data(), type.size());
  constexpr absl::string_view kApplication = "application/";
  if (!absl::StartsWithIgnoreCase(text, kApplication)) return false;
  const absl::string_view subtype = text.substr(kApplication.size());
  return absl::EqualsIgnoreCase(subtype, "json") || absl::EndsWithIgnoreCase(subtype, "+json");
}

// Reduces a target in absolute form (RFC 9112 §3.2.2), "http://HOST/path?query", to "/path?query".
// The routes know paths only.
void TakeOffOrigin(std::string* target) {
  const absl::string_view text(*target);
  if (!absl::StartsWithIgnoreCase(text, "http://") && !absl::StartsWithIgnoreCase(text, "https://"))
    return;
  const size_t path = std::min(target->find_first_of("/?", target->find("//") + 2), target->size());
  const bool has_path = path < target->size() && (*target)[path] == '/';
  target->replace(0, path, has_path ? "" : "/");
}

HttpResponse PlainText(int status, std::string text) {
  return {.status = status, .content_type = kPlainText, .body = std::move(text)};
}

void AppendNumber(std::string* out, uint64_t number) {
  char digits[20];
  char* const end = digits + sizeof(digits);
  char* from = end;
  do {
    *--from = static_cast<char>('0' + number % 10);
    number /= 10;
  } while (number != 0);
  out->append(from, static_cast<size_t>(end - from));
}

}  // namespace

HttpConnection::HttpConnection(tcp::socket socket, ConnectionListener::Busy busy,
                               HttpShared* shared, HttpLoop* loop)
    : socket_(std::move(socket), shared->Tls()),
      identity_(std::make_shared<Identity>()),
      busy_(std::move(busy)),
      shared_(shared),
      loop_(loop) {
  shared_->connections.fetch_add(1, std::memory_order_relaxed);
}

HttpConnection::~HttpConnection() {
  ReserveBody(0);
  loop_->connections.erase(this);
  shared_->connections.fetch_sub(1, std::memory_order_relaxed);
}

void HttpConnection::Start() {
  loop_->connections.insert(this);
  Error ignored;
  socket_.tcp().non_blocking(true, ignored);
  socket_.tcp().set_option(tcp::no_delay(true), ignored);
  ResizeInput(kHttpInputBytes);
  if (shared_->enforces) {
    const tcp::endpoint from = socket_.tcp().remote_endpoint(ignored);
    if (!ignored) peer_ = from.address().to_string();
  }
  if (!socket_.secure()) return Read();
  SetDeadline(shared_->options.header_timeout);
  Handshake();
}

// Closes the socket, which completes every pending operation with an error and so drops their
// references. Idempotent. An exchange that is still open learns it through HttpExchange::Gone.
void HttpConnection::Close() {
  socket_.Close();
  call_ = nullptr;
  deadline_ = Time::max();
  if (!exchanging_) return;
  exchanging_ = false;
  exchange_done_ = nullptr;
  // Posted: Close may run inside a call that the handler makes (Write, Begin).
  if (std::shared_ptr<HttpExchange> exchange = exchange_.lock()) {
    asio::post(loop_->io, [exchange = std::move(exchange)] { exchange->Gone(); });
  }
}

void HttpConnection::SetDeadline(Duration from_now) { deadline_ = Clock::Real().Now() + from_now; }

// Sets what this connection holds in bodies, in the sum over all connections. The difference may be
// negative; unsigned arithmetic wraps and the sum stays right.
void HttpConnection::ReserveBody(uint64_t bytes) {
  if (bytes < kLargeBody) bytes = 0;
  shared_->bodies_bytes.fetch_add(bytes - body_reserved_, std::memory_order_relaxed);
  body_reserved_ = bytes;
}

bool HttpConnection::BodiesFit() const {
  return shared_->bodies_bytes.load(std::memory_order_relaxed) <= shared_->options.bodies_bytes_max;
}

HttpResponse HttpConnection::TooManyBodies() const {
  constexpr char kText[] = "too many large requests at once";
  return shared_->options.error_body != nullptr ? Refusal(503, kText) : HttpError(503, kText);
}

void HttpConnection::MoveInput() {
  if (in_from_ == 0) return;
  std::memmove(in_.get(), in_.get() + in_from_, in_to_ - in_from_);
  in_to_ -= in_from_;
  in_from_ = 0;
}

void HttpConnection::ResizeInput(size_t bytes) {
  auto larger = std::make_unique<char[]>(bytes);
  if (in_to_ > 0) std::memcpy(larger.get(), in_.get(), in_to_);
  in_ = std::move(larger);
  in_bytes_ = bytes;
}

// Starts one read. Between requests the deadline is `idle_timeout`. Within a request it stays as
// ParseOne set it, so a client that trickles bytes gains no time.
void HttpConnection::Read() {
  if (!parser_.has_value()) SetDeadline(shared_->options.idle_timeout);
  MoveInput();
  if (!parser_.has_value() && in_bytes_ > kHttpInputBytes && in_to_ <= kHttpInputBytes)
    ResizeInput(kHttpInputBytes);  // after a large header
  if (socket_.secure()) return ReadSecure();
  socket_.tcp().async_read_some(
      asio::buffer(in_.get() + in_to_, in_bytes_ - in_to_),
      [self = shared_from_this()](Error error, size_t bytes) { self->OnRead(error, bytes); });
}

// Takes what was read. An error ends the connection: no operation follows and the last reference
// goes. Only an orderly end between two requests lingers, since answers may still be on their way
// to the client.
void HttpConnection::OnRead(Error error, size_t bytes) {
  if (error) {
    if (error == asio::error::eof && !parser_.has_value()) Linger();
    return;
  }
  in_to_ += bytes;
  turn_ = 0;
  Parse();
}

// Answers the requests that are in the buffer, one after the other:
// 1. ParseOne reads one request to its end and has it answered.
// 2. kAnswered: Next prepares for the following request, and the loop goes on. After `kTurnMax` in
//    a row it posts itself, so that other connections of the thread have their turn.
// 3. kWantsInput: Read. kElsewhere: a pending operation calls GoOn later, or the connection ends.
void HttpConnection::Parse() {
  while (true) {
    switch (ParseOne()) {
      case Step::kWantsInput:
        return Read();
      case Step::kElsewhere:
        return;
      case Step::kAnswered:
        if (!Next()) return;
        if (++turn_ < kTurnMax) continue;
        turn_ = 0;
        asio::post(loop_->io, [self = shared_from_this()] { self->Parse(); });
        return;
    }
  }
}

// Continues after an operation that was pending (kElsewhere). Never called from within Parse, which
// would nest one more call for each pipelined request.
void HttpConnection::GoOn(Step step) {
  if (step == Step::kAnswered && Next()) Parse();
}

// Feeds the parser until the request is complete, then answers it.
// 1. The first byte of a request creates the parser and starts both clocks: the header has
//    `header_timeout`, the whole request `request_timeout`.
// 2. Put consumes input. `need_more` means that the parser can do nothing with the part it sees:
//    the buffer grows, up to `header_bytes_max`, and the request is refused with 431 beyond that.
// 3. When the header is complete, Route decides once whether the request is taken, refused now, or
//    refused after its body.
// 4. Body bytes count against `bodies_bytes_max` as they arrive.
// 5. Answer.
HttpConnection::Step HttpConnection::ParseOne() {
  if (in_from_ == in_to_) return Step::kWantsInput;
  if (!parser_.has_value()) {
    parser_.emplace(&message_, shared_->options.trace_id_header,
                    static_cast<uint32_t>(shared_->options.header_bytes_max),
                    shared_->options.keep_headers);
    ForgetLastRequest();
    started_ = Clock::Real().Now();
    deadline_ =
        started_ + std::min(shared_->options.header_timeout, shared_->options.request_timeout);
  }
  while (!parser_->is_done()) {
    if (in_from_ == in_to_) return Step::kWantsInput;
    Error error;
    in_from_ += parser_->Put({in_.get() + in_from_, in_to_ - in_from_}, error);
    if (error == http::error::need_more) {
      if (in_from_ > 0 || in_to_ < in_bytes_) return Step::kWantsInput;
      if (in_bytes_ >= shared_->options.header_bytes_max)
        return RefuseWhatTheParserDid(http::make_error_code(http::error::header_limit));
      ResizeInput(std::min(2 * in_bytes_, shared_->options.header_bytes_max));
      return Step::kWantsInput;
    }
    if (error) return RefuseWhatTheParserDid(error);
    if (!routed_ && parser_->is_header_done()) {
      deadline_ = started_ + shared_->options.request_timeout;
      if (std::optional<Step> refused = Route()) return *refused;
    }
    // Counts the bytes that arrived, not the announced length: an announcement costs nothing, so
    // it must not take room from other requests.
    if (message_.body.capacity() >= kLargeBody) {
      ReserveBody(message_.body.capacity());
      if (!BodiesFit()) return RefuseNow(TooManyBodies());
    }
  }
  return Answer();
}

// Clears what Send and the observer read. A request that is refused before its header is complete
// must not be attributed to the route, path or trace of the previous request.
void HttpConnection::ForgetLastRequest() {
  routed_ = false;
  route_ = nullptr;
  observer_ = nullptr;
  allow_.clear();
  http_1_1_ = true;
  request_.method.clear();
  request_.query.clear();
  request_.trace_id.clear();
}

HttpConnection::Step HttpConnection::RefuseWhatTheParserDid(Error error) {
  request_.path.clear();
  allow_.clear();
  head_only_ = false;
  if (error == http::error::header_limit) {
    return RefuseNow(Refusal(431, "the header is too large"));
  }
  if (error == http::error::body_limit) {
    const std::string text =
        absl::StrCat("the body is too large; expected at most ", BodyBytesMax(), " bytes");
    return RefuseNow(
        route_ != nullptr && route_->json_body
            ? PlainText(413, "Failed to buffer the request body: length limit exceeded")
        : shared_->options.error_body != nullptr ? Refusal(413, text)
                                                 : HttpError(413, text));
  }
  return RefuseNow(Refusal(400, "not HTTP"));
}

HttpResponse HttpConnection::Refusal(int status, std::string_view text) const {
  if (shared_->options.bare_errors) return {.status = status, .content_type = ""};
  if (shared_->options.error_body != nullptr)
    return {.status = status, .body = shared_->options.error_body(status, text)};
  return HttpError(status, text);
}

// Answers before the request is read to its end. Where the next request would begin is unknown, so
// the connection closes after the answer.
HttpConnection::Step HttpConnection::RefuseNow(HttpResponse response) {
  route_ = nullptr;
  keep_alive_ = false;
  response_ = std::move(response);
  return Send();
}

// Reads and drops the body first, then answers; the connection stays usable. `route_` is null from
// here on, and Answer sends `response_`.
void HttpConnection::RefuseLater(HttpResponse response) {
  route_ = nullptr;
  response_ = std::move(response);
  parser_->DropBody();
}

// Decides about a request when its header is complete; a step means that its reading ends here.
// 1. Fills `request_` from the message: method (a HEAD becomes a GET with `head_only_`), path
//    (percent-decoded), query, trace id.
// 2. Finds the route: by path, then by method, then the path's "*" method; else 404 or 405.
// 3. NotLetIn checks identity, policy, Host and quotas before any of the body is read.
// 4. CheckBody bounds the body by the route's limit.
std::optional<HttpConnection::Step> HttpConnection::Route() {
  routed_ = true;
  keep_alive_ = parser_->Persists();
  http_1_1_ = message_.version >= 11;
  TakeOffOrigin(&message_.target);
  head_only_ = message_.method == "HEAD";
  request_.method = head_only_ ? "GET" : message_.method;
  request_.trace_id = message_.trace_id;
  if (shared_->options.keep_headers) {
    request_.headers.swap(message_.headers);
    request_.target = message_.target;
  }
  const std::string_view target(message_.target);
  const size_t question = target.find('?');
  const std::string_view path = target.substr(0, question);
  request_.query = question == std::string_view::npos ? "" : target.substr(question + 1);
  if (path.find('%') == std::string_view::npos) {
    request_.path = path;
  } else {
    request_.path = PercentDecode(path, false).value_or("");
  }
  if (!request_.path.starts_with('/')) return RefuseNow(Refusal(400, "bad path"));
  const HttpRouter::Methods* methods = shared_->router.Find(request_.path);
  if (methods == nullptr) {
    RefuseLater(Refusal(404, absl::StrCat("no such path: ", request_.path)));
    return CheckBody();
  }
  auto route = methods->find(std::string_view(request_.method));
  if (route == methods->end()) route = methods->find("*");
  if (route == methods->end()) {
    observer_ = methods->begin()->second.observer;
    allow_ = HttpRouter::Allow(*methods);
    RefuseLater(Refusal(405, absl::StrCat(request_.method, " is not for ", request_.path)));
    return CheckBody();
  }
  route_ = &route->second;
  observer_ = route_->observer;
  if (std::optional<HttpResponse> refusal = NotLetIn()) {
    route_ = nullptr;
    return RefuseNow(*std::move(refusal));
  }
  if (route_->json_body && !IsJson(message_.content_type)) {
    RefuseLater(PlainText(415, "Expected request with `Content-Type: application/json`"));
  }
  return CheckBody();
}

std::optional<HttpConnection::Step> HttpConnection::CheckBody() {
  const size_t body_max = BodyBytesMax();
  const boost::optional<uint64_t> length = parser_->content_length();
  if (route_ == nullptr) {
    // The request is refused already: a large body is not read, the answer goes out at once.
    if (length.value_or(0) > body_max) return RefuseNow(std::move(response_));
  } else {
    if (length.value_or(0) > body_max) return RefuseWhatTheParserDid(http::error::body_limit);
    if (!BodiesFit() && (parser_->chunked() || length.value_or(0) >= kLargeBody)) {
      return RefuseNow(TooManyBodies());
    }
  }
  parser_->body_limit(body_max);
  if (message_.expects_continue && !parser_->is_done() && in_from_ == in_to_) SayContinue();
  return std::nullopt;
}

// For clients that wait for "100 Continue" before they send the body. It is dropped when the socket
// takes no more bytes now; such a client sends the body after a time-out of its own.
void HttpConnection::SayContinue() {
  constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  socket_.WriteAhead(kContinue.data(), kContinue.size());
}

HttpConnection::Step HttpConnection::Answer() {
  if (route_ == nullptr) return Send();
  SetBusy(true);
  request_.body.swap(message_.body);
  response_.status = 200;
  response_.content_type = "application/json";
  response_.body.clear();
  response_.about.clear();
  response_.headers.clear();
  if (route_->stream != nullptr) return StartExchange();
  return AnsweredQuickly() ? Send() : AnswerOnPool();
}

bool HttpConnection::AnsweredQuickly() {
  if (route_->quick == nullptr) return false;
  if (request_.body.size() > shared_->options.quick_body_bytes_max && route_->handler != nullptr) {
    return false;
  }
  try {
    return route_->quick(request_, &response_);
  } catch (const std::exception& error) {
    response_ = HttpError(500, error.what());
  } catch (...) {
    response_ = HttpError(500, "the handler failed");
  }
  return true;
}

// Hands the request to the pool. While the job runs, the loop touches neither `request_` nor
// `response_`; the socket may be closed meanwhile, which Send notices.
HttpConnection::Step HttpConnection::AnswerOnPool() {
  deadline_ = Time::max();
  // The job moves its reference into the posted task, so that the last reference never goes away
  // on a thread of the pool.
  const bool taken = shared_->PoolOf(*route_).Submit([self = shared_from_this()]() mutable {
    Call(self->route_->handler, self->request_, &self->response_);
    asio::io_context& io = self->loop_->io;
    asio::post(io, [self = std::move(self)] { self->GoOn(self->Send()); });
  });
  if (taken) return Step::kElsewhere;
  if (shared_->PoolOf(*route_).stopping()) {
    // The pool refuses because the server stops, not because its queue is full: no 503.
    Close();
    return Step::kElsewhere;
  }
  response_ = HttpError(503, "too many requests at once");
  return Send();
}

void HttpConnection::Call(const HttpHandler& handler, const HttpRequest& request,
                          HttpResponse* response) {
  try {
    *response = handler(request);
  } catch (const std::exception& error) {
    *response = HttpError(500, error.what());
  } catch (...) {
    *response = HttpError(500, "the handler failed");
  }
}

// Writes `response_`: head, body, and the line end of a first chunk, in one system call where the
// socket takes all. The observer is called before, with the time since the request's first byte.
HttpConnection::Step HttpConnection::Send() {
  if (!socket_.is_open()) return Step::kElsewhere;
  if (observer_ != nullptr) {
    observer_->Answered(request_, head_only_ ? "HEAD" : request_.method, response_,
                        Clock::Real().Now() - started_);
  }
  // The door looks at a connection's next bytes in the socket. Bytes of a pipelined request are in
  // `in_` already and cannot be put back, so such a connection ends after its answer.
  if (on_reserve_ || (loop_->hand_back != nullptr && in_from_ != in_to_)) keep_alive_ = false;
  BuildHead();
  const bool with_body = !head_only_ && !response_.body.empty();
  out_ = {asio::buffer(head_), with_body ? asio::buffer(response_.body) : asio::const_buffer(),
          with_body && chunked_ ? asio::const_buffer("\r\n", 2) : asio::const_buffer()};
  out_from_ = 0;
  SetDeadline(shared_->options.write_timeout);
  if (Write()) return Written();
  WriteLater();
  return Step::kElsewhere;
}

// Status line and headers of `response_`. The framing is one of three: `content-length` for a whole
// body; chunks for pieces over HTTP/1.1; for pieces over HTTP/1.0 neither, and the end of the
// connection ends the body.
void HttpConnection::BuildHead() {
  const bool pieces = response_.more != nullptr;
  chunked_ = pieces && http_1_1_;
  if (pieces && !http_1_1_) keep_alive_ = false;
  head_.clear();
  if (response_.status == 200) {
    head_ = "HTTP/1.1 200 OK\r\n";
  } else {
    const auto reason = http::obsolete_reason(http::int_to_status(unsigned(response_.status)));
    absl::StrAppend(&head_, "HTTP/1.1 ", response_.status, " ",
                    absl::string_view(reason.data(), reason.size()), "\r\n");
  }
  if (!response_.content_type.empty()) {
    head_ += "content-type: ";
    head_ += response_.content_type;
    head_ += "\r\n";
  }
  if (!allow_.empty()) absl::StrAppend(&head_, "allow: ", allow_, "\r\n");
  for (const auto& [name, value] : response_.headers)
    absl::StrAppend(&head_, name, ": ", value, "\r\n");
  if (!keep_alive_) {
    head_ += "connection: close\r\n";
  } else if (!http_1_1_) {
    head_ += "connection: keep-alive\r\n";
  }
  if (chunked_) {
    head_ += "transfer-encoding: chunked\r\n\r\n";
    if (!response_.body.empty() && !head_only_) {
      absl::StrAppend(&head_, absl::Hex(response_.body.size()), "\r\n");
    }
  } else if (pieces) {
    head_ += "\r\n";
  } else {
    head_ += "content-length: ";
    AppendNumber(&head_, response_.body.size());
    head_ += "\r\n\r\n";
  }
}

// Writes the rest of `out_` without waiting. True: all is written. False: the socket takes no more
// now, or the connection is closed; WriteLater tells the two apart.
bool HttpConnection::Write() {
  while (true) {
    while (out_from_ < out_.size() && out_[out_from_].size() == 0) ++out_from_;
    if (out_from_ == out_.size()) return true;
    Error error;
    std::array<asio::const_buffer, 3> rest = {};
    std::copy(out_.begin() + static_cast<ptrdiff_t>(out_from_), out_.end(), rest.begin());
    size_t written = socket_.Write(rest, error);
    if (error == asio::error::would_block || error == asio::error::try_again) return false;
    if (error) {
      Close();
      return false;
    }
    while (written > 0) {
      const size_t part = std::min(written, out_[out_from_].size());
      out_[out_from_] += part;
      written -= part;
      if (out_[out_from_].size() == 0) ++out_from_;
    }
  }
}

// Waits until the socket takes more. The bytes that the client leaves unread count against the
// quota of its identity (HoldUnread); beyond the quota the connection is closed. Meanwhile it is
// not busy: the account may close it for a new connection (connection_account.h).
void HttpConnection::WriteLater() {
  if (!socket_.is_open()) return;
  if (!HoldUnread()) return Close();
  SetBusy(false);
  socket_.tcp().async_wait(tcp::socket::wait_write, [self = shared_from_this()](Error error) {
    if (error) return;
    self->SetBusy(true);
    if (self->Write()) return self->GoOn(self->Written());
    self->WriteLater();
  });
}

HttpConnection::Step HttpConnection::Written() {
  unread_ = nullptr;
  if (exchanging_) {
    deadline_ = Time::max();
    if (auto done = std::exchange(exchange_done_, nullptr)) done();
    return Step::kElsewhere;
  }
  if (response_.more != nullptr && !head_only_) return SendMore();
  return Step::kAnswered;
}

// Has the pool make the next piece, only when the piece before is written: a client that does not
// read costs one piece of memory and no thread. `continued` lets it enter a full queue, since an
// answer that has begun should be finished.
HttpConnection::Step HttpConnection::SendMore() {
  deadline_ = Time::max();
  auto make_piece = [self = shared_from_this()]() mutable {
    bool more = false;
    bool failed = false;
    self->piece_.clear();
    try {
      more = self->response_.more(&self->piece_);
    } catch (...) {
      failed = true;
    }
    asio::io_context& io = self->loop_->io;
    asio::post(io, [self = std::move(self), more, failed] { self->OnPiece(more, failed); });
  };
  if (!shared_->PoolOf(*route_).Submit(std::move(make_piece), /*continued=*/true)) Close();
  return Step::kElsewhere;
}

// Writes a piece as one chunk, and the last-chunk "0" behind the final one. An empty piece writes
// no chunk: a chunk of size 0 would end the body. A failed source closes the connection without it.
void HttpConnection::OnPiece(bool more, bool failed) {
  if (!socket_.is_open()) return;
  if (failed) return Close();
  if (!more) response_.more = nullptr;
  head_.clear();
  if (chunked_ && !piece_.empty()) absl::StrAppend(&head_, absl::Hex(piece_.size()), "\r\n");
  constexpr std::string_view kEndOfLast = "\r\n0\r\n\r\n";
  std::string_view end;
  if (chunked_) {
    end = kEndOfLast;
    if (piece_.empty()) end.remove_prefix(2);
    if (more) end = piece_.empty() ? std::string_view() : end.substr(0, 2);
  }
  out_ = {asio::buffer(head_), asio::buffer(piece_), asio::buffer(end.data(), end.size())};
  out_from_ = 0;
  SetDeadline(shared_->options.write_timeout);
  if (Write()) return GoOn(Written());
  WriteLater();
}

// ---- Exchanges ----

// Hands the request to a stream handler, which answers now or later through the exchange.
// 1. `exchanges_` numbers the exchange, so that late events of an earlier one are recognised.
// 2. With a policy, AddCall registers it: when the identity loses its right the exchange is closed.
// 3. WatchClient notices a client that goes away while the handler waits for others.
HttpConnection::Step HttpConnection::StartExchange() {
  deadline_ = Time::max();
  exchanging_ = true;
  ++exchanges_;
  auto exchange = std::make_shared<HttpExchange>(shared_from_this());
  exchange_ = exchange;
  if (shared_->enforces) {
    // The callback runs on a thread of `Security`. It posts to the loop, which closes the
    // connection if the same exchange is still open.
    call_ = shared_->security->AddCall(
        identity_, chain_pem_, std::string(Bearer()), *route_->verb, peer_,
        [weak = weak_from_this(), io = &loop_->io, of = exchanges_] {
          asio::post(*io, [weak, of] {
            const std::shared_ptr<HttpConnection> self = weak.lock();
            if (self != nullptr && self->exchanging_ && self->exchanges_ == of) self->Close();
          });
        });
  }
  WatchClient();
  try {
    route_->stream(std::move(exchange));
  } catch (...) {
    Close();
  }
  return Step::kElsewhere;
}

// Notices while an exchange is open that the client is gone; a half-closed connection counts as
// gone. Input that arrives early is kept for the next request, up to the size of the buffer. Beyond
// that the watch stops, and the end is noticed at the next write.
void HttpConnection::WatchClient() {
  socket_.tcp().async_wait(tcp::socket::wait_read,
                           [self = shared_from_this(), of = exchanges_](Error error) {
                             if (error || !self->exchanging_ || self->exchanges_ != of) return;
                             if (self->ReadAhead()) self->WatchClient();
                           });
}

bool HttpConnection::ReadAhead() {
  MoveInput();
  if (in_to_ == in_bytes_) return false;
  Error error;
  in_to_ += socket_.Read(in_.get() + in_to_, in_bytes_ - in_to_, error);
  if (!error || error == asio::error::would_block || error == asio::error::try_again) return true;
  Close();
  return false;
}

void HttpConnection::BuildExchangeHead(const HttpHead& head) {
  const bool bodiless = head_only_ || head.no_body;
  chunked_ = !head.length.has_value() && !bodiless && http_1_1_;
  if (!head.length.has_value() && !bodiless && !http_1_1_) keep_alive_ = false;
  const auto usual = http::obsolete_reason(http::int_to_status(unsigned(head.status)));
  head_.clear();
  absl::StrAppend(&head_, "HTTP/1.1 ", head.status, " ",
                  head.reason.empty() ? absl::string_view(usual.data(), usual.size())
                                      : absl::string_view(head.reason),
                  "\r\n");
  for (const auto& [name, value] : head.headers) absl::StrAppend(&head_, name, ": ", value, "\r\n");
  if (!keep_alive_) {
    head_ += "connection: close\r\n";
  } else if (!http_1_1_) {
    head_ += "connection: keep-alive\r\n";
  }
  if (chunked_) head_ += "transfer-encoding: chunked\r\n";
  if (head.length.has_value()) absl::StrAppend(&head_, "content-length: ", *head.length, "\r\n");
  head_ += "\r\n";
}

void HttpConnection::BeginExchange(const HttpHead& head, std::string_view piece,
                                   std::function<void()> done) {
  BuildExchangeHead(head);
  SendExchange(head.no_body ? std::string_view() : piece, std::move(done));
}

void HttpConnection::WriteExchange(std::string_view piece, std::function<void()> done) {
  head_.clear();
  SendExchange(piece, std::move(done));
}

// Writes `head_`, which is empty after the first piece, and the piece in its framing.
void HttpConnection::SendExchange(std::string_view piece, std::function<void()> done) {
  const bool said = !head_only_ && !piece.empty();
  if (said && chunked_) absl::StrAppend(&head_, absl::Hex(piece.size()), "\r\n");
  out_ = {asio::buffer(head_),
          said ? asio::const_buffer(piece.data(), piece.size()) : asio::const_buffer(),
          said && chunked_ ? asio::const_buffer("\r\n", 2) : asio::const_buffer()};
  StartExchangeWrite(std::move(done));
}

// Calls `done` when the socket has taken `out_`: within this call, or later from Written.
void HttpConnection::StartExchangeWrite(std::function<void()> done) {
  out_from_ = 0;
  exchange_done_ = std::move(done);
  SetDeadline(shared_->options.write_timeout);
  if (Write()) {
    Written();
  } else {
    WriteLater();
  }
}

// Writes the last chunk, if chunks are used, and goes on with the next request of the connection.
// `exchanging_` stays true until the last chunk is written.
void HttpConnection::EndExchange() {
  const auto end = [this] {
    exchanging_ = false;
    exchange_.reset();
    // Posted: End may run inside a handler's call, and the next request could start a handler
    // within it.
    asio::post(loop_->io, [self = shared_from_this()] {
      if (self->socket_.is_open()) self->GoOn(Step::kAnswered);
    });
  };
  if (!chunked_ || head_only_) return end();
  out_ = {asio::const_buffer("0\r\n\r\n", 5), asio::const_buffer(), asio::const_buffer()};
  StartExchangeWrite(end);
}

void HttpConnection::AnswerExchange(HttpResponse response) {
  exchanging_ = false;
  exchange_.reset();
  response_ = std::move(response);
  asio::post(loop_->io, [self = shared_from_this()] { self->GoOn(self->Send()); });
}

void HttpConnection::CutExchange() {
  exchanging_ = false;
  exchange_done_ = nullptr;
  Close();
}

// After an answer. True: Parse may go on with the next request. False: the connection was handed
// back to the door, or it lingers. Large buffers are freed here, small ones stay.
bool HttpConnection::Next() {
  call_ = nullptr;
  parser_.reset();
  response_.more = nullptr;
  if (body_reserved_ > 0) {
    request_.body = {};
    message_.body = {};
    ReserveBody(0);
  }
  if (response_.body.capacity() > kLargeBody) response_.body = {};
  SetBusy(false);
  if (keep_alive_ && loop_->hand_back != nullptr && !socket_.secure()) {
    deadline_ = Time::max();
    loop_->hand_back(socket_.Release(), busy_);
    return false;
  }
  if (keep_alive_) return true;
  Linger();
  return false;
}

void HttpConnection::Linger() {
  socket_.ShutdownSend();
  SetDeadline(kLinger);
  Discard(0);
}

void HttpConnection::Discard(size_t discarded) {
  if (discarded > kLingerBytesMax || !socket_.is_open()) return;
  socket_.tcp().async_read_some(asio::buffer(discard_),
                                [self = shared_from_this(), discarded](Error error, size_t bytes) {
                                  if (!error) self->Discard(discarded + bytes);
                                });
}

}  // namespace kvatlas
