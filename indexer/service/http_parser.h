// What does a request say? Takes what `HttpConnection` needs from Beast's parser, into memory that is kept from request
// to request: Beast's own message types allocate for every field.

#ifndef KVATLAS_INDEXER_SERVICE_HTTP_PARSER_H_
#define KVATLAS_INDEXER_SERVICE_HTTP_PARSER_H_

#include <boost/beast/http/basic_parser.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "indexer/service/http_server.h"

namespace kvatlas {

// The parts of a request, as they were sent.
struct HttpMessage {
  std::string method;
  std::string target;
  std::string content_type;
  std::string trace_id;
  std::string body;
  bool expects_continue = false;
  bool bad_framing =
      false;         // where it ends is said twice, or in a way that others may read otherwise
  int version = 11;  // 10 times HTTP's
  HttpHeaders headers;

  void Clear() {
    method.clear();
    target.clear();
    content_type.clear();
    trace_id.clear();
    body.clear();
    expects_continue = false;
    bad_framing = false;
    headers.clear();
  }
};

// Of one request. `put` stops after the header. *Threads*: one at a time.
class HttpParser : public boost::beast::http::basic_parser<true> {
 public:
  // Both outlive the parser. `trace_id_header` is in lower case; empty: none.
  HttpParser(HttpMessage* message, std::string_view trace_id_header, uint32_t header_bytes_max,
             bool keep_headers)
      : message_(message), trace_id_header_(trace_id_header), keep_headers_(keep_headers) {
    message->Clear();
    header_limit(header_bytes_max);
    body_limit(std::numeric_limits<uint64_t>::max());  // by route, once that is known
  }

  // From now on the body is read and forgotten.
  void DropBody() { drop_body_ = true; }

 private:
  using Error = boost::beast::error_code;
  using View = boost::beast::string_view;

  void on_request_impl(boost::beast::http::verb, View method, View target, int version,
                       Error&) override {
    message_->version = version;
    message_->method.assign(method.data(), method.size());
    message_->target.assign(target.data(), target.size());
  }
  void on_response_impl(int, View, int, Error&) override {}
  void on_field_impl(boost::beast::http::field name, View name_text, View value, Error&) override {
    using boost::beast::http::field;
    if (keep_headers_ && !is_header_done()) {
      message_->headers.emplace_back(std::string(name_text.data(), name_text.size()),
                                     std::string(value.data(), value.size()));
    }
    if (!is_header_done()) CheckFraming(name, value);
    if (name == field::content_type) {
      message_->content_type.assign(value.data(), value.size());
    } else if (name == field::expect) {
      message_->expects_continue = boost::beast::iequals(value, "100-continue");
    } else if (!trace_id_header_.empty() &&
               boost::beast::iequals(name_text,
                                     View(trace_id_header_.data(), trace_id_header_.size()))) {
      message_->trace_id.assign(value.data(), value.size());
    }
  }
  void on_header_impl(Error&) override {
    if (encodings_ > 0 && (lengths_ > 0 || message_->version < 11)) message_->bad_framing = true;
  }
  void on_body_init_impl(const boost::optional<uint64_t>& length, Error&) override {
    // As much as one read at most: who only announces a body gets no memory.
    if (length.has_value() && !drop_body_) {
      message_->body.reserve(static_cast<size_t>(*length < kReserveMax ? *length : kReserveMax));
    }
  }
  std::size_t on_body_impl(View body, Error&) override { return Take(body); }
  void on_chunk_header_impl(uint64_t, View, Error&) override {}
  std::size_t on_chunk_body_impl(uint64_t, View body, Error&) override { return Take(body); }
  void on_finish_impl(Error&) override {}

  // RFC 9112 §3.2 and §6.1: one Host at most, one Transfer-Encoding, "chunked", and no Content-Length beside
  // it; of that one too, and digits only.
  void CheckFraming(boost::beast::http::field name, View value) {
    using boost::beast::http::field;
    if (name == field::host) {
      if (++hosts_ > 1) message_->bad_framing = true;
    } else if (name == field::content_length) {
      if (++lengths_ > 1 || value.find_first_not_of("0123456789") != View::npos)
        message_->bad_framing = true;
    } else if (name == field::transfer_encoding) {
      if (++encodings_ > 1 || !boost::beast::iequals(value, "chunked"))
        message_->bad_framing = true;
    }
  }

  std::size_t Take(View body) {
    if (!drop_body_) message_->body.append(body.data(), body.size());
    return body.size();
  }

  static constexpr uint64_t kReserveMax = 64 << 10;

  HttpMessage* const message_;
  const std::string_view trace_id_header_;
  const bool keep_headers_;
  bool drop_body_ = false;
  int hosts_ = 0;
  int lengths_ = 0;
  int encodings_ = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SERVICE_HTTP_PARSER_H_
