// In which tiers do the blocks of a prefix have to be fetched from?

#ifndef KVATLAS_INDEXER_REGISTRY_TIER_BLOCKS_H_
#define KVATLAS_INDEXER_REGISTRY_TIER_BLOCKS_H_

#include <algorithm>
#include <cstdint>

#include "indexer/registry/tier_reach.h"

namespace kvatlas {

// Of a prefix's blocks, those that are not on the device.
struct TierBlocks {
  uint32_t host = 0;
  uint32_t disk = 0;
  uint32_t external = 0;
};

// Of `blocks` leading blocks. What lies between two depths is in the tier that the deeper one has
// more.
inline TierBlocks TierBlocksOf(const TierReach& reach, uint32_t blocks) {
  const uint32_t host = std::min(std::max(reach.device, reach.device_host), blocks);
  const uint32_t disk = std::min(std::max(host, reach.device_host_disk), blocks);
  return {
      .host = host - std::min(reach.device, host), .disk = disk - host, .external = blocks - disk};
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_REGISTRY_TIER_BLOCKS_H_
