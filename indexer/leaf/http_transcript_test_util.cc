#include "indexer/leaf/http_transcript_test_util.h"

#include <algorithm>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_static_buffer.hpp>
#include <boost/beast/core/string_type.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cctype>
#include <limits>
#include <sstream>

namespace kvatlas {
namespace {

using boost::system::error_code;

std::string Lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

// {"token_ids":[0,0,0,… (8400032 bytes): zeros up to that size; or a text of one letter.
std::string Uncut(const std::string& body) {
  const size_t cut = body.find("… (");
  if (cut == std::string::npos) return body;
  const auto size = static_cast<size_t>(std::stoul(body.substr(cut + std::string("… (").size())));
  std::string whole = body.substr(0, cut);
  const bool zeros = whole.back() == ',';
  const std::string end = zeros ? "0],\"model_name\":\"m\"}" : "\"}";
  while (whole.size() + end.size() < size) whole += zeros ? "0," : "x";
  return whole + end;
}

void ReadHeaders(std::istringstream* lines, std::map<std::string, std::string>* headers) {
  for (std::string line; std::getline(*lines, line) && !line.empty();) {
    const size_t colon = line.find(": ");
    (*headers)[Lower(line.substr(0, colon))] = line.substr(colon + 2);
  }
}

std::string Rest(std::istringstream* lines) {
  std::string rest;
  for (std::string line; std::getline(*lines, line);) rest += (rest.empty() ? "" : "\n") + line;
  while (!rest.empty() && rest.back() == '\n') rest.pop_back();
  return rest;
}

RecordedExchange InSection(const std::string& section) {
  RecordedExchange exchange;
  exchange.section = section;
  return exchange;
}

void ReadExchange(const std::string& block, RecordedExchange* exchange) {
  const size_t middle = block.find("\nHTTP/1.1 ");
  std::istringstream request(block.substr(0, middle));
  request >> exchange->method >> exchange->target;
  std::string rest_of_line;
  std::getline(request, rest_of_line);
  ReadHeaders(&request, &exchange->headers);
  exchange->body = Uncut(Rest(&request));
  std::istringstream answer(block.substr(middle + 1));
  std::string version;
  answer >> version >> exchange->answer.status;
  std::getline(answer, rest_of_line);
  ReadHeaders(&answer, &exchange->answer.headers);
  exchange->answer.body = Rest(&answer);
}

}  // namespace

std::vector<RecordedExchange> ReadTranscript(const std::string& page) {
  std::vector<RecordedExchange> exchanges;
  std::istringstream lines(page);
  RecordedExchange next;
  std::string block;
  bool inside = false;
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (inside && line == "```") {
      inside = false;
      ReadExchange(block, &next);
      exchanges.push_back(next);
      next = InSection(next.section);
    } else if (inside) {
      block += line + "\n";
    } else if (line == "```http") {
      inside = true;
      block.clear();
      next.line = number;
    } else if (line.starts_with("## ")) {
      next = InSection(line.substr(3, line.find('.') - 3));
    } else if (!line.empty()) {
      next.note += (next.note.empty() ? "" : " ") + line;
    }
  }
  return exchanges;
}

HttpTestClient::HttpTestClient(const Address& address) : address_(address) { Connect(); }

void HttpTestClient::Connect() {
  error_code ignored;
  socket_.close(ignored);
  pending_.clear();
  socket_.connect({boost::asio::ip::make_address(address_.host), address_.port});
}

bool HttpTestClient::Send(std::string_view bytes) {
  error_code error;
  boost::asio::write(socket_, boost::asio::buffer(bytes.data(), bytes.size()), error);
  return !error;
}

HttpAnswerText HttpTestClient::Read(bool head) {
  namespace http = boost::beast::http;
  http::response_parser<http::string_body> parser;
  parser.body_limit(std::numeric_limits<uint64_t>::max());
  parser.skip(head);
  auto buffer = boost::asio::dynamic_buffer(pending_);
  error_code error;
  http::read(socket_, buffer, parser, error);
  if (error) return {};
  HttpAnswerText answer;
  answer.status = static_cast<int>(parser.get().result_int());
  for (const auto& field : parser.get()) {
    const auto name = field.name_string();
    const auto value = field.value();
    answer.headers[Lower({name.data(), name.size()})] = std::string(value.data(), value.size());
  }
  answer.body = parser.get().body();
  if (!parser.get().keep_alive()) Connect();
  return answer;
}

HttpAnswerText HttpTestClient::Ask(const std::string& method, const std::string& target,
                                   const std::map<std::string, std::string>& headers,
                                   const std::string& body) {
  std::string request = method + " " + target + " HTTP/1.1\r\nhost: leaf\r\n";
  for (const auto& [name, value] : headers) request += name + ": " + value + "\r\n";
  if (method == "POST") request += "content-length: " + std::to_string(body.size()) + "\r\n";
  Send(request + "\r\n" + body);
  return Read(method == "HEAD");
}

HttpAnswerText HttpTestClient::Post(const std::string& target, const std::string& body) {
  return Ask("POST", target, {{"content-type", "application/json"}}, body);
}

HttpAnswerText HttpTestClient::Get(const std::string& target) { return Ask("GET", target, {}, ""); }

}  // namespace kvatlas
