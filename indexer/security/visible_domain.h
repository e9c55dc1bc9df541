// The domain that a question is looked up in: the one it names, or one that does not exist when the
// asker's tenants do not have it.
//
// A question for a tenant that the asker may not see is answered as one for a tenant that was never
// announced: it takes the same way through the index, with a name that no domain has, and its error
// names what was asked.
//
// *Threads*: any. *Cost*: nothing without a policy; else one decision.

#ifndef KVATLAS_INDEXER_SECURITY_VISIBLE_DOMAIN_H_
#define KVATLAS_INDEXER_SECURITY_VISIBLE_DOMAIN_H_

#include "absl/status/status.h"
#include "indexer/base/domain.h"
#include "indexer/security/security.h"

namespace kvatlas {

struct VisibleDomain {
  Domain domain;        // what to look up
  bool hidden = false;  // it is not what was asked for
};

VisibleDomain DomainVisibleTo(Security& security, const Identity& asker, Domain asked);

// The error of a look-up of an unknown domain, and of a hidden one.
absl::Status NoSuchDomain(const Domain& asked);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SECURITY_VISIBLE_DOMAIN_H_
