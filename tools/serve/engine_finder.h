// Overlaps of the leaf in this process, and beside what it knows every engine of which it heard nothing.
//
// *Truth*: the leaf's answer (`finders/in_process_finders.h`), with the load from an engine's metrics where its events say none; and
// every engine of the model that answers over HTTP and of which no event was heard: without a block, `stale`. So an engine without
// events gets requests by load. Further names of a model are asked as the model.
// *Threads*: as `OverlapFinder`; of the own leaf the callback runs before the call returns.
// *Cost*: the leaf's answer; labels are joined again when the leaf's or the engines change.

#ifndef KVATLAS_TOOLS_SERVE_ENGINE_FINDER_H_
#define KVATLAS_TOOLS_SERVE_ENGINE_FINDER_H_

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "frontend/route/finders.h"
#include "indexer/base/domain.h"
#include "indexer/base/mutex.h"
#include "tools/serve/engine_fleet.h"

namespace kvatlas {

class EngineFinder : public OverlapFinder {
 public:
  // `own`: the address that means this process's leaf; `finder` asks it, and others. `view` may return null. Everything outlives
  // the finder.
  EngineFinder(std::string own, OverlapFinder* finder,
               std::function<std::shared_ptr<const EngineView>()> view);

  void FindOverlaps(const std::string& leaf_address, const OverlapQuestion& question,
                    Duration deadline, Callback callback) override;

 private:
  struct Joined {
    std::shared_ptr<const LabelsByWorker> of_leaf;
    std::shared_ptr<const EngineView> view;
    std::shared_ptr<const LabelsByWorker> labels;
  };

  void AddEngines(const Domain& domain, const EngineView::Engines& engines,
                  const std::shared_ptr<const EngineView>& view, WorkersAnswer* answer);
  std::shared_ptr<const LabelsByWorker> Join(const Domain& domain,
                                             const EngineView::Engines& engines,
                                             const std::shared_ptr<const EngineView>& view,
                                             const std::shared_ptr<const LabelsByWorker>& of_leaf);

  const std::string own_;
  OverlapFinder* const finder_;
  const std::function<std::shared_ptr<const EngineView>()> view_;
  Mutex mutex_;
  std::map<Domain, Joined> joined_ ABSL_GUARDED_BY(mutex_);
};
}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_SERVE_ENGINE_FINDER_H_
