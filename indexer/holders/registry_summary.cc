#include "indexer/holders/registry_summary.h"

#include "absl/status/statusor.h"
#include "indexer/base/domain.h"

namespace kvatlas {
namespace {

void Add(const Load& load, Load* sum) {
  sum->running_requests += load.running_requests;
  sum->waiting_requests += load.waiting_requests;
  sum->used_blocks += load.used_blocks;
  sum->free_blocks += load.free_blocks;
  sum->waiting_prefill_blocks += load.waiting_prefill_blocks;
  sum->tokens_per_s += load.tokens_per_s;
  sum->workers += load.workers;
}

}  // namespace

RegistrySummary Summarize(const HolderRegistry& registry) {
  RegistrySummary summary;
  summary.load.workers = 0;
  for (const Domain& domain : registry.Domains()) {
    if (summary.models.empty() || summary.models.back() != domain.model)
      summary.models.push_back(domain.model);
    const absl::StatusOr<OverlapAnswer> all =
        registry.FindOverlaps(domain, OverlapQuery{}, /*all_holders=*/true);
    if (!all.ok()) continue;
    for (const HolderOverlap& holder : all->holders) {
      if (holder.load.has_value()) Add(*holder.load, &summary.load);
    }
  }
  return summary;
}

}  // namespace kvatlas
