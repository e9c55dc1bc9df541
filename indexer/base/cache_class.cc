#include "indexer/base/cache_class.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <numeric>

namespace kvatlas {

uint64_t SideTag(const CacheClass& side) {
  const uint32_t words[3] = {static_cast<uint32_t>(side.kind), side.block_size, side.window_tokens};
  return XXH3_64bits_withSeed(words, sizeof(words), 0x73696465);
}

uint32_t AlignmentOf(const CacheLayout& layout) {
  uint64_t alignment = layout.has_main ? layout.main.block_size : 1;
  for (const CacheClass& side : layout.sides) {
    if (side.block_size != 0) alignment = std::lcm(alignment, uint64_t{side.block_size});
    if (alignment > UINT32_MAX) return 0;
  }
  return static_cast<uint32_t>(alignment);
}

}  // namespace kvatlas
