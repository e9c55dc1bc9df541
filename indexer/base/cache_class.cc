#include "indexer/base/cache_class.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <numeric>

namespace kvatlas {

// The seed is "side" in ASCII. Part of the wire format: names made of it are compared between
// processes.
uint64_t SideTag(const CacheClass& side) {
  const uint32_t words[3] = {static_cast<uint32_t>(side.kind), side.block_size, side.window_tokens};
  return XXH3_64bits_withSeed(words, sizeof(words), 0x73696465);
}

uint32_t EndsEvery(const CacheLayout& layout, const CacheClass& of) {
  if (of.kind != CacheKind::kState || !layout.has_main || layout.main.drops_last ||
      layout.main.block_size == 0)
    return of.block_size;
  const bool states_alone =
      std::all_of(layout.sides.begin(), layout.sides.end(), [&](const CacheClass& side) {
        return side.kind == CacheKind::kState && !side.drops_last &&
               side.block_size % layout.main.block_size == 0;
      });
  return states_alone ? layout.main.block_size : of.block_size;
}

// `all` is what some tier has; of it only whole chunks behind the device's blocks can be loaded.
uint32_t LoadableBlocks(const CacheLayout& layout, uint32_t block_size, uint32_t device,
                        uint32_t all) {
  const uint32_t chunk = block_size == 0 ? 0 : layout.main.window_tokens / block_size;
  if (chunk <= 1 || all <= device) return all;
  const uint32_t whole = all - all % chunk;
  // Nor is less than a chunk, where the device has a part of the last one
  // (`_lookup_complete_chunks` there).
  if (whole < device + chunk) return device;
  // Side classes accept some lengths alone: where `all` is one of them, a shorter one need not be.
  return std::max(device, layout.sides.empty() || whole == all ? whole : 0);
}

// Without a main class, side classes alone decide, so the multiple begins at 1.
uint32_t AlignmentOf(const CacheLayout& layout) {
  uint64_t alignment = layout.has_main ? layout.main.block_size : 1;
  for (const CacheClass& side : layout.sides) {
    const uint32_t every = EndsEvery(layout, side);
    if (every != 0) alignment = std::lcm(alignment, uint64_t{every});
    if (alignment > UINT32_MAX) return 0;
  }
  return static_cast<uint32_t>(alignment);
}

}  // namespace kvatlas
