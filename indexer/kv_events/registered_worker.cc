// The registration's texts were checked by `CheckRegistration`: one that does not parse counts as
// not said. A tier of a shared store is no silent tier of the worker: what leaves the store is in
// doubt there.

#include "indexer/kv_events/registered_worker.h"

#include <optional>

#include "indexer/base/tier.h"

namespace kvatlas {

void SetRegistered(const EngineRegistration& registration, EngineWorkerOptions* worker) {
  worker->name = registration.instance;
  worker->lora_name = registration.lora_name;
  worker->additional_salt = registration.additional_salt;
  worker->image_token = registration.image_token;
  worker->counts_copies = registration.counts_copies;
  worker->drops_last = ParseEagleDrop(registration.eagle_drop).value_or(std::nullopt);
  worker->chunk_tokens = registration.chunk_tokens;
  worker->window_tokens = registration.window_tokens;
  worker->hybrid = registration.hybrid;
  worker->offload_chunk_tokens = registration.offload_chunk_tokens;
  worker->silent_blocks = registration.silent_blocks;
  worker->silent_time = std::chrono::seconds(registration.silent_seconds);
  worker->shares_store = !registration.store.empty();
  worker->store_tiers = StoreTiersOf(registration);
  worker->silent_tiers =
      ParseSilentTiers(registration.silent_tiers).value_or(TierMask()) & ~worker->store_tiers;
}

}  // namespace kvatlas
