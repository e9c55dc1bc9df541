// Decided prompts wait in `waiting_` for their report; finished ones wait in `served_` to be taken.

#include "frontend/serve/served_namespaces.h"

#include <utility>

namespace kvatlas {

void ServedNamespaces::OnDecided(const Decided& decided) {
  if (next_ != nullptr) next_->OnDecided(decided);
  // Routes with a decoder say nothing here, since the report is the decoder's; nor do prompts that
  // came as hashes.
  if (decided.result.cell != cell_ || decided.result.decode.has_value() ||
      decided.prompt->tokens().empty())
    return;
  ServedNamespace served{.worker = decided.result.worker.name,
                         .lora_name = decided.input.lora_name,
                         .cache_salt = decided.input.cache_salt,
                         .prompt_tokens = decided.prompt->prompt_tokens()};
  MutexLock lock(&mutex_);
  waiting_.insert_or_assign(decided.result.decision_id, std::move(served));
  by_age_.push_back(decided.result.decision_id);
  // The bound is on `by_age_`, which also has ids that are no longer waiting.
  if (by_age_.size() <= kWaitingMax) return;
  waiting_.erase(by_age_.front());
  by_age_.pop_front();
}

void ServedNamespaces::OnReported(uint64_t decision_id, const RouteReport& report, Time at) {
  if (next_ != nullptr) next_->OnReported(decision_id, report, at);
  if (!report.finished && !report.abandoned) return;
  MutexLock lock(&mutex_);
  const auto found = waiting_.find(decision_id);
  if (found == waiting_.end()) return;
  ServedNamespace served = std::move(found->second);
  waiting_.erase(found);
  if (report.abandoned || !report.error.empty() || served_.size() >= kServedMax) return;
  const auto [latest, is_new] =
      latest_.try_emplace(Key(served.worker, served.lora_name, served.cache_salt), at);
  // One in `kEvery` for each worker and namespace is enough to judge by.
  if (!is_new && at - latest->second < kEvery) return;
  latest->second = served.at = at;
  served_.push_back(std::move(served));
}

// Reports may overtake each other by a little, so a later entry may be older than `until`; it is
// taken next time. `latest_` keeps only what is still in `served_` or came after it.
std::vector<ServedNamespace> ServedNamespaces::Take(Time until) {
  std::vector<ServedNamespace> taken;
  MutexLock lock(&mutex_);
  while (!served_.empty() && served_.front().at <= until) {
    ServedNamespace& first = served_.front();
    const auto latest = latest_.find(Key(first.worker, first.lora_name, first.cache_salt));
    if (latest != latest_.end() && latest->second <= first.at) latest_.erase(latest);
    taken.push_back(std::move(first));
    served_.pop_front();
  }
  return taken;
}

}  // namespace kvatlas
