// Which addresses does a Service have, by its EndpointSlices? The state that a list and then a watch of them leave behind; JSON
// in, addresses out.
//
//   list, page by page ──▶ ReadPage … ─╮
//                                      ├─▶ the slices, and the resource version to watch from ─▶ Addresses
//   watch, line by line ─▶ ReadEvent ──╯
//
// *Truth*: an address is in the answer when a slice says that it is ready, or says nothing of it; what terminates is not ready, unless
// the Service publishes such addresses. During a change an endpoint may stand in two slices: one that is ready there is ready. Of a
// pod with addresses of both families the IPv4 one counts.
// *Bounds*: `kEndpointSlicesMax` slices of `kEndpointsOfSliceMax` endpoints; beyond, RESOURCE_EXHAUSTED. What has another form
// than the API's is INVALID_ARGUMENT, and changes nothing.
// *Threads*: one at a time; no I/O.

#ifndef KVATLAS_INDEXER_DISCOVERY_ENDPOINT_SLICES_H_
#define KVATLAS_INDEXER_DISCOVERY_ENDPOINT_SLICES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/discovery/k8s_service.h"

namespace kvatlas {

inline constexpr size_t kEndpointSlicesMax = 4096;
inline constexpr size_t kEndpointsOfSliceMax = 1000;  // which the API allows

class EndpointSlices {
 public:
  explicit EndpointSlices(K8sService service) : service_(std::move(service)) {}

  // A page of a list: what to ask for the next one, empty after the last, with which the new list takes the place of all that
  // was known. A page that fails forgets those before it.
  absl::StatusOr<std::string> ReadPage(std::string_view json);

  // A line of a watch. OUT_OF_RANGE: the watch's resource version is too old, so list again.
  absl::Status ReadEvent(std::string_view json);

  // To watch from; empty before the first whole list.
  const std::string& resource_version() const { return resource_version_; }

  // HOST:PORT, in order. UNAVAILABLE says why there are none.
  absl::StatusOr<std::vector<std::string>> Addresses() const;

 private:
  struct Endpoint {
    std::string address;
    std::string pod;  // its uid; empty: not said
    bool ready = false;
  };
  struct Slice {
    bool ipv6 = false;
    std::map<std::string, uint16_t> ports;  // by name
    std::vector<Endpoint> endpoints;
  };
  using Slices = std::map<std::string, Slice>;  // by name

  static absl::Status ReadSlice(const nlohmann::json& object, std::string* name, Slice* slice);
  // 0: none of these.
  uint16_t PortOf(const Slice& slice) const;

  const K8sService service_;
  std::string resource_version_;
  Slices slices_;
  Slices pages_;  // of a list that is not whole yet
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_DISCOVERY_ENDPOINT_SLICES_H_
