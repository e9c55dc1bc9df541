// In which tier is a block that an engine announced, and does it count? What engines write in `medium`, `locality`,
// `ownership` and `kv_cache_spec_kind`.
//
// *Truth*: media without regard to case; absent is the device. Localities and owners as they are spelled. What nobody
// mapped is refused, never guessed.

#ifndef KVATLAS_INDEXER_ENGINES_ENGINE_TIER_H_
#define KVATLAS_INDEXER_ENGINES_ENGINE_TIER_H_

#include <optional>
#include <string_view>

#include "indexer/base/tier.h"
#include "indexer/engines/engine_event.h"

namespace kvatlas {

//   device    absent, GPU, DEVICE
//   host      CPU, CPU_PINNED, CPU_TIER1
//   disk      CPU_TIER2, DISK, NVME, STORAGE, FS
//   external  EXTERNAL, NETWORK, REMOTE, SHARED, OBJ
std::optional<Tier> TierOfMedium(std::string_view medium);

// Why blocks there, or of that owner, are not this worker's to announce.
std::optional<Refusal> LocalityRefusal(std::string_view locality);
std::optional<Refusal> OwnershipRefusal(std::string_view ownership);

// Attention over the whole sequence: full, MLA, sink.
bool IsMainAttention(std::string_view spec_kind);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_ENGINES_ENGINE_TIER_H_
