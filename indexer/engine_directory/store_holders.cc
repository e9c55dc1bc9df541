// Holders of shared stores are kept weakly: the ranks that use one own it. Expired entries are
// removed when a new one is made, so that the map is bounded by the stores in use.

#include "indexer/engine_directory/store_holders.h"

#include <iterator>

namespace kvatlas {

absl::StatusOr<std::shared_ptr<HolderHandle>> StoreHolders::Of(const Domain& domain,
                                                               uint32_t block_size,
                                                               const std::string& name) {
  MutexLock lock(&mutex_);
  const auto known = holders_.find({domain, name});
  if (known != holders_.end()) {
    if (std::shared_ptr<HolderHandle> holder = known->second.lock(); holder != nullptr)
      return holder;
  }
  for (auto it = holders_.begin(); it != holders_.end();)
    it = it->second.expired() ? holders_.erase(it) : std::next(it);
  absl::StatusOr<std::unique_ptr<HolderHandle>> made = registry_->AddLocal(
      domain, block_size,
      {.id = {"store:" + name, 0, ""}, .address = "", .labels = {{"holds_store", name}}});
  if (!made.ok()) return made.status();
  std::shared_ptr<HolderHandle> holder = *std::move(made);
  // Blocks can leave a store without an event: never exact.
  holder->SetTrust(Trust::kDegraded);
  holders_[{domain, name}] = holder;
  return holder;
}

}  // namespace kvatlas
