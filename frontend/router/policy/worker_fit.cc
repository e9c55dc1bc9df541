// Labels are looked up in the worker's own, then in its cell's. Names are compared by binary
// search: the request's lists are sorted when the route begins.

#include "frontend/router/policy/worker_fit.h"

#include <algorithm>

namespace kvatlas {
namespace {

// The label's value, the worker's own before its cell's. Empty: neither has it.
std::string_view LabelOf(const std::string& name, const WorkerLabels* own,
                         const WorkerLabels* of_cell) {
  for (const WorkerLabels* labels : {own, of_cell}) {
    if (labels == nullptr) continue;
    if (const auto found = labels->find(name); found != labels->end()) return found->second;
  }
  return {};
}

// Whether `name` is an item of a list with commas; nothing is trimmed.
bool IsListed(std::string_view name, std::string_view list) {
  while (!list.empty()) {
    const size_t end = std::min(list.find(','), list.size());
    if (list.substr(0, end) == name) return true;
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return false;
}

bool Contains(std::span<const std::string> names, const std::string& name) {
  return std::binary_search(names.begin(), names.end(), name);
}

// Blocks to prefill ahead of a request that comes now.
uint64_t QueueOf(const std::optional<Load>& load, const InFlight& in_flight) {
  return in_flight.blocks + (load.has_value() ? load->waiting_prefill_blocks : 0);
}

bool IsDraining(const WorkerFilter& filter, const HolderId& worker, const WorkerLabels* own,
                const WorkerLabels* of_cell) {
  if (filter.draining != nullptr && filter.draining->contains(worker.name)) return true;
  return SaysDraining(own, of_cell);
}

}  // namespace

bool SaysDraining(const WorkerLabels* own, const WorkerLabels* of_cell) {
  const std::string_view draining = LabelOf(kDrainingLabel, own, of_cell);
  return draining == "true" || draining == "1";
}

bool IsAllowed(const WorkerFilter& filter, const HolderId& worker, const WorkerLabels* own,
               const WorkerLabels* of_cell) {
  return IsPermitted(filter, worker, own, of_cell) && !IsDraining(filter, worker, own, of_cell);
}

// Cheapest checks first; a request without wishes and a worker without labels pass after a few
// empty tests.
bool IsPermitted(const WorkerFilter& filter, const HolderId& worker, const WorkerLabels* own,
                 const WorkerLabels* of_cell) {
  if (!filter.allowed_workers.empty() && !Contains(filter.allowed_workers, worker.name))
    return false;
  if (Contains(filter.excluded_workers, worker.name)) return false;
  const std::string_view tenants = LabelOf(kTenantsLabel, own, of_cell);
  if (!tenants.empty() && !IsListed(filter.tenant, tenants)) return false;
  if (filter.required_labels == nullptr) return true;
  return std::all_of(filter.required_labels->begin(), filter.required_labels->end(),
                     [&](const auto& required) {
                       return LabelOf(required.first, own, of_cell) == required.second;
                     });
}

// Any of the thresholds that are set. Requests in flight add to those of the load, of which those
// that have ended since are taken off (`LoadNow`).
bool IsOverloaded(const OverloadThresholds& overload, const std::optional<Load>& load,
                  const InFlight& in_flight) {
  if (!overload.any()) return false;
  if (overload.queue_blocks > 0 && QueueOf(load, in_flight) >= overload.queue_blocks) return true;
  uint64_t requests = in_flight.requests;
  if (const auto now = LoadNow(load, in_flight))
    requests += uint64_t{now->running_requests} + now->waiting_requests;
  if (overload.requests > 0 && requests >= overload.requests) return true;
  if (overload.used_share <= 0 || !load.has_value()) return false;
  const double pool =
      static_cast<double>(load->used_blocks) + static_cast<double>(load->free_blocks);
  return pool > 0 && static_cast<double>(load->used_blocks) >= overload.used_share * pool;
}

Role RoleOf(const WorkerLabels* own, const WorkerLabels* of_cell) {
  const std::string_view role = LabelOf(kRoleLabel, own, of_cell);
  return role == kPrefillRole ? Role::kPrefill : role == kDecodeRole ? Role::kDecode : Role::kBoth;
}

// Plus 1: at the threshold a worker is over it by one block.
uint64_t QueueExcess(const OverloadThresholds& overload, const std::optional<Load>& load,
                     const InFlight& in_flight) {
  const uint64_t queue = QueueOf(load, in_flight);
  if (overload.queue_blocks == 0 || queue < overload.queue_blocks) return 0;
  return queue - overload.queue_blocks + 1;
}

}  // namespace kvatlas
