// A request by HTTP: the same whether it comes at once or in pieces, and never more than was sent.

#include <algorithm>

#include "indexer/net/http_parser.h"
#include "tests/fuzz/fuzz.h"

namespace kvatlas {
namespace {

struct Outcome {
  enum class End { kDone, kRefused, kIncomplete } end = End::kIncomplete;
  size_t used = 0;
  HttpMessage message;
};

// As `HttpConnection` reads: what was not used is given again, with what came since.
Outcome Read(std::string_view bytes, size_t step) {
  Outcome outcome;
  HttpParser parser(&outcome.message, "x-trace", 8 << 10, /*keep_headers=*/true);
  size_t from = 0, to = 0;
  while (!parser.is_done()) {
    boost::beast::error_code error;
    const size_t used = to == from ? 0 : parser.Put(bytes.substr(from, to - from), error);
    FuzzCheck(used <= to - from, "more was used than was given");
    from += used;
    if (error && error != boost::beast::http::error::need_more) {
      outcome.end = Outcome::End::kRefused;
      return outcome;
    }
    if (used > 0 && !error) continue;
    if (to == bytes.size()) return outcome;
    to = std::min(bytes.size(), to + step);
  }
  outcome.end = Outcome::End::kDone;
  outcome.used = from;
  return outcome;
}

bool Same(const HttpMessage& a, const HttpMessage& b) {
  return a.method == b.method && a.target == b.target && a.content_type == b.content_type &&
         a.trace_id == b.trace_id && a.authorization == b.authorization && a.host == b.host &&
         a.body == b.body && a.expects_continue == b.expects_continue && a.version == b.version &&
         a.headers == b.headers;
}

const AddFuzzSeeds kSeeds([] {
  return std::vector<std::string>{
      "\x07GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
      "\x03POST /query HTTP/1.1\r\nHost: [::1]:80\r\nContent-Type: application/json\r\nX-Trace: "
      "1\r\n"
      "Content-Length: 2\r\nExpect: 100-continue\r\n\r\n{}",
      "\x05POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
      "Authorization: Bearer t\r\n\r\n5;a=\"b\"\r\nhello\r\n0\r\nTrailer: x\r\n\r\n",
      "\x01GET http://a/b HTTP/1.0\r\nConnection: close\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n"};
}());

}  // namespace

}  // namespace kvatlas

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using kvatlas::FuzzCheck;
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t step = 1 + kvatlas::FuzzChoice(&input, 64);
  const auto whole = kvatlas::Read(input, input.size() + 1);
  const auto pieces = kvatlas::Read(input, step);
  FuzzCheck(whole.message.body.size() <= input.size(), "a body larger than what was sent");
  if (whole.end != kvatlas::Outcome::End::kDone) return 0;
  FuzzCheck(pieces.end == whole.end, "in pieces it ends otherwise");
  FuzzCheck(pieces.used == whole.used, "in pieces it has another length");
  FuzzCheck(kvatlas::Same(whole.message, pieces.message), "in pieces it says something else");
  return 0;
}
