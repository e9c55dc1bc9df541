// Observes what the holders of one domain really hold and how busy they are: gets each event's
// changes, run by run, in order. Coverage is built on it.
//
// *Truth*: blocks of a masked holder count as gone: they are reported as lost when the lease runs
// out and as gained when the holder resumes. So the sum of all reports is what queries can see.
// *Threads*: called by the thread that writes, in order per holder, with the holder's lock held and
// none of the index; events that came together are reported when all are applied. It must be quick
// and must not call the registry.

#ifndef KVATLAS_INDEXER_REGISTRY_DOMAIN_OBSERVER_H_
#define KVATLAS_INDEXER_REGISTRY_DOMAIN_OBSERVER_H_

#include <optional>

#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/index/change_log.h"

namespace kvatlas {

class DomainObserver {
 public:
  virtual ~DomainObserver() = default;
  // The changes of an event. `stored`: the event, if it was a stored one; the runs are parts of it.
  // Valid during the call.
  virtual void OnChanged(HolderIndex holder, const ChangeLog::Part& changes,
                         const Stored* stored) = 0;
  // The holder's load as of now; nothing: it is masked or gone.
  virtual void OnLoad(HolderIndex holder, const std::optional<Load>& load) = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_REGISTRY_DOMAIN_OBSERVER_H_
