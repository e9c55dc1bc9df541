// Engines that are pods of Kubernetes, by their labels: pods that become ready are listened to,
// pods that go are forgotten.
//
//   k8s:NAMESPACE/SELECTOR[;model=NAME][;http=PORT[|PORT…]][;events=PORT][;replay=PORT][;ranks=N][;OPTION=VALUE…]
//
// As in `engine_pods.h`; other options are those of `--workers` (block_size, type, hybrid, …).
//
//   pods of a watch ─▶ each that is new is asked where its ranks publish ─▶ EngineDirectory::Register, rank by rank
//
// *Truth*: each pod is an instance of the pod's name, with the label `url` of each of its ranks. A
// pod that is not ready, or ends, is no worker; where it comes back, it is a new one. Where it does
// not say where it publishes (`kv_event_sources.h`), that is the port of the entry; one that does
// not answer at all is asked again every `kAskAgainEvery`. Pods of the checkpoint that went while
// the leaf was away are forgotten.
// *Threads*: the directories' own, and one that asks and registers, with up to `kAskedAtOnce` more
// while it asks. *Lifetime*: `registry` outlives it.
// *Cost*: that of a watch (`k8s_source.h`), a look at all pods for each change, and a request to
// each new pod.

#ifndef KVATLAS_INDEXER_ENGINE_DIRECTORY_FOUND_WORKERS_H_
#define KVATLAS_INDEXER_ENGINE_DIRECTORY_FOUND_WORKERS_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/engine_addresses.h"
#include "indexer/base/mutex.h"
#include "indexer/discovery/directory.h"
#include "indexer/discovery/engine_pods.h"
#include "indexer/discovery/service_record.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/kv_events/engine_registration.h"
#include "indexer/kv_events/kv_event_sources.h"

namespace kvatlas {

// Answers of a pod's servers about their events, by port.
using SaidSources = std::map<uint16_t, KvEventSources>;

struct PodWorkers {
  EnginePods pods;
  EngineRegistration of_all;

  // `of_all` has what each worker has unless the entry says otherwise. INVALID_ARGUMENT, naming the
  // text.
  static absl::StatusOr<PodWorkers> Parse(std::string_view entry, const EngineRegistration& of_all);

  // The registrations of a pod; `name` and `grpc`, its address, are read.
  std::vector<EngineRegistration> Of(const ServiceRecord& pod, const SaidSources& said = {}) const;
};

class FoundWorkers {
 public:
  ~FoundWorkers();

  static constexpr Duration kAskAgainEvery = std::chrono::seconds(5);
  static constexpr size_t kAskedAtOnce = 8;

  // Watches at once. Pods outside of `addresses` are not asked, and refused by the registry. `k8s`:
  // for tests.
  static absl::StatusOr<std::unique_ptr<FoundWorkers>> Start(const std::vector<PodWorkers>& pods,
                                                             EngineDirectory* registry,
                                                             const EngineAddresses& addresses,
                                                             const K8sOptions& k8s = {});

 private:
  struct Place;

  FoundWorkers(EngineDirectory* registry, const EngineAddresses& addresses);
  void Run();
  // Asks those of a place that have not answered, and registers what is new. True: all of them
  // have.
  bool LookAt(Place* place);

  EngineDirectory* const registry_;
  const EngineAddresses addresses_;
  std::vector<std::unique_ptr<Place>> places_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool news_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_ENGINE_DIRECTORY_FOUND_WORKERS_H_
