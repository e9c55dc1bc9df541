#include "tools/testing/servers/reserved_test_ports.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace kvatlas {
namespace {

// A socket that does not listen; -1 where there is none.
int BoundTo(const sockaddr_in& at) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
      bind(fd, reinterpret_cast<const sockaddr*>(&at), sizeof(at)) == 0)
    return fd;
  if (fd >= 0) close(fd);
  return -1;
}

}  // namespace

ReservedTestPorts::~ReservedTestPorts() {
  for (const auto& [address, fd] : sockets_) close(fd);
}

Address ReservedTestPorts::HoldAny() {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = BoundTo(at);
  socklen_t size = sizeof(at);
  if (fd < 0 || getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) != 0) {
    std::perror("a port to hold");
    std::abort();
  }
  const Address address{"127.0.0.1", ntohs(at.sin_port)};
  sockets_[address.ToString()] = fd;
  return address;
}

bool ReservedTestPorts::Hold(const Address& address) {
  const std::string name = address.ToString();
  if (sockets_.contains(name)) return true;
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(address.port);
  if (address.port == 0 || inet_pton(AF_INET, address.host.c_str(), &at.sin_addr) != 1)
    return false;
  const int fd = BoundTo(at);
  if (fd < 0) return false;
  sockets_[name] = fd;
  return true;
}

}  // namespace kvatlas
