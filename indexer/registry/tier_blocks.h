// The tiers from which blocks of a prefix have to be fetched.

#ifndef KVATLAS_INDEXER_REGISTRY_TIER_BLOCKS_H_
#define KVATLAS_INDEXER_REGISTRY_TIER_BLOCKS_H_

#include <algorithm>
#include <cstdint>

#include "indexer/registry/tier_reach.h"

namespace kvatlas {

// The blocks of a prefix that are not on the device, by tier.
struct TierBlocks {
  uint32_t host = 0;
  uint32_t disk = 0;
  uint32_t external = 0;
};

// For `blocks` leading blocks. Blocks between two depths are in the tier that the deeper one adds.
inline TierBlocks TierBlocksOf(const TierReach& reach, uint32_t blocks) {
  const uint32_t host = std::min(std::max(reach.device, reach.device_host), blocks);
  const uint32_t disk = std::min(std::max(host, reach.device_host_disk), blocks);
  return {
      .host = host - std::min(reach.device, host), .disk = disk - host, .external = blocks - disk};
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_REGISTRY_TIER_BLOCKS_H_
