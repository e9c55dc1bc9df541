#include "tools/serve/fleet_finder.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "indexer/base/overlap.h"

namespace kvatlas {
namespace {

constexpr size_t kDomainsMax = 1024;

uint32_t Milliseconds(Duration age) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(age).count();
  return static_cast<uint32_t>(std::clamp<int64_t>(ms, 0, UINT32_MAX));
}

// What lies between two depths is in the tier that the deeper one has more.
FetchedBlocks FetchedOf(const TierReach& reach, uint32_t blocks) {
  const uint32_t host = std::min(std::max(reach.device, reach.device_host), blocks);
  const uint32_t disk = std::min(std::max(host, reach.device_host_disk), blocks);
  return {
      .host = host - std::min(reach.device, host), .disk = disk - host, .remote = blocks - disk};
}

WorkerFound FoundOf(const HolderOverlap& overlap) {
  WorkerFound found{.worker = overlap.holder->id,
                    .blocks = overlap.blocks,
                    .trust = overlap.trust,
                    .age_ms = Milliseconds(overlap.age),
                    .load = overlap.load,
                    .held = overlap.held};
  if (overlap.reach.has_value()) found.fetched = FetchedOf(*overlap.reach, overlap.blocks);
  return found;
}

const Load* LoadOf(const FleetView::Engine& engine, uint32_t rank) {
  const auto found = engine.loads.find(rank);
  return found == engine.loads.end() ? nullptr : &found->second;
}

}  // namespace

FleetFinder::FleetFinder(std::string own, const HolderRegistry* registry,
                         std::function<std::shared_ptr<const FleetView>()> view,
                         OverlapFinder* others)
    : own_(std::move(own)), registry_(registry), view_(std::move(view)), others_(others) {}

void FleetFinder::FindOverlaps(const std::string& leaf_address, const OverlapQuestion& question,
                               Duration deadline, Callback callback) {
  if (leaf_address != own_) {
    if (others_ == nullptr) return callback(absl::UnavailableError("no leaf " + leaf_address));
    return others_->FindOverlaps(leaf_address, question, deadline, std::move(callback));
  }
  callback(Find(question));
}

absl::StatusOr<WorkersAnswer> FleetFinder::Find(const OverlapQuestion& question) {
  const std::shared_ptr<const FleetView> view = view_ ? view_() : nullptr;
  Domain domain = *question.domain;
  const FleetView::Engines* engines = nullptr;
  if (view != nullptr) {
    domain.model = view->ModelOf(domain.model);
    engines = view->EnginesOf(domain.model);
  }
  const absl::StatusOr<OverlapAnswer> answer =
      registry_->FindOverlaps(domain, {.blocks = question.sequence}, /*all_holders=*/true,
                              /*by_tier=*/true);
  if (!answer.ok() && engines == nullptr) return answer.status();
  WorkersAnswer result;
  std::vector<bool> heard(engines == nullptr ? 0 : engines->size());
  if (answer.ok()) {
    result.block_size = answer->block_size;
    result.workers.reserve(answer->holders.size());
    for (const HolderOverlap& overlap : answer->holders) {
      result.workers.push_back(FoundOf(overlap));
      if (engines == nullptr) continue;
      const auto engine = engines->find(overlap.holder->id.name);
      if (engine == engines->end()) continue;
      heard[engine->second.index] = true;
      if (overlap.load.has_value()) continue;
      if (const Load* load = LoadOf(engine->second, overlap.holder->id.rank))
        result.workers.back().load = *load;
    }
    // Deepest first, then by name, as a leaf answers.
    std::sort(result.workers.begin(), result.workers.end(),
              [](const WorkerFound& a, const WorkerFound& b) {
                return a.blocks != b.blocks ? a.blocks > b.blocks : a.worker < b.worker;
              });
  }
  if (std::find(heard.begin(), heard.end(), false) != heard.end()) {
    for (const auto& [name, engine] : *engines) {
      if (heard[engine.index]) continue;
      WorkerFound silent{.worker = {.name = name, .rank = 0, .replica = ""},
                         .trust = Trust::kStale};
      if (const Load* load = LoadOf(engine, 0)) silent.load = *load;
      result.workers.push_back(std::move(silent));
    }
  }
  result.labels = LabelsOf(domain, answer.ok() ? *answer : OverlapAnswer(), view, engines);
  return result;
}

std::shared_ptr<const LabelsByWorker> FleetFinder::LabelsOf(
    const Domain& domain, const OverlapAnswer& answer, const std::shared_ptr<const FleetView>& view,
    const FleetView::Engines* engines) {
  uint64_t version = answer.holders.size();
  for (const HolderOverlap& overlap : answer.holders) version += overlap.holder->labels_version;
  {
    MutexLock lock(&mutex_);
    const auto known = labels_.find(domain);
    if (known != labels_.end() && known->second.version == version && known->second.view == view)
      return known->second.labels;
  }
  auto labels = std::make_shared<LabelsByWorker>();
  if (engines != nullptr) {
    for (const auto& [name, engine] : *engines)
      (*labels)[{.name = name, .rank = 0, .replica = ""}][kUrlLabel] = engine.url;
  }
  for (const HolderOverlap& overlap : answer.holders) {
    if (overlap.holder->labels.empty()) continue;
    Labels& of = (*labels)[overlap.holder->id];
    for (const auto& [name, value] : overlap.holder->labels) of[name] = value;
  }
  MutexLock lock(&mutex_);
  if (labels_.size() >= kDomainsMax) labels_.clear();
  labels_[domain] = {.version = version, .view = view, .labels = labels};
  return labels;
}

}  // namespace kvatlas
