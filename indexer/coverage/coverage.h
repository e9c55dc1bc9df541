// The waypoints that this process covers, and the news about them. Membership changes of one
// domain's holders go in; announcements and withdrawals come out.
//
//   changes of holders ─▶ holders per waypoint ─┬─ first one gets it ─▶ announce at the next `Take`
//                                               └─ last one loses it ─▶ withdraw after `withdraw_delay`,
//                                                                       unless it comes back before
//
// *Place*: a leaf feeds it with worker ranks' blocks; a hierarchy node that reports to a further
// parent feeds it with cells' waypoints, whose positions are ordinals, under a schedule over
// ordinals.
// *Truth*: a waypoint is covered when some holder has its block in a routed tier. The waypoints
// announced and not withdrawn are those covered at the last `Take`, plus those lost less than
// `withdraw_delay` ago, less those that the budget refused.
// *Budget*: of what is covered, the best `waypoints_max` are announced at every `Take`, and better
// ones displace worse ones at once. Worst first:
//   1. what no holder has any more, and only awaits its withdrawal
//   2. cold: neither it nor, as far as runs tell, a waypoint behind it was written for `cold_after`
//   3. within each of these, and among the others: the deeper before the shallower; at equal depth
//      what was written longest ago
// So a prompt in use loses its tail, then its middle, and what is left still leads to its cell.
// *Threads*: any thread may call everything.
// *Cost*: a run of changes costs two divisions; each waypoint in it a hash table access, all of
// them one short lock. About 56 bytes a waypoint; with a budget 200, and a logarithm for every
// change.
// *Bounds*: `waypoints_max` announced at once, and no more than `bytes_max` allow; the others wait
// and are counted. `updates_per_s` leave, withdrawals first, and no more than a second's worth at
// once.

#ifndef KVATLAS_INDEXER_COVERAGE_COVERAGE_H_
#define KVATLAS_INDEXER_COVERAGE_COVERAGE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "indexer/base/clock.h"
#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/base/tier.h"
#include "indexer/base/waypoints.h"
#include "indexer/registry/domain_observer.h"

namespace kvatlas {

// Bytes that a waypoint of one cell costs a node of the level above, at most: its part of the
// index, with the hash.
inline constexpr uint64_t kCoverageBytesPerWaypoint = 64;

struct CoverageOptions {
  Duration withdraw_delay = std::chrono::milliseconds(100);
  uint64_t waypoints_max = 0;  // 0: no limit
  uint64_t bytes_max = 0;      // the same as a node's memory, `kCoverageBytesPerWaypoint` each
  Duration cold_after = std::chrono::minutes(10);
  uint32_t updates_per_s = 0;           // 0: no limit; at least 2 otherwise
  TierMask tiers = TierMask::Routed();  // the tiers that count
};

struct CoverageStats {
  uint64_t announced = 0;  // since the start
  uint64_t withdrawn = 0;
  uint64_t held = 0;     // announced now
  uint64_t covered = 0;  // held by a holder now
  uint64_t waiting = 0;  // covered and not announced: refused by a budget, or not yet due, for now
};

class Coverage : public DomainObserver {
 public:
  // `schedule` and `clock` outlive it.
  Coverage(const WaypointSchedule* schedule, const CoverageOptions& options, const Clock* clock);

  // `stored` tells which waypoint is before one in it. Quick; calls nothing.
  void OnChanged(HolderIndex holder, const ChangeLog::Part& changes, const Stored* stored) override;

  // The load of a holder; nothing: it is gone.
  void OnLoad(HolderIndex holder, const std::optional<Load>& load) override;

  // The news that are due, of at most `waypoints_max` waypoints: stored events at ordinals, then
  // removed events. Empty when nothing is due. Waypoints known to follow one another are one run: 8
  // bytes each on the wire, not 16.
  std::vector<Event> Take(size_t waypoints_max);

  // The sum over holders, when it changed since the last call.
  std::optional<Load> TakeLoad();

  // Nothing is left to announce or to withdraw, now or later.
  bool AtRest() const;

  // When `Take` may have something next, if nothing changes meanwhile; perhaps less than that,
  // never later. Nothing: never.
  std::optional<Time> NextDue() const;

  CoverageStats Stats() const;

 private:
  struct Entry {
    uint32_t holders = 0;
    uint32_t ordinal = 0;
    SequenceHash before = kNoParent;  // the waypoint before it, when some run told
    bool announced = false;
    bool queued = false;  // in `to_announce_` or `waiting_`
    bool cold = false;    // with a budget
    Time lost_at{0};      // when `holders` became 0
    Time written_at{0};   // with a budget: it, or one behind it
  };
  // With a budget: how soon a waypoint goes, the best first.
  struct Rank {
    uint32_t kind = 0;  // 0 warm, 1 cold, 2 lost
    uint32_t ordinal = 0;
    Time written_at{0};
    SequenceHash block{0};

    // Before `other` for a reason, not only by name.
    bool Better(const Rank& other) const;
    bool operator<(const Rank& other) const;
  };
  struct Lost {
    SequenceHash block;
    Time at;
  };

  // Where runs end that are being announced: last block and place among the events.
  using Tails = absl::flat_hash_map<SequenceHash, size_t>;

  // The waypoint before the one with `ordinal`, `block`, in the run that holds both; else
  // `kNoParent`.
  SequenceHash Before(SequenceHash block, uint32_t ordinal, const Stored* run) const;
  void Gained(SequenceHash block, uint32_t ordinal, SequenceHash before, const Stored* run,
              Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Dropped(SequenceHash block, Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // With a budget.
  bool budgeted() const { return waypoints_max_ != 0; }
  static Rank RankOf(SequenceHash block, const Entry& entry);
  void AddToRanking(SequenceHash block, const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Delist(SequenceHash block, const Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // It was written, and with it those before it are in use.
  void Touch(SequenceHash block, Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Age(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RememberRunTail(const Stored& run) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A waiting one is better than an announced one, or there is room.
  bool WouldAnnounce() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t TakeBest(size_t waypoints_max, std::vector<Event>* events, std::vector<Event>* removed)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t Allowed(size_t waypoints_max, Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  size_t TakeWithdrawals(size_t waypoints_max, Time now, std::vector<Event>* events)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t TakeAnnouncements(size_t waypoints_max, std::vector<Event>* events)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False: it is no longer covered.
  bool Announce(SequenceHash block, std::vector<Event>* events, Tails* tails)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Full() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const WaypointSchedule& schedule_;
  const CoverageOptions options_;
  const uint64_t waypoints_max_;  // by either bound; 0: none
  const Clock& clock_;

  mutable Mutex mutex_;
  absl::flat_hash_map<SequenceHash, Entry> waypoints_ ABSL_GUARDED_BY(mutex_);
  std::deque<SequenceHash> to_announce_ ABSL_GUARDED_BY(mutex_);
  // With a budget: what is announced, and what waits for it; what is warm, longest unwritten first;
  // the last waypoint up to the end of a run, for the next run, of the latest so many.
  std::set<Rank> announced_ ABSL_GUARDED_BY(mutex_);
  std::set<Rank> waiting_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<Time, SequenceHash>> warm_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<SequenceHash, SequenceHash> ends_ ABSL_GUARDED_BY(mutex_);
  std::deque<SequenceHash> ends_by_age_ ABSL_GUARDED_BY(mutex_);
  double allowance_ ABSL_GUARDED_BY(mutex_) = 0;  // updates that may leave now
  Time allowance_at_ ABSL_GUARDED_BY(mutex_){0};
  // In order of time. Outdated when the waypoint came back or was lost again since.
  std::deque<Lost> lost_ ABSL_GUARDED_BY(mutex_);
  CoverageStats stats_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<HolderIndex, Load> loads_ ABSL_GUARDED_BY(mutex_);
  bool load_changed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_COVERAGE_COVERAGE_H_
