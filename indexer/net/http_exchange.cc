// `HttpExchange` forwards to its connection while it has one. Each final call takes `connection_`
// out first, so that whatever happens next finds an exchange that is over: all methods are then
// without effect.

#include "indexer/net/http_exchange.h"

#include <utility>

#include "indexer/net/http_connection.h"

namespace kvatlas {

HttpExchange::HttpExchange(std::shared_ptr<HttpConnection> connection)
    : connection_(std::move(connection)), io_(&connection_->loop_->io) {}

// A handler that drops the exchange without an end must not leave a client waiting.
HttpExchange::~HttpExchange() { Cut(); }

// An exchange that is over has an empty request rather than a dangling one.
const HttpRequest& HttpExchange::request() const {
  static const HttpRequest& none = *new HttpRequest;
  return connection_ == nullptr ? none : connection_->request_;
}

std::string HttpExchange::TakeBody() {
  return connection_ == nullptr ? std::string() : std::exchange(connection_->request_.body, {});
}

bool HttpExchange::head_only() const { return connection_ != nullptr && connection_->head_only_; }

boost::asio::io_context& HttpExchange::io() { return *io_; }

void HttpExchange::Begin(HttpHead head, std::string_view piece, Done done) {
  if (connection_ != nullptr) connection_->BeginExchange(head, piece, std::move(done));
}

void HttpExchange::Write(std::string_view piece, Done done) {
  if (connection_ != nullptr) connection_->WriteExchange(piece, std::move(done));
}

// `on_gone_` may hold the last reference to this exchange. The three final calls therefore move it
// into `held`, which lives until the call returns.
void HttpExchange::End() {
  const Done held = std::exchange(on_gone_, nullptr);
  if (connection_ != nullptr) std::exchange(connection_, nullptr)->EndExchange();
}

void HttpExchange::Answer(HttpResponse response) {
  const Done held = std::exchange(on_gone_, nullptr);
  if (connection_ != nullptr) {
    std::exchange(connection_, nullptr)->AnswerExchange(std::move(response));
  }
}

void HttpExchange::Cut() {
  const Done held = std::exchange(on_gone_, nullptr);
  if (connection_ != nullptr) std::exchange(connection_, nullptr)->CutExchange();
}

// Called by the connection when it closes, from the loop and never inside another method of this.
void HttpExchange::Gone() {
  connection_ = nullptr;
  if (Done gone = std::exchange(on_gone_, nullptr)) gone();
}

}  // namespace kvatlas
