// Passes questions to the next finder and learns endpoints from the labels of its answers. All
// state is in `Kept`, shared with the callbacks under way, so that an answer may come after the
// learner has gone.

#include "frontend/gateway/ext_proc/endpoint_learner.h"

#include <algorithm>
#include <utility>
#include <vector>

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
    std::vector<HolderId> bare = {};               // `Bare`
    bool learnt = false;  // false: read it again although the pointer is the same
  };

  Kept(Endpoints* e, PickerPool p) : endpoints(e), pool(std::move(p)) {
    if (!pool.empty()) endpoints->OfMembersAlone();
  }

  // A leaf whose cell is not known yet is outside of a pool by cell: its workers are learnt from a
  // later answer.
  bool InPool(const std::pair<std::string, Domain>& of) const {
    if (!pool.HasModel(of.second.model)) return false;
    if (!pool.by_cell()) return true;
    const std::optional<std::string> cell = cell_of == nullptr ? std::nullopt : cell_of(of.first);
    return cell.has_value() && pool.HasCell(*cell);
  }

  // Workers of the pool without any label, in order: they say no url, but one may be configured.
  std::vector<HolderId> Bare(const WorkersAnswer& answer) const {
    std::vector<HolderId> bare;
    if (pool.empty() || !pool.HasLabels(nullptr) || !endpoints->any_configured()) return bare;
    for (const WorkerFound& found : answer.workers)
      if (answer.LabelsOf(found.worker) == nullptr) bare.push_back(found.worker);
    std::sort(bare.begin(), bare.end());
    return bare;
  }

  // Whether the answer has it as a worker of the pool.
  bool IsMember(const Answer& answer, const HolderId& worker) const {
    if (answer.labels != nullptr) {
      const auto found = answer.labels->find(worker);
      if (found != answer.labels->end()) return pool.HasLabels(&found->second);
    }
    return std::binary_search(answer.bare.begin(), answer.bare.end(), worker);
  }

  // 1. An answer that is the last one again, and still learnt, ends here.
  // 2. Workers of the last answer that are gone, or no longer in the pool, are forgotten.
  // 3. Every worker with a label `url` is learnt; `Endpoints` ignores what it knows. With a pool
  //    every worker of it joins.
  // Beyond `kAnswersKeptMax` pairs all are dropped: workers of dropped answers stay in `Endpoints`,
  // which has a bound of its own.
  void Learn(const std::pair<std::string, Domain>& of, const WorkersAnswer& answer) {
    if (!InPool(of)) return;
    std::vector<HolderId> bare = Bare(answer);
    MutexLock lock(&mutex);
    if (answers.size() >= kAnswersKeptMax && !answers.contains(of)) answers.clear();
    Answer& last = answers[of];
    if (last.learnt && last.labels == answer.labels && last.bare == bare) return;
    const Answer before = std::exchange(
        last, Answer{.labels = answer.labels, .bare = std::move(bare), .learnt = true});
    const Answer now = last;
    if (before.labels != nullptr) {
      for (const auto& [worker, labels] : *before.labels)
        if (!IsMember(now, worker)) Forget(worker);
    }
    for (const HolderId& worker : before.bare)
      if (!IsMember(now, worker)) Forget(worker);
    for (const HolderId& worker : now.bare) endpoints->Join(worker);
    if (now.labels == nullptr) return;
    for (const auto& [worker, labels] : *now.labels) {
      if (!pool.HasLabels(&labels)) continue;
      if (!pool.empty()) endpoints->Join(worker);
      const auto url = labels.find(kUrlLabel);
      if (url != labels.end())
        endpoints->Learn(worker, url->second, SaysDraining(&labels, nullptr));
    }
  }

  // Several leaves may name one worker. Their answers are marked for a second reading, so the next
  // one that still names the worker learns it again.
  void Forget(const HolderId& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    endpoints->Forget(worker);
    for (auto& [of, answer] : answers)
      if (IsMember(answer, worker)) answer.learnt = false;
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
                         if (answer.ok()) kept->Learn(of, *answer);
                         callback(std::move(answer));
                       });
}

}  // namespace kvatlas
