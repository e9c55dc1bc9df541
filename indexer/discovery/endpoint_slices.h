// Which addresses does a Service have, by its EndpointSlices? The state that a list and then a
// watch of them leave behind; JSON in, addresses out.
//
//   list, page by page ──▶ ReadPage … ─╮
//                                      ├─▶ the slices, and the resource version to watch from ─▶ Addresses
//   watch, line by line ─▶ ReadEvent ──╯
//
// *Truth*: an address is in the answer when a slice says that it is ready, or says nothing of it;
// what terminates is not ready, unless the Service publishes such addresses. During a change an
// endpoint may stand in two slices: one that is ready there is ready. If a pod has addresses of
// both families, the IPv4 one counts.
// *Bounds*: `kEndpointSlicesMax` slices of `kEndpointsOfSliceMax` endpoints; beyond,
// RESOURCE_EXHAUSTED. What has another form than the API's is INVALID_ARGUMENT, and changes
// nothing.
// *Threads*: one at a time; no I/O.

#ifndef KVATLAS_INDEXER_DISCOVERY_ENDPOINT_SLICES_H_
#define KVATLAS_INDEXER_DISCOVERY_ENDPOINT_SLICES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/discovery/k8s_objects.h"
#include "indexer/discovery/k8s_service.h"

namespace kvatlas {

inline constexpr size_t kEndpointSlicesMax = 4096;
inline constexpr size_t kEndpointsOfSliceMax = 1000;  // which the API allows

class EndpointSlices : public K8sObjects {
 public:
  explicit EndpointSlices(K8sService service) : service_(std::move(service)) {}

  std::string name_space() const override { return service_.name_space; }
  std::string api() const override { return "/apis/discovery.k8s.io/v1"; }
  std::string resource() const override { return "endpointslices"; }
  std::string selector() const override { return "kubernetes.io/service-name=" + service_.service; }
  absl::StatusOr<std::string> ReadPage(std::string_view json) override;
  absl::Status ReadEvent(std::string_view json) override;
  const std::string& resource_version() const override { return slices_.resource_version; }
  // An address each, and nothing else.
  absl::StatusOr<std::vector<ServiceRecord>> Records() const override;

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

  static absl::Status ReadSlice(const nlohmann::json& object, std::string* name, Slice* slice);
  // 0: none of these.
  uint16_t PortOf(const Slice& slice) const;

  const K8sService service_;
  K8sItems<Slice> slices_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_DISCOVERY_ENDPOINT_SLICES_H_
