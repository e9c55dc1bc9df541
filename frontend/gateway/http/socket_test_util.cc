#include "frontend/gateway/http/socket_test_util.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/ascii.h"

namespace kvatlas {
namespace {

sockaddr_in SocketAddress(const std::string& host, uint16_t port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  inet_pton(AF_INET, host.c_str(), &address.sin_addr);
  return address;
}

// A socket with a free port.
int Bind(const std::string& host, Address* address) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at = SocketAddress(host, 0);
  socklen_t size = sizeof(at);
  bind(fd, reinterpret_cast<sockaddr*>(&at), size);
  getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size);
  *address = {host, ntohs(at.sin_port)};
  return fd;
}

int Listen(const std::string& host, Address* address) {
  const int fd = Bind(host, address);
  listen(fd, 128);
  return fd;
}

}  // namespace

TestSocket::TestSocket(const Address& to) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
  const sockaddr_in at = SocketAddress("127.0.0.1", to.port);
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) != 0) Close();
}

TestSocket::~TestSocket() { Close(); }

void TestSocket::Close() {
  if (const int fd = fd_.exchange(-1); fd >= 0) close(fd);
}

void TestSocket::Shutdown() { shutdown(fd_, SHUT_RDWR); }

bool TestSocket::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

bool TestSocket::More() {
  char buffer[64 << 10];
  const ssize_t got = recv(fd_, buffer, sizeof(buffer), 0);
  if (got <= 0) return false;
  ahead_.append(buffer, static_cast<size_t>(got));
  return true;
}

std::string TestSocket::ReadUntil(std::string_view end) {
  size_t at;
  size_t from = 0;
  while ((at = ahead_.find(end, from)) == std::string::npos) {
    from = ahead_.size() < end.size() ? 0 : ahead_.size() - end.size();
    if (!More()) return std::exchange(ahead_, "");
  }
  return Read(at + end.size());
}

std::string TestSocket::Read(size_t bytes) {
  while (ahead_.size() < bytes && More()) {
  }
  std::string read = ahead_.substr(0, bytes);
  ahead_.erase(0, read.size());
  return read;
}

std::string TestSocket::ReadToEnd() {
  while (More()) {
  }
  return std::exchange(ahead_, "");
}

std::string TestSocket::ReadMessage() {
  std::string message = ReadUntil("\r\n\r\n");
  const std::string head = absl::AsciiStrToLower(message);
  if (const size_t at = head.find("content-length: "); at != std::string::npos) {
    message += Read(std::strtoul(head.c_str() + at + 16, nullptr, 10));
  } else if (head.find("transfer-encoding: chunked") != std::string::npos) {
    while (true) {
      const std::string size = ReadUntil("\r\n");
      message += size;
      const size_t bytes = std::strtoul(size.c_str(), nullptr, 16);
      message += Read(bytes + 2);
      if (bytes == 0) break;
    }
  }
  return message;
}

TestEngine::TestEngine(Serve serve, const std::string& host)
    : serve_(std::move(serve)), listen_(Listen(host, &address_)) {
  accepts_ = std::thread([this] { Accept(); });
}

TestEngine::~TestEngine() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    for (TestSocket& socket : sockets_) socket.Shutdown();
  }
  shutdown(listen_, SHUT_RDWR);
  accepts_.join();
  close(listen_);
  std::vector<std::thread> threads;
  {
    MutexLock lock(&mutex_);
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

void TestEngine::Accept() {
  for (int fd; (fd = accept(listen_, nullptr, nullptr)) >= 0;) {
    MutexLock lock(&mutex_);
    TestSocket& socket = sockets_.emplace_back(fd);
    if (stopping_) socket.Shutdown();
    threads_.emplace_back([this, &socket] {
      serve_(socket);
      socket.Shutdown();
    });
  }
}

size_t TestEngine::connections() {
  MutexLock lock(&mutex_);
  return sockets_.size();
}

std::string BodyOf(std::string_view message) {
  const size_t end = message.find("\r\n\r\n");
  return end == std::string_view::npos ? "" : std::string(message.substr(end + 4));
}

std::string Dechunked(std::string_view message) {
  const std::string chunks = BodyOf(message);
  std::string body;
  for (size_t at = 0; at < chunks.size();) {
    const size_t line = chunks.find("\r\n", at);
    const size_t bytes = std::strtoul(chunks.c_str() + at, nullptr, 16);
    if (bytes == 0 || line == std::string::npos) break;
    body += chunks.substr(line + 2, bytes);
    at = line + 2 + bytes + 2;
  }
  return body;
}

Address ClosedPort() {
  Address address;
  Bind("127.0.0.1", &address);  // and keeps it: the next one who wants any port would get this one
  return address;
}

}  // namespace kvatlas
