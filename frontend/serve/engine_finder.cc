// In front of the leaf's own answer: engines of the view that the leaf does not name are added as
// workers, with what was sent to them as pending blocks. A name that is no model of the leaf is
// asked as the model behind it.

#include "frontend/serve/engine_finder.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace kvatlas {
namespace {

// Domains of which labels and silent engines are kept; beyond, all are forgotten and made again.
constexpr size_t kDomainsMax = 1024;

const Load* LoadOf(const EngineView::Engine& engine, uint32_t rank) {
  const auto found = engine.loads.find(rank);
  return found == engine.loads.end() ? nullptr : &found->second;
}

}  // namespace

EngineFinder::EngineFinder(std::string own, OverlapFinder* finder,
                           std::function<std::shared_ptr<const EngineView>()> view,
                           const GuessOptions& guess)
    : own_(std::move(own)), finder_(finder), view_(std::move(view)), guess_(guess) {}

// Asks the leaf, and adds engines to the answer of the own one:
//   1. Another cell's leaf, or no view: passed on as it is.
//   2. The model's further names are replaced by its own.
//   3. NOT_FOUND of the own leaf is no error where engines serve the model: no event of it was
//      heard yet.
//   4. `AddEngines` adds loads and engines to the answer.
void EngineFinder::FindOverlaps(const std::string& leaf_address, const OverlapQuestion& question,
                                Duration deadline, Callback callback) {
  const std::shared_ptr<const EngineView> view = leaf_address == own_ ? view_() : nullptr;
  if (view == nullptr)
    return finder_->FindOverlaps(leaf_address, question, deadline, std::move(callback));
  Domain domain = *question.domain;
  domain.model = view->ModelOf(domain.model);
  OverlapQuestion asked = question;
  asked.domain = &domain;
  finder_->FindOverlaps(leaf_address, asked, deadline,
                        // The own leaf calls back within the call, while the question lives.
                        [this, domain, view, sequence = question.sequence,
                         callback = std::move(callback)](absl::StatusOr<WorkersAnswer> answer) {
                          const EngineView::Engines* engines = view->EnginesOf(domain.model);
                          if (absl::IsNotFound(answer.status()) && engines != nullptr)
                            answer = WorkersAnswer();
                          if (answer.ok() && engines != nullptr)
                            AddEngines(domain, *engines, view, sequence, &*answer);
                          callback(std::move(answer));
                        });
}

// Tellings must name the domain as the question did.
Domain EngineFinder::AsAsked(const std::string& leaf_address, Domain domain) const {
  const std::shared_ptr<const EngineView> view = leaf_address == own_ ? view_() : nullptr;
  if (view != nullptr) domain.model = view->ModelOf(domain.model);
  return domain;
}

// Only of silent engines anything is guessed: what the others cache they say themselves.
void EngineFinder::Tell(const std::string& leaf_address, const Domain& domain, uint64_t frontend,
                        const Routed& routed) {
  const Domain asked = AsAsked(leaf_address, domain);
  if (leaf_address == own_ && guess_.pool_blocks > 0) {
    MutexLock lock(&mutex_);
    const auto of = silent_.find(asked);
    if (of != silent_.end() && of->second.names.contains(routed.worker.name)) {
      if (sent_.size() >= kSentMax) sent_.clear();
      sent_[routed.decision] = {
          .worker = routed.worker, .guessed = routed.first, .block_size = of->second.block_size};
      guessed_.Sent(asked, routed.worker, routed.parent, routed.blocks,
                    PoolOf(asked, routed.worker));
    }
  }
  finder_->Tell(leaf_address, asked, frontend, routed);
}

// The engine's own figure corrects the guess: fewer cached tokens than blocks guessed means that it
// evicted some.
void EngineFinder::End(const std::string& leaf_address, const Domain& domain, uint64_t frontend,
                       const RouteOver& over) {
  const Domain asked = AsAsked(leaf_address, domain);
  if (leaf_address == own_) {
    MutexLock lock(&mutex_);
    const auto sent = sent_.find(over.decision);
    if (sent != sent_.end()) {
      if (over.cached_tokens.has_value())
        guessed_.Served(asked, sent->second.worker, sent->second.guessed,
                        *over.cached_tokens / sent->second.block_size);
      sent_.erase(sent);
    }
  }
  finder_->End(leaf_address, asked, frontend, over);
}

// Keeps which engines are silent. Guesses about an engine that is heard now, or is gone, are
// forgotten.
size_t EngineFinder::NoteSilent(const Domain& domain, Silent silent) {
  if (!silent.names.empty()) any_silent_.store(true, std::memory_order_relaxed);
  if (silent_.size() >= kDomainsMax && !silent_.contains(domain)) silent_.clear();
  Silent& known = silent_[domain];
  for (const std::string& name : known.names)
    if (!silent.names.contains(name)) guessed_.Forget(domain, name);
  known = std::move(silent);
  return known.names.size();
}

// The option's size where the metrics say none.
size_t EngineFinder::PoolOf(const Domain& domain, const HolderId& worker) const {
  const std::shared_ptr<const EngineView> view = view_();
  const EngineView::Engines* engines = view == nullptr ? nullptr : view->EnginesOf(domain.model);
  if (engines == nullptr || !engines->contains(worker.name)) return guess_.pool_blocks;
  const Load* load = LoadOf(engines->at(worker.name), worker.rank);
  const uint64_t pool = load == nullptr ? 0 : load->used_blocks + load->free_blocks;
  return pool == 0 ? guess_.pool_blocks : pool;
}

// Joins the engines of the view with the workers of the answer:
//   1. Engines that the leaf names are heard; they only get their metrics' load where the leaf has
//      none.
//   2. Each other engine is added at rank 0, without a block, `kGuessed`.
//   3. Their labels are joined to the leaf's, so that their urls are known.
// A fleet where every engine was always heard takes no lock here (`any_silent_`).
void EngineFinder::AddEngines(const Domain& domain, const EngineView::Engines& engines,
                              const std::shared_ptr<const EngineView>& view,
                              std::span<const SequenceHash> sequence, WorkersAnswer* answer) {
  std::vector<bool> heard(engines.size());
  for (WorkerFound& found : answer->workers) {
    const auto engine = engines.find(found.worker.name);
    if (engine == engines.end()) continue;
    heard[engine->second.index] = true;
    if (found.load.has_value()) continue;
    if (const Load* load = LoadOf(engine->second, found.worker.rank)) found.load = *load;
  }
  Silent silent;
  silent.block_size = answer->block_size == 0 ? guess_.block_size : answer->block_size;
  for (const auto& [name, engine] : engines)
    if (!heard[engine.index]) silent.names.insert(name);
  if (silent.names.empty() && !any_silent_.load(std::memory_order_relaxed)) return;
  {
    MutexLock lock(&mutex_);
    for (const std::string& name : silent.names) {
      WorkerFound found{.worker = {.name = name, .rank = 0, .replica = ""},
                        .trust = Trust::kGuessed};
      if (!engines.at(name).loads.empty()) found.load = engines.at(name).loads.begin()->second;
      found.pending.depth = guessed_.Depth(domain, found.worker, sequence);
      answer->workers.push_back(std::move(found));
    }
    if (NoteSilent(domain, std::move(silent)) == 0) return;
  }
  answer->labels = Join(domain, engines, view, answer->labels);
}

// Made again only when the leaf's labels or the view are other objects than before. `emplace`: a
// leaf's own url counts.
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
