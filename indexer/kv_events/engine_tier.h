// The tier of a block that an engine announced, and whether the block counts, from `medium`,
// `locality`, `ownership` and `kv_cache_spec_kind`.
//
// *Truth*: media without regard to case; absent is the device. Localities and owners as they are
// spelled. A text without a mapping is refused, never guessed.

#ifndef KVATLAS_INDEXER_KV_EVENTS_ENGINE_TIER_H_
#define KVATLAS_INDEXER_KV_EVENTS_ENGINE_TIER_H_

#include <cstdint>
#include <optional>
#include <string_view>

#include "indexer/base/cache_class.h"
#include "indexer/base/tier.h"
#include "indexer/kv_events/engine_event.h"

namespace kvatlas {

//   device    absent, GPU, DEVICE
//   host      CPU, CPU_PINNED, CPU_TIER1
//   disk      CPU_TIER2, DISK, NVME, STORAGE, FS
//   external  EXTERNAL, NETWORK, REMOTE, SHARED, OBJ
std::optional<Tier> TierOfMedium(std::string_view medium);

// Whether another store there is a copy more, which will be removed by itself: in vLLM's media. Its
// connectors announce each for itself, and a chunk of blocks again those that it shares with others
// (0.33, offloading/events.py asks consumers to count); SGLang's host pool has a page once.
bool CountsCopies(std::string_view medium);

// Why blocks there, or of that owner, are not this worker's to announce.
std::optional<Refusal> LocalityRefusal(std::string_view locality);
std::optional<Refusal> OwnershipRefusal(std::string_view ownership);

// Attention over the whole sequence: full, MLA, sink.
bool IsMainAttention(std::string_view spec_kind);

// Tokens of a window that only a prefix held from its start satisfies: of a window or a chunk whose
// size is not known.
inline constexpr uint32_t kWholePrefix = UINT32_MAX;

// The side class (`cache_class.h`) of blocks of this kind. `window`: as the engine says it, the
// next token included.
// `chunk_tokens`: of chunked local attention, which no event says; 0: unknown. Nothing: the engine
// does not look such blocks up (cross attention, encoders), or the kind is not known.
std::optional<CacheClass> SideClassOf(std::string_view spec_kind, std::optional<uint32_t> window,
                                      uint32_t block_size, uint32_t chunk_tokens);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_KV_EVENTS_ENGINE_TIER_H_
