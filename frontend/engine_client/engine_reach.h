// Which host does an engine's url lead to, and may it be called?
//
// A url comes from the announcer of a worker, so only addresses within `EngineReach` are connected
// to: a numeric one is checked, a name is resolved, and those of its addresses that are outside are
// left out.
//
// Engines that were started with an API key get it with the requests that are our own: for tokens,
// load and lists of models. It goes to engines that flags name, never to one that only its worker
// names, and never into a log, an error or a status.

#ifndef KVATLAS_FRONTEND_ENGINE_CLIENT_ENGINE_REACH_H_
#define KVATLAS_FRONTEND_ENGINE_CLIENT_ENGINE_REACH_H_

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/engine_addresses.h"
#include "indexer/base/mutex.h"
#include "indexer/net/http_server.h"

namespace kvatlas {

// "http://HOST[:PORT][/PREFIX]" of an engine.
struct EngineUrl {
  std::string host;
  std::string port;
  std::string prefix;  // of every target; without a slash at its end

  // INVALID_ARGUMENT: another scheme, no host, or a port above 65535.
  static absl::StatusOr<EngineUrl> Parse(std::string_view url);
  std::string authority() const;
};

inline constexpr char kEngineApiKeyFileFlag[] = "engine_api_key_file";
inline constexpr char kEngineApiKeyFileHelp[] =
    "file with the API key of the engines that flags name (their --api-key), of mode 0640 or less, "
    "for requests of our own to them; "
    "empty: none";
// Empty without a path. INVALID_ARGUMENT names the flag and the file, not what is in it.
absl::StatusOr<std::string> ReadEngineApiKey(const std::string& path);

// `EngineUrl::authority` of the engines that flags name: wherever they are; and the API key of them
// all. *Threads*: any.
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
  void SetApiKey(std::string key) {
    MutexLock lock(&mutex_);
    api_key_ = std::move(key);
  }
  // The authorization of a request that is our own: "Bearer KEY"; empty: no key, or the engine is
  // none of these.
  std::string AuthorizationFor(const EngineUrl& url) const;

 private:
  mutable Mutex mutex_;
  std::set<std::string> authorities_ ABSL_GUARDED_BY(mutex_);
  std::string api_key_ ABSL_GUARDED_BY(mutex_);
};

// Which engines may be called? Copies share `given`.
struct EngineReach {
  EngineAddresses addresses;  // of urls that workers say of themselves
  std::shared_ptr<GivenEngines> given = std::make_shared<GivenEngines>();

  // PERMISSION_DENIED: a numeric host outside. A name is OK: its addresses are checked when they
  // are known.
  absl::Status Check(const EngineUrl& url) const;
  // Adds the engine's key where `headers` have no authorization.
  void Authorize(const EngineUrl& url, HttpHeaders* headers) const;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ENGINE_CLIENT_ENGINE_REACH_H_
