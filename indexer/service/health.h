// Should this process get work now?

#ifndef KVATLAS_INDEXER_SERVICE_HEALTH_H_
#define KVATLAS_INDEXER_SERVICE_HEALTH_H_

namespace kvatlas {

// A process goes from kLoading to kServing to kStopping, never back. Only kServing is healthy.
enum class Health { kLoading, kServing, kStopping };

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SERVICE_HEALTH_H_
