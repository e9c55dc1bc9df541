#include "indexer/security/visible_domain.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace kvatlas {

VisibleDomain DomainVisibleTo(Security& security, const Identity& asker, Domain asked) {
  VisibleDomain visible{.domain = std::move(asked)};
  if (!security.enforces()) return visible;
  const PolicyTarget target = {.model = visible.domain.model, .tenant = visible.domain.tenant};
  if (security.Check(asker, Verb::kQuery, target, "", "refusal").ok()) return visible;
  visible.hidden = true;
  // Names are printable, so no domain has this one. The look-up goes its normal way and takes its
  // normal time: a caller cannot tell a hidden tenant from one that does not exist.
  visible.domain.tenant.insert(visible.domain.tenant.begin(), '\x7f');
  return visible;
}

absl::Status NoSuchDomain(const Domain& asked) {
  return absl::NotFoundError("no such domain: " + ToString(asked));
}

}  // namespace kvatlas
