// Addresses are 16 bytes with a mark for IPv4, whose bytes are the last four. Every text and every
// sockaddr becomes such an `Ip` first, so that different spellings of an address are compared as
// one. An IPv4-mapped IPv6 address becomes IPv4 there.

#include "indexer/base/engine_addresses.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kvatlas {
namespace {

constexpr int kIpv4At = 12;
constexpr int kIpv4Bits = 8 * kIpv4At;  // before an IPv4 address
constexpr size_t kAddressTextMax = 64;

// Metadata services of AWS, Azure, GCP, Oracle and others, of ECS tasks and EKS pods, and of
// Alibaba. They hand out credentials of the machine to whatever connects from it.
constexpr const char* kMetadata[] = {"169.254.169.254", "169.254.170.2", "169.254.170.23",
                                     "100.100.100.200", "fd00:ec2::254", "fd00:ec2::23",
                                     "fd20:ce::254"};

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

EngineAddresses::Ip EngineAddresses::FromIpv4(const uint8_t* bytes) {
  Ip ip{.four = true};
  std::memcpy(ip.bytes.data() + kIpv4At, bytes, 4);
  return ip;
}

EngineAddresses::Ip EngineAddresses::FromIpv6(const uint8_t* bytes) {
  constexpr uint8_t kMapped[kIpv4At] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (std::memcmp(bytes, kMapped, sizeof(kMapped)) == 0) return FromIpv4(bytes + kIpv4At);
  Ip ip;
  std::memcpy(ip.bytes.data(), bytes, ip.bytes.size());
  return ip;
}

// A zone is allowed for IPv6 alone. The length is checked before the text is copied for inet_pton.
std::optional<EngineAddresses::Ip> EngineAddresses::ParseIp(std::string_view text) {
  const std::string address(text.substr(0, text.find('%')));
  if (address.size() > kAddressTextMax) return std::nullopt;
  uint8_t bytes[16];
  if (inet_pton(AF_INET, address.c_str(), bytes) == 1 && address.size() == text.size())
    return FromIpv4(bytes);
  if (inet_pton(AF_INET6, address.c_str(), bytes) == 1) return FromIpv6(bytes);
  return std::nullopt;
}

// Bits beyond the prefix need not be 0; they are ignored. An IPv4-mapped range shorter than 96 bits
// is refused: it would reach beyond IPv4.
std::optional<EngineAddresses::Range> EngineAddresses::ParseRange(std::string_view text) {
  const size_t slash = text.find('/');
  const std::string_view address = text.substr(0, slash);
  const std::optional<Ip> ip = ParseIp(address);
  if (!ip.has_value() || address.find('%') != std::string_view::npos) return std::nullopt;
  // An IPv4 range written as IPv6 counts its bits as IPv6 does.
  const int before = address.find(':') == std::string_view::npos ? kIpv4Bits : 0;
  uint32_t bits = 128u - before;
  if (slash != std::string_view::npos) {
    const std::string_view digits = text.substr(slash + 1);
    if (digits.empty() || digits.find_first_not_of("0123456789") != std::string_view::npos ||
        !absl::SimpleAtoi(View(digits), &bits) || bits > 128u - before)
      return std::nullopt;
  }
  Range range{.first = *ip, .bits = static_cast<int>(bits) + before};
  if (range.first.four && range.bits < kIpv4Bits) return std::nullopt;
  return range;
}

EngineAddresses::EngineAddresses() : EngineAddresses(*Parse(Default())) {}

EngineAddresses::EngineAddresses(std::vector<Range> ranges, std::string text)
    : ranges_(std::move(ranges)), text_(std::move(text)) {}

std::vector<std::string> EngineAddresses::Default() {
  return {"127.0.0.0/8", "::1/128", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"};
}

absl::StatusOr<EngineAddresses> EngineAddresses::Parse(const std::vector<std::string>& ranges) {
  std::vector<Range> parsed;
  for (const std::string& text : ranges) {
    const std::optional<Range> range = ParseRange(text);
    if (!range.has_value())
      return absl::InvalidArgumentError(absl::StrCat("--", kEngineAddressesFlag, ": \"", text,
                                                     "\" is no range such as 10.0.0.0/8"));
    parsed.push_back(*range);
  }
  return EngineAddresses(std::move(parsed), absl::StrJoin(ranges, ","));
}

// Also true where IPv6 carries the IPv4 address of a metadata service: through NAT64
// (64:ff9b::/96), 6to4 (2002::/16), or as ::/96.
bool EngineAddresses::IsMetadata(const Ip& ip) {
  static const auto* const kNever = [] {
    auto* never = new std::vector<Ip>;
    for (const char* text : kMetadata) never->push_back(*ParseIp(text));
    return never;
  }();
  const auto never = [](const Ip& of) {
    return std::find(kNever->begin(), kNever->end(), of) != kNever->end();
  };
  if (never(ip)) return true;
  if (ip.four) return false;
  constexpr uint8_t kNat64[kIpv4At] = {0, 0x64, 0xff, 0x9b};
  constexpr uint8_t kCompatible[kIpv4At] = {};
  const uint8_t* const bytes = ip.bytes.data();
  if (bytes[0] == 0x20 && bytes[1] == 0x02) return never(FromIpv4(bytes + 2));
  return (std::memcmp(bytes, kNat64, kIpv4At) == 0 ||
          std::memcmp(bytes, kCompatible, kIpv4At) == 0) &&
         never(FromIpv4(bytes + kIpv4At));
}

// Metadata services are excluded first, so that no range can allow them.
bool EngineAddresses::Contains(const Ip& ip) const {
  if (IsMetadata(ip)) return false;
  return std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& range) {
    if (range.first.four != ip.four) return false;
    for (int bit = 0; bit < range.bits; ++bit) {
      const int mask = 0x80 >> (bit % 8);
      if ((range.first.bytes[bit / 8] & mask) != (ip.bytes[bit / 8] & mask)) return false;
    }
    return true;
  });
}

bool EngineAddresses::Contains(const sockaddr* address) const {
  if (address->sa_family == AF_INET) {
    sockaddr_in four;
    std::memcpy(&four, address, sizeof(four));
    return Contains(FromIpv4(reinterpret_cast<const uint8_t*>(&four.sin_addr)));
  }
  if (address->sa_family != AF_INET6) return false;
  sockaddr_in6 six;
  std::memcpy(&six, address, sizeof(six));
  return Contains(FromIpv6(six.sin6_addr.s6_addr));
}

bool EngineAddresses::Contains(std::string_view address) const {
  const std::optional<Ip> ip = ParseIp(address);
  return ip.has_value() && Contains(*ip);
}

absl::Status EngineAddresses::Outside(std::string_view host) const {
  const std::optional<Ip> ip = ParseIp(host);
  if (ip.has_value() && IsMetadata(*ip))
    return absl::PermissionDeniedError(
        absl::StrCat(View(host), " is the address of a metadata service"));
  return absl::PermissionDeniedError(
      absl::StrCat(View(host), " is outside --", kEngineAddressesFlag, " (", text_, ")"));
}

absl::Status EngineAddresses::CheckHost(std::string_view host) const {
  return !IsNumericHost(host) || Contains(host) ? absl::OkStatus() : Outside(host);
}

bool EngineAddresses::IsLoopback(std::string_view host) {
  if (host == "localhost") return true;
  static const auto* const loopback = new EngineAddresses(*Parse({"127.0.0.0/8", "::1/128"}));
  return loopback->Contains(host);
}

// The caller connects to one of the returned addresses, never to the name again: a second
// resolution could give another address.
absl::StatusOr<std::vector<std::string>> EngineAddresses::Within(
    std::string_view name, const std::vector<std::string>& found) const {
  std::vector<std::string> within;
  for (const std::string& address : found)
    if (Contains(address)) within.push_back(address);
  if (!within.empty()) return within;
  if (found.empty()) return absl::UnavailableError(absl::StrCat(View(name), " has no address"));
  return absl::PermissionDeniedError(
      absl::StrCat(View(name), ": ", Outside(found.front()).message()));
}

std::string EngineAddresses::ToString() const { return text_; }

bool IsNumericHost(std::string_view host) {
  const std::string address(host.substr(0, host.find('%')));
  uint8_t bytes[16];
  return (address.size() == host.size() && inet_pton(AF_INET, address.c_str(), bytes) == 1) ||
         inet_pton(AF_INET6, address.c_str(), bytes) == 1;
}

}  // namespace kvatlas
