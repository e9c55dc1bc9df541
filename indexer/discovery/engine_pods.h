// Which pods of Kubernetes are engines, and at which ports? The entry that a leaf's --workers and
// `kvatlas serve --engine` share.
//
//   k8s:NAMESPACE/SELECTOR[;http=PORT[|PORT…]][;events=PORT][;replay=PORT][;ranks=N][;OPTION…]
//
//   k8s:llm/app=vllm                           servers at port 8000
//   k8s:llm/app=vllm&tier=chat;http=8000|8001  two data-parallel servers in a pod: rank r at the r-th port
//   k8s:llm;ranks=4;replay=5657                llm-d's own label; one server of four ranks, which replays
//
// SELECTOR and NAMESPACE are those of `k8s_pods.h`. Ports of events and of replays go up by the
// rank, as engines count them. Without `events` they are where the engine says (vLLM's
// /kv_event_sources), else at 5557.
//
// *Threads*: plain values.

#ifndef KVATLAS_INDEXER_DISCOVERY_ENGINE_PODS_H_
#define KVATLAS_INDEXER_DISCOVERY_ENGINE_PODS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace kvatlas {

struct EnginePods {
  static constexpr uint16_t kEventsPort = 5557;

  std::string place;                    // "k8s-pods:NAMESPACE/SELECTOR", for a directory
  std::vector<uint16_t> http = {8000};  // by rank; one: of all ranks
  uint16_t events = 0;                  // of rank 0; 0: not said
  uint16_t replay = 0;                  // likewise
  uint32_t ranks = 0;                   // 0: not said, of one port
  std::vector<std::string> options;     // the others, as they are

  static bool IsEntry(std::string_view entry) { return entry.starts_with("k8s:"); }
  // INVALID_ARGUMENT, naming what is wrong.
  static absl::StatusOr<EnginePods> Parse(std::string_view entry);

  friend bool operator==(const EnginePods&, const EnginePods&) = default;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_DISCOVERY_ENGINE_PODS_H_
