// `Domains` are in order, so equal models of several tenants are neighbours and appear once. An
// empty question with all holders is answered without the index; a domain that was dropped
// meanwhile is left out.

#include "indexer/registry/registry_summary.h"

#include "absl/status/statusor.h"
#include "indexer/base/domain.h"

namespace kvatlas {

RegistrySummary Summarize(const HolderRegistry& registry) {
  RegistrySummary summary;
  summary.load = Load::None();
  for (const Domain& domain : registry.Domains()) {
    if (summary.models.empty() || summary.models.back() != domain.model)
      summary.models.push_back(domain.model);
    const absl::StatusOr<OverlapAnswer> all =
        registry.FindOverlaps(domain, OverlapQuery{}, /*all_holders=*/true);
    if (!all.ok()) continue;
    for (const HolderOverlap& holder : all->holders) {
      if (holder.load.has_value()) summary.load += *holder.load;
    }
  }
  return summary;
}

}  // namespace kvatlas
