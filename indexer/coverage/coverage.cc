// The life of a waypoint's entry: made by its first holder (`Gained`); queued in `to_announce_`, or
// ranked with a budget; announced by `Take`; without holders for `withdraw_delay` it is withdrawn
// and erased. An entry that was never announced is erased with its last holder, or when its turn in
// `to_announce_` comes.
//
// With a budget every entry is in exactly one of `announced_` and `waiting_`, and in `warm_` while
// it has holders and is not cold. The sets are ordered by fields of the entry: `Delist` comes
// before each change of such a field and `AddToRanking` after it.

#include "indexer/coverage/coverage.h"

#include <algorithm>
#include <chrono>
#include <tuple>

namespace kvatlas {

namespace {

// Waypoints before a new one that it keeps warm.
constexpr int kWarmedMax = 64;
// Ends of runs that are remembered, so that the next run knows what is before it.
constexpr size_t kEndsMax = 1 << 16;
constexpr uint32_t kUpdatesPerSecondMin = 2;  // a waypoint that takes another's place

// The tighter of both; 0: there is none.
uint64_t WaypointsMax(const CoverageOptions& options) {
  if (options.bytes_max == 0) return options.waypoints_max;
  const uint64_t by_bytes = std::max<uint64_t>(options.bytes_max / kCoverageBytesPerWaypoint, 1);
  return options.waypoints_max == 0 ? by_bytes : std::min(by_bytes, options.waypoints_max);
}

}  // namespace

Coverage::Coverage(const WaypointSchedule* schedule, const CoverageOptions& options,
                   const Clock* clock)
    : schedule_(*schedule),
      options_(options),
      waypoints_max_(WaypointsMax(options)),
      clock_(*clock),
      allowance_(std::max(options.updates_per_s, kUpdatesPerSecondMin)),
      allowance_at_(clock->Now()) {}

// 1. A run matters only where its tiers begin or end to count as routed.
// 2. The waypoints in it follow from its position alone (two divisions); most runs have none, and
//    end here without the lock.
// 3. Each one is gained or lost by one holder.
// 4. With a budget the end of the run is remembered, for the run that goes on from it.
void Coverage::OnChanged(HolderIndex, const ChangeLog::Part& changes, const Stored* stored) {
  for (size_t i = 0; i < changes.size(); ++i) {
    const ChangeLog::Run run = changes[i];
    const bool had = run.before.Intersects(options_.tiers);
    const bool has = run.after.Intersects(options_.tiers);
    if (had == has) continue;
    const bool at_end = has && budgeted() && stored != nullptr && !stored->blocks.empty() &&
                        stored->blocks.back() == run.blocks.back();
    const uint32_t first = schedule_.WaypointsIn(run.position);
    const uint32_t end =
        schedule_.WaypointsIn(run.position + static_cast<uint32_t>(run.blocks.size()));
    if (first == end && !at_end) continue;
    const Time now = clock_.Now();
    MutexLock lock(&mutex_);
    for (uint32_t ordinal = first; ordinal < end; ++ordinal) {
      const SequenceHash block = run.blocks[schedule_.PositionOf(ordinal) - run.position];
      if (has) {
        Gained(block, ordinal, Before(block, ordinal, stored), stored, now);
      } else {
        Dropped(block, now);
      }
    }
    if (at_end) RememberRunTail(*stored);
  }
}

SequenceHash Coverage::Before(SequenceHash block, uint32_t ordinal, const Stored* run) const {
  if (run == nullptr || ordinal == 0) return kNoParent;
  // Unsigned: a position before the run wraps around and is beyond its end. `before < at` excludes
  // an earlier waypoint that wrapped.
  const Position at = schedule_.PositionOf(ordinal) - run->position;
  const Position before = schedule_.PositionOf(ordinal - 1) - run->position;
  const size_t blocks = run->blocks.size();
  return at < blocks && before < at && run->blocks[at] == block ? run->blocks[before] : kNoParent;
}

// Notes, under the last block of the run, the last waypoint up to there: in the run, or known from
// the run before it. The next run's first waypoint then knows which one is before it (`Gained`),
// and `Touch` can keep the whole path warm. The oldest of `kEndsMax` is forgotten: paths then end
// there, and their beginnings cool by themselves.
void Coverage::RememberRunTail(const Stored& run) {
  const Position position = run.position + static_cast<Position>(run.blocks.size()) - 1;
  const uint32_t waypoints = schedule_.WaypointsIn(position + 1);
  if (waypoints == 0) return;
  const Position last = schedule_.PositionOf(waypoints - 1);
  const size_t size = run.blocks.size();
  SequenceHash waypoint = kNoParent;
  if (position - last < size) {
    waypoint = run.blocks[size - 1 - (position - last)];
  } else if (const auto end = ends_.find(run.parent); end != ends_.end()) {
    waypoint = end->second;
  }
  if (waypoint == kNoParent) return;
  if (!ends_.insert_or_assign(run.blocks.back(), waypoint).second) return;
  ends_by_age_.push_back(run.blocks.back());
  if (ends_by_age_.size() <= kEndsMax) return;
  ends_.erase(ends_by_age_.front());
  ends_by_age_.pop_front();
}

// One holder more. The first one makes the waypoint news, unless it is still announced: then a
// withdrawal that waits in `lost_` is outdated, and nothing was ever gone. Its ranking changes with
// its kind (2 to 0), hence `Delist` first.
void Coverage::Gained(SequenceHash block, uint32_t ordinal, SequenceHash before, const Stored* run,
                      Time now) {
  Entry& entry = waypoints_[block];
  if (before != kNoParent) {
    entry.before = before;
  } else if (budgeted() && run != nullptr && ordinal > 0 && entry.before == kNoParent) {
    if (const auto end = ends_.find(run->parent); end != ends_.end()) entry.before = end->second;
  }
  const bool is_new = entry.holders == 0;
  if (is_new && entry.announced && budgeted()) Delist(block, entry);
  ++entry.holders;
  if (is_new) {
    ++stats_.covered;
    entry.ordinal = ordinal;
    entry.cold = false;
    entry.written_at = now;
    if (!entry.announced && !entry.queued) {
      entry.queued = true;
      if (!budgeted()) to_announce_.push_back(block);
    }
    if (budgeted()) AddToRanking(block, entry);
  }
  if (budgeted()) Touch(block, now);
}

// One holder less. After the last one an announced waypoint waits in `lost_`; with a budget it is
// ranked as lost at once, so that it makes room for others before its withdrawal.
void Coverage::Dropped(SequenceHash block, Time now) {
  const auto it = waypoints_.find(block);
  if (it == waypoints_.end() || it->second.holders == 0) return;  // only a bug of the caller's
  Entry& entry = it->second;
  if (entry.holders > 1) {
    --entry.holders;
    return;
  }
  if (budgeted()) Delist(block, entry);
  entry.holders = 0;
  --stats_.covered;
  if (entry.announced) {
    // Times were read before the lock: keep the queue in order.
    entry.lost_at = lost_.empty() ? now : std::max(now, lost_.back().at);
    lost_.push_back({block, entry.lost_at});
    if (budgeted()) AddToRanking(block, entry);
  } else if (budgeted() || !entry.queued) {
    waypoints_.erase(it);
  }
  // Else it is in `to_announce_`, and is forgotten when its turn comes.
}

// ---- The budget ----

// Without the name, unlike `operator<`: equal waypoints must not displace each other in turns.
bool Coverage::Rank::Better(const Rank& other) const {
  return std::tuple(kind, ordinal, -written_at.count()) <
         std::tuple(other.kind, other.ordinal, -other.written_at.count());
}

bool Coverage::Rank::operator<(const Rank& other) const {
  return std::tuple(kind, ordinal, -written_at.count(), Raw(block)) <
         std::tuple(other.kind, other.ordinal, -other.written_at.count(), Raw(other.block));
}

Coverage::Rank Coverage::RankOf(SequenceHash block, const Entry& entry) {
  return {.kind = entry.holders == 0 ? 2u : (entry.cold ? 1u : 0u),
          .ordinal = entry.ordinal,
          .written_at = entry.written_at,
          .block = block};
}

void Coverage::AddToRanking(SequenceHash block, const Entry& entry) {
  (entry.announced ? announced_ : waiting_).insert(RankOf(block, entry));
  if (entry.holders > 0 && !entry.cold) warm_.insert({entry.written_at, block});
}

void Coverage::Delist(SequenceHash block, const Entry& entry) {
  (entry.announced ? announced_ : waiting_).erase(RankOf(block, entry));
  warm_.erase({entry.written_at, block});
}

// The waypoint and those before it are in use now: they become warm again with this time. The walk
// ends at one that was written as late already, since it was walked from there, at one without
// holders, and after `kWarmedMax`.
void Coverage::Touch(SequenceHash block, Time now) {
  for (int i = 0; i < kWarmedMax && block != kNoParent; ++i) {
    const auto it = waypoints_.find(block);
    if (it == waypoints_.end() || it->second.holders == 0) return;
    Entry& entry = it->second;
    if (i > 0 && entry.written_at >= now) return;  // and so are those before it
    if (entry.cold || entry.written_at < now) {
      Delist(block, entry);
      entry.cold = false;
      entry.written_at = std::max(entry.written_at, now);
      AddToRanking(block, entry);
    }
    block = entry.before;
  }
}

// Warm waypoints that were unwritten for `cold_after` become cold; `warm_` has the longest
// unwritten first, so only these are looked at.
void Coverage::Age(Time now) {
  while (!warm_.empty() && now - warm_.begin()->first >= options_.cold_after) {
    const SequenceHash block = warm_.begin()->second;
    Entry& entry = waypoints_.at(block);
    Delist(block, entry);
    entry.cold = true;
    AddToRanking(block, entry);
  }
}

bool Coverage::WouldAnnounce() const {
  return !waiting_.empty() && (!Full() || waiting_.begin()->Better(*announced_.rbegin()));
}

// While the best waiting waypoint is better than the worst announced one, or there is room:
// announces it, and withdraws the worst one if the budget is full. Such an exchange is two updates
// and is made only if both may leave, since a half of it would lose a waypoint for nothing. A
// displaced one that has holders waits again.
size_t Coverage::TakeBest(size_t waypoints_max, std::vector<Event>* events,
                          std::vector<Event>* removed) {
  Removed displaced{.tier = Tier::kDevice, .blocks = {}};
  size_t taken = 0;
  Tails tails;
  while (WouldAnnounce() && taken + (Full() ? 2 : 1) <= waypoints_max) {
    const SequenceHash best = waiting_.begin()->block;
    if (Full()) {
      const auto worst = waypoints_.find(announced_.rbegin()->block);
      Entry& entry = worst->second;
      Delist(worst->first, entry);
      displaced.blocks.push_back(worst->first);
      entry.announced = false;
      entry.queued = entry.holders > 0;
      ++stats_.withdrawn;
      --stats_.held;
      ++taken;
      if (entry.queued) {
        AddToRanking(worst->first, entry);
      } else {
        waypoints_.erase(worst);
      }
    }
    Announce(best, events, &tails);
    ++taken;
  }
  if (!displaced.blocks.empty()) removed->push_back(std::move(displaced));
  return taken;
}

// A token bucket of one second's size: unused updates are kept for at most a second. At least 2 a
// second, or an exchange could never leave.
size_t Coverage::Allowed(size_t waypoints_max, Time now) {
  if (options_.updates_per_s == 0) return waypoints_max;
  const double per_s = std::max(options_.updates_per_s, kUpdatesPerSecondMin);
  const double passed = std::chrono::duration<double>(now - allowance_at_).count();
  allowance_ = std::min(per_s, allowance_ + per_s * std::max(passed, 0.0));
  allowance_at_ = std::max(allowance_at_, now);
  return std::min(waypoints_max, static_cast<size_t>(allowance_));
}

// ---- What is due ----

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
  const size_t allowed = Allowed(waypoints_max, now);
  // Withdrawals first: they make room in the budget.
  size_t taken = TakeWithdrawals(allowed, now, &removed);
  if (budgeted()) {
    Age(now);
    taken += TakeBest(allowed - taken, &events, &removed);
  } else {
    taken += TakeAnnouncements(allowed - taken, &events);
  }
  if (options_.updates_per_s != 0) allowance_ -= static_cast<double>(taken);
  for (Event& event : removed) events.push_back(std::move(event));
  return events;
}

// `lost_` is in order of time. An entry of it is outdated if the waypoint has holders again, was
// displaced, or was lost again later (`lost_at` differs).
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
    if (budgeted()) Delist(lost.block, entry);
    waypoints_.erase(it);
    removed.blocks.push_back(lost.block);
  }
  const size_t taken = removed.blocks.size();
  stats_.withdrawn += taken;
  stats_.held -= taken;
  if (taken > 0) events->push_back(std::move(removed));
  return taken;
}

// Without a budget, in the order in which they became covered. Waypoints that lost all holders
// meanwhile are dropped without counting.
size_t Coverage::TakeAnnouncements(size_t waypoints_max, std::vector<Event>* events) {
  size_t taken = 0;
  Tails tails;
  while (taken < waypoints_max && !to_announce_.empty()) {
    const SequenceHash block = to_announce_.front();
    to_announce_.pop_front();
    if (Announce(block, events, &tails)) ++taken;
  }
  return taken;
}

// Appends one waypoint to the events. A waypoint whose predecessor is the last of a run in this
// call goes on with that run; `tails` has the ends of these runs.
bool Coverage::Announce(SequenceHash block, std::vector<Event>* events, Tails* tails) {
  const auto it = waypoints_.find(block);
  if (it == waypoints_.end()) return false;
  Entry& entry = it->second;
  if (entry.holders == 0) {
    waypoints_.erase(it);
    return false;
  }
  if (budgeted()) Delist(block, entry);
  entry.queued = false;
  entry.announced = true;
  if (budgeted()) AddToRanking(block, entry);
  ++stats_.announced;
  ++stats_.held;
  // Without the waypoint before it at the end of a run that is announced now, it starts one of its
  // own; naming a parent would cost more than it tells.
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

bool Coverage::Full() const { return budgeted() && stats_.held >= waypoints_max_; }

// Summed anew from all holders. *Cost*: O(holders), only after a change.
std::optional<Load> Coverage::TakeLoad() {
  MutexLock lock(&mutex_);
  if (!load_changed_) return std::nullopt;
  load_changed_ = false;
  Load sum = Load::None();
  for (const auto& [holder, load] : loads_) sum += load;
  return sum;
}

// Without a budget more announced than covered means that withdrawals wait. With one, lost
// waypoints are the worst announced ones, so the last entry tells.
bool Coverage::AtRest() const {
  MutexLock lock(&mutex_);
  if (!budgeted()) return to_announce_.empty() && stats_.held <= stats_.covered;
  return !WouldAnnounce() && (announced_.empty() || announced_.rbegin()->kind != 2);
}

// With a budget time alone may change the order: when the next waypoint cools, a waiting one may be
// better. The rate limit is not looked at, so the time may be too early.
std::optional<Time> Coverage::NextDue() const {
  MutexLock lock(&mutex_);
  if (!to_announce_.empty() || WouldAnnounce()) return clock_.Now();
  std::optional<Time> due;
  if (!lost_.empty()) due = lost_.front().at + options_.withdraw_delay;
  if (waiting_.empty() || warm_.empty()) return due;
  const Time cooled = warm_.begin()->first + options_.cold_after;
  return due.has_value() ? std::min(*due, cooled) : cooled;
}

CoverageStats Coverage::Stats() const {
  MutexLock lock(&mutex_);
  CoverageStats stats = stats_;
  stats.waiting = budgeted() ? waiting_.size() : to_announce_.size();
  return stats;
}

}  // namespace kvatlas
