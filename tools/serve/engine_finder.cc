#include "tools/serve/engine_finder.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace kvatlas {
namespace {

constexpr size_t kDomainsMax = 1024;

const Load* LoadOf(const EngineView::Engine& engine, uint32_t rank) {
  const auto found = engine.loads.find(rank);
  return found == engine.loads.end() ? nullptr : &found->second;
}

}  // namespace

EngineFinder::EngineFinder(std::string own, OverlapFinder* finder,
                           std::function<std::shared_ptr<const EngineView>()> view)
    : own_(std::move(own)), finder_(finder), view_(std::move(view)) {}

void EngineFinder::FindOverlaps(const std::string& leaf_address, const OverlapQuestion& question,
                                Duration deadline, Callback callback) {
  const std::shared_ptr<const EngineView> view = leaf_address == own_ ? view_() : nullptr;
  if (view == nullptr)
    return finder_->FindOverlaps(leaf_address, question, deadline, std::move(callback));
  Domain domain = *question.domain;
  domain.model = view->ModelOf(domain.model);
  OverlapQuestion asked = question;
  asked.domain = &domain;
  finder_->FindOverlaps(
      leaf_address, asked, deadline,
      [this, domain, view, callback = std::move(callback)](absl::StatusOr<WorkersAnswer> answer) {
        const EngineView::Engines* engines = view->EnginesOf(domain.model);
        if (absl::IsNotFound(answer.status()) && engines != nullptr) answer = WorkersAnswer();
        if (answer.ok() && engines != nullptr) AddEngines(domain, *engines, view, &*answer);
        callback(std::move(answer));
      });
}

void EngineFinder::AddEngines(const Domain& domain, const EngineView::Engines& engines,
                              const std::shared_ptr<const EngineView>& view,
                              WorkersAnswer* answer) {
  std::vector<bool> heard(engines.size());
  for (WorkerFound& found : answer->workers) {
    const auto engine = engines.find(found.worker.name);
    if (engine == engines.end()) continue;
    heard[engine->second.index] = true;
    if (found.load.has_value()) continue;
    if (const Load* load = LoadOf(engine->second, found.worker.rank)) found.load = *load;
  }
  if (std::find(heard.begin(), heard.end(), false) == heard.end()) return;
  for (const auto& [name, engine] : engines) {
    if (heard[engine.index]) continue;
    WorkerFound silent{.worker = {.name = name, .rank = 0, .replica = ""}, .trust = Trust::kStale};
    if (const Load* load = LoadOf(engine, 0)) silent.load = *load;
    answer->workers.push_back(std::move(silent));
  }
  answer->labels = Join(domain, engines, view, answer->labels);
}

std::shared_ptr<const LabelsByWorker> EngineFinder::Join(
    const Domain& domain, const EngineView::Engines& engines,
    const std::shared_ptr<const EngineView>& view,
    const std::shared_ptr<const LabelsByWorker>& of_leaf) {
  {
    MutexLock lock(&mutex_);
    const auto known = joined_.find(domain);
    if (known != joined_.end() && known->second.of_leaf == of_leaf && known->second.view == view)
      return known->second.labels;
  }
  auto labels = of_leaf == nullptr ? std::make_shared<LabelsByWorker>()
                                   : std::make_shared<LabelsByWorker>(*of_leaf);
  for (const auto& [name, engine] : engines)
    (*labels)[{.name = name, .rank = 0, .replica = ""}].emplace(kUrlLabel, engine.url);
  MutexLock lock(&mutex_);
  if (joined_.size() >= kDomainsMax) joined_.clear();
  joined_[domain] = {.of_leaf = of_leaf, .view = view, .labels = labels};
  return labels;
}

}  // namespace kvatlas
