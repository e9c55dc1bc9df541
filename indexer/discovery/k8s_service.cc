#include "indexer/discovery/k8s_service.h"

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"

namespace kvatlas {
namespace {

// Kubernetes' bounds of names, and of names of ports.
constexpr size_t kLabelMax = 63;
constexpr size_t kPortNameMax = 15;

// A DNS label as Kubernetes takes it.
bool IsLabel(std::string_view text, size_t size_max) {
  const auto is_inner = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  };
  return !text.empty() && text.size() <= size_max && text.front() != '-' && text.back() != '-' &&
         std::all_of(text.begin(), text.end(), is_inner);
}

bool IsNumber(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

// From the right: the port behind ':', then the namespace behind the first '.', then the Service.
// All three become parts of requests, so only plain names pass.
absl::StatusOr<K8sService> K8sService::Parse(std::string_view text) {
  const auto bad = [text](std::string_view why) {
    return absl::InvalidArgumentError(
        "'" + std::string(text) + "' is not k8s:SERVICE[.NAMESPACE][:PORT]: " + std::string(why));
  };
  if (!text.starts_with(kK8sPrefix)) return bad("it does not begin with k8s:");
  std::string_view rest = text.substr(kK8sPrefix.size());
  K8sService parsed;
  if (const size_t colon = rest.find(':'); colon != std::string_view::npos) {
    const std::string port(rest.substr(colon + 1));
    rest = rest.substr(0, colon);
    if (port.empty()) return bad("no port after ':'");
    if (IsNumber(port)) {
      uint32_t number = 0;
      if (!absl::SimpleAtoi(port, &number) || number == 0 || number > 65535)
        return bad("a port is from 1 to 65535");
      parsed.port = static_cast<uint16_t>(number);
    } else if (IsLabel(port, kPortNameMax)) {
      parsed.port_name = port;
    } else {
      return bad("a port is a number or a name of lower case letters, digits and '-'");
    }
  }
  if (const size_t dot = rest.find('.'); dot != std::string_view::npos) {
    parsed.name_space = rest.substr(dot + 1);
    rest = rest.substr(0, dot);
    if (!IsLabel(parsed.name_space, kLabelMax))
      return bad("a namespace is one name of lower case letters, digits and '-'");
  }
  parsed.service = rest;
  if (!IsLabel(parsed.service, kLabelMax))
    return bad("a Service is a name of lower case letters, digits and '-'");
  return parsed;
}

}  // namespace kvatlas
