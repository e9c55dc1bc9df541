// Replays recorded HTTP exchanges in tests: reads them from a page, sends requests byte for byte,
// reads what comes back.

#ifndef KVATLAS_INDEXER_LEAF_HTTP_TRANSCRIPT_TEST_UTIL_H_
#define KVATLAS_INDEXER_LEAF_HTTP_TRANSCRIPT_TEST_UTIL_H_

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "indexer/base/address.h"

namespace kvatlas {

struct HttpAnswerText {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

struct RecordedExchange {
  int line = 0;         // of the page
  std::string section;  // "4"
  std::string note;     // the prose since the exchange before, without line breaks
  std::string method;
  std::string target;
  std::map<std::string, std::string> headers;
  std::string body;
  HttpAnswerText answer;
};

// The blocks ```http of a page, in order. Bodies that were cut are whole again.
std::vector<RecordedExchange> ReadTranscript(const std::string& page);

// A connection that is kept from request to request.
class HttpTestClient {
 public:
  explicit HttpTestClient(const Address& address);

  // Sends and waits for the answer; connects again if the server ended the connection.
  HttpAnswerText Ask(const std::string& method, const std::string& target,
                     const std::map<std::string, std::string>& headers, const std::string& body);
  // With a JSON body; without one, a GET.
  HttpAnswerText Post(const std::string& target, const std::string& body);
  HttpAnswerText Get(const std::string& target);

  // Bytes as they are. False: the server has gone.
  bool Send(std::string_view bytes);
  // The next answer; status 0: there is none.
  HttpAnswerText Read(bool head = false);

 private:
  void Connect();

  const Address address_;
  boost::asio::io_context io_;
  boost::asio::ip::tcp::socket socket_{io_};
  std::string pending_;  // read beyond the last answer
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_LEAF_HTTP_TRANSCRIPT_TEST_UTIL_H_
