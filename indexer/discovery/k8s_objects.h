// Objects of Kubernetes that a source lists and watches at the API server: of one kind, by a label
// selector, and the records that they amount to.
//
// *Threads*: one at a time; no I/O.

#ifndef KVATLAS_INDEXER_DISCOVERY_K8S_OBJECTS_H_
#define KVATLAS_INDEXER_DISCOVERY_K8S_OBJECTS_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/discovery/service_record.h"

namespace kvatlas {

// The objects by their names, as a list, page by page, and then a watch leave them (`ReadK8sPage`,
// `ReadK8sEvent` of k8s_json.h).
template <typename Item>
struct K8sItems {
  std::string resource_version;
  std::map<std::string, Item> known;
  std::map<std::string, Item> pages;  // of a list that is not whole yet
};

class K8sObjects {
 public:
  virtual ~K8sObjects() = default;

  virtual std::string name_space() const = 0;  // empty: this process's own
  virtual std::string api() const = 0;         // "/apis/discovery.k8s.io/v1"
  virtual std::string resource() const = 0;    // "endpointslices"
  virtual std::string selector() const = 0;    // of labels

  // A page of a list: what to ask for the next one, empty after the last, with which the new list
  // takes the place of all that was known. A page that fails forgets those before it.
  // INVALID_ARGUMENT: another form than the API's. RESOURCE_EXHAUSTED: too many.
  virtual absl::StatusOr<std::string> ReadPage(std::string_view json) = 0;
  // A line of a watch. OUT_OF_RANGE: the watch's resource version is too old, so list again.
  virtual absl::Status ReadEvent(std::string_view json) = 0;
  // To watch from; empty before the first whole list.
  virtual const std::string& resource_version() const = 0;

  // In order; their kind is the caller's to fill in. UNAVAILABLE says why nothing can be said.
  virtual absl::StatusOr<std::vector<ServiceRecord>> Records() const = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_DISCOVERY_K8S_OBJECTS_H_
