// Who is there? The services that a process talks to, found by a fixed list, by DNS names, by
// EndpointSlices of Kubernetes or by leases in Redis, behind one interface, and told again whenever
// they change.
//
//   "HOST:PORT"          fixed      ╮
//   "NAME=HOST:PORT"     fixed      ├─ merged ─▶ View, and `on_change` whenever the set is another
//   "dns:HOST:PORT"      every address of the name
//   "k8s:SERVICE[.NAMESPACE][:PORT]"  ready endpoints of a Service of Kubernetes (`k8s_service.h`)
//   "k8s-pods:NAMESPACE/SELECTOR"  ready pods of these labels (`k8s_pods.h`)
//   "redis://HOST:PORT"  leases     ╯
//
// "NAME=dns:…" and "NAME=k8s:…" give their records that name.
//
// *Truth*: a source that fails changes nothing: what it named last stays, and the view's status
// says what is wrong. A DNS answer without addresses, or a Service without ready endpoints, is a
// failure. A lease that ran out is gone; leases that a Redis lost with its data are kept for one
// more lease, in which their owners announce themselves again.
// *Threads*: any thread may call `View`. `on_change` is called from the directory's own threads,
// one call at a time, and once before `Open` returns; it must not block for long and never destroy
// the directory. After the destructor there are no more.
// *Cost*: a thread per DNS name (a resolver blocks) and per Service, one for Redis.
// *Bounds*: `kDirectoryRecordsMax` services; more are left out, which the status says.
//
// Example:
//   auto directory = Directory::Open({.entries = {"dns:hierarchy.prod:7420"}, .kind =
//   ServiceKind::kHierarchy},
//                                    [&](const std::vector<ServiceRecord>& nodes) { reporter.SetParents(nodes); });

#ifndef KVATLAS_INDEXER_DISCOVERY_DIRECTORY_H_
#define KVATLAS_INDEXER_DISCOVERY_DIRECTORY_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/resolve_host.h"
#include "indexer/discovery/service_record.h"

namespace kvatlas {

inline constexpr size_t kDirectoryRecordsMax = 65536;

// Where the API server is and as which account it is asked; the defaults are what Kubernetes tells
// every pod.
struct K8sOptions {
  std::string url = {};  // empty: of KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT
  std::string account_dir =
      "/var/run/secrets/kubernetes.io/serviceaccount";  // token, ca.crt, namespace
  // After so long, and at random up to twice as long, the API server ends a watch and is asked
  // again.
  Duration watch_for = std::chrono::minutes(1);
  // Between requests that fail.
  Duration backoff_min = std::chrono::milliseconds(200);
  Duration backoff_max = std::chrono::seconds(30);
  uint64_t seed = 0;  // of these waits; 0: another each time
};

struct DirectoryOptions {
  std::vector<std::string> entries;  // see above
  ServiceKind kind = ServiceKind::kLeaf;
  std::string name = {};  // of leases only those of this cell or node; empty: all
  Duration refresh = std::chrono::seconds(5);     // of DNS names
  Duration poll_every = std::chrono::seconds(1);  // of Redis
  std::string redis_prefix = "kvatlas";           // of its keys, as announcers have it
  Duration redis_grace =
      std::chrono::seconds(10);  // for announcing again, after Redis lost its data
  // Before `Open` returns, sources that need the network get so long to answer first.
  Duration first_answer = std::chrono::seconds(2);
  HostResolver resolve = ResolveHost;
  K8sOptions k8s = {};
  const Clock* clock = &Clock::Real();
};

// What one source named last.
struct DirectorySourceView {
  std::string entry;
  size_t records = 0;
  Duration age{0};      // since it last answered, while it fails; else 0
  absl::Status status;  // why it fails
};

struct DirectoryView {
  std::vector<ServiceRecord> records;  // by id, then address; each address once
  std::vector<DirectorySourceView> sources;
  absl::Status status;  // the first source's that fails
};

class Directory {
 public:
  using OnChange = std::function<void(const std::vector<ServiceRecord>&)>;

  // INVALID_ARGUMENT, naming the entry that cannot be understood.
  static absl::StatusOr<std::unique_ptr<Directory>> Open(DirectoryOptions options,
                                                         OnChange on_change);
  ~Directory();

  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  DirectoryView View() const;
  // Sources that ask by a timer ask now; does not wait.
  void Refresh();

 private:
  struct State;
  explicit Directory(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

// Whether an entry says where services are found, and is not the address of one.
bool IsPlaceToLook(std::string_view entry);

// INVALID_ARGUMENT, naming the entry: no correct one. What `Open` checks, for flags.
absl::Status CheckDirectoryEntry(std::string_view entry);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_DISCOVERY_DIRECTORY_H_
