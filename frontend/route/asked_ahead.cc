#include "frontend/route/asked_ahead.h"

#include <utility>

namespace kvatlas {

void AskedAhead::Ask(OverlapFinder* finder, const std::string& leaf_address, Duration deadline) {
  {
    MutexLock lock(&mutex_);
    if (!questions_.try_emplace(leaf_address).second) return;
  }
  finder->FindOverlaps(
      leaf_address, {.domain = &domain_, .sequence = *sequence_}, deadline,
      [self = shared_from_this(), leaf_address](absl::StatusOr<WorkersAnswer> answer) {
        self->OnAnswer(leaf_address, std::move(answer));
      });
}

void AskedAhead::OnAnswer(const std::string& leaf_address, absl::StatusOr<WorkersAnswer> answer) {
  OverlapFinder::Callback callback;
  {
    MutexLock lock(&mutex_);
    const auto question = questions_.find(leaf_address);
    if (question->second.callback == nullptr) {
      question->second.answer = std::move(answer);
      return;
    }
    callback = std::move(question->second.callback);
    questions_.erase(question);
  }
  callback(std::move(answer));
}

bool AskedAhead::Take(const std::string& leaf_address, OverlapFinder::Callback callback) {
  std::optional<absl::StatusOr<WorkersAnswer>> answer;
  {
    MutexLock lock(&mutex_);
    const auto question = questions_.find(leaf_address);
    if (question == questions_.end() || question->second.callback != nullptr) return false;
    if (!question->second.answer.has_value()) {
      question->second.callback = std::move(callback);
      return true;
    }
    answer = std::move(question->second.answer);
    questions_.erase(question);
  }
  callback(*std::move(answer));
  return true;
}

}  // namespace kvatlas
