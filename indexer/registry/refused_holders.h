// Senders whose streams were refused, and the reasons, so that metrics can name a holder that was
// never welcomed.
//
// *Threads*: any. *Bounds*: `kRefusedHoldersMax` holders, each of `kRefusedBytesMax` at most; of
// others only what the log says is known, and reasons are cut. A sender that was not refused for
// `kRefusedFor` is forgotten: every sender tries again sooner.

#ifndef KVATLAS_INDEXER_REGISTRY_REFUSED_HOLDERS_H_
#define KVATLAS_INDEXER_REGISTRY_REFUSED_HOLDERS_H_

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

inline constexpr size_t kRefusedHoldersMax = 256;
inline constexpr size_t kRefusedBytesMax = 1024;  // of its names, and of its reason

inline constexpr std::chrono::minutes kRefusedFor{15};

struct RefusedHolder {
  Domain domain;
  HolderId holder;
  uint64_t times = 0;
  std::string reason;  // of the last time
  Time at{0};          // likewise
};

class RefusedHolders {
 public:
  void Refused(const Domain& domain, const HolderId& holder, std::string reason, Time now) {
    const size_t names =
        domain.model.size() + domain.tenant.size() + holder.name.size() + holder.replica.size();
    if (names > kRefusedBytesMax) return;
    reason.resize(std::min(reason.size(), kRefusedBytesMax));
    MutexLock lock(&mutex_);
    if (refused_.size() >= kRefusedHoldersMax) Forget(now);
    const std::pair key(domain, holder);
    if (refused_.size() >= kRefusedHoldersMax && !refused_.contains(key)) return;
    RefusedHolder& refused = refused_[key];
    refused = {domain, holder, refused.times + 1, std::move(reason), now};
  }
  // It is forgotten.
  void Welcomed(const Domain& domain, const HolderId& holder) {
    MutexLock lock(&mutex_);
    refused_.erase(std::pair(domain, holder));
  }
  // By domain and holder.
  std::vector<RefusedHolder> All(Time now) {
    std::vector<RefusedHolder> all;
    MutexLock lock(&mutex_);
    Forget(now);
    for (const auto& [key, refused] : refused_) all.push_back(refused);
    return all;
  }

 private:
  void Forget(Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::erase_if(refused_, [&](const auto& one) { return now - one.second.at >= kRefusedFor; });
  }

  Mutex mutex_;
  std::map<std::pair<Domain, HolderId>, RefusedHolder> refused_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_REGISTRY_REFUSED_HOLDERS_H_
