// Holders for stores that several engines share (`shared_stores.h`): one for a domain and a name,
// as long as an engine is registered with it.
//
// *Truth*: what any of them announced as being there, and none said to be gone. Never exact: not
// every removal is announced, and none while the engine that would announce it is away.
// *Threads*: any. *Lifetime*: the registry outlives it and what it gives out.

#ifndef KVATLAS_INDEXER_ENGINE_DIRECTORY_STORE_HOLDERS_H_
#define KVATLAS_INDEXER_ENGINE_DIRECTORY_STORE_HOLDERS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "indexer/base/domain.h"
#include "indexer/base/mutex.h"
#include "indexer/registry/holder_handle.h"
#include "indexer/registry/holder_registry.h"

namespace kvatlas {

class StoreHolders {
 public:
  explicit StoreHolders(HolderRegistry* registry) : registry_(registry) {}

  // As `HolderRegistry::AddLocal`.
  absl::StatusOr<std::shared_ptr<HolderHandle>> Of(const Domain& domain, uint32_t block_size,
                                                   const std::string& name);

 private:
  HolderRegistry* const registry_;
  Mutex mutex_;  // before the registry's
  std::map<std::pair<Domain, std::string>, std::weak_ptr<HolderHandle>> holders_
      ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_ENGINE_DIRECTORY_STORE_HOLDERS_H_
