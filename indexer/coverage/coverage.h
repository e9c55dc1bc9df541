// Which waypoints does this process cover, and what of that has changed? Membership changes of one domain's
// holders go in; what to announce and what to withdraw comes out.
//
//   changes of holders ─▶ holders per waypoint ─┬─ first one gets it ─▶ announce at the next `Take`
//                                               └─ last one loses it ─▶ withdraw after `withdraw_delay`,
//                                                                       unless it comes back before
//
// *Place*: a leaf feeds it with worker ranks' blocks; a hierarchy node that reports to a further parent feeds
// it with cells' waypoints, whose positions are ordinals, under a schedule over ordinals.
// *Truth*: a waypoint is covered when some holder has its block in a routed tier. What was announced and not
// withdrawn is what was covered at the last `Take`, plus what was lost less than `withdraw_delay` ago, less
// what the budget refused.
// *Threads*: any thread may call everything.
// *Cost*: a change elsewhere than at a waypoint costs a division; at one, a short lock and a hash table access.
// About 56 bytes a waypoint.
// *Bounds*: `waypoints_max` announced at once; beyond it new ones wait, shallow ones first, and are counted.

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
#include "indexer/holders/domain_observer.h"

namespace kvatlas {

struct CoverageOptions {
  Duration withdraw_delay = std::chrono::seconds(1);
  uint64_t waypoints_max = 0;           // 0: no limit
  TierMask tiers = TierMask::Routed();  // the tiers that count
};

struct CoverageStats {
  uint64_t announced = 0;  // since the start
  uint64_t withdrawn = 0;
  uint64_t held = 0;     // announced now
  uint64_t covered = 0;  // held by a holder now
  uint64_t waiting = 0;  // refused by the budget, for now
};

class Coverage : public DomainObserver {
 public:
  // `schedule` and `clock` outlive it.
  Coverage(const WaypointSchedule* schedule, const CoverageOptions& options, const Clock* clock);

  // `holder` had the block in tiers `before` and has it in `after`. From `run` it learns which waypoint is before
  // this one, if it is in it. Quick; calls nothing.
  void OnChanged(HolderIndex holder, SequenceHash block, Position position, TierMask before,
                 TierMask after, const Stored* run) override;

  // The load of a holder; nothing: it is gone.
  void OnLoad(HolderIndex holder, const std::optional<Load>& load) override;

  // What is due now, at most `waypoints_max` waypoints of it: stored events at ordinals, then removed
  // events. Empty when nothing is. Waypoints known to follow one another are one run: 8 bytes each on the wire,
  // not 16.
  std::vector<Event> Take(size_t waypoints_max);

  // The sum over holders, when it changed since the last call.
  std::optional<Load> TakeLoad();

  // Nothing is left to announce or to withdraw, now or later.
  bool AtRest() const;

  // When `Take` may have something next, if nothing changes meanwhile; perhaps less than that, never later. Nothing:
  // never.
  std::optional<Time> NextDue() const;

  CoverageStats Stats() const;

 private:
  struct Entry {
    uint32_t holders = 0;
    uint32_t ordinal = 0;
    SequenceHash before = kNoParent;  // the waypoint before it, when some run told
    bool announced = false;
    bool queued = false;  // in `to_announce_` or `waiting_`
    Time lost_at{0};      // when `holders` became 0
  };
  struct Lost {
    SequenceHash block;
    Time at;
  };

  // Where runs end that are being announced: last block and place among the events.
  using Tails = absl::flat_hash_map<SequenceHash, size_t>;

  // The waypoint before the one with `ordinal`, `block`, in the run that holds both; else `kNoParent`.
  SequenceHash Before(SequenceHash block, uint32_t ordinal, const Stored* run) const;
  void Gained(SequenceHash block, uint32_t ordinal, SequenceHash before);
  void Dropped(SequenceHash block);
  size_t TakeWithdrawals(size_t waypoints_max, Time now, std::vector<Event>* events)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t TakeAnnouncements(size_t waypoints_max, std::vector<Event>* events)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // True when the entry was announced; false when it waits or is no longer covered.
  bool Announce(SequenceHash block, std::vector<Event>* events, Tails* tails)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Full() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const WaypointSchedule& schedule_;
  const CoverageOptions options_;
  const Clock& clock_;

  mutable Mutex mutex_;
  absl::flat_hash_map<SequenceHash, Entry> waypoints_ ABSL_GUARDED_BY(mutex_);
  std::deque<SequenceHash> to_announce_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<uint32_t, SequenceHash>> waiting_ ABSL_GUARDED_BY(mutex_);  // for the budget
  // In order of time. Outdated when the waypoint came back or was lost again since.
  std::deque<Lost> lost_ ABSL_GUARDED_BY(mutex_);
  CoverageStats stats_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<HolderIndex, Load> loads_ ABSL_GUARDED_BY(mutex_);
  bool load_changed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_COVERAGE_COVERAGE_H_
