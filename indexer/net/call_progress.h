// Cancels a synchronous streaming call whose caller does not take the answer: whose writes make no
// progress.
//
// *Threads*: the handler's; the clock is gRPC's.
// *Truth*: a call of which nothing was written for between one and two `stall_max` is cancelled:
// then `Write` fails.
// *Lifetime*: within the handler.
//
// Example:
//   CallProgress progress(context);
//   while (… && writer->Write(response)) progress.Made();

#ifndef KVATLAS_INDEXER_NET_CALL_PROGRESS_H_
#define KVATLAS_INDEXER_NET_CALL_PROGRESS_H_

#include <chrono>
#include <memory>

#include "indexer/base/clock.h"

namespace grpc {
class ServerContext;
}  // namespace grpc

namespace kvatlas {

class CallProgress {
 public:
  explicit CallProgress(grpc::ServerContext* context,
                        Duration stall_max = std::chrono::seconds(15));
  ~CallProgress();
  CallProgress(const CallProgress&) = delete;
  CallProgress& operator=(const CallProgress&) = delete;

  void Made();

 private:
  struct State;
  static void Arm(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_CALL_PROGRESS_H_
