// Keeps gRPC's threads for callbacks from sleeping.
//
// gRPC 1.51 runs callbacks, of servers and clients, on a few threads of its own. One that has had
// nothing to do for a second sleeps for 100 ms at a stretch and misses new work: the first question
// after a pause is answered 100 ms late where all of them sleep, and a caller has given up by then.
// As long as one exists something happens every `kGrpcBeatEvery`, so that one thread at least is
// awake.
//
// *Threads*: one of its own. *Cost*: three calls a second, which fail at once without leaving the
// process.

#ifndef KVATLAS_INDEXER_NET_GRPC_AWAKE_H_
#define KVATLAS_INDEXER_NET_GRPC_AWAKE_H_

#include <grpcpp/generic/generic_stub.h>

#include <chrono>
#include <cstdint>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

inline constexpr Duration kGrpcBeatEvery = std::chrono::milliseconds(300);

class GrpcAwake {
 public:
  GrpcAwake();
  ~GrpcAwake();
  GrpcAwake(const GrpcAwake&) = delete;
  GrpcAwake& operator=(const GrpcAwake&) = delete;

  // Calls that have come back.
  uint64_t beats();

 private:
  void Run();
  void Beat();

  grpc::GenericStub nowhere_;
  Mutex mutex_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool under_way_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t beats_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_NET_GRPC_AWAKE_H_
