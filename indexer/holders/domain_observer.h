// What do the holders of one domain really hold, and how busy are they? Told change by change; coverage
// lives on it.
//
// *Truth*: what a masked holder has counts as gone: it is told as lost when the lease runs out and as
// gained when the holder resumes. So the sum of what was told is what queries can see.
// *Threads*: called by whoever writes, in order per holder, with locks held: it must be quick and must
// not call the registry or the index.

#ifndef KVATLAS_INDEXER_HOLDERS_DOMAIN_OBSERVER_H_
#define KVATLAS_INDEXER_HOLDERS_DOMAIN_OBSERVER_H_

#include <optional>

#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/tier.h"

namespace kvatlas {

class DomainObserver {
 public:
  virtual ~DomainObserver() = default;
  // `holder` had the block in tiers `before` and has it in `after`; they differ. `run` is the event that stored
  // it, in which its neighbours are; null when it was not one. Valid during the call.
  virtual void OnChanged(HolderIndex holder, SequenceHash block, Position position, TierMask before,
                         TierMask after, const Stored* run) = 0;
  // The holder's load as of now; nothing: it is masked or gone.
  virtual void OnLoad(HolderIndex holder, const std::optional<Load>& load) = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_HOLDERS_DOMAIN_OBSERVER_H_
