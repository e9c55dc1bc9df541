// Addresses are compared as IPv6 ones, IPv4 mapped into them, so that one comparison serves both.

#include "frontend/engine_client/own_address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace kvatlas {
namespace {

// The host's addresses: those of IPv6, and those of IPv4 as IPv6 maps them. Empty: it does not
// resolve. An empty host listens on all.
std::vector<in6_addr> AddressesOf(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.empty() ? "::" : host.c_str(), nullptr, &hints, &found) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, &freeaddrinfo);
  std::vector<in6_addr> addresses;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    in6_addr address{};
    if (at->ai_family == AF_INET6) {
      address = reinterpret_cast<const sockaddr_in6*>(at->ai_addr)->sin6_addr;
    } else if (at->ai_family == AF_INET) {
      address.s6_addr[10] = address.s6_addr[11] = 0xff;
      std::memcpy(&address.s6_addr[12],
                  &reinterpret_cast<const sockaddr_in*>(at->ai_addr)->sin_addr, 4);
    } else {
      continue;
    }
    addresses.push_back(address);
  }
  return addresses;
}

// 0.0.0.0 or ::, which a listener takes for all addresses and a client for loopback.
bool IsAny(const in6_addr& address) {
  const bool mapped = IN6_IS_ADDR_V4MAPPED(&address);
  return std::all_of(address.s6_addr + (mapped ? 12 : 0), address.s6_addr + 16,
                     [](uint8_t byte) { return byte == 0; });
}

bool IsLoopback(const in6_addr& address) {
  return IN6_IS_ADDR_LOOPBACK(&address) ||
         (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
}

// A socket can be bound to addresses of this machine alone. An address that cannot be tested is
// taken for another machine's.
bool IsOfThisMachine(const in6_addr& address) {
  if (IsAny(address) || IsLoopback(address)) return true;
  const bool mapped = IN6_IS_ADDR_V4MAPPED(&address);
  const int fd = socket(mapped ? AF_INET : AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  int bound = -1;
  if (mapped) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    std::memcpy(&to.sin_addr, &address.s6_addr[12], 4);
    bound = bind(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  } else {
    sockaddr_in6 to{};
    to.sin6_family = AF_INET6;
    to.sin6_addr = address;
    bound = bind(fd, reinterpret_cast<const sockaddr*>(&to), sizeof to);
  }
  close(fd);
  return bound == 0;
}

// A listener on all addresses is reached by any of this machine's; a client that names all
// addresses reaches loopback.
bool Reaches(const in6_addr& to, const in6_addr& listen) {
  if (IsAny(listen)) return IsOfThisMachine(to);
  if (IsAny(to)) return IsLoopback(listen);
  return std::memcmp(&to, &listen, sizeof to) == 0;
}

}  // namespace

// Any pair of addresses is enough: a connection may take any of those that `to` resolves to.
bool LeadsTo(const Address& to, const Address& listen) {
  if (to.port == 0 || to.port != listen.port) return false;
  const std::vector<in6_addr> own = AddressesOf(listen.host);
  for (const in6_addr& address : AddressesOf(to.host)) {
    if (std::any_of(own.begin(), own.end(),
                    [&](const in6_addr& one) { return Reaches(address, one); }))
      return true;
  }
  return false;
}

}  // namespace kvatlas
