// Checks of endpoints. Texts of refusals are those of Dynamo's indexer, which clients read; those
// about ports are Rust's own.

#include "indexer/kv_events/zmq_source.h"

#include <string>
#include <string_view>

namespace kvatlas {
namespace {

constexpr uint32_t kPortMax = 65535;
constexpr std::string_view kTcp = "tcp://";

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

absl::Status Invalid(std::string_view endpoint, std::string_view why) {
  return absl::InvalidArgumentError("invalid ZMQ endpoint `" + std::string(endpoint) +
                                    "`: " + std::string(why));
}

// An endpoint of a flag may be any; one that a client names has to be tcp://HOST:PORT within
// `addresses`. A name is checked again when it is resolved.
absl::Status CheckEndpoint(const ZmqSource& source, std::string_view endpoint,
                           const EngineAddresses& addresses) {
  if (absl::Status bad = CheckZmqEndpoint(endpoint); !bad.ok() || source.from_flags) return bad;
  const absl::StatusOr<Address> address = TcpAddressOf(endpoint);
  if (source.bind || !address.ok())
    return Invalid(
        endpoint,
        "registered may be tcp://HOST:PORT, to connect to; other endpoints, and bind, are "
        "for --workers");
  const absl::Status bad = addresses.CheckHost(address->host);
  return bad.ok() ? bad : Invalid(endpoint, std::string(bad.message()));
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
  return fault.empty() ? absl::OkStatus() : Invalid(endpoint, fault);
}

// `server_key` is the key of the side that listens: with `bind` that is this process, not the
// engine.
absl::Status CheckZmqSource(const ZmqSource& source, const EngineAddresses& addresses) {
  if (absl::Status bad = CheckEndpoint(source, source.endpoint, addresses); !bad.ok()) return bad;
  if (!source.server_key.empty()) {
    if (absl::Status bad = CheckCurveKey(source.server_key); !bad.ok())
      return absl::InvalidArgumentError("server_key: " + std::string(bad.message()));
    if (source.bind)
      return absl::InvalidArgumentError(
          "server_key: an engine that dials out (bind) is no server; let it listen, and register "
          "its endpoint");
  }
  if (source.replay_endpoint.empty()) return absl::OkStatus();
  const absl::Status bad = CheckEndpoint(source, source.replay_endpoint, addresses);
  if (bad.ok()) return bad;
  return absl::InvalidArgumentError("invalid replay endpoint `" + source.replay_endpoint +
                                    "`: " + std::string(bad.message()));
}

// Loopback and endpoints of other kinds than tcp do not cross a network.
absl::Status CheckEncrypted(const ZmqSource& source) {
  if (!source.server_key.empty()) return absl::OkStatus();
  for (const std::string& endpoint : {source.endpoint, source.replay_endpoint}) {
    if (!endpoint.starts_with(kTcp)) continue;
    const absl::StatusOr<Address> address = TcpAddressOf(endpoint);
    if (address.ok() && EngineAddresses::IsLoopback(address->host)) continue;
    return absl::FailedPreconditionError(
        "the events of " + endpoint +
        " would cross a network in clear: give the engine's CURVE key (server_key), or "
        "--plain_engines where the network is trusted");
  }
  return absl::OkStatus();
}

absl::StatusOr<Address> TcpAddressOf(std::string_view endpoint) {
  if (!endpoint.starts_with(kTcp)) return Invalid(endpoint, "not tcp");
  return Address::Parse(endpoint.substr(kTcp.size()));
}

}  // namespace kvatlas
