#include "indexer/discovery/waiting_source.h"

namespace kvatlas {

void WaitingSource::Start(Report report) {
  report_ = std::move(report);
  thread_ = std::thread([this] { Run(); });
}

void WaitingSource::Refresh() {
  MutexLock lock(&mutex_);
  wanted_ = true;
  changed_.Signal();
}

void WaitingSource::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.Signal();
  }
  Interrupt();
  if (thread_.joinable()) thread_.join();
}

bool WaitingSource::Wait(Duration time) {
  MutexLock lock(&mutex_);
  while (!stopping_ && !wanted_ && changed_.WaitFor(&mutex_, time)) {
  }
  wanted_ = false;
  return !stopping_;
}

bool WaitingSource::Stopping() const {
  MutexLock lock(&mutex_);
  return stopping_;
}

}  // namespace kvatlas
