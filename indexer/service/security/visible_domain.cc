#include "indexer/service/security/visible_domain.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace kvatlas {

VisibleDomain DomainVisibleTo(const Security& security, const Identity& asker, Domain asked) {
  VisibleDomain visible{.domain = std::move(asked)};
  const std::shared_ptr<const AccessPolicy> policy = security.policy();
  if (policy == nullptr) return visible;
  const PolicyTarget target = {.model = visible.domain.model, .tenant = visible.domain.tenant};
  if (policy->Decide(asker, Verb::kQuery, target).allowed) return visible;
  visible.hidden = true;
  // Names are printable: no domain has this one.
  visible.domain.tenant.insert(visible.domain.tenant.begin(), '\x7f');
  return visible;
}

absl::Status NoSuchDomain(const Domain& asked) {
  return absl::NotFoundError("no such domain: " + ToString(asked));
}

}  // namespace kvatlas
