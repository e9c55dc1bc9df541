// A process that has no certificate and no policy: nothing is asked, nothing is refused.
//
// *Threads*: any.

#ifndef KVATLAS_INDEXER_SECURITY_OPEN_SECURITY_H_
#define KVATLAS_INDEXER_SECURITY_OPEN_SECURITY_H_

#include <memory>

#include "indexer/security/identity.h"
#include "indexer/security/security.h"

namespace kvatlas {

std::shared_ptr<Security> MakeOpenSecurity();

// The handle of a call that is never cut.
std::unique_ptr<Security::OpenCall> MakeOpenCall();

// The identity of a peer without certificate and token.
const std::shared_ptr<const Identity>& AnonymousIdentity();

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_SECURITY_OPEN_SECURITY_H_
