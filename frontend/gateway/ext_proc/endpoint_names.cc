// One thread that resolves all host names of `Endpoints` in a round, then sleeps for `every_` or
// until a new name is learnt. Resolving happens without any lock, since a resolver may take
// seconds.

#include "frontend/gateway/ext_proc/endpoint_names.h"

#include <string>
#include <utility>

namespace kvatlas {

// The callback runs under the lock of `endpoints_`; it takes `mutex_` inside. `Run` never holds
// `mutex_` while it calls `endpoints_`, so the two locks have one order.
EndpointNames::EndpointNames(Endpoints* endpoints, Duration every, HostResolver resolve)
    : endpoints_(endpoints), every_(every), resolve_(std::move(resolve)) {
  endpoints_->OnNewHostName([this] {
    MutexLock lock(&mutex_);
    wanted_ = true;
    changed_.Signal();
  });
  thread_ = std::thread([this] { Run(); });
}

// Unhooks first: after that call no learner can be inside the callback.
EndpointNames::~EndpointNames() {
  endpoints_->OnNewHostName(nullptr);
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.Signal();
  }
  thread_.join();
}

void EndpointNames::Run() {
  do {
    for (const std::string& host : endpoints_->HostNames())
      endpoints_->Resolved(host, resolve_(host));
  } while (Wait());
}

// `WaitFor` returns false at its timeout, which begins a round like a new name does. A wake-up
// without either goes back to waiting.
bool EndpointNames::Wait() {
  MutexLock lock(&mutex_);
  while (!stopping_ && !wanted_ && changed_.WaitFor(&mutex_, every_)) {
  }
  wanted_ = false;
  return !stopping_;
}

}  // namespace kvatlas
