// Whether a process should get work now.

#ifndef KVATLAS_INDEXER_TELEMETRY_HEALTH_H_
#define KVATLAS_INDEXER_TELEMETRY_HEALTH_H_

#include <string>

namespace kvatlas {

// A process goes between kLoading and kServing, and then to kStopping, which is final. Only
// kServing is healthy.
enum class Health { kLoading, kServing, kStopping };

// The same with its reason.
struct Readiness {
  bool ready = false;
  std::string reason;  // why not: "recovering from http://10.0.0.2:8090", "2 of 4 workers"
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TELEMETRY_HEALTH_H_
