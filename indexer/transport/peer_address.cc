// gRPC names a peer "ipv4:HOST:PORT", "ipv6:[HOST%ZONE]:PORT", or otherwise (unix sockets). A host
// usually has a /64 of IPv6 to itself, so quotas count by that; an IPv4 address inside IPv6 is the
// IPv4 address.

#include "indexer/transport/peer_address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_replace.h"

namespace kvatlas {
namespace {

constexpr size_t kOtherBytesMax = 128;
constexpr size_t kPrefixBytes = 8;  // of 16

// "[fe80::1%eth0]:80" without brackets, zone and port; brackets may be escaped as in a URL.
std::string Ipv6Host(std::string_view text) {
  std::string host =
      absl::StrReplaceAll(absl::string_view(text.data(), text.size()),
                          {{"%5B", "["}, {"%5b", "["}, {"%5D", "]"}, {"%5d", "]"}, {"%25", "%"}});
  if (!host.empty() && host.front() == '[') host = host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find('%'));
}

}  // namespace

std::string PeerAddress(std::string_view grpc_peer) {
  constexpr std::string_view kIpv4 = "ipv4:", kIpv6 = "ipv6:";
  if (grpc_peer.substr(0, kIpv4.size()) == kIpv4) {
    const std::string_view rest = grpc_peer.substr(kIpv4.size());
    return std::string(rest.substr(0, rest.rfind(':')));
  }
  in6_addr address;
  if (grpc_peer.substr(0, kIpv6.size()) == kIpv6 &&
      inet_pton(AF_INET6, Ipv6Host(grpc_peer.substr(kIpv6.size())).c_str(), &address) == 1) {
    char text[INET6_ADDRSTRLEN];
    if (IN6_IS_ADDR_V4MAPPED(&address)) {
      if (inet_ntop(AF_INET, &address.s6_addr[12], text, sizeof(text)) != nullptr) return text;
    }
    std::memset(&address.s6_addr[kPrefixBytes], 0, sizeof(address) - kPrefixBytes);
    if (inet_ntop(AF_INET6, &address, text, sizeof(text)) != nullptr)
      return std::string(text) + "/64";
  }
  return std::string(grpc_peer.substr(0, kOtherBytesMax));
}

}  // namespace kvatlas
