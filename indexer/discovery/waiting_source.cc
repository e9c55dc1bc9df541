// The thread of a source, and how it waits. `Start` once; `Stop` any number of times, by the owner
// and by the source's destructor.

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

// 1. The flag, so that `Wait` and `Stopping` say so. 2. `Interrupt`, without the lock: it may end a
//    blocking call of `Run`. 3. The join: no report comes afterwards.
void WaitingSource::Stop() {
  {
    MutexLock lock(&mutex_);
    stopping_ = true;
    changed_.Signal();
  }
  Interrupt();
  if (thread_.joinable()) thread_.join();
}

// A wakeup without a reason waits the whole time again; a `Refresh` between two waits ends the next
// one at once.
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
