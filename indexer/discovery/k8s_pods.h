// Which pods of a namespace have these labels and are ready? The state that a list of pods and then
// a watch of them leave behind; JSON in, names and addresses out.
//
//   k8s-pods:NAMESPACE/SELECTOR      SELECTOR: LABEL=VALUE, several with &; empty: `kEnginePodsLabel`. No namespace: this process's own
//
// *Truth*: a pod is named while it is ready and nothing is ending it. That there is none is an
// answer too: pods go when a Deployment is scaled down, and their caches with them.
// *Bounds*: `kK8sPodsMax`; beyond, RESOURCE_EXHAUSTED. A few hundred bytes are kept of each.
// *Threads*: one at a time; no I/O.

#ifndef KVATLAS_INDEXER_DISCOVERY_K8S_PODS_H_
#define KVATLAS_INDEXER_DISCOVERY_K8S_PODS_H_

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/discovery/k8s_objects.h"

namespace kvatlas {

inline constexpr std::string_view kK8sPodsPrefix = "k8s-pods:";
// By which llm-d's router finds engines (llm-d-router v0.11.0).
inline constexpr char kEnginePodsLabel[] = "llm-d.ai/inference-serving=true";
inline constexpr size_t kK8sPodsMax = 16384;

struct K8sPodsQuery {
  std::string name_space = {};  // empty: this process's own
  std::string selector;         // as the API takes it: "app=vllm,tier=chat"

  // Parses "NAMESPACE/SELECTOR". INVALID_ARGUMENT, naming the text and what was expected.
  static absl::StatusOr<K8sPodsQuery> Parse(std::string_view text);

  friend bool operator==(const K8sPodsQuery&, const K8sPodsQuery&) = default;
};

class K8sPods : public K8sObjects {
 public:
  explicit K8sPods(K8sPodsQuery query) : query_(std::move(query)) {}

  std::string name_space() const override { return query_.name_space; }
  std::string api() const override { return "/api/v1"; }
  std::string resource() const override { return "pods"; }
  std::string selector() const override { return query_.selector; }
  absl::StatusOr<std::string> ReadPage(std::string_view json) override;
  absl::Status ReadEvent(std::string_view json) override;
  const std::string& resource_version() const override { return pods_.resource_version; }
  // `name` is the pod's, `grpc` its address alone.
  absl::StatusOr<std::vector<ServiceRecord>> Records() const override;

 private:
  static absl::Status ReadPod(const nlohmann::json& object, std::string* name,
                              std::string* address);

  const K8sPodsQuery query_;
  K8sItems<std::string> pods_;  // addresses; empty: not ready
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_DISCOVERY_K8S_PODS_H_
