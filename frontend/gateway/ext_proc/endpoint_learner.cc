// Passes questions to the next finder and learns endpoints from the labels of its answers. All
// state is in `Kept`, shared with the callbacks under way, so that an answer may come after the
// learner has gone.

#include "frontend/gateway/ext_proc/endpoint_learner.h"

#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "frontend/router/policy/worker_fit.h"
#include "indexer/base/domain.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

struct EndpointLearner::Kept {
  // The last labels of one leaf about one domain. Leaves' clients share one label table between
  // answers that are equal, so comparing pointers finds "nothing changed" without reading the
  // table.
  struct Answer {
    std::shared_ptr<const LabelsByWorker> labels;  // null: none
    bool learnt = false;  // false: read it again although the pointer is the same
  };

  Kept(Endpoints* e, PickerPool p) : endpoints(e), pool(std::move(p)) {}

  // A leaf whose cell is not known yet is outside of a pool by cell: its workers are learnt from a
  // later answer.
  bool InPool(const std::pair<std::string, Domain>& of) const {
    if (!pool.HasModel(of.second.model)) return false;
    if (!pool.by_cell()) return true;
    const std::optional<std::string> cell = cell_of == nullptr ? std::nullopt : cell_of(of.first);
    return cell.has_value() && pool.HasCell(*cell);
  }

  // 1. An answer that is the last one again, and still learnt, ends here.
  // 2. Workers of the last answer that are gone, or no longer in the pool, are forgotten.
  // 3. Every worker with a label `url` is learnt; `Endpoints` ignores what it knows.
  // Beyond `kAnswersKeptMax` pairs all are dropped: workers of dropped answers stay in `Endpoints`,
  // which has a bound of its own.
  void Learn(const std::pair<std::string, Domain>& of,
             const std::shared_ptr<const LabelsByWorker>& labels) {
    if (!InPool(of)) return;
    MutexLock lock(&mutex);
    if (answers.size() >= kAnswersKeptMax && !answers.contains(of)) answers.clear();
    Answer& last = answers[of];
    if (last.learnt && last.labels == labels) return;
    const std::shared_ptr<const LabelsByWorker> before = last.labels;
    last = {.labels = labels, .learnt = true};
    if (before != nullptr) {
      for (const auto& [worker, of_worker] : *before) {
        const auto now =
            labels == nullptr ? LabelsByWorker::const_iterator() : labels->find(worker);
        if (labels == nullptr || now == labels->end() || !pool.HasLabels(&now->second))
          Forget(worker);
      }
    }
    if (labels == nullptr) return;
    for (const auto& [worker, of_worker] : *labels) {
      const auto url = of_worker.find(kUrlLabel);
      if (url != of_worker.end() && pool.HasLabels(&of_worker))
        endpoints->Learn(worker, url->second, SaysDraining(&of_worker, nullptr));
    }
  }

  // Several leaves may name one worker. Their answers are marked for a second reading, so the next
  // one that still names the worker learns it again.
  void Forget(const HolderId& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    endpoints->Forget(worker);
    for (auto& [of, answer] : answers)
      if (answer.labels != nullptr && answer.labels->contains(worker)) answer.learnt = false;
  }

  Endpoints* const endpoints;
  const PickerPool pool;
  std::function<std::optional<std::string>(const std::string&)> cell_of = nullptr;
  // Taken before the lock of `endpoints`, never the other way round.
  Mutex mutex;
  absl::flat_hash_map<std::pair<std::string, Domain>, Answer> answers ABSL_GUARDED_BY(mutex);
};

EndpointLearner::EndpointLearner(OverlapFinder* finder, Endpoints* endpoints, PickerPool pool)
    : OverlapFinderInFront(finder), kept_(std::make_shared<Kept>(endpoints, std::move(pool))) {}

void EndpointLearner::SetCellOf(
    std::function<std::optional<std::string>(const std::string& address)> cell_of) {
  kept_->cell_of = std::move(cell_of);
}

void EndpointLearner::FindOverlaps(const std::string& leaf_address, const OverlapQuestion& question,
                                   Duration deadline, Callback callback) {
  // Learns before the callback: the route that asked finds the endpoints of this answer.
  next()->FindOverlaps(leaf_address, question, deadline,
                       [kept = kept_, of = std::pair(leaf_address, *question.domain),
                        callback = std::move(callback)](absl::StatusOr<WorkersAnswer> answer) {
                         if (answer.ok()) kept->Learn(of, answer->labels);
                         callback(std::move(answer));
                       });
}

}  // namespace kvatlas
