// Which host does an engine's url lead to, and may it be called?
//
// A url comes from the announcer of a worker, so only addresses within `EngineReach` are connected to: a numeric one is checked, a
// name is resolved, and those of its addresses that are outside are left out.

#ifndef KVATLAS_FRONTEND_PEERS_ENGINE_REACH_H_
#define KVATLAS_FRONTEND_PEERS_ENGINE_REACH_H_

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/mutex.h"
#include "indexer/service/engine_addresses.h"

namespace kvatlas {

// "http://HOST[:PORT][/PREFIX]" of an engine.
struct EngineUrl {
  std::string host;
  std::string port;
  std::string prefix;  // of every target; without a slash at its end

  // INVALID_ARGUMENT: another scheme, or no host.
  static absl::StatusOr<EngineUrl> Parse(std::string_view url);
  std::string authority() const;
};

// `EngineUrl::authority` of the engines that flags name: wherever they are. *Threads*: any.
class GivenEngines {
 public:
  bool Contains(const std::string& authority) const {
    MutexLock lock(&mutex_);
    return authorities_.contains(authority);
  }
  void Set(std::set<std::string> authorities) {
    MutexLock lock(&mutex_);
    authorities_ = std::move(authorities);
  }
  std::set<std::string> authorities() const {
    MutexLock lock(&mutex_);
    return authorities_;
  }

 private:
  mutable Mutex mutex_;
  std::set<std::string> authorities_ ABSL_GUARDED_BY(mutex_);
};

// Which engines may be called? Copies share who is given.
struct EngineReach {
  EngineAddresses addresses;  // of urls that workers say of themselves
  std::shared_ptr<GivenEngines> given = std::make_shared<GivenEngines>();

  // PERMISSION_DENIED: a numeric host outside. A name is OK: its addresses are checked when they are known.
  absl::Status Check(const EngineUrl& url) const;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_PEERS_ENGINE_REACH_H_
