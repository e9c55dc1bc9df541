#include "tests/hostile/raw_socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>

namespace kvatlas {
namespace {

sockaddr_in SocketAddress(const std::string& host, uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  return address;
}

bool WaitFor(int fd, short events, Duration timeout) {
  pollfd ready = {fd, events, 0};
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
  return poll(&ready, 1, static_cast<int>(std::max<int64_t>(ms, 0))) > 0;
}

}  // namespace

RawSocket::RawSocket(const Address& to, const std::string& source) {
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd_ < 0) return;
  if (!source.empty()) {
    const sockaddr_in from = SocketAddress(source, 0);
    if (bind(fd_, reinterpret_cast<const sockaddr*>(&from), sizeof(from)) != 0) {
      Close();
      return;
    }
  }
  const sockaddr_in address = SocketAddress(to.host, to.port);
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) Close();
}

void RawSocket::Close() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

bool RawSocket::Send(std::string_view bytes) {
  while (ok() && !bytes.empty()) {
    if (!WaitFor(fd_, POLLOUT, std::chrono::seconds(10))) return false;
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN && errno != EINTR) return false;
    if (sent > 0) bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return ok();
}

size_t RawSocket::SendSome(std::string_view bytes) {
  if (!ok()) return 0;
  const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  return sent > 0 ? static_cast<size_t>(sent) : 0;
}

std::string RawSocket::ReadSome(Duration timeout, bool* ended) {
  if (ended != nullptr) *ended = !ok();
  if (!ok() || !WaitFor(fd_, POLLIN, timeout)) return "";
  std::string bytes(64 << 10, '\0');
  const ssize_t got = recv(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got <= 0) {
    const bool over = got == 0 || (errno != EAGAIN && errno != EINTR);
    if (ended != nullptr) *ended = over;
    return "";
  }
  bytes.resize(static_cast<size_t>(got));
  return bytes;
}

std::string RawSocket::ReadToEnd(Duration timeout, bool* ended) {
  const Time until = Clock::Real().Now() + timeout;
  std::string all;
  bool over = false;
  while (!over) {
    const Duration rest = until - Clock::Real().Now();
    if (rest <= Duration::zero()) break;
    all += ReadSome(rest, &over);
  }
  if (ended != nullptr) *ended = over;
  return all;
}

bool RawSocket::WaitEnd(Duration timeout) {
  const Time until = Clock::Real().Now() + timeout;
  bool over = !ok();
  while (!over) {
    const Duration rest = until - Clock::Real().Now();
    if (rest <= Duration::zero()) return false;
    ReadSome(rest, &over);
  }
  return true;
}

std::vector<RawSocket> OpenMany(const Address& to, size_t count, const std::string& source) {
  std::vector<RawSocket> sockets;
  for (size_t i = 0; i < count; ++i) {
    RawSocket socket(to, source);
    if (socket.ok()) sockets.push_back(std::move(socket));
  }
  return sockets;
}

std::optional<std::string> HttpGet(const Address& to, std::string_view path, Duration timeout) {
  RawSocket socket(to);
  const std::string request =
      "GET " + std::string(path) + " HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
  if (!socket.ok() || !socket.Send(request)) return std::nullopt;
  bool ended = false;
  std::string answer = socket.ReadToEnd(timeout, &ended);
  if (!ended || answer.empty()) return std::nullopt;
  return answer;
}

std::string HttpPost(const Address& to, std::string_view path, std::string_view json,
                     Duration timeout) {
  RawSocket socket(to);
  socket.Send("POST " + std::string(path) +
              " HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Type: application/json\r\n"
              "Content-Length: " +
              std::to_string(json.size()) + "\r\n\r\n" + std::string(json));
  return socket.ReadToEnd(timeout);
}

int HttpStatusIn(std::string_view answer) {
  constexpr std::string_view kStart = "HTTP/1.1 ";
  if (!answer.starts_with(kStart)) return 0;
  int status = 0;
  const char* const from = answer.data() + kStart.size();
  std::from_chars(from, answer.data() + answer.size(), status);
  return status;
}

// ---- HTTP/2 ----

std::string H2Frame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload) {
  const size_t length = payload.size();
  std::string frame;
  for (int shift : {16, 8, 0}) frame.push_back(static_cast<char>(length >> shift));
  frame.push_back(static_cast<char>(type));
  frame.push_back(static_cast<char>(flags));
  for (int shift : {24, 16, 8, 0}) frame.push_back(static_cast<char>(stream >> shift));
  frame += payload;
  return frame;
}

std::string H2Hello() { return std::string(kH2Preface) + H2Frame(4, 0, 0, ""); }

std::string H2Request(uint32_t stream, std::string_view path) {
  std::string block;
  const auto add = [&](std::string_view name, std::string_view value) {
    block.push_back(0x10);  // literal, never indexed, a new name; lengths below 127
    block.push_back(static_cast<char>(name.size()));
    block += name;
    block.push_back(static_cast<char>(value.size()));
    block += value;
  };
  add(":method", "POST");
  add(":scheme", "http");
  add(":path", path);
  add(":authority", "test");
  add("te", "trailers");
  add("content-type", "application/grpc");
  return H2Frame(1, 0x4, stream, block);
}

std::string H2ShortRequest(uint32_t stream, std::string_view path, bool first) {
  std::string block = "\x83\x86";  // POST, http
  if (first) {
    const auto add = [&](std::string_view name, std::string_view value) {
      block += name;
      block.push_back(static_cast<char>(value.size()));
      block += value;
    };
    add("\x44", path);
    add("\x41", "test");
    add("\x40\x02te", "trailers");
    add("\x5f", "application/grpc");
  } else {
    block += "\xc1\xc0\xbf\xbe";
  }
  return H2Frame(1, 0x4, stream, block);
}

std::string H2Acknowledge() { return H2Frame(4, 0x1, 0, ""); }

std::string H2Reset(uint32_t stream) {
  return H2Frame(3, 0, stream, std::string_view("\0\0\0\x8", 4));
}

std::string H2Ping(std::string_view eight) { return H2Frame(6, 0, 0, eight); }

}  // namespace kvatlas
