// Where does a request over HTTP/1.1 end, and may it be taken at all? Read slowly, straight from
// RFC 9112 and RFC 9110, to test the server's parser against: no code of the server's, nothing
// incremental, one request in one string.
//
// *Truth*: the grammar of the RFCs, and where they leave a choice the server's:
//   refused   a Transfer-Encoding but "chunked" alone, in HTTP/1.0 too (§6.1 allows more); a Content-Length in several lines or as a
//             list (§6.3 allows equal ones); folded lines, in trailers too (§5.2 allows to join them); Content-Length and
//             Transfer-Encoding in trailers (RFC 9110 §6.5.1 lets them be ignored); an empty line before the request line (§2.2
//             lets one be skipped); bare line feeds (§2.2 allows them); versions but 1.0 and 1.1 (§2.3 allows later minor ones);
//             bytes above 127 in a target; a Host in brackets that is no IPv6 address (RFC 3986 §3.2.2 has a form for later ones)
//   taken     any other printable character in a target, of whatever form
// *Threads*: a pure function. *Cost*: several copies of the request.

#ifndef KVATLAS_TOOLS_TESTING_SERVERS_HTTP_REFERENCE_H_
#define KVATLAS_TOOLS_TESTING_SERVERS_HTTP_REFERENCE_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace kvatlas {

struct ReferenceReading {
  enum class Verdict { kTaken, kRefused, kUnfinished };
  Verdict verdict = Verdict::kUnfinished;
  std::string why;  // it is refused

  // Of one that is taken.
  size_t bytes = 0;  // where the next one begins
  std::string method;
  std::string target;
  std::string body;
  bool persists = false;  // another request may follow on the connection
};

// Of the request that `bytes` begin with. `kUnfinished`: its end, or that of its header, is not
// there; a server may refuse such a one already, but not take it.
ReferenceReading ReadReferenceRequest(std::string_view bytes);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_SERVERS_HTTP_REFERENCE_H_
