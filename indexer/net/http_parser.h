// Parses a request: copies what `HttpConnection` needs from Beast's parser into memory that is kept
// from request to request. Beast's own message types allocate for every field.

#ifndef KVATLAS_INDEXER_NET_HTTP_PARSER_H_
#define KVATLAS_INDEXER_NET_HTTP_PARSER_H_

#include <arpa/inet.h>

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/basic_parser.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/rfc7230.hpp>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "indexer/net/http_server.h"

namespace kvatlas {

// The parts of a request, as they were sent.
struct HttpMessage {
  std::string method;
  std::string target;
  std::string content_type;
  std::string trace_id;
  std::string authorization;
  std::string host;
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
    authorization.clear();
    host.clear();
    body.clear();
    expects_continue = false;
    bad_framing = false;
    headers.clear();
  }
};

// The parser of one request. `put` stops after the header. *Threads*: one at a time.
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

  // As `put`, and also refuses what another parser may read differently (request smuggling).
  std::size_t Put(std::string_view bytes, boost::beast::error_code& error) {
    error = {};
    const bool before_header = !is_header_done();
    if (before_header && HasFoldedLine(bytes)) error = boost::beast::http::error::bad_field;
    if (!before_header && chunked() && chunk_left_ == 0) error = CheckChunk(bytes);
    if (error) return 0;
    const std::size_t used = put(boost::asio::const_buffer(bytes.data(), bytes.size()), error);
    if (!error && before_header && is_header_done() && message_->bad_framing)
      error = boost::beast::http::error::bad_transfer_encoding;
    return used;
  }

  // Another request may follow on the connection. REQUIRES: the header is done.
  bool Persists() const { return keep_alive() && !closes_; }

  // From now on the body is read and forgotten.
  void DropBody() { drop_body_ = true; }

 private:
  using Error = boost::beast::error_code;
  using View = boost::beast::string_view;

  void on_request_impl(boost::beast::http::verb, View method, View target, int version,
                       Error&) override {
    message_->version = version;
    for (const char c : target)
      if (static_cast<unsigned char>(c) >= 0x80) message_->bad_framing = true;
    message_->method.assign(method.data(), method.size());
    message_->target.assign(target.data(), target.size());
  }
  void on_response_impl(int, View, int, Error&) override {}
  void on_field_impl(boost::beast::http::field name, View name_text, View value, Error&) override {
    using boost::beast::http::field;
    if (is_header_done()) return;  // a trailer
    if (keep_headers_) {
      message_->headers.emplace_back(std::string(name_text.data(), name_text.size()),
                                     std::string(value.data(), value.size()));
    }
    CheckFraming(name, value);
    if (name == field::content_type) {
      message_->content_type.assign(value.data(), value.size());
    } else if (name == field::host) {
      message_->host.assign(value.data(), value.size());
    } else if (name == field::authorization) {
      message_->authorization.assign(value.data(), value.size());
    } else if (name == field::expect) {
      message_->expects_continue = boost::beast::iequals(value, "100-continue");
    } else if (!trace_id_header_.empty() &&
               boost::beast::iequals(name_text,
                                     View(trace_id_header_.data(), trace_id_header_.size()))) {
      message_->trace_id.assign(value.data(), value.size());
    }
  }
  void on_header_impl(Error&) override {
    if (hosts_ == 0 && message_->version >= 11) message_->bad_framing = true;
    if (encodings_ > 0 && (lengths_ > 0 || message_->version < 11)) message_->bad_framing = true;
  }
  void on_body_init_impl(const boost::optional<uint64_t>& length, Error&) override {
    // At most one read's worth: an announced length alone gets no memory.
    if (length.has_value() && !drop_body_) {
      message_->body.reserve(static_cast<size_t>(*length < kReserveMax ? *length : kReserveMax));
    }
  }
  std::size_t on_body_impl(View body, Error&) override { return Take(body); }
  void on_chunk_header_impl(uint64_t size, View, Error&) override {
    first_chunk_ = false;
    chunk_left_ = size;
  }
  std::size_t on_chunk_body_impl(uint64_t remain, View body, Error&) override {
    chunk_left_ = remain - body.size();
    return Take(body);
  }
  void on_finish_impl(Error&) override {}

  // RFC 9112 §3.2 and §6.1: one Host, which HTTP/1.0 may leave out; one Transfer-Encoding,
  // "chunked", and no Content-Length beside it; of that one too, and digits only.
  void CheckFraming(boost::beast::http::field name, View value) {
    using boost::beast::http::field;
    if (name == field::host) {
      if (++hosts_ > 1 || !IsHost({value.data(), value.size()})) message_->bad_framing = true;
    } else if (name == field::content_length) {
      if (++lengths_ > 1 || value.find_first_not_of("0123456789") != View::npos)
        message_->bad_framing = true;
    } else if (name == field::transfer_encoding) {
      if (++encodings_ > 1 || !boost::beast::iequals(value, "chunked"))
        message_->bad_framing = true;
    } else if (name == field::connection) {
      if (boost::beast::http::token_list(value).exists("close")) closes_ = true;
    }
  }

  // True if a header line continues in the next one (RFC 9112 §5.2): some parsers read it as one
  // field, some as two.
  static bool HasFoldedLine(std::string_view header) {
    if (header.starts_with("\r\n")) return false;  // all lines are read
    header = header.substr(0, header.find("\r\n\r\n"));
    for (std::size_t at = 0; (at = header.find('\n', at)) != std::string_view::npos; ++at) {
      if (at + 1 < header.size() && (header[at + 1] == ' ' || header[at + 1] == '\t')) return true;
    }
    return false;
  }

  // uri-host [ ":" port ], RFC 3986 §3.2; of addresses in brackets IPv6 alone.
  static bool IsHost(std::string_view text) {
    constexpr std::string_view kName =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~!$&'()*+,;=%";
    constexpr std::string_view kHex = "0123456789abcdefABCDEF";
    std::string_view host = text;
    if (text.starts_with('[')) {
      const std::size_t end = text.find(']');
      if (end == std::string_view::npos) return false;
      unsigned char ignored[16];
      if (inet_pton(AF_INET6, std::string(text.substr(1, end - 1)).c_str(), ignored) != 1)
        return false;
      host = text.substr(0, end + 1);
    } else {
      host = text.substr(0, text.find(':'));
      if (host.find_first_not_of(kName) != std::string_view::npos) return false;
      for (std::size_t at = 0; (at = host.find('%', at)) != std::string_view::npos; at += 3) {
        const std::string_view digits = host.substr(at + 1, 2);
        if (digits.size() < 2 || digits.find_first_not_of(kHex) != std::string_view::npos)
          return false;
      }
    }
    text.remove_prefix(host.size());
    return text.empty() || (text.front() == ':' &&
                            text.find_first_not_of("0123456789", 1) == std::string_view::npos);
  }

  // Checks the line with which a chunk begins, before Beast sees it. Beast takes any bytes within
  // quotes and reads a quoted string over the end of its line. The last chunk is passed on only
  // with all its trailers: Beast counts on five bytes of it when it is called again.
  boost::beast::error_code CheckChunk(std::string_view bytes) const {
    using boost::beast::http::error;
    const std::size_t from = first_chunk_ ? 0 : 2;  // behind the line end of the chunk before
    constexpr std::string_view kLineEnd = "\r\n";
    if (!kLineEnd.starts_with(bytes.substr(0, from))) return error::bad_chunk;
    const std::size_t end = bytes.size() < from ? std::string_view::npos : bytes.find("\r\n", from);
    if (end == std::string_view::npos) return {};
    const std::string_view line = bytes.substr(from, end - from);
    bool quoted = false;
    for (std::size_t at = 0; at < line.size(); ++at) {
      const auto c = static_cast<unsigned char>(line[at]);
      if ((c < ' ' && c != '\t') || c == 0x7f) return error::bad_chunk_extension;
      if (c == '"') quoted = !quoted;
      // An escaped character may not be a control character either: only '"' and '\\' are skipped,
      // the loop checks any other.
      if (c == '\\' && quoted && at + 1 < line.size() &&
          (line[at + 1] == '"' || line[at + 1] == '\\'))
        ++at;
    }
    if (quoted) return error::bad_chunk_extension;
    const std::size_t digits = line.find_first_not_of('0');
    const bool last = digits != 0 && (digits == std::string_view::npos ||
                                      !std::isxdigit(static_cast<unsigned char>(line[digits])));
    if (!last || line.empty()) return {};
    const std::size_t trailers_end = bytes.find("\r\n\r\n", end);
    if (trailers_end == std::string_view::npos) return error::need_more;
    if (HasFoldedLine(bytes.substr(end + 2, trailers_end + 2 - end))) return error::bad_field;
    return {};
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
  bool closes_ = false;
  bool first_chunk_ = true;
  uint64_t chunk_left_ = 0;  // of the data of the chunk that is being read
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_HTTP_PARSER_H_
