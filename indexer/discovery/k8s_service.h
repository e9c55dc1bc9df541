// Which Service of Kubernetes does an entry of a list name, and which of its ports?
//
//   k8s:SERVICE[.NAMESPACE][:PORT]
//
//   k8s:leaf-a                  in this process's own namespace; the port named "grpc", or the only one
//   k8s:leaf-a.llm:7410         in another; this port of its pods, whatever the Service says
//   k8s:vllm.llm:http           the pods' port that the Service's port of that name leads to
//
// *Threads*: plain values.

#ifndef KVATLAS_INDEXER_DISCOVERY_K8S_SERVICE_H_
#define KVATLAS_INDEXER_DISCOVERY_K8S_SERVICE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace kvatlas {

inline constexpr std::string_view kK8sPrefix = "k8s:";

struct K8sService {
  std::string service;
  std::string name_space = {};  // empty: this process's own
  uint16_t port = 0;            // 0: as `port_name` says
  std::string port_name = {};   // empty: "grpc", or the only one

  // INVALID_ARGUMENT, naming the text and what was expected.
  static absl::StatusOr<K8sService> Parse(std::string_view text);

  friend bool operator==(const K8sService&, const K8sService&) = default;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_DISCOVERY_K8S_SERVICE_H_
