// One map from worker to the end of its suspicion. Entries whose time is over stay until they are
// cleared or forgotten for room, because they carry the length of the next suspicion.

#include "frontend/router/outlier_ejection.h"

#include <algorithm>

namespace kvatlas {

void OutlierEjection::Suspect(const CellWorker& worker, Time now) {
  if (options_.suspects_max == 0) return;
  if (!until_.contains(worker) && until_.size() >= options_.suspects_max) ForgetPassed(now);
  Entry& entry = until_[worker];
  // Many requests fail at once when a worker dies: that is one piece of evidence, not many.
  if (entry.ttl > Duration(0) && now < entry.until) return;
  const Duration ttl = entry.ttl == Duration(0) ? options_.ttl : entry.ttl;
  entry.until = now + ttl;
  entry.ttl = std::min(ttl * 2, options_.ttl_max);
}

// Never shortens, and does not double: it is the same failure that lasts.
void OutlierEjection::Keep(const CellWorker& worker, Time now) {
  const auto found = until_.find(worker);
  if (found == until_.end() || now >= found->second.until) return;
  found->second.until = std::max(found->second.until, now + options_.ttl);
}

void OutlierEjection::Clear(const CellWorker& worker) {
  if (!until_.empty()) until_.erase(worker);
}

bool OutlierEjection::Contains(const CellWorker& worker, Time now) const {
  const auto found = until_.find(worker);
  return found != until_.end() && now < found->second.until;
}

size_t OutlierEjection::Count(Time now) const {
  return static_cast<size_t>(std::count_if(
      until_.begin(), until_.end(), [now](const auto& entry) { return now < entry.second.until; }));
}

std::vector<CellWorker> OutlierEjection::All(Time now) const {
  std::vector<CellWorker> all;
  for (const auto& [worker, entry] : until_)
    if (now < entry.until) all.push_back(worker);
  return all;
}

// Makes room: entries whose time is over go first, all at once; if there are none, the one that
// passes next. O(suspects), at the bound alone.
void OutlierEjection::ForgetPassed(Time now) {
  const size_t before = until_.size();
  absl::erase_if(until_, [now](const auto& entry) { return now >= entry.second.until; });
  if (until_.size() < before) return;
  until_.erase(std::min_element(until_.begin(), until_.end(), [](const auto& a, const auto& b) {
    return a.second.until < b.second.until;
  }));
}

}  // namespace kvatlas
