#include "frontend/doors/ext_proc/endpoint_learner.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

struct EndpointLearner::Seen {
  explicit Seen(Endpoints* e) : endpoints(e) {}

  void Learn(const std::shared_ptr<const LabelsByWorker>& labels) {
    if (labels == nullptr) return;
    {
      MutexLock lock(&mutex);
      if (sets.size() >= kLabelsSeenMax) sets.clear();
      if (!sets.insert(labels).second) return;
    }
    for (const auto& [worker, of_worker] : *labels) {
      const auto url = of_worker.find(kUrlLabel);
      if (url != of_worker.end()) endpoints->Learn(worker, url->second);
    }
  }

  Endpoints* const endpoints;
  Mutex mutex;
  // Held, so that no other set gets the address of one that was seen.
  absl::flat_hash_set<std::shared_ptr<const LabelsByWorker>> sets ABSL_GUARDED_BY(mutex);
};

EndpointLearner::EndpointLearner(OverlapFinder* finder, Endpoints* endpoints)
    : finder_(finder), seen_(std::make_shared<Seen>(endpoints)) {}

void EndpointLearner::FindOverlaps(const std::string& leaf_address, const OverlapQuestion& question,
                                   Duration deadline, Callback callback) {
  finder_->FindOverlaps(
      leaf_address, question, deadline,
      [seen = seen_, callback = std::move(callback)](absl::StatusOr<WorkersAnswer> answer) {
        if (answer.ok()) seen->Learn(answer->labels);
        callback(std::move(answer));
      });
}

}  // namespace kvatlas
