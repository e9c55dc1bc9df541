// The field names are compared without regard to case (RFC 9110, 5.1).

#include "frontend/engine_client/hop_by_hop.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace kvatlas {
namespace {

// RFC 9110, 7.6.1, and `expect`, which is answered by the side that reads the body.
constexpr std::array<std::string_view, 9> kHopByHop = {
    "connection",        "keep-alive", "proxy-connection",   "te",    "trailer",
    "transfer-encoding", "upgrade",    "proxy-authenticate", "expect"};

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

bool SameName(std::string_view a, std::string_view b) {
  return absl::EqualsIgnoreCase(View(a), View(b));
}

// `name` is an element of the comma-separated `list`.
bool Lists(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    const absl::string_view element = absl::StripAsciiWhitespace(View(list.substr(0, comma)));
    if (absl::EqualsIgnoreCase(element, View(name))) return true;
    if (comma == std::string_view::npos) return false;
    list.remove_prefix(comma + 1);
  }
  return false;
}

}  // namespace

std::vector<std::string> HopsOf(const HttpHeaders& headers) {
  std::vector<std::string> hops;
  for (const auto& [name, value] : headers) {
    if (SameName(name, "connection")) hops.push_back(value);
  }
  return hops;
}

bool IsHopByHop(std::string_view name, const std::vector<std::string>& hops) {
  return std::any_of(kHopByHop.begin(), kHopByHop.end(),
                     [&](std::string_view hop) { return SameName(name, hop); }) ||
         std::any_of(hops.begin(), hops.end(),
                     [&](const std::string& listed) { return Lists(listed, name); });
}

}  // namespace kvatlas
