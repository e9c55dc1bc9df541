#include "indexer/net/http_exchange.h"

#include <utility>

#include "indexer/net/http_connection.h"

namespace kvatlas {

HttpExchange::HttpExchange(std::shared_ptr<HttpConnection> connection)
    : connection_(std::move(connection)), io_(&connection_->loop_->io) {}

HttpExchange::~HttpExchange() { Cut(); }

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

// What `on_gone_` holds may be all that holds this.
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

void HttpExchange::Gone() {
  connection_ = nullptr;
  if (Done gone = std::exchange(on_gone_, nullptr)) gone();
}

}  // namespace kvatlas
