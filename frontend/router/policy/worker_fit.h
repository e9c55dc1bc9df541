// May this worker be chosen at all? The checks ahead of any cost: which workers the request allows,
// the worker's own labels, and its thresholds.
//
// Labels of a worker that count, its cell's where it has none of that name:
//   role       "prefill": it prefills and others decode; "decode": it only decodes; anything else, or none: both
//   draining   "true" or "1": takes no more requests
//   tenants    "a,b": only these tenants' requests; none: all tenants'
// and any that the request requires.
//
// *Truth*: pure. A worker of unknown load is below every threshold; what is in flight to it counts
// as waiting.
// *Cost*: a few look-ups; none for a worker without labels and a request without wishes.
//
// Example:
//   const WorkerFilter filter = {.tenant = "a", .excluded_workers = input.excluded_workers};
//   if (IsAllowed(filter, worker, labels, cell_labels) && !IsOverloaded(filter.overload, load,
//   in_flight)) ...

#ifndef KVATLAS_FRONTEND_ROUTER_POLICY_WORKER_FIT_H_
#define KVATLAS_FRONTEND_ROUTER_POLICY_WORKER_FIT_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "frontend/router/in_flight.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"

namespace kvatlas {

inline constexpr char kRoleLabel[] = "role";
inline constexpr char kPrefillRole[] = "prefill";
inline constexpr char kDecodeRole[] = "decode";
inline constexpr char kDrainingLabel[] = "draining";
inline constexpr char kTenantsLabel[] = "tenants";

// A worker is overloaded when one of these is reached; 0: no such threshold.
struct OverloadThresholds {
  uint64_t queue_blocks = 0;  // to prefill before a request that comes now
  uint32_t requests = 0;      // running, waiting and in flight
  double used_share = 0;      // of its pool, in use by running requests

  bool any() const { return queue_blocks > 0 || requests > 0 || used_share > 0; }
};

enum class Role { kBoth, kPrefill, kDecode };

// The workers that one request allows; valid as long as what it points to.
struct WorkerFilter {
  std::string_view tenant = {};
  std::span<const std::string> allowed_workers = {};   // names, sorted; empty: all
  std::span<const std::string> excluded_workers = {};  // sorted
  const std::map<std::string, std::string>* required_labels = nullptr;
  const std::set<std::string>* draining = nullptr;  // names, beside those that say so themselves
  OverloadThresholds overload = {};
};

using WorkerLabels = std::map<std::string, std::string>;

// `own` and `of_cell` may be null.
Role RoleOf(const WorkerLabels* own, const WorkerLabels* of_cell);
bool SaysDraining(const WorkerLabels* own, const WorkerLabels* of_cell);

// By the request, and by what the worker says of itself; `overload` is not looked at. Allowed:
// permitted, and not draining.
bool IsPermitted(const WorkerFilter& filter, const HolderId& worker, const WorkerLabels* own,
                 const WorkerLabels* of_cell);
bool IsAllowed(const WorkerFilter& filter, const HolderId& worker, const WorkerLabels* own,
               const WorkerLabels* of_cell);
bool IsOverloaded(const OverloadThresholds& overload, const std::optional<Load>& load,
                  const InFlight& in_flight);

// Blocks by which it is above the threshold of its queue; 0: it is not, or there is none.
uint64_t QueueExcess(const OverloadThresholds& overload, const std::optional<Load>& load,
                     const InFlight& in_flight);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTER_POLICY_WORKER_FIT_H_
