// From the device tier down, a question for each wider set of tiers, as far down as `seen` says
// that there are blocks. Each question also writes the wider depths, so that holders which later
// questions do not name keep what is true. The last question asks for all tiers.

#include "indexer/registry/tier_reach.h"

#include <algorithm>

#include "indexer/base/ids.h"

namespace kvatlas {

void FindTierReaches(const FindByTiers& find, TierMask seen, std::vector<TierReach>* reaches) {
  static thread_local std::vector<Overlap> overlaps;
  constexpr TierMask kDeviceHost = TierMask(Tier::kDevice) | TierMask(Tier::kHost);
  constexpr TierMask kDeviceHostDisk = kDeviceHost | TierMask(Tier::kDisk);
  const auto ask = [&](TierMask tiers, const auto& take) {
    overlaps.clear();
    find(tiers, &overlaps);
    for (const Overlap& overlap : overlaps)
      if (Raw(overlap.holder) < reaches->size())
        take(&(*reaches)[Raw(overlap.holder)], overlap.blocks);
  };
  const bool below_disk = !(seen & ~kDeviceHostDisk).empty();
  const bool below_host = !(seen & ~kDeviceHost).empty();
  const bool below_device = !(seen & ~TierMask(Tier::kDevice)).empty();
  ask(below_device ? TierMask(Tier::kDevice) : TierMask::All(),
      [](TierReach* reach, uint32_t depth) {
        *reach = {.device = depth, .device_host = depth, .any = depth, .device_host_disk = depth};
      });
  if (below_device)
    ask(below_host ? kDeviceHost : TierMask::All(), [](TierReach* reach, uint32_t depth) {
      reach->device_host = reach->device_host_disk = reach->any = std::max(depth, reach->device);
    });
  if (below_host)
    ask(below_disk ? kDeviceHostDisk : TierMask::All(), [](TierReach* reach, uint32_t depth) {
      reach->device_host_disk = reach->any = std::max(depth, reach->device_host);
    });
  if (below_disk)
    ask(TierMask::All(), [](TierReach* reach, uint32_t depth) {
      reach->any = std::max(depth, reach->device_host_disk);
    });
}

}  // namespace kvatlas
