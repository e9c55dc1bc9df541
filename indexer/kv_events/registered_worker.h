// From a registration to the options by which its engine's events are read.
//
// *Place*: a leaf and a relay make their workers by it. *Threads*: a pure function.

#ifndef KVATLAS_INDEXER_KV_EVENTS_REGISTERED_WORKER_H_
#define KVATLAS_INDEXER_KV_EVENTS_REGISTERED_WORKER_H_

#include "indexer/kv_events/engine_registration.h"
#include "indexer/kv_events/engine_worker.h"

namespace kvatlas {

// Sets the name and what the registration says of the engine's blocks; not the block size, which
// may have to be learned.
void SetRegistered(const EngineRegistration& registration, EngineWorkerOptions* worker);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_REGISTERED_WORKER_H_
