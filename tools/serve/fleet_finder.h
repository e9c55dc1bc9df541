// Overlaps of the leaf in this process, by a call instead of a socket; of other leaves by the finder that is given.
//
// *Truth*: what the leaf would answer over gRPC, and beside it every engine of the model that is known to be there and of which no
// event was heard: without a block, `stale`, with the load that its metrics say. So an engine without events gets requests by load.
// *Threads*: as `OverlapFinder`; of the own leaf the callback runs before the call returns.
// *Cost*: the index's walk, and about 100 ns a worker; labels are shared until one changes.

#ifndef KVATLAS_TOOLS_SERVE_FLEET_FINDER_H_
#define KVATLAS_TOOLS_SERVE_FLEET_FINDER_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "frontend/route/finders.h"
#include "indexer/base/domain.h"
#include "indexer/base/mutex.h"
#include "indexer/holders/holder_registry.h"
#include "tools/serve/fleet.h"

namespace kvatlas {

class FleetFinder : public OverlapFinder {
 public:
  // `own`: the address that means this process. `view` may return null. Everything outlives the finder; `others` may be null.
  FleetFinder(std::string own, const HolderRegistry* registry,
              std::function<std::shared_ptr<const FleetView>()> view, OverlapFinder* others);

  void FindOverlaps(const std::string& leaf_address, const OverlapQuestion& question,
                    Duration deadline, Callback callback) override;

 private:
  struct KnownLabels {
    uint64_t version = 0;
    std::shared_ptr<const FleetView> view;
    std::shared_ptr<const LabelsByWorker> labels;
  };

  absl::StatusOr<WorkersAnswer> Find(const OverlapQuestion& question);
  std::shared_ptr<const LabelsByWorker> LabelsOf(const Domain& domain, const OverlapAnswer& answer,
                                                 const std::shared_ptr<const FleetView>& view,
                                                 const FleetView::Engines* engines);

  const std::string own_;
  const HolderRegistry* const registry_;
  const std::function<std::shared_ptr<const FleetView>()> view_;
  OverlapFinder* const others_;
  Mutex mutex_;
  std::map<Domain, KnownLabels> labels_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_SERVE_FLEET_FINDER_H_
