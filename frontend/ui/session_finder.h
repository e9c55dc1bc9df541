// What of which session is at which worker of the fleet? The page's question, answered by the
// leaves.
//
// *Truth*: as the leaves say it; those that do not answer are named. A leaf of before sessions were
// told over gRPC is UNIMPLEMENTED, and named too.
// *Threads*: any; `Answer` waits, at most `kSessionsDeadline`.
// *Bounds*: `kSessionCellsMax` leaves are asked.
// *Lifetime*: what it is made of outlives it.

#ifndef KVATLAS_FRONTEND_UI_SESSION_FINDER_H_
#define KVATLAS_FRONTEND_UI_SESSION_FINDER_H_

#include <chrono>
#include <cstddef>

#include "frontend/ui/fleet_watch.h"
#include "frontend/ui/peer_asker.h"
#include "indexer/base/clock.h"
#include "indexer/net/http_server.h"

namespace kvatlas {

inline constexpr size_t kSessionCellsMax = 256;
inline constexpr Duration kSessionsDeadline = std::chrono::seconds(2);

class SessionFinder {
 public:
  SessionFinder(FleetWatch* watch, PeerAsker* asker) : watch_(watch), asker_(asker) {}

  // The answer to GET /ui/sessions.json: `sessions.h` has the format. Without sessions that the
  // caller may not dump.
  HttpResponse Answer(const HttpRequest& request) const;

 private:
  FleetWatch* const watch_;
  PeerAsker* const asker_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_UI_SESSION_FINDER_H_
