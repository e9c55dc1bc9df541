#include "indexer/base/address.h"

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace kvatlas {
namespace {

absl::Status NotAnAddress(std::string_view text, const char* why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "not HOST:PORT: \"", absl::string_view(text.data(), text.size()), "\" (", why, ")"));
}

// The characters of names and IPv4 addresses; in brackets those of IPv6 with a %zone too. Whether a
// name exists is the resolver's question.
bool IsHost(std::string_view host, bool bracketed) {
  for (char c : host) {
    const bool word = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '.' || c == '-' || c == '_';
    if (!word && !(bracketed && (c == ':' || c == '%'))) return false;
  }
  return !host.empty();
}

}  // namespace

// The port is behind the last ':'; an IPv6 address without brackets fails by its own colons.
absl::StatusOr<Address> Address::Parse(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return NotAnAddress(text, "no port");
  std::string_view host = text.substr(0, colon);
  const std::string_view port_text = text.substr(colon + 1);

  const bool bracketed = host.size() >= 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty()) return NotAnAddress(text, "no host");
  if (!IsHost(host, bracketed)) return NotAnAddress(text, "bad host");

  uint32_t port = 0;
  if (port_text.empty() || port_text.find_first_not_of("0123456789") != std::string_view::npos ||
      !absl::SimpleAtoi(absl::string_view(port_text.data(), port_text.size()), &port) ||
      port > 65535) {
    return NotAnAddress(text, "the port must be in 0..65535");
  }
  return Address{std::string(host), static_cast<uint16_t>(port)};
}

std::string Address::ToString() const {
  const bool ipv6 = host.find(':') != std::string::npos;
  return absl::StrCat(ipv6 ? "[" : "", host, ipv6 ? "]:" : ":", port);
}

}  // namespace kvatlas
