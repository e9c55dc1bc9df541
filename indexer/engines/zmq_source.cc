#include "indexer/engines/zmq_source.h"

#include <string>
#include <string_view>

namespace kvatlas {
namespace {

constexpr uint32_t kPortMax = 65535;

// Empty: a good port.
std::string_view PortFault(std::string_view port) {
  if (port.empty()) return "cannot parse integer from empty string";
  uint32_t value = 0;
  for (const char digit : port) {
    if (digit < '0' || digit > '9') return "invalid digit found in string";
    value = value * 10 + static_cast<uint32_t>(digit - '0');
    if (value > kPortMax) return "number too large to fit in target type";
  }
  return "";
}

// Empty: a good address.
std::string TcpFault(std::string_view address) {
  const size_t colon = address.rfind(':');
  const size_t bracket = address.rfind(']');
  const bool in_brackets = !address.empty() && address.front() == '[';
  if (colon == std::string_view::npos || (in_brackets && colon < bracket)) {
    return "missing TCP port";
  }
  const std::string_view host = address.substr(0, colon);
  if (host.empty() || host == "[]") return "missing TCP host";
  if (!in_brackets && host.find(':') != std::string_view::npos) {
    return "IPv6 address without brackets";
  }
  const std::string_view fault = PortFault(address.substr(colon + 1));
  return fault.empty() ? "" : "invalid TCP port: " + std::string(fault);
}

std::string Fault(std::string_view endpoint) {
  const size_t end = endpoint.find("://");
  if (end == std::string_view::npos) return "missing scheme";
  const std::string_view scheme = endpoint.substr(0, end);
  const std::string_view address = endpoint.substr(end + 3);
  if (scheme != "tcp" && scheme != "ipc" && scheme != "inproc") {
    return "unsupported scheme `" + std::string(scheme) + "`";
  }
  if (address.empty()) return "missing address";
  if (address.find('\0') != std::string_view::npos) return "NUL in address";
  return scheme == "tcp" ? TcpFault(address) : "";
}

}  // namespace

std::string_view ListenerStatusName(ListenerStatus status) {
  switch (status) {
    case ListenerStatus::kPending:
      return "pending";
    case ListenerStatus::kActive:
      return "active";
    case ListenerStatus::kPaused:
      return "paused";
    case ListenerStatus::kFailed:
      return "failed";
  }
  return "";
}

absl::Status CheckZmqEndpoint(std::string_view endpoint) {
  const std::string fault = Fault(endpoint);
  if (fault.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("invalid ZMQ endpoint `" + std::string(endpoint) +
                                    "`: " + fault);
}

}  // namespace kvatlas
