// Whose streams were refused, and why? Kept so that metrics can name a holder that was never let in.
//
// *Threads*: any. *Bounds*: `kRefusedHoldersMax` holders, each of `kRefusedBytesMax` at most; of others only what the log says is
// known, and reasons are cut.

#ifndef KVATLAS_INDEXER_HOLDERS_REFUSED_HOLDERS_H_
#define KVATLAS_INDEXER_HOLDERS_REFUSED_HOLDERS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "indexer/base/domain.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

inline constexpr size_t kRefusedHoldersMax = 256;
inline constexpr size_t kRefusedBytesMax = 1024;  // of its names, and of its reason

struct RefusedHolder {
  Domain domain;
  HolderId holder;
  uint64_t times = 0;
  std::string reason;  // of the last time
};

class RefusedHolders {
 public:
  void Refused(const Domain& domain, const HolderId& holder, std::string reason) {
    const size_t names =
        domain.model.size() + domain.tenant.size() + holder.name.size() + holder.replica.size();
    if (names > kRefusedBytesMax) return;
    reason.resize(std::min(reason.size(), kRefusedBytesMax));
    MutexLock lock(&mutex_);
    const std::pair key(domain, holder);
    if (refused_.size() >= kRefusedHoldersMax && !refused_.contains(key)) return;
    RefusedHolder& refused = refused_[key];
    refused = {domain, holder, refused.times + 1, std::move(reason)};
  }
  // It is forgotten.
  void Welcomed(const Domain& domain, const HolderId& holder) {
    MutexLock lock(&mutex_);
    refused_.erase(std::pair(domain, holder));
  }
  // By domain and holder.
  std::vector<RefusedHolder> All() const {
    std::vector<RefusedHolder> all;
    MutexLock lock(&mutex_);
    for (const auto& [key, refused] : refused_) all.push_back(refused);
    return all;
  }

 private:
  mutable Mutex mutex_;
  std::map<std::pair<Domain, HolderId>, RefusedHolder> refused_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_HOLDERS_REFUSED_HOLDERS_H_
