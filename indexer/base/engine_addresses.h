// The addresses that this process may connect to when a peer names them. Endpoints of engines
// registered over HTTP, and workers' labels `url`, come from any client that reaches a port;
// without limits a process would connect to anything its machine can reach.
//
// *Truth*: an address is within, when one of the ranges contains it. Addresses of metadata services
// (169.254.169.254 and others that hand out credentials of a machine) are never within, whatever
// the ranges say. An IPv4 address written as IPv6 (::ffff:10.0.0.1) counts as that IPv4 address,
// and only an IPv4 range contains it. A name is never within by itself: it is resolved, each of its
// addresses is checked, and the address is what is connected to. A name that is resolved a second
// time may have other addresses by then (DNS rebinding).
// *Threads*: immutable. *Cost*: a comparison of 16 bytes per range.
//
// Example:
//   std::vector<std::string> ranges = EngineAddresses::Default();
//   flags.Add("engine_addresses", &ranges, kEngineAddressesHelp);
//   absl::StatusOr<EngineAddresses> addresses = EngineAddresses::Parse(ranges);
//   if (!addresses->Contains("10.0.0.7")) …

#ifndef KVATLAS_INDEXER_BASE_ENGINE_ADDRESSES_H_
#define KVATLAS_INDEXER_BASE_ENGINE_ADDRESSES_H_

#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvatlas {

inline constexpr char kEngineAddressesFlag[] = "engine_addresses";
inline constexpr char kEngineAddressesHelp[] =
    "addresses of engines that no flag names: ranges such as 10.0.0.0/8,fd00::/8; metadata "
    "services are never within";

class EngineAddresses {
 public:
  EngineAddresses();  // those of `Default`
  // Loopback and private ranges: 127.0.0.0/8, ::1/128, 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16,
  // fc00::/7.
  static std::vector<std::string> Default();

  // ADDRESS/BITS, or one ADDRESS. INVALID_ARGUMENT, naming the flag and the text: anything else.
  // None: nothing is within.
  static absl::StatusOr<EngineAddresses> Parse(const std::vector<std::string>& ranges);

  // False for what is neither IPv4 nor IPv6.
  bool Contains(const sockaddr* address) const;
  // Numeric, without brackets; a zone (%eth0) is passed over. False for anything else, names
  // included.
  bool Contains(std::string_view address) const;

  // PERMISSION_DENIED, saying what is accepted: a numeric address that is not within. A name is OK,
  // since its addresses are checked when they are known.
  absl::Status CheckHost(std::string_view host) const;
  // This machine by its address or as "localhost", which no resolver is asked about.
  static bool IsLoopback(std::string_view host);

  // The addresses of a name that are within. PERMISSION_DENIED, naming the first: none is.
  absl::StatusOr<std::vector<std::string>> Within(std::string_view name,
                                                  const std::vector<std::string>& found) const;
  // The error of `CheckHost` for `host`.
  absl::Status Outside(std::string_view host) const;

  std::string ToString() const;  // "127.0.0.0/8,::1/128,…"

 private:
  using Bytes = std::array<uint8_t, 16>;  // IPv4 in the last four
  struct Ip {
    bool four = false;
    Bytes bytes = {};
    friend bool operator==(const Ip&, const Ip&) = default;
  };
  struct Range {
    Ip first;
    int bits = 0;  // of `bytes`, so an IPv4 range has 96 and more
  };
  EngineAddresses(std::vector<Range> ranges, std::string text);

  static std::optional<Ip> ParseIp(std::string_view text);
  static std::optional<Range> ParseRange(std::string_view text);
  static Ip FromIpv4(const uint8_t* bytes);
  static Ip FromIpv6(const uint8_t* bytes);
  static bool IsMetadata(const Ip& ip);
  bool Contains(const Ip& ip) const;

  std::vector<Range> ranges_;
  std::string text_;
};

// Whether `host` is a numeric address, a zone aside.
bool IsNumericHost(std::string_view host);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_ENGINE_ADDRESSES_H_
