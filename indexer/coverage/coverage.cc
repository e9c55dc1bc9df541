#include "indexer/coverage/coverage.h"

#include <algorithm>

namespace kvatlas {

Coverage::Coverage(const WaypointSchedule* schedule, const CoverageOptions& options,
                   const Clock* clock)
    : schedule_(*schedule), options_(options), clock_(*clock) {}

void Coverage::OnChanged(HolderIndex, SequenceHash block, Position position, TierMask before,
                         TierMask after, const Stored* run) {
  const bool had = before.Intersects(options_.tiers);
  const bool has = after.Intersects(options_.tiers);
  if (had == has || !schedule_.IsWaypoint(position)) return;
  if (has) {
    const uint32_t ordinal = schedule_.WaypointsIn(position + 1) - 1;
    Gained(block, ordinal, Before(block, ordinal, run));
  } else {
    Dropped(block);
  }
}

SequenceHash Coverage::Before(SequenceHash block, uint32_t ordinal, const Stored* run) const {
  if (run == nullptr || ordinal == 0) return kNoParent;
  // Positions wrap around when they are before the run; then they are beyond its end.
  const Position at = schedule_.PositionOf(ordinal) - run->position;
  const Position before = schedule_.PositionOf(ordinal - 1) - run->position;
  const size_t blocks = run->blocks.size();
  return at < blocks && before < at && run->blocks[at] == block ? run->blocks[before] : kNoParent;
}

void Coverage::Gained(SequenceHash block, uint32_t ordinal, SequenceHash before) {
  MutexLock lock(&mutex_);
  Entry& entry = waypoints_[block];
  if (before != kNoParent) entry.before = before;
  if (entry.holders++ > 0) return;
  ++stats_.covered;
  entry.ordinal = ordinal;
  if (entry.announced || entry.queued) return;  // a withdrawal on its way is outdated by this
  entry.queued = true;
  to_announce_.push_back(block);
}

void Coverage::Dropped(SequenceHash block) {
  const Time now = clock_.Now();
  MutexLock lock(&mutex_);
  const auto it = waypoints_.find(block);
  if (it == waypoints_.end() || it->second.holders == 0) return;  // only a bug of the caller's
  Entry& entry = it->second;
  if (--entry.holders > 0) return;
  --stats_.covered;
  if (entry.announced) {
    // Times were read before the lock: keep the queue in order.
    entry.lost_at = lost_.empty() ? now : std::max(now, lost_.back().at);
    lost_.push_back({block, entry.lost_at});
  } else if (!entry.queued) {
    waypoints_.erase(it);
  } else if (waiting_.erase({entry.ordinal, block}) > 0) {
    waypoints_.erase(it);
  }
  // Else it is in `to_announce_`, and is forgotten when its turn comes.
}

void Coverage::OnLoad(HolderIndex holder, const std::optional<Load>& load) {
  MutexLock lock(&mutex_);
  if (load.has_value()) {
    loads_[holder] = *load;
  } else if (loads_.erase(holder) == 0) {
    return;
  }
  load_changed_ = true;
}

std::vector<Event> Coverage::Take(size_t waypoints_max) {
  std::vector<Event> removed;
  std::vector<Event> events;
  const Time now = clock_.Now();
  MutexLock lock(&mutex_);
  // Withdrawals first: they make room in the budget.
  const size_t taken = TakeWithdrawals(waypoints_max, now, &removed);
  TakeAnnouncements(waypoints_max - taken, &events);
  for (Event& event : removed) events.push_back(std::move(event));
  return events;
}

size_t Coverage::TakeWithdrawals(size_t waypoints_max, Time now, std::vector<Event>* events) {
  Removed removed{.tier = Tier::kDevice, .blocks = {}};
  while (!lost_.empty() && removed.blocks.size() < waypoints_max) {
    const Lost lost = lost_.front();
    if (now - lost.at < options_.withdraw_delay) break;
    lost_.pop_front();
    const auto it = waypoints_.find(lost.block);
    if (it == waypoints_.end()) continue;
    const Entry& entry = it->second;
    if (!entry.announced || entry.holders > 0 || entry.lost_at != lost.at) continue;
    waypoints_.erase(it);
    removed.blocks.push_back(lost.block);
  }
  const size_t taken = removed.blocks.size();
  stats_.withdrawn += taken;
  stats_.held -= taken;
  if (taken > 0) events->push_back(std::move(removed));
  return taken;
}

size_t Coverage::TakeAnnouncements(size_t waypoints_max, std::vector<Event>* events) {
  size_t taken = 0;
  Tails tails;
  while (taken < waypoints_max && !Full() && !waiting_.empty()) {
    const SequenceHash block = waiting_.begin()->second;
    waiting_.erase(waiting_.begin());
    if (Announce(block, events, &tails)) ++taken;
  }
  while (taken < waypoints_max && !to_announce_.empty()) {
    const SequenceHash block = to_announce_.front();
    to_announce_.pop_front();
    if (Announce(block, events, &tails)) ++taken;
  }
  return taken;
}

bool Coverage::Announce(SequenceHash block, std::vector<Event>* events, Tails* tails) {
  const auto it = waypoints_.find(block);
  if (it == waypoints_.end()) return false;
  Entry& entry = it->second;
  if (entry.holders == 0) {
    waypoints_.erase(it);
    return false;
  }
  if (Full()) {
    waiting_.insert({entry.ordinal, block});
    return false;
  }
  entry.queued = false;
  entry.announced = true;
  ++stats_.announced;
  ++stats_.held;
  // Without the waypoint before it at the end of a run that is announced now, it starts one of its own; naming a parent
  // would cost more than it tells.
  if (const auto tail = tails->find(entry.before); tail != tails->end()) {
    const size_t place = tail->second;
    Stored& run = std::get<Stored>((*events)[place]);
    if (run.position + run.blocks.size() == entry.ordinal) {
      run.blocks.push_back(block);
      tails->erase(tail);
      tails->emplace(block, place);
      return true;
    }
  }
  tails->emplace(block, events->size());
  events->push_back(Stored{
      .tier = Tier::kDevice, .position = entry.ordinal, .parent = kNoParent, .blocks = {block}});
  return true;
}

bool Coverage::Full() const {
  return options_.waypoints_max != 0 && stats_.held >= options_.waypoints_max;
}

std::optional<Load> Coverage::TakeLoad() {
  MutexLock lock(&mutex_);
  if (!load_changed_) return std::nullopt;
  load_changed_ = false;
  Load sum;
  sum.workers = 0;
  for (const auto& [holder, load] : loads_) {
    sum.running_requests += load.running_requests;
    sum.waiting_requests += load.waiting_requests;
    sum.used_blocks += load.used_blocks;
    sum.free_blocks += load.free_blocks;
    sum.waiting_prefill_blocks += load.waiting_prefill_blocks;
    sum.tokens_per_s += load.tokens_per_s;
    sum.workers += load.workers;
  }
  return sum;
}

bool Coverage::AtRest() const {
  MutexLock lock(&mutex_);
  return to_announce_.empty() && stats_.held <= stats_.covered - waiting_.size();
}

std::optional<Time> Coverage::NextDue() const {
  MutexLock lock(&mutex_);
  if (!to_announce_.empty() || (!waiting_.empty() && !Full())) return clock_.Now();
  if (lost_.empty()) return std::nullopt;
  return lost_.front().at + options_.withdraw_delay;
}

CoverageStats Coverage::Stats() const {
  MutexLock lock(&mutex_);
  CoverageStats stats = stats_;
  stats.waiting = waiting_.size();
  return stats;
}

}  // namespace kvatlas
