// Workers that a request lately failed to reach, to be avoided for a while: a dead engine's
// holdings stay in its leaf's answers until its lease runs out.
//
// *Truth*: a suspicion is evidence of one caller, and passes: after `ttl`, which doubles with each
// renewal up to `ttl_max`, or at once when the worker takes a request. While a connection to its
// engine fails (`engine_client/suspect_probe.h`), it stays. A suspect is chosen only when no other
// worker is left, and first one that the same request has not been sent to (`RouteInput::tried`).
// *Threads*: none; the owner serialises.
// *Cost*: constant; nothing while there are no suspects.
// *Bounds*: `suspects_max`; beyond, the one that passes first is forgotten.
//
// Example:
//   suspects.Suspect({cell, worker}, now);
//   if (!suspects.empty() && suspects.Contains({cell, worker}, now)) ...

#ifndef KVATLAS_FRONTEND_ROUTER_OUTLIER_EJECTION_H_
#define KVATLAS_FRONTEND_ROUTER_OUTLIER_EJECTION_H_

#include <chrono>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "indexer/base/clock.h"
#include "indexer/base/ids.h"

namespace kvatlas {

using CellWorker = std::pair<std::string, HolderId>;

struct SuspectsOptions {
  Duration ttl = std::chrono::seconds(2);
  Duration ttl_max = std::chrono::seconds(30);
  size_t suspects_max = 4096;
};

class OutlierEjection {
 public:
  explicit OutlierEjection(const SuspectsOptions& options) : options_(options) {}

  void Suspect(const CellWorker& worker, Time now);
  // It is still not reached: a suspicion that has not passed lasts `ttl` from now on at least.
  void Keep(const CellWorker& worker, Time now);
  // It took a request.
  void Clear(const CellWorker& worker);

  bool Contains(const CellWorker& worker, Time now) const;
  // Suspected, or lately suspected.
  bool Has(const CellWorker& worker) const { return until_.contains(worker); }
  bool empty() const { return until_.empty(); }
  size_t Count(Time now) const;
  std::vector<CellWorker> All(Time now) const;

 private:
  struct Entry {
    Time until{0};
    Duration ttl{0};  // of the next renewal
  };
  void ForgetPassed(Time now);

  const SuspectsOptions options_;
  absl::flat_hash_map<CellWorker, Entry> until_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_OUTLIER_EJECTION_H_
