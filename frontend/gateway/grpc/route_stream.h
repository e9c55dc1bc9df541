// Many questions and answers on one gRPC stream, and a single one; neither leaves a choice behind
// when its caller goes away.
//
//   StartRead ─▶ OnReadDone ─▶ RouteCalls::Ask ─▶ OnAnswer ─▶ queue ─▶ StartWrite ─▶ OnWriteDone
//       ╰──────────◀── while fewer than kStreamOutstandingMax are unanswered ──◀────────╯
//
// *Truth*: answers come as they are ready. When a stream breaks, its choices that were not reported
// on over it no longer count;
// when its caller ends it, they do.
// *Threads*: gRPC's, and those that deliver answers; one lock, under which nothing is called.
// *Bounds*: `kStreamOutstandingMax` unanswered questions, whose memory counts (`message_account.h`)
// until they are answered: one that does not fit ends the stream with RESOURCE_EXHAUSTED, once
// those before it are answered. Of the last `kStreamChoicesMax` choices it is remembered whether
// they were reported on.
// *Lifetime*: they own themselves, until gRPC is done with them and every question is answered.

#ifndef KVATLAS_FRONTEND_GATEWAY_GRPC_ROUTE_STREAM_H_
#define KVATLAS_FRONTEND_GATEWAY_GRPC_ROUTE_STREAM_H_

#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/gateway/grpc/route_calls.h"
#include "indexer/base/mutex.h"
#include "indexer/net/bounded_message.h"
#include "proto/kvatlas/v1/frontend.grpc.pb.h"

namespace kvatlas {

inline constexpr size_t kStreamOutstandingMax = 1024;
inline constexpr size_t kStreamChoicesMax = 8192;

class RouteStreamReactor : public grpc::ServerBidiReactor<BoundedMessage<v1::RouteStreamRequest>,
                                                          v1::RouteStreamResponse> {
 public:
  // `calls` outlives it. `peer` is for the log.
  explicit RouteStreamReactor(const RouteCalls* calls, RouteCalls::Asker asker = nullptr,
                              std::string peer = "");

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  void Ask();
  void Refuse();
  void OnAnswer(uint64_t id, absl::StatusOr<v1::RouteResponse> answer);
  void Forget(uint64_t decision_id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The operations to start once the lock is released.
  struct Next {
    bool read = false;
    const v1::RouteStreamResponse* write = nullptr;
    bool finish = false;
    grpc::Status end = {};
  };
  Next Step() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Do(const Next& next);

  const RouteCalls* const calls_;
  const RouteCalls::Asker asker_;
  const std::string peer_;
  v1::RouteStreamRequest request_;                              // of the reader
  BoundedMessage<v1::RouteStreamRequest> incoming_{&request_};  // likewise
  Mutex mutex_;
  bool reading_ ABSL_GUARDED_BY(mutex_) = true;
  bool read_all_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status refused_ ABSL_GUARDED_BY(mutex_);  // a message, with which the stream ends
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  size_t asked_ ABSL_GUARDED_BY(mutex_) = 0;  // and not answered
  std::deque<v1::RouteStreamResponse> answers_
      ABSL_GUARDED_BY(mutex_);                            // the first is being written
  std::deque<uint64_t> choices_ ABSL_GUARDED_BY(mutex_);  // not reported on
};

// One question. Refused because every worker is over its thresholds, it has the trailing metadata
// `retry-after-ms`.
class RouteReactor : public grpc::ServerUnaryReactor {
 public:
  RouteReactor(const RouteCalls* calls, grpc::CallbackServerContext* context,
               v1::RouteResponse* response)
      : calls_(calls), context_(context), response_(response) {}

  void Answer(absl::StatusOr<v1::RouteResponse> answer);
  void OnCancel() override { cancelled_.store(true, std::memory_order_relaxed); }
  void OnDone() override;

 private:
  const RouteCalls* const calls_;
  grpc::CallbackServerContext* const context_;
  v1::RouteResponse* const response_;
  std::atomic<bool> cancelled_{false};
  uint64_t decision_id_ = 0;  // written before Finish, read after it
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_GRPC_ROUTE_STREAM_H_
