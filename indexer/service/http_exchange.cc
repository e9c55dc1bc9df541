#include "indexer/service/http_exchange.h"

#include <utility>

#include "indexer/service/http_connection.h"

namespace kvatlas {

HttpExchange::HttpExchange(std::shared_ptr<HttpConnection> connection)
    : connection_(std::move(connection)), io_(&connection_->loop_->io) {}

HttpExchange::~HttpExchange() { Cut(); }

const HttpRequest& HttpExchange::request() const {
  static const HttpRequest& none = *new HttpRequest;
  return connection_ == nullptr ? none : connection_->request_;
}

bool HttpExchange::head_only() const { return connection_ != nullptr && connection_->head_only_; }

boost::asio::io_context& HttpExchange::io() { return *io_; }

void HttpExchange::Begin(HttpHead head, Done done) {
  if (connection_ != nullptr) connection_->BeginExchange(std::move(head), std::move(done));
}

void HttpExchange::Write(std::string_view piece, Done done) {
  if (connection_ != nullptr) connection_->WriteExchange(piece, std::move(done));
}

void HttpExchange::End() {
  if (connection_ != nullptr) std::exchange(connection_, nullptr)->EndExchange();
}

void HttpExchange::Answer(HttpResponse response) {
  if (connection_ != nullptr) {
    std::exchange(connection_, nullptr)->AnswerExchange(std::move(response));
  }
}

void HttpExchange::Cut() {
  on_gone_ = nullptr;
  if (connection_ != nullptr) std::exchange(connection_, nullptr)->CutExchange();
}

void HttpExchange::Gone() {
  connection_ = nullptr;
  if (Done gone = std::exchange(on_gone_, nullptr)) gone();
}

}  // namespace kvatlas
