// How deep the holders of an index reach into a prompt with their upper tiers alone.

#ifndef KVATLAS_INDEXER_REGISTRY_TIER_REACH_H_
#define KVATLAS_INDEXER_REGISTRY_TIER_REACH_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"

namespace kvatlas {

// How deep a holder reaches into a prompt, by the tiers that its blocks may be in.
struct TierReach {
  uint32_t device = 0;       // in the device tier alone
  uint32_t device_host = 0;  // each block in the device or the host tier
  uint32_t any = 0;          // each block in any tier
  uint32_t device_host_disk = 0;
};

// Finds, for some tiers together, how deep each holder reaches; in an empty `overlaps`.
using FindByTiers = std::function<void(TierMask tiers, std::vector<Overlap>* overlaps)>;

// By holder number; those beyond the size of `reaches` are left out. `seen`: the tiers that any
// block of the index was ever in. Four questions at most, and one where everything is in the device
// tier. Each answer is true by itself; the deeper of two is also true for the wider tiers.
void FindTierReaches(const FindByTiers& find, TierMask seen, std::vector<TierReach>* reaches);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_REGISTRY_TIER_REACH_H_
