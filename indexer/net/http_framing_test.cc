// The server's parser takes, refuses and ends requests as the RFC says. Requests made by seed:
// right ones, nearly right ones and all known forms of request smuggling, several on a connection,
// cut into pieces anywhere, against `http_reference.h`.
//
//   KVATLAS_REQUESTS=1000000 bazel run //indexer/net:http_framing_test

#include <gtest/gtest.h>

#include <algorithm>
#include <boost/beast/http/error.hpp>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "indexer/net/http_parser.h"
#include "tools/testing/servers/http_reference.h"

namespace kvatlas {
namespace {

using Verdict = ReferenceReading::Verdict;

// ---- Requests ----

class Maker {
 public:
  explicit Maker(uint64_t seed) : random_(seed) {}

  size_t Below(size_t n) { return random_() % n; }
  bool OneIn(size_t n) { return Below(n) == 0; }
  std::string Any(const std::vector<std::string>& of) { return of[Below(of.size())]; }

  std::string Request() {
    std::vector<std::string> lines;
    const bool old = OneIn(8);
    lines.push_back(absl::StrCat(Any({"GET", "POST", "PUT", "OPTIONS", "X-Y"}), " ",
                                 Any({"/", "/v1/models?a=b&c", "/a/../b", "*", "http://h/p"}),
                                 old ? " HTTP/1.0" : " HTTP/1.1"));
    std::vector<std::string> fields;
    if (!OneIn(40))
      fields.push_back("Host: " + Any({"h", "h:80", "[::1]:80", "", "a.b-c:", "10.0.0.1"}));
    for (size_t i = Below(3); i > 0; --i)
      fields.push_back(Any({"X: y", "Accept:*/*", "Connection: close", "Connection: keep-alive, x",
                            "A:\t b \t", "Content-Type: application/json", "Empty:", "B: \xe9"}));
    std::string body;
    const size_t kind = Below(3);
    if (kind == 1) {
      body = Text(Below(30));
      fields.push_back(absl::StrCat("Content-Length: ", OneIn(10) ? "00" : "", body.size()));
    } else if (kind == 2 && (!old || OneIn(10))) {
      fields.push_back(Any({"Transfer-Encoding: chunked", "transfer-encoding:CHUNKED"}));
      body = Chunks();
    }
    if (OneIn(3)) fields.push_back(Fault());
    std::shuffle(fields.begin(), fields.end(), random_);
    std::string request = lines[0] + "\r\n";
    for (const std::string& field : fields) request += field + "\r\n";
    request += "\r\n" + body;
    for (size_t i = OneIn(4) ? 1 + Below(2) : 0; i > 0; --i) Mutate(&request);
    return request;
  }

  std::vector<std::string> Pieces(std::string_view bytes) {
    std::vector<std::string> pieces;
    const size_t most = OneIn(4) ? 1 : OneIn(2) ? 8 : 200;
    while (!bytes.empty()) {
      const size_t size = std::min(bytes.size(), 1 + Below(most));
      pieces.emplace_back(bytes.substr(0, size));
      bytes.remove_prefix(size);
    }
    return pieces;
  }

 private:
  // Bodies that look like what is around them.
  std::string Text(size_t size) {
    std::string text;
    while (text.size() < size)
      text += Any({"a", "\r\n", "\n ", "0\r\n\r\n", "GET / HTTP/1.1\r\n", "{\n  1}", "\r\n\r\n"});
    return text;
  }

  std::string Chunks() {
    std::string chunks;
    for (size_t i = Below(4); i > 0; --i) {
      const std::string data = Text(1 + Below(20));
      absl::StrAppend(&chunks, OneIn(8) ? "0" : "", absl::Hex(data.size()), Extension(), "\r\n",
                      data, OneIn(60) ? "" : "\r\n");
    }
    absl::StrAppend(&chunks, OneIn(8) ? "000" : "0", Extension(), "\r\n");
    for (size_t i = OneIn(4) ? Below(3) : 0; i > 0; --i)
      chunks += Any({"T: v", "Host: x", "Content-Length: 3", "Transfer-Encoding: chunked", "T : v",
                     "X: y\r\n z", "Connection: close", "Connection: ;", ": x", "T: a\x01"}) +
                "\r\n";
    return chunks + "\r\n";
  }

  std::string Extension() {
    if (!OneIn(5)) return "";
    return Any({";a",          ";a=b",      ";a=\"b c\"", " ; a = b",
                ";a=\"\\\"\"", ";a;b=c",    ";",          ";=",
                ";a=",         " ",         ";a=\"",      ";a=\"\n\"",
                ";a\n",        ";a=\"b\"c", ";a=\"\\",    ";a=\"\t\x80\"",
                ";a=\"\x01\"", "x",         ";a ",        ";a=b ",
                "\t;a"});
  }

  std::string Fault() {
    return Any({"Transfer-Encoding: chunked",
                "Transfer-Encoding: xchunked",
                "Transfer-Encoding: identity",
                "Transfer-Encoding: chunked, identity",
                "Transfer-Encoding: gzip, chunked",
                "Transfer-Encoding: chunked, chunked",
                "Transfer-Encoding: chunked,",
                "Transfer-Encoding: ,chunked",
                "Transfer-Encoding:",
                "Transfer-Encoding: \"chunked\"",
                "Transfer-Encoding: chunked;q=1",
                "Transfer-Encoding:\r\n chunked",
                "Transfer-Encoding : chunked",
                "Transfer-Encoding\t: chunked",
                "Transfer-Encoding:\vchunked",
                "Transfer-Encoding: chunked\f",
                std::string("Transfer-Encoding\0: chunked", 27),
                "X: y\nTransfer-Encoding: chunked",
                "X: y\rTransfer-Encoding: chunked",
                "X: y\r\n Transfer-Encoding: chunked",
                "X: y\r\n\tContent-Length: 4",
                "X:\r\n \r\n\t",
                "Content-Length: 0",
                "Content-Length: 7",
                "Content-Length: 0, 0",
                "Content-Length: 0,",
                "Content-Length: +0",
                "Content-Length: -1",
                "Content-Length: 0x0",
                "Content-Length: 1 0",
                "Content-Length:",
                "Content-Length: 18446744073709551616",
                "Content-Length : 0",
                "content-length:\t0\t",
                "Host: h",
                "Host: a b",
                "Host: a/b",
                "Host: a,b",
                "Host: a@b",
                "Host: h:8x",
                "Host: [::1",
                "Host: [::g]",
                "Host: [v1.a:b]:1",
                "Host: [::1]x",
                "Host: h%2fg",
                "Host: h%2",
                "Host: \xe9",
                ": x",
                "NoColon",
                "Connection: ;",
                "Connection: a b",
                "Connection: ,,close,,",
                "Connection: \"close\"",
                "Connection:",
                "Connection: keep-alive, close",
                " X: y",
                "X(: y",
                "X: \x7f",
                "\xe9: y"});
  }

  void Mutate(std::string* request) {
    const std::string byte = Any({"\r", "\n", "\r\n",     " ",       "\t",   std::string(1, '\0'),
                                  ":",  ";",  ",",        "\v",      "\x7f", "\x80",
                                  "0",  "9",  "a",        "+",       "-",    "\"",
                                  "\\", "/",  "HTTP/1.1", "\r\n\r\n"});
    if (request->empty()) return;
    const size_t at = Below(request->size());
    switch (Below(3)) {
      case 0:
        request->insert(at, byte);
        break;
      case 1:
        request->erase(at, 1 + Below(3));
        break;
      default:
        request->replace(at, 1, byte);
    }
  }

  std::mt19937_64 random_;
};

// ---- The parser, as a connection uses it ----

struct Outcome {
  Verdict verdict = Verdict::kUnfinished;
  HttpMessage message;
  bool persists = false;
  size_t bytes = 0;
};

// Parses the requests in `pieces`, one after another, until one is refused or unfinished.
std::vector<Outcome> Parse(const std::vector<std::string>& pieces) {
  std::vector<Outcome> outcomes;
  std::string in;  // read, and not parsed
  size_t next = 0;
  while (true) {
    Outcome& outcome = outcomes.emplace_back();
    HttpParser parser(&outcome.message, "", 30 << 10, /*keep_headers=*/true);
    boost::beast::error_code error;
    bool header_done = false;
    while (!parser.is_done()) {
      if (error == boost::beast::http::error::need_more || in.empty()) {
        if (next == pieces.size()) return outcomes;
        in += pieces[next++];
      }
      const size_t used = parser.Put(in, error);
      in.erase(0, used);
      outcome.bytes += used;
      if (error && error != boost::beast::http::error::need_more) {
        outcome.verdict = Verdict::kRefused;
        return outcomes;
      }
      // Before any trailer.
      if (!header_done && parser.is_header_done()) outcome.persists = parser.Persists();
      header_done = parser.is_header_done();
    }
    outcome.verdict = Verdict::kTaken;
    if (in.empty() && next == pieces.size()) return outcomes;
  }
}

std::string Show(std::string_view bytes) {
  return absl::CEscape(absl::string_view(bytes.data(), bytes.size()));
}

// The difference; empty: both agree.
std::string Compare(std::string_view all, const std::vector<Outcome>& outcomes,
                    std::map<std::string, size_t>* seen) {
  for (const Outcome& outcome : outcomes) {
    const ReferenceReading reading = ReadReferenceRequest(all);
    ++(*seen)[reading.verdict == Verdict::kTaken     ? "taken"
              : reading.verdict == Verdict::kRefused ? "refused: " + reading.why
                                                     : "unfinished"];
    if (reading.verdict == Verdict::kUnfinished) {
      if (outcome.verdict == Verdict::kTaken) return "taken before its end";
      return "";
    }
    if (reading.verdict == Verdict::kRefused)
      return outcome.verdict == Verdict::kRefused      ? ""
             : outcome.verdict == Verdict::kUnfinished ? "waits, not refused: " + reading.why
                                                       : "taken, not refused: " + reading.why;
    if (outcome.verdict != Verdict::kTaken) return "not taken";
    if (outcome.bytes != reading.bytes) return "another end";
    if (outcome.message.method != reading.method || outcome.message.target != reading.target)
      return "another request line";
    if (outcome.message.body != reading.body) return "another body";
    if (outcome.persists != reading.persists)
      return "another word on whether the connection goes on";
    all.remove_prefix(reading.bytes);
  }
  return all.empty() ? "" : "the rest was not read";
}

TEST(HttpFramingTest, EveryRequestEndsWhereTheReferenceSays) {
  const char* const wanted = std::getenv("KVATLAS_REQUESTS");
  const uint64_t requests = wanted == nullptr ? 50000 : std::strtoull(wanted, nullptr, 10);
  std::map<std::string, size_t> seen;
  uint64_t made = 0;
  int wrong = 0;
  for (uint64_t seed = 0; made < requests && wrong < 10; ++seed) {
    Maker maker(seed);
    std::string all;
    for (size_t i = 1 + maker.Below(3); i > 0; --i, ++made) all += maker.Request();
    const std::vector<std::string> pieces = maker.Pieces(all);
    const std::string fault = Compare(all, Parse(pieces), &seen);
    if (fault.empty()) continue;
    ++wrong;
    std::string cut;
    for (const std::string& piece : pieces) cut += Show(piece) + "|";
    ADD_FAILURE() << "seed " << seed << ": " << fault << "\n" << cut;
  }
  for (const auto& [what, count] : seen) std::cout << count << " " << what << "\n";
  EXPECT_GE(made, requests);
  EXPECT_GT(seen["taken"], made / 4);
}

TEST(HttpFramingTest, NoHostIsRefusedInHttp11Alone) {
  const auto verdict = [](const std::string& request) { return Parse({request})[0].verdict; };
  EXPECT_EQ(verdict("GET / HTTP/1.1\r\n\r\n"), Verdict::kRefused);
  EXPECT_EQ(verdict("GET / HTTP/1.1\r\nHost:\r\n\r\n"), Verdict::kTaken);
  EXPECT_EQ(verdict("GET / HTTP/1.0\r\n\r\n"), Verdict::kTaken);
}

TEST(HttpFramingTest, TheLastChunkMayComeByteByByte) {
  const std::string head = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(Parse({head, "0\r\n", "\r", "\n"})[0].verdict, Verdict::kTaken);
  EXPECT_EQ(Parse({head, "0", "\r", "\n", "T", ": v\r", "\n\r", "\n"})[0].verdict, Verdict::kTaken);
}

// Cut within the line end before it, the body was taken for header lines, and its blanks for a
// folded one.
TEST(HttpFramingTest, ABodysIndentationIsNoFoldedLine) {
  const std::vector<Outcome> outcomes =
      Parse({"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 7\r\n\r", "\n{\n  1}\n"});
  EXPECT_EQ(outcomes[0].verdict, Verdict::kTaken);
  EXPECT_EQ(outcomes[0].message.body, "{\n  1}\n");
}

}  // namespace
}  // namespace kvatlas
