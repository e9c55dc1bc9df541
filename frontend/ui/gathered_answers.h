// Several questions at once, and their answers together.
//
// *Threads*: slots are filled from any; one thread waits. *Lifetime*: a slot may be filled after
// this object is gone.
//
// Example:
//   GatheredAnswers<v1::StatsResponse> answers(2);
//   asker.Ask(a, answers.Slot(0));
//   asker.Ask(b, answers.Slot(1));
//   for (const absl::StatusOr<v1::StatsResponse>& answer : answers.Wait()) …

#ifndef KVATLAS_FRONTEND_UI_GATHERED_ANSWERS_H_
#define KVATLAS_FRONTEND_UI_GATHERED_ANSWERS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

template <typename T>
class GatheredAnswers {
 public:
  using Answer = absl::StatusOr<T>;

  // For `count` questions, each of which is answered exactly once.
  explicit GatheredAnswers(size_t count) : state_(std::make_shared<State>()) {
    MutexLock lock(&state_->mutex);
    state_->left = count;
    state_->answers.resize(count, absl::UnknownError("not asked"));
  }
  std::function<void(Answer)> Slot(size_t i) {
    return [state = state_, i](Answer answer) {
      MutexLock lock(&state->mutex);
      state->answers[i] = std::move(answer);
      if (--state->left == 0) state->done.SignalAll();
    };
  }
  // Until all slots are filled. REQUIRES: called once.
  std::vector<Answer> Wait() {
    MutexLock lock(&state_->mutex);
    while (state_->left > 0) state_->done.Wait(&state_->mutex);
    return std::move(state_->answers);
  }

 private:
  struct State {
    Mutex mutex;
    CondVar done;
    size_t left ABSL_GUARDED_BY(mutex) = 0;
    std::vector<Answer> answers ABSL_GUARDED_BY(mutex);
  };
  const std::shared_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_UI_GATHERED_ANSWERS_H_
