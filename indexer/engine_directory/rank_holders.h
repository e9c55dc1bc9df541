// The registry's holders that one engine instance feeds: one per data-parallel rank, registered or
// named by a batch alone.
//
// *Truth*: a rank is hidden, that is in no answer, before the gate opens (`SetHidden`) and when its
// stream has been gone for longer than the lease (`SetAlive`). It holds the same when shown again.
// A rank whose engine was never reached is stale, whatever its worker says: nothing was known of
// it.
// *Threads*: any. *Lifetime*: the registry outlives it, and its holders.

#ifndef KVATLAS_INDEXER_ENGINE_DIRECTORY_RANK_HOLDERS_H_
#define KVATLAS_INDEXER_ENGINE_DIRECTORY_RANK_HOLDERS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/domain.h"
#include "indexer/base/mutex.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/engine_directory/store_holders.h"
#include "indexer/registry/holder_handle.h"
#include "indexer/registry/holder_registry.h"

namespace kvatlas {

// Blocks of these tiers are held by a store that others share; not by the rank that announces them.
struct RankStore {
  StoreHolders* holders = nullptr;  // null: there is none
  std::string name = {};
  TierMask tiers = {};
};

class RankHolders {
 public:
  // With `hidden` ranks start hidden, until `SetHidden(false)`. `labels`: of each; a rank may say
  // another url than they do, and the first rank behind it is then the lowest that says it.
  RankHolders(HolderRegistry* registry, Domain domain, uint32_t block_size, std::string instance,
              bool hidden, std::vector<std::pair<std::string, std::string>> labels,
              RankStore store = {});

  // The holder exists from now on. As `HolderRegistry::AddLocal`; OK when it did already. `url`:
  // where requests for this rank go, unless it is empty.
  absl::Status Add(uint32_t rank, const std::string& url = "");
  // The rank's holder, made when it is new: `MakeHoldingsWriter` of an `EngineWorker`.
  absl::StatusOr<std::shared_ptr<HolderHandle>> HolderOf(uint32_t rank);
  // The holder goes with the last of this and its worker's rank.
  void Remove(uint32_t rank);
  void RemoveAll();

  // Another block size from now on, in two steps: all holders of a domain go before the first comes
  // again. REQUIRES: no worker has one.
  void Drop();
  void AddAgain(uint32_t block_size);

  // In order.
  std::vector<uint32_t> ranks() const;

  // For all ranks, those to come too.
  void SetHidden(bool hidden);
  // Its stream is there now, or not; and is not counted as gone, or is. Nothing when there is no
  // such rank.
  void SetAlive(uint32_t rank, bool heard, bool alive);
  // Its engine was reached: from now on its trust is what its worker says. Idempotent.
  void SetReached(uint32_t rank);
  // How busy it is. Nothing when there is no such rank.
  void SetLoad(uint32_t rank, const Load& load);

 private:
  struct Rank {
    std::shared_ptr<HolderHandle> holder;
    bool alive = true;
    bool masked = false;   // as the holder was told
    bool reached = false;  // between `Drop` and `AddAgain`: it was
  };
  std::vector<std::pair<std::string, std::string>> LabelsOf(uint32_t rank) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Rank*> FindOrAdd(uint32_t rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ShowOrMask(Rank* rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  HolderRegistry* const registry_;
  const Domain domain_;
  uint32_t block_size_ ABSL_GUARDED_BY(mutex_);
  const std::string instance_;
  const std::vector<std::pair<std::string, std::string>> labels_;
  const RankStore store_;

  mutable Mutex mutex_;  // before a holder's own
  std::shared_ptr<HolderHandle> store_holder_ ABSL_GUARDED_BY(mutex_);
  bool hidden_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, Rank> ranks_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, std::string> urls_ ABSL_GUARDED_BY(mutex_);  // of ranks that say one
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_ENGINE_DIRECTORY_RANK_HOLDERS_H_
