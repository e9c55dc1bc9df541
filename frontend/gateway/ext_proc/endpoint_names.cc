#include "frontend/gateway/ext_proc/endpoint_names.h"

#include <string>
#include <utility>

namespace kvatlas {

EndpointNames::EndpointNames(Endpoints* endpoints, Duration every, HostResolver resolve)
    : endpoints_(endpoints), every_(every), resolve_(std::move(resolve)) {
  endpoints_->OnNewHostName([this] {
    MutexLock lock(&mutex_);
    wanted_ = true;
    changed_.Signal();
  });
  thread_ = std::thread([this] { Run(); });
}

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

bool EndpointNames::Wait() {
  MutexLock lock(&mutex_);
  while (!stopping_ && !wanted_ && changed_.WaitFor(&mutex_, every_)) {
  }
  wanted_ = false;
  return !stopping_;
}

}  // namespace kvatlas
