// Blocks on their way to each holder of a domain: prompts that frontends have sent to workers, from
// the choice until the engine's events show their blocks.
//
//   told ──▶ pending ──┬── the holder has stored the last block            confirmed
//                      ├── the frontend says that the request failed,
//                      │   or it has left itself                           failed
//                      ├── it says that it is over, and `kAnnouncedWithin` later the blocks are not there    contradicted
//                      ├── its time is over                                timed out
//                      └── a bound was reached, and it is the oldest       dropped
//
// *Place*: one per domain, beside its index; written by frontends' tellings and by the holders' own
// events, read by questions.
// *Truth*: of what frontends told; a telling may be late or lost. `Find` never says more than was
// told and not yet ended. Sequence hashes name whole prefixes, so one equal block of a telling
// means that all before it are equal.
// *Threads*: any. One lock, inside of a holder's; `any` is read without it, so that nothing is paid
// where nothing is pending.
// *Cost*: a telling of n blocks copies them and adds n / `stride` + 2 table entries. A question
// probes one block in `stride`, and for each holder with something pending the block behind what it
// has. An event looks at the tellings of its holder, once per run.
// *Bounds*: `PendingOptions`; beyond them the oldest telling goes, of the frontend that has too
// many or of all. A session costs some 250 bytes.

#ifndef KVATLAS_INDEXER_REGISTRY_PENDING_BLOCKS_H_
#define KVATLAS_INDEXER_REGISTRY_PENDING_BLOCKS_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "indexer/base/clock.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"
#include "indexer/base/routed.h"
#include "indexer/index/change_log.h"

namespace kvatlas {

struct PendingOptions {
  uint64_t bytes_max = 32 << 20;           // of one domain; 0: nothing is remembered
  uint64_t frontend_bytes_max = 16 << 20;  // of one frontend in it
  // A question probes every so-manieth block: less of a beginning in common is not worth waiting
  // for. 1: all of them, as blocks are waypoints; then a block is looked for by its hash alone,
  // since the frontend that tells may go by another schedule than the one that asks.
  Position stride = 8;
  // Sessions are remembered beyond their requests: so many, so long.
  size_t sessions_max = 65536;
  Duration session_ttl = std::chrono::minutes(10);
};

// Since the start, of a holder or of a domain.
struct PendingCounts {
  uint64_t told = 0;
  uint64_t confirmed = 0;
  uint64_t failed = 0;
  uint64_t contradicted = 0;
  uint64_t timed_out = 0;
  uint64_t dropped = 0;

  void Add(const PendingCounts& other);
};

// With what is pending now.
struct PendingStats {
  PendingCounts counts = {};
  uint64_t blocks = 0;
  uint64_t requests = 0;
  uint64_t bytes = 0;  // of a domain
};

// The latest prompts of one session.
struct SessionSeen {
  uint64_t session = 0;
  HolderIndex holder{0};  // where its last prompt went
  Time at{0};
  uint64_t prompts = 0;
  Position first = 0;   // of the last prompt, blocks that the holder had when it was sent there
  Position blocks = 0;  // and all of it
  // Some blocks of its prompts with the positions behind them, the deepest last; of the last
  // prompt, or of one before it that is not known to differ.
  absl::InlinedVector<std::pair<Position, SequenceHash>, 2> samples;
};

class PendingBlocks {
 public:
  static constexpr size_t kSessionSamples = 8;
  static constexpr Duration kAnnouncedWithin = std::chrono::seconds(2);
  // A prompt of which all blocks are there already counts as a request for so long: then the
  // worker's own load has it.
  static constexpr Duration kOnlyRequest = std::chrono::seconds(1);

  explicit PendingBlocks(const PendingOptions& options) : options_(options) {}

  // The caller looks afterwards whether the holder has the last block already, since its events may
  // have been faster, and calls `Confirm` then.
  void Tell(HolderIndex holder, uint64_t frontend, const Routed& routed, Time now);
  void Confirm(uint64_t frontend, uint64_t decision);
  // Unknown ones are ignored.
  void End(uint64_t frontend, const RouteOver& over, Time now);
  // The frontend is gone: its prompts are not waited for. Its sessions stay remembered.
  void Leave(uint64_t frontend);

  bool any() const { return any_.load(std::memory_order_relaxed); }
  // Whether `Find` may find something for a prompt of this session.
  bool MayFind(uint64_t session) const {
    return any() || (session != 0 && any_sessions_.load(std::memory_order_relaxed));
  }
  // Confirms tellings by the changes of an event of the holder.
  void OnChanged(HolderIndex holder, const ChangeLog& changes);
  // The holder is gone, and its number may become another's. Its counts stay in the domain's.
  void Forget(HolderIndex holder);
  void Tick(Time now);

  // For each of `holders`, (number, leading blocks of `sequence` that it has): calls `visit` with
  // its place and what is pending, where something is. Tellings of `frontend` itself count in
  // `depth` alone. `session`: of the prompt; 0: none.
  void Find(std::span<const SequenceHash> sequence,
            std::span<const std::pair<HolderIndex, uint32_t>> holders, uint64_t frontend,
            uint64_t session,
            const std::function<void(size_t place, const Pending& pending)>& visit) const;

  // The latest first, at most `max`; of `session` alone unless it is 0. *Cost*: a copy of each,
  // under the lock.
  std::vector<SessionSeen> Sessions(uint64_t session, size_t max) const;

  PendingStats Stats() const;
  uint64_t bytes() const;
  PendingStats StatsOf(HolderIndex holder) const;

 private:
  using Slot = uint32_t;
  struct Telling {
    uint64_t frontend = 0;
    uint64_t decision = 0;
    HolderIndex holder{0};
    Position first = 0;
    std::vector<SequenceHash> blocks;
    Position shown = 0;  // blocks before this position were stored since
    Time until{0};
    uint64_t number = 0;    // of all tellings: tells a slot's from the one before it
    bool finished = false;  // its blocks are expected until then, and contradicted else

    Position end() const { return first + static_cast<Position>(blocks.size()); }
    uint64_t missing() const { return end() - std::max(first, shown); }
    bool counts() const { return shown <= first; }  // as a request that no load shows yet
  };
  struct Sum {
    uint64_t blocks = 0;
    uint32_t requests = 0;
  };
  struct OfHolder {
    Sum sum;
    absl::InlinedVector<std::pair<uint64_t, Sum>, 2> by_frontend;
    std::vector<Slot> tellings;
    PendingCounts counts;
  };
  struct OfFrontend {
    uint64_t bytes = 0;
    size_t tellings = 0;
    std::deque<std::pair<Slot, uint64_t>>
        by_age;  // with the number; those that are over are skipped
  };
  using Key = std::pair<uint64_t, uint64_t>;  // frontend, decision

  uint64_t BytesOf(const Telling& telling) const;
  bool IsStride(Position position) const {
    return position % options_.stride == options_.stride - 1;
  }
  // One beyond the last position that is one, before `end`; 0: none is.
  Position LastStrideBefore(Position end) const { return end / options_.stride * options_.stride; }
  std::vector<SequenceHash> IndexedBlocks(const Telling& telling) const;

  void Count(const Telling& telling, int sign) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Blocks before `shown` are there.
  void Show(Slot slot, Position shown) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Erase(Slot slot, uint64_t PendingCounts::* as) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void MakeRoom(uint64_t frontend, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // REQUIRES: it has one.
  Slot OldestOf(OfFrontend& of) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Raises `depth` of the holders of `block`'s tellings.
  void Reach(std::span<const SequenceHash> sequence, Position at,
             absl::flat_hash_map<uint32_t, uint32_t>* depth) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void Remember(HolderIndex holder, const Routed& routed, Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  void ForgetSessions(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const PendingOptions options_;
  std::atomic<bool> any_sessions_{false};
  std::atomic<bool> any_{false};
  mutable Mutex mutex_;
  std::vector<Telling> slots_ ABSL_GUARDED_BY(mutex_);
  std::vector<Slot> free_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<Key, Slot> by_key_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<SequenceHash, absl::InlinedVector<Slot, 2>> by_block_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint32_t, OfHolder> holders_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<uint64_t, OfFrontend> frontends_ ABSL_GUARDED_BY(mutex_);
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t next_number_ ABSL_GUARDED_BY(mutex_) = 0;
  PendingCounts gone_ ABSL_GUARDED_BY(mutex_);  // of holders that were forgotten
  absl::flat_hash_map<uint64_t, SessionSeen> sessions_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::pair<Time, uint64_t>> sessions_by_age_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_REGISTRY_PENDING_BLOCKS_H_
