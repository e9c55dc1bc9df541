// Which domains are there, as hierarchy nodes and leaves say of themselves (`Stats`)? For a
// frontend that no route has taught any yet.
//
// *Truth*: of those of the top level and of the own leaves that answer within `deadline`; under a
// policy they answer callers that have `status`.
// *Threads*: waits in the caller's. *Bounds*: `kTellersMax` peers, all asked at once.

#ifndef KVATLAS_FRONTEND_UI_TOLD_DOMAINS_H_
#define KVATLAS_FRONTEND_UI_TOLD_DOMAINS_H_

#include <cstddef>
#include <vector>

#include "frontend/router/frontend.h"
#include "frontend/ui/peer_asker.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"

namespace kvatlas {

inline constexpr size_t kTellersMax = 64;

// Each once, in their order.
std::vector<Domain> ToldDomains(const Frontend& frontend, PeerAsker* asker, Duration deadline);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_UI_TOLD_DOMAINS_H_
