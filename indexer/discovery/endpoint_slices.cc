// EndpointSlices of one Service: what each says (`ReadSlice`), and the addresses that all of them
// name together (`Addresses`).

#include "indexer/discovery/endpoint_slices.h"

#include <arpa/inet.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "indexer/base/address.h"
#include "indexer/discovery/k8s_json.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

constexpr K8sKind kSlices = {.plural = "EndpointSlices",
                             .max = kEndpointSlicesMax,
                             .too_many = "over 4096 EndpointSlices of one Service"};

// The port's name where the entry names none.
const char kDefaultPort[] = "grpc";

bool IsAddress(const std::string& text, bool ipv6) {
  in6_addr scratch;
  return inet_pton(ipv6 ? AF_INET6 : AF_INET, text.c_str(), &scratch) == 1;
}

}  // namespace

// One slice. Slices of the address type FQDN are known without endpoints. Ports without a number or
// out of range are left out; a port's name may be empty. A missing condition "ready" counts as
// ready, as the API says.
absl::Status EndpointSlices::ReadSlice(const Json& object, std::string* name, Slice* slice) {
  *name = K8sText(K8sField(K8sField(object, "metadata"), "name"));
  if (name->empty()) return MalformedAnswer("an EndpointSlice without a name");
  const std::string family = K8sText(K8sField(object, "addressType"));
  if (family != "IPv4" && family != "IPv6") return absl::OkStatus();  // FQDN: of no use here
  slice->ipv6 = family == "IPv6";
  const Json& ports = K8sField(object, "ports");
  if (!ports.is_array() && !ports.is_null()) return MalformedAnswer("ports of " + *name);
  for (const Json& port : ports) {
    const Json& number = K8sField(port, "port");
    if (number.is_number_unsigned() && number.get<uint64_t>() - 1 < 65535)
      slice->ports[K8sText(K8sField(port, "name"))] = static_cast<uint16_t>(number.get<uint64_t>());
  }
  const Json& endpoints = K8sField(object, "endpoints");
  if (!endpoints.is_array() && !endpoints.is_null())
    return MalformedAnswer("endpoints of " + *name);
  if (endpoints.size() > kEndpointsOfSliceMax)
    return absl::ResourceExhaustedError(*name + " has over 1000 endpoints");
  for (const Json& one : endpoints) {
    const Json& addresses = K8sField(one, "addresses");
    if (!addresses.is_array() || addresses.empty()) return MalformedAnswer("addresses of " + *name);
    // The first: others of one endpoint have no meaning yet.
    Endpoint endpoint{.address = K8sText(addresses.front()),
                      .pod = K8sText(K8sField(K8sField(one, "targetRef"), "uid"))};
    if (!IsAddress(endpoint.address, slice->ipv6)) return MalformedAnswer("an address of " + *name);
    const Json& ready = K8sField(K8sField(one, "conditions"), "ready");
    endpoint.ready = !ready.is_boolean() || ready.get<bool>();
    slice->endpoints.push_back(std::move(endpoint));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> EndpointSlices::ReadPage(std::string_view json) {
  return ReadK8sPage(json, kSlices, ReadSlice, &slices_);
}

absl::Status EndpointSlices::ReadEvent(std::string_view json) {
  return ReadK8sEvent(json, kSlices, ReadSlice, &slices_);
}

// The entry's number; else the port of its name, or of the default one; else, if no name was given,
// the slice's only port. Each slice is looked at by itself: during a change of the Service they may
// differ. 0: none.
uint16_t EndpointSlices::PortOf(const Slice& slice) const {
  if (service_.port != 0) return service_.port;
  const auto named =
      slice.ports.find(service_.port_name.empty() ? kDefaultPort : service_.port_name);
  if (named != slice.ports.end()) return named->second;
  return service_.port_name.empty() && slice.ports.size() == 1 ? slice.ports.begin()->second : 0;
}

// The ready addresses of all slices, in order and each once. IPv4 slices come first: a pod that was
// named by one (by its uid) is not named again by its IPv6 address. Without any address the status
// says which of these it is: no slice, no such port, or nothing ready.
absl::StatusOr<std::vector<std::string>> EndpointSlices::Addresses() const {
  if (slices_.known.empty()) {
    return absl::UnavailableError("there is no EndpointSlice of Service " + service_.service +
                                  ": is it in this namespace, and has it a selector?");
  }
  size_t endpoints = 0;
  bool no_port = false;
  std::set<std::string> addresses;
  std::set<std::string> pods;
  for (const bool ipv6 : {false, true}) {
    for (const auto& [name, slice] : slices_.known) {
      if (slice.ipv6 != ipv6) continue;
      endpoints += slice.endpoints.size();
      const uint16_t port = PortOf(slice);
      no_port |= port == 0 && !slice.endpoints.empty();
      if (port == 0) continue;
      for (const Endpoint& one : slice.endpoints) {
        if (!one.ready || (ipv6 && !one.pod.empty() && pods.contains(one.pod))) continue;
        addresses.insert(Address{one.address, port}.ToString());
        if (!ipv6) pods.insert(one.pod);
      }
    }
  }
  if (!addresses.empty()) return std::vector<std::string>(addresses.begin(), addresses.end());
  if (no_port) {
    return absl::UnavailableError("Service " + service_.service + " has no port " +
                                  (service_.port_name.empty()
                                       ? "named grpc, and not just one: name it"
                                       : "named " + service_.port_name));
  }
  return absl::UnavailableError("of " + std::to_string(endpoints) + " endpoints of Service " +
                                service_.service + " none is ready");
}

absl::StatusOr<std::vector<ServiceRecord>> EndpointSlices::Records() const {
  const absl::StatusOr<std::vector<std::string>> addresses = Addresses();
  if (!addresses.ok()) return addresses.status();
  std::vector<ServiceRecord> records;
  for (const std::string& address : *addresses) records.emplace_back().grpc = address;
  return records;
}

}  // namespace kvatlas
