// Resolves the host names of workers' urls, again and again, since pods move and keep their names.
//
// *Place*: between a resolver and `Endpoints`, in a process with an endpoint picker. *Truth*: a
// name is resolved at once when it is learnt, and every `every` from then on. *Threads*: one of its
// own. *Lifetime*: the endpoints outlive it.
//
// Example:
//   EndpointNames names(&endpoints);

#ifndef KVATLAS_FRONTEND_GATEWAY_EXT_PROC_ENDPOINT_NAMES_H_
#define KVATLAS_FRONTEND_GATEWAY_EXT_PROC_ENDPOINT_NAMES_H_

#include <chrono>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "frontend/gateway/ext_proc/endpoints.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/base/resolve_host.h"

namespace kvatlas {

class EndpointNames {
 public:
  explicit EndpointNames(Endpoints* endpoints, Duration every = std::chrono::seconds(5),
                         HostResolver resolve = ResolveHost);
  ~EndpointNames();

  EndpointNames(const EndpointNames&) = delete;
  EndpointNames& operator=(const EndpointNames&) = delete;

 private:
  void Run();
  bool Wait();  // false: stop

  Endpoints* const endpoints_;
  const Duration every_;
  const HostResolver resolve_;
  Mutex mutex_;
  CondVar changed_;
  bool wanted_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_EXT_PROC_ENDPOINT_NAMES_H_
