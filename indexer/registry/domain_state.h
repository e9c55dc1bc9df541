// One domain: its index, and the holders in it. A part of `HolderRegistry`.
//
// *Threads*: any. Lock order: `mutex_` before a holder's own; neither while the index calls back.

#ifndef KVATLAS_INDEXER_REGISTRY_DOMAIN_STATE_H_
#define KVATLAS_INDEXER_REGISTRY_DOMAIN_STATE_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/ids.h"
#include "indexer/base/memory_budget.h"
#include "indexer/base/mutex.h"
#include "indexer/base/overlap.h"
#include "indexer/index/index.h"
#include "indexer/index/side_index.h"
#include "indexer/registry/domain_observer.h"
#include "indexer/registry/holder.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/registry/holder_table.h"
#include "indexer/registry/hybrid_overlaps.h"
#include "indexer/registry/peer_quotas.h"
#include "indexer/registry/pending_blocks.h"
#include "indexer/registry/shared_stores.h"

namespace kvatlas {

// The holders of a domain by load, as of some tick.
struct LoadOrder {
  bool replicas = false;          // some holder is one: then one alone does not speak for its cell
  std::vector<uint32_t> numbers;  // least loaded first
  std::vector<uint32_t> ranks;    // by number; those not in it are last
  uint32_t RankOf(uint32_t number) const {
    return number < ranks.size() ? ranks[number] : UINT32_MAX;
  }
};

class DomainState {
 public:
  // RESOURCE_EXHAUSTED: there is no memory for its index. `charge` may be null. May take
  // milliseconds.
  static absl::StatusOr<std::shared_ptr<DomainState>> Make(
      const HolderRegistryOptions& options, const Domain& domain, uint32_t block_size,
      std::shared_ptr<const PeerQuotas::Charge> charge);
  ~DomainState();

  const Domain& domain() const { return domain_; }

  uint32_t block_size() const { return block_size_; }

  std::shared_ptr<const Table> table() const;

  HolderPtr Find(const HolderId& id) const;
  HolderPtr FindNamed(const HolderId& id) const;

  // RESOURCE_EXHAUSTED: too many holders. UNAVAILABLE: the domain was dropped.
  absl::StatusOr<HolderPtr> FindOrAdd(const HolderId& id);

  // ALREADY_EXISTS, and as above.
  absl::StatusOr<HolderPtr> AddLocal(const HolderInfo& info, Time now);

  // A holder that is being restored. ALREADY_EXISTS, and as above. Its layout is known before the
  // table has it: a query that finds it shown (`FinishRestore`) after it had asked the index would
  // promise what the main class holds.
  absl::StatusOr<HolderPtr> AddRestored(const HolderId& id, const CacheLayout& layout);

  // The holder's info may have changed: the table gets the new one.
  void RefreshInfo(const HolderPtr& holder);

  // Takes no more holders; false when it has some.
  bool Close();

  // Time passes: since when it has had no holder, those being swept included. Nothing: it has one.
  std::optional<Time> EmptySince(Time now);

  // Out of the tables; what it holds is left to `Sweep`. REQUIRES: `holder` is retired.
  void Forget(const HolderPtr& holder);

  void Maintain(uint64_t steps) { index_->Maintain(steps); }

  // At most `blocks_max` blocks; returns how many are left of it. Counts holders swept in `*swept`.
  uint64_t Sweep(uint64_t blocks_max, std::atomic<uint64_t>* swept);

  // NOT_FOUND: no such holder.
  absl::Status Tell(uint64_t frontend, const Routed& routed, Time now);
  PendingBlocks& pending() { return pending_; }
  void AddPending(std::span<const SequenceHash> blocks, uint64_t frontend, uint64_t session,
                  OverlapAnswer* answer) const;

  std::vector<SessionAnswer> Sessions(uint64_t session, size_t max, Time now) const;

  OverlapAnswer FindOverlaps(const OverlapQuery& query, bool all_holders, bool by_tier,
                             bool held_only, Time now) const;

  // The layouts of holders in the table that have more than the main class.
  std::vector<HybridOverlaps::OfHolder> Layouts() const;

  void FindReaches(std::span<const SequenceHash> blocks, size_t holders, bool held_only,
                   std::vector<TierReach>* reaches) const;

  bool MayHold(SequenceHash block) const { return index_->MayHold(block); }

  // Whole steps of the compact answer from the deepest on, the least loaded of the step that is too
  // large, then the least loaded of all others.
  std::optional<OverlapAnswer> FindBest(const OverlapQuery& query, size_t best, Time now) const;

  // Takes holders that are stores (`shared_stores.h`) out of the answer, extends their workers'
  // `loadable`, and may add workers.
  void AddLoadable(const OverlapQuery& query, const std::shared_ptr<const Table>& table,
                   std::span<const Overlap> overlaps, std::span<const HybridOverlap> hybrids,
                   Time now, OverlapAnswer* answer) const;
  // Blocks that a worker of a store can load. Its main class has `own` blocks itself and `reached`
  // together with the store.
  uint32_t LoadableOf(const Holder& worker, const OverlapQuery& query, uint32_t own,
                      uint32_t reached) const;
  // The stores of this table; null: no holder is a store.
  std::shared_ptr<const SharedStores> StoresIn(const std::shared_ptr<const Table>& table) const;

  // For `FindBest`, while it is in use.
  void SortByLoad(Time now);

  void VisitReaches(std::span<const SequenceHash> blocks, Time now, bool held_only,
                    const std::function<void(const HolderInfo&, const TierReach&)>& visit) const;

  DomainStats Stats(Time now) const;

  std::vector<HolderId> Holders() const;

 private:
  DomainState(const HolderRegistryOptions& options, Domain domain, uint32_t block_size,
              std::unique_ptr<Index> index, std::shared_ptr<const PeerQuotas::Charge> charge);

  // A holder of that id, which `make` makes where there is none.
  struct Added {
    HolderPtr holder;
    bool made = false;
  };
  absl::StatusOr<Added> Add(const HolderId& id, const std::function<HolderPtr(HolderIndex)>& make);
  absl::StatusOr<HolderPtr> AddNew(const HolderId& id,
                                   const std::function<HolderPtr(HolderIndex)>& make);

  const Domain domain_;
  const uint32_t block_size_;
  const ReceiverOptions receiver_options_;
  const MemoryBudget* const memory_;  // may be null
  const std::shared_ptr<const PeerQuotas::Charge> charge_;
  const std::function<void(DomainObserver*)> forget_;  // may be empty
  const std::unique_ptr<Index> index_;
  const std::unique_ptr<SideIndex> sides_;
  DomainObserver* const observer_;  // may be null
  PendingBlocks pending_;
  DomainCounters counters_;
  HybridOverlaps hybrids_{block_size_, &counters_.layouts_version, [this] { return Layouts(); }};

  mutable Mutex mutex_;
  std::map<HolderId, HolderPtr> holders_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const Table> table_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<const LoadOrder> order_ ABSL_GUARDED_BY(mutex_);  // null: not lately asked for
  mutable std::atomic<bool> best_asked_{false};                     // since the last tick
  std::vector<HolderPtr> to_sweep_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> has_stores_{false};  // some holder was a store
  mutable std::shared_ptr<const Table> stores_of_ ABSL_GUARDED_BY(mutex_);
  mutable std::shared_ptr<const SharedStores> stores_ ABSL_GUARDED_BY(mutex_);  // of `stores_of_`
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Time> empty_since_ ABSL_GUARDED_BY(mutex_);
  ReceiverStats gone_ ABSL_GUARDED_BY(mutex_);  // sums over holders that were forgotten
};

using DomainPtr = std::shared_ptr<DomainState>;

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_REGISTRY_DOMAIN_STATE_H_
