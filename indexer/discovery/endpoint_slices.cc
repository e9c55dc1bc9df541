#include "indexer/discovery/endpoint_slices.h"

#include <arpa/inet.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "indexer/service/address.h"

namespace kvatlas {
namespace {

using Json = nlohmann::json;

constexpr int kGone = 410;
const char kDefaultPort[] = "grpc";

absl::Status Malformed(std::string_view what) {
  return absl::InvalidArgumentError("the API server's answer is malformed: " + std::string(what));
}

// A field of an object; null where there is none, or `object` is none.
const Json& Field(const Json& object, const char* name) {
  static const Json kNull;
  if (!object.is_object()) return kNull;
  const auto found = object.find(name);
  return found == object.end() ? kNull : *found;
}

std::string Text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : std::string();
}

bool IsAddress(const std::string& text, bool ipv6) {
  in6_addr scratch;
  return inet_pton(ipv6 ? AF_INET6 : AF_INET, text.c_str(), &scratch) == 1;
}

// A Status object: what a failed watch says.
absl::Status ReadError(const Json& status) {
  const Json& code = Field(status, "code");
  const std::string message = Text(Field(status, "message"));
  if (code.is_number_integer() && code.get<int64_t>() == kGone)
    return absl::OutOfRangeError("410 Gone: " + message);
  return absl::UnavailableError("the watch ended: " + message);
}

}  // namespace

absl::Status EndpointSlices::ReadSlice(const Json& object, std::string* name, Slice* slice) {
  *name = Text(Field(Field(object, "metadata"), "name"));
  if (name->empty()) return Malformed("an EndpointSlice without a name");
  const std::string family = Text(Field(object, "addressType"));
  if (family != "IPv4" && family != "IPv6") return absl::OkStatus();  // FQDN: of no use here
  slice->ipv6 = family == "IPv6";
  const Json& ports = Field(object, "ports");
  if (!ports.is_array() && !ports.is_null()) return Malformed("ports of " + *name);
  for (const Json& port : ports) {
    const Json& number = Field(port, "port");
    if (number.is_number_unsigned() && number.get<uint64_t>() - 1 < 65535)
      slice->ports[Text(Field(port, "name"))] = static_cast<uint16_t>(number.get<uint64_t>());
  }
  const Json& endpoints = Field(object, "endpoints");
  if (!endpoints.is_array() && !endpoints.is_null()) return Malformed("endpoints of " + *name);
  if (endpoints.size() > kEndpointsOfSliceMax)
    return absl::ResourceExhaustedError(*name + " has over 1000 endpoints");
  for (const Json& one : endpoints) {
    const Json& addresses = Field(one, "addresses");
    if (!addresses.is_array() || addresses.empty()) return Malformed("addresses of " + *name);
    // The first: others of one endpoint have no meaning yet.
    Endpoint endpoint{.address = Text(addresses.front()),
                      .pod = Text(Field(Field(one, "targetRef"), "uid"))};
    if (!IsAddress(endpoint.address, slice->ipv6)) return Malformed("an address of " + *name);
    const Json& ready = Field(Field(one, "conditions"), "ready");
    endpoint.ready = !ready.is_boolean() || ready.get<bool>();
    slice->endpoints.push_back(std::move(endpoint));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> EndpointSlices::ReadPage(std::string_view json) {
  const auto fail = [this](absl::Status status) {
    pages_.clear();
    return status;
  };
  const Json list = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  const Json& items = Field(list, "items");
  const std::string version = Text(Field(Field(list, "metadata"), "resourceVersion"));
  if ((!items.is_array() && !items.is_null()) || version.empty())
    return fail(Malformed("no list of EndpointSlices"));
  for (const Json& item : items) {
    std::string name;
    Slice slice;
    if (absl::Status bad = ReadSlice(item, &name, &slice); !bad.ok()) return fail(bad);
    pages_[name] = std::move(slice);
    if (pages_.size() > kEndpointSlicesMax)
      return fail(absl::ResourceExhaustedError("over 4096 EndpointSlices of one Service"));
  }
  std::string next = Text(Field(Field(list, "metadata"), "continue"));
  if (next.empty()) {
    slices_ = std::exchange(pages_, {});
    resource_version_ = version;
  }
  return next;
}

absl::Status EndpointSlices::ReadEvent(std::string_view json) {
  const Json event = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  const std::string type = Text(Field(event, "type"));
  const Json& object = Field(event, "object");
  if (type == "ERROR") return ReadError(object);
  const std::string version = Text(Field(Field(object, "metadata"), "resourceVersion"));
  if (version.empty()) return Malformed("an event without a resourceVersion");
  if (type != "BOOKMARK") {
    std::string name;
    Slice slice;
    if (absl::Status bad = ReadSlice(object, &name, &slice); !bad.ok()) return bad;
    if (type == "DELETED") {
      slices_.erase(name);
    } else if (type != "ADDED" && type != "MODIFIED") {
      return Malformed("an event of type '" + type + "'");
    } else if (slices_.size() >= kEndpointSlicesMax && !slices_.contains(name)) {
      return absl::ResourceExhaustedError("over 4096 EndpointSlices of one Service");
    } else {
      slices_[name] = std::move(slice);
    }
  }
  resource_version_ = version;
  return absl::OkStatus();
}

uint16_t EndpointSlices::PortOf(const Slice& slice) const {
  if (service_.port != 0) return service_.port;
  const auto named =
      slice.ports.find(service_.port_name.empty() ? kDefaultPort : service_.port_name);
  if (named != slice.ports.end()) return named->second;
  return service_.port_name.empty() && slice.ports.size() == 1 ? slice.ports.begin()->second : 0;
}

absl::StatusOr<std::vector<std::string>> EndpointSlices::Addresses() const {
  if (slices_.empty()) {
    return absl::UnavailableError("there is no EndpointSlice of Service " + service_.service +
                                  ": is it in this namespace, and has it a selector?");
  }
  size_t endpoints = 0;
  bool no_port = false;
  std::set<std::string> addresses;
  std::set<std::string> pods;
  for (const bool ipv6 : {false, true}) {
    for (const auto& [name, slice] : slices_) {
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

}  // namespace kvatlas
