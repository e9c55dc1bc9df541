// Which reading a worker has (`OfWorker`), and a leaf's answers about all readings as one
// (`FindOverlaps`, `Merge`).

#include "frontend/router/readings.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "indexer/base/mutex.h"

namespace kvatlas {
namespace {

// The answers of one leaf, by reading. `done` is emptied by the thread that ends the question: by
// the first failure, or by the last answer.
struct Gathered {
  Mutex mutex;
  std::vector<WorkersAnswer> answers ABSL_GUARDED_BY(mutex);  // by reading
  size_t pending ABSL_GUARDED_BY(mutex) = 0;
  OverlapFinder::Callback done ABSL_GUARDED_BY(mutex);
};

// The leaf said nothing of the worker's own reading, so nothing is known of what it holds; its load
// stays.
void ForgetBlocks(WorkerFound* found) {
  found->blocks = 0;
  found->held = 0;
  found->fetched = {};
  found->stored = 0;
}

}  // namespace

Readings::Ptr Readings::Of(std::shared_ptr<const RouteInput> input, PreparedPrompt::Ptr prompt,
                           std::vector<PreparedPrompt::Ptr> others,
                           std::shared_ptr<const std::map<std::string, std::string>> engines) {
  if (others.empty()) return nullptr;
  std::shared_ptr<Readings> made(new Readings);
  made->input_ = std::move(input);
  made->prompts_ = std::move(others);
  made->prompts_.insert(made->prompts_.begin(), std::move(prompt));
  made->engines_ = std::move(engines);
  for (size_t i = 0; i < made->size(); ++i) {
    const uint32_t blocks = made->prompts_[i]->blocks();
    made->longest_ = std::max(made->longest_, blocks);
    if (blocks > 0 &&
        (!made->known(made->shortest_) || blocks < made->prompts_[made->shortest_]->blocks()))
      made->shortest_ = i;
  }
  return made;
}

const std::string& Readings::name(size_t reading) const {
  return reading == 0 ? input_->reading : input_->other_readings[reading - 1].name;
}

// A number out of range is taken for the input's own reading.
size_t Readings::OfWorker(const Labels* labels, const HolderId& worker) const {
  const size_t reading = input_->reading_of(UrlOf(labels, *engines_, worker));
  return reading < size() ? reading : 0;
}

// Asks the leaf about reading 0, which brings loads and labels even when it has no blocks, and
// about each other known reading, at once. One failure fails the question: a partial answer would
// make the workers of the other readings look empty.
void Readings::FindOverlaps(const Ptr& readings, OverlapFinder* finder,
                            const std::string& leaf_address, const OverlapQuestion& question,
                            Duration deadline, OverlapFinder::Callback callback) {
  std::vector<size_t> asked;
  for (size_t i = 0; i < readings->size(); ++i)
    if (i == 0 || readings->known(i)) asked.push_back(i);
  auto gathered = std::make_shared<Gathered>();
  {
    MutexLock lock(&gathered->mutex);
    gathered->answers.resize(readings->size());
    gathered->pending = asked.size();
    gathered->done = std::move(callback);
  }
  for (const size_t reading : asked) {
    OverlapQuestion of_reading = question;
    of_reading.sequence = readings->prompt(reading)->reusable();
    finder->FindOverlaps(leaf_address, of_reading, deadline,
                         [readings, gathered, reading](absl::StatusOr<WorkersAnswer> answer) {
                           OverlapFinder::Callback done;
                           std::vector<WorkersAnswer> answers;
                           {
                             MutexLock lock(&gathered->mutex);
                             if (gathered->done == nullptr) return;  // one has failed
                             if (answer.ok()) gathered->answers[reading] = *std::move(answer);
                             if (answer.ok() && --gathered->pending > 0) return;
                             done = std::exchange(gathered->done, nullptr);
                             answers.swap(gathered->answers);
                           }
                           if (!answer.ok()) return done(answer.status());
                           done(readings->Merge(std::move(answers)));
                         });
  }
}

// The rows are those of answer 0; each worker of another reading has its row replaced by that of
// its own answer. Workers that only another answer names are left out: they came in between.
WorkersAnswer Readings::Merge(std::vector<WorkersAnswer> answers) const {
  std::vector<absl::flat_hash_map<HolderId, const WorkerFound*>> found(answers.size());
  for (size_t i = 1; i < answers.size(); ++i)
    for (const WorkerFound& worker : answers[i].workers) found[i].emplace(worker.worker, &worker);
  WorkersAnswer merged = std::move(answers[0]);
  for (WorkerFound& worker : merged.workers) {
    const size_t reading = OfWorker(merged.LabelsOf(worker.worker), worker.worker);
    if (reading == 0) continue;
    const auto own = found[reading].find(worker.worker);
    if (own != found[reading].end()) {
      worker = *own->second;
    } else {
      ForgetBlocks(&worker);
    }
  }
  return merged;
}

}  // namespace kvatlas
