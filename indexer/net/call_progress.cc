// An alarm of gRPC rings every `stall_max`. If no `Made` came since it was set, the call is
// cancelled; else it is set again. The state outlives the handler through the alarm's callback;
// `context` is null from the destructor on, so a late alarm does nothing.

#include "indexer/net/call_progress.h"

#include <grpcpp/alarm.h>
#include <grpcpp/server_context.h>

#include <utility>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"
#include "indexer/net/grpc_deadline.h"

namespace kvatlas {

struct CallProgress::State {
  Duration stall_max;
  Mutex mutex;
  grpc::ServerContext* context ABSL_GUARDED_BY(mutex) = nullptr;  // null: the call is over
  bool made ABSL_GUARDED_BY(mutex) = false;                       // since the alarm was set
  std::unique_ptr<grpc::Alarm> alarm ABSL_GUARDED_BY(mutex);
};

CallProgress::CallProgress(grpc::ServerContext* context, Duration stall_max)
    : state_(std::make_shared<State>()) {
  state_->stall_max = stall_max;
  MutexLock lock(&state_->mutex);
  state_->context = context;
  Arm(state_);
}

CallProgress::~CallProgress() {
  std::unique_ptr<grpc::Alarm> alarm;
  {
    MutexLock lock(&state_->mutex);
    state_->context = nullptr;
    alarm = std::move(state_->alarm);
  }
  alarm->Cancel();  // its callback lets the state go
}

void CallProgress::Made() {
  MutexLock lock(&state_->mutex);
  state_->made = true;
}

// REQUIRES: `state->mutex` is held. Makes a new alarm each time: Arm runs within the callback of
// the old one, which cannot be set again from there.
void CallProgress::Arm(const std::shared_ptr<State>& state) ABSL_NO_THREAD_SAFETY_ANALYSIS {
  state->made = false;
  state->alarm = std::make_unique<grpc::Alarm>();
  state->alarm->Set(DeadlineIn(state->stall_max), [state](bool rang) {
    if (!rang) return;
    MutexLock lock(&state->mutex);
    if (state->context == nullptr) return;
    if (!state->made) return state->context->TryCancel();
    Arm(state);
  });
}

}  // namespace kvatlas
