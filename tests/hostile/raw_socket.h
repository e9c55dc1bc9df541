// What does an attacker send? Exact bytes over plain TCP sockets, and HTTP/2 frames made by hand.
//
// *Threads*: one at a time per socket. *Bounds*: every read takes a limit.

#ifndef KVATLAS_TESTS_HOSTILE_RAW_SOCKET_H_
#define KVATLAS_TESTS_HOSTILE_RAW_SOCKET_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "indexer/base/address.h"
#include "indexer/base/clock.h"

namespace kvatlas {

class RawSocket {
 public:
  RawSocket() = default;
  // Connects, from `source` (127.0.0.2, say) if it is not empty; `ok()` says whether it worked.
  explicit RawSocket(const Address& to, const std::string& source = "");
  explicit RawSocket(int accepted) : fd_(accepted) {}
  ~RawSocket() { Close(); }
  RawSocket(RawSocket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  RawSocket& operator=(RawSocket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }

  bool ok() const { return fd_ >= 0; }
  int fd() const { return fd_; }
  // False: the other side is gone, or took nothing for 10 seconds.
  bool Send(std::string_view bytes);
  // What fits the socket's buffer now; 0 when nothing does or the other side is gone.
  size_t SendSome(std::string_view bytes);
  // Some bytes; empty: nothing came in time, or the end (`ended`).
  std::string ReadSome(Duration timeout, bool* ended = nullptr);
  // Up to the end of the stream, or what had come by `timeout` after the call.
  std::string ReadToEnd(Duration timeout, bool* ended = nullptr);
  // True once the other side has closed or reset; what comes before that is dropped.
  bool WaitEnd(Duration timeout);
  void Close();

 private:
  int fd_ = -1;
};

// As many connections as asked for, silent; those that could not be made are left out.
std::vector<RawSocket> OpenMany(const Address& to, size_t count, const std::string& source = "");

// The whole answer to `GET path` on a connection of its own; nothing: none within `timeout`.
std::optional<std::string> HttpGet(const Address& to, std::string_view path, Duration timeout);
// What came of the answer to a JSON document for `path`, up to its end or `timeout`.
std::string HttpPost(const Address& to, std::string_view path, std::string_view json,
                     Duration timeout);
// "HTTP/1.1 200 …" is 200; 0: no such line.
int HttpStatusIn(std::string_view answer);

// ---- HTTP/2 ----

inline constexpr std::string_view kH2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
std::string H2Frame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload);
// Preface and an empty SETTINGS frame.
std::string H2Hello();
// HEADERS of a gRPC request, its header block literal and never indexed; END_HEADERS, no
// END_STREAM.
std::string H2Request(uint32_t stream, std::string_view path);
// The same in as few bytes as HPACK allows: the first of a connection fills its table, the others
// are six bytes of it.
std::string H2ShortRequest(uint32_t stream, std::string_view path, bool first);
std::string H2Reset(uint32_t stream);
// What a client says of the server's SETTINGS.
std::string H2Acknowledge();
// A ping and its 8 bytes; the server answers them with the flag ACK.
std::string H2Ping(std::string_view eight);

}  // namespace kvatlas

#endif  // KVATLAS_TESTS_HOSTILE_RAW_SOCKET_H_
