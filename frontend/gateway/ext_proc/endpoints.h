// IP:PORT by worker and back, as configured or as workers say of themselves.
//
// *Truth*: what is configured wins over what was learnt; the latest that was learnt of a worker
// counts. With a pool (`OfMembersAlone`) what is configured of others than its members is as if it
// were not there. A proxy takes addresses alone: a worker whose url has a host name has an endpoint
// once `Resolved` has told the name's only address (`endpoint_names.h`).
// *Threads*: any; a short lock.
// *Bounds*: `kEndpointsMax` learnt ones and as many members; beyond, all of these are forgotten,
// and learnt again from the next answers.
//
// Example:
//   Endpoints endpoints;
//   if (absl::Status bad = endpoints.Configure("worker-3=10.0.0.7:8000"); !bad.ok()) return bad;
//   std::optional<std::string> address = endpoints.Of({"worker-3", 0, ""});

#ifndef KVATLAS_FRONTEND_GATEWAY_EXT_PROC_ENDPOINTS_H_
#define KVATLAS_FRONTEND_GATEWAY_EXT_PROC_ENDPOINTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/engine_addresses.h"
#include "indexer/base/ids.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

inline constexpr size_t kEndpointsMax = 65536;
inline constexpr uint32_t kTurnsPassedOver = 100;
inline constexpr size_t kSubsetMax = 65536;  // endpoints; those beyond are not looked at

// "http://10.0.0.7:8000/v1" or "10.0.0.7:8000" → "10.0.0.7:8000". INVALID_ARGUMENT: no IP address with a port, which is what a
// proxy's original-destination cluster takes.
absl::StatusOr<std::string> EndpointOf(std::string_view url);

// Endpoints that a gateway allows: IP:PORT, or IP for all that is there.
class EndpointSet {
 public:
  // "IP:PORT", "IP", or several with commas; what is neither is passed over.
  void Add(std::string_view text);
  bool empty() const { return entries_.empty(); }
  bool Contains(const std::string& endpoint) const;
  const std::set<std::string, std::less<>>& entries() const { return entries_; }

 private:
  std::set<std::string, std::less<>> entries_;
};

class Endpoints {
 public:
  // Only endpoints within `addresses` are learnt: a proxy sends them prompts and credentials.
  explicit Endpoints(EngineAddresses addresses = EngineAddresses())
      : addresses_(std::move(addresses)) {}

  // WORKER=IP:PORT, or WORKER/RANK=IP:PORT of one rank of several. INVALID_ARGUMENT: anything else.
  absl::Status Configure(const std::string& entry);

  // A worker's own word. A url that is no endpoint, or outside, is not learnt, and a line of the
  // log says so. Draining: it is not named by turns.
  void Learn(const HolderId& worker, std::string_view url, bool draining = false);

  // Drops what was learnt of a worker that is gone; what is configured stays. It is no member any
  // more.
  void Forget(const HolderId& worker);

  // From now on a configured endpoint is one only of workers that have joined: a configuration does
  // not say which of them belong to the picker's pool. REQUIRES: only members are learnt.
  void OfMembersAlone();
  void Join(const HolderId& worker);
  bool any_configured() const {
    MutexLock lock(&mutex_);
    return by_worker_.size() > learnt_;
  }

  // The endpoint of the rank, else that of the whole worker.
  std::optional<std::string> Of(const HolderId& worker) const;

  // The names of workers at one of these endpoints, each name once.
  std::vector<std::string> NamesAt(const EndpointSet& endpoints) const;

  // The names of all workers, each once.
  std::vector<std::string> Names() const;

  // One worker there; the first by name and rank.
  std::optional<HolderId> At(const std::string& endpoint) const;

  // The known endpoints by turns, those `among` alone unless it is null, without those where all
  // workers drain, by themselves or by name; empty: there is none. An endpoint that was not reached
  // is passed over `kTurnsPassedOver` times, or until a request reaches it; when all are, it is one
  // of them.
  std::optional<std::string> Next(const std::set<std::string>& draining = {},
                                  const EndpointSet* among = nullptr);

  // Reports whether a proxy reached an endpoint. Unknown endpoints are ignored.
  void Reached(const std::string& endpoint, bool reached);

  // ---- Host names ----

  // Host names of workers' urls.
  std::vector<std::string> HostNames() const;
  // The addresses of a host name. With several of a family it is not known which is the worker's:
  // its workers have no endpoint, and the log says so.
  void Resolved(const std::string& host, const absl::StatusOr<std::vector<std::string>>& addresses);
  // Called when there is a name that was not resolved yet, in the thread that learns it and under
  // the lock. Null: nothing is called.
  void OnNewHostName(std::function<void()> call);

 private:
  struct Entry {
    std::string endpoint;
    bool configured = false;
    bool draining = false;
  };
  struct Named {
    std::string host;
    uint16_t port = 0;
    bool draining = false;
  };
  struct There {
    std::set<HolderId> workers;
    uint32_t pass_over = 0;  // so many turns
  };
  // Whether the entry may be used for the worker.
  bool Counts(const Entry& entry, const HolderId& worker) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Put(const HolderId& worker, Entry entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Drop(const HolderId& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A configured endpoint stays.
  void DropLearnt(const HolderId& worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetLearnt() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void PutLearnt(const HolderId& worker, std::string endpoint, bool draining)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LearnNamed(const HolderId& worker, Named named);

  const EngineAddresses addresses_;

  mutable Mutex mutex_;
  // A worker as a whole has the rank `kWholeWorker`.
  absl::flat_hash_map<HolderId, Entry> by_worker_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, There> by_endpoint_ ABSL_GUARDED_BY(mutex_);
  size_t learnt_ ABSL_GUARDED_BY(mutex_) = 0;
  bool members_alone_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<HolderId> members_ ABSL_GUARDED_BY(mutex_);
  std::string last_ ABSL_GUARDED_BY(mutex_);  // given out by `Next`
  std::map<HolderId, Named> named_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, std::string> address_of_ ABSL_GUARDED_BY(mutex_);  // of names in `named_`
  std::function<void()> on_new_name_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_EXT_PROC_ENDPOINTS_H_
