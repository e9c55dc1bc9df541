// Asks the wire's questions of the frontend and converts its answers: the part that gRPC and HTTP
// have in common.
//
// *Truth*: a choice no longer counts if its caller is gone before it has the answer (`Release`).
// *Threads*: any; callbacks as `Frontend::RouteAsync` and `PromptRouter` have them.
// *Lifetime*: frontend and router outlive it and its calls.

#ifndef KVATLAS_FRONTEND_GATEWAY_GRPC_ROUTE_CALLS_H_
#define KVATLAS_FRONTEND_GATEWAY_GRPC_ROUTE_CALLS_H_

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "frontend/gateway/tenancy.h"
#include "frontend/prompt/prompt_router.h"
#include "frontend/prompt/request/prompt_request.h"
#include "frontend/router/frontend.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/telemetry/tracing/trace_context.h"
#include "proto/kvatlas/v1/frontend.pb.h"

namespace kvatlas {

class RouteCalls {
 public:
  using Count = std::function<void(const absl::StatusOr<RouteResult>&)>;
  using Callback = std::function<void(absl::StatusOr<v1::RouteResponse>)>;

  // `count` is called for every route, `count_report` for every report. Without a router, text and
  // chats are NOT_FOUND.
  RouteCalls(Frontend* frontend, PromptRouter* router, Count count,
             std::function<void()> count_report)
      : frontend_(frontend),
        router_(router),
        count_(std::move(count)),
        count_report_(std::move(count_report)) {}

  // `left`: until the caller itself gives up.
  // `asker` decides the tenant, which may be another than the request's, or none
  // (PERMISSION_DENIED); null: nothing is asked. A span of the whole call is a child of the
  // request's `traceparent`, or of `question.input.trace`; a root without.
  using Asker = std::shared_ptr<const Identity>;
  void Ask(const v1::RouteRequest& request, Duration left, Callback callback,
           const Asker& asker = nullptr) const;
  void Ask(const v1::RouteChatRequest& request, Duration left, Callback callback,
           const Asker& asker = nullptr) const;
  void AskBody(RequestPath call, std::shared_ptr<const std::string> body, PromptQuestion question,
               Callback callback, const Asker& asker = nullptr) const;
  const Tenancy& tenancy() const { return tenancy_; }

  void Release(uint64_t decision_id) const;
  // Ids count up from a random one: between the first and the last that was given out here.
  bool GaveOut(uint64_t decision_id) const;
  // A report on another asker's decision is passed over, as one on an unknown decision.
  void Report(const v1::ReportRequest& request, const Asker& asker = nullptr) const;
  bool IsOf(uint64_t decision_id, const Asker& asker) const;

 private:
  void AskAdmitted(const v1::RouteRequest& request, const std::string& tenant, Duration left,
                   Callback callback) const;
  void AskSalted(RequestPath call, std::shared_ptr<const std::string> body, PromptQuestion question,
                 Callback callback, const Asker& asker) const;
  void AskAdmittedBody(RequestPath call, std::shared_ptr<const std::string> body,
                       PromptQuestion question, Callback callback) const;
  // The salt that the answer tells, and the tenant of the request.
  struct Admitted {
    std::string tenant;
    std::string salt;
  };
  absl::StatusOr<Admitted> Admit(const Identity& asker, v1::RouteRequest* request) const;
  static Callback Traced(TraceContext* trace, Callback callback);
  Callback Salting(std::string salt, const Asker& asker, Callback callback) const;
  void AskPrompt(const v1::RouteRequest& request, RouteInput input, Duration left,
                 Callback callback) const;
  PromptRouter::Callback Recording(Callback callback) const;
  void Note(const absl::StatusOr<RouteResult>& result) const;

  Frontend* const frontend_;
  PromptRouter* const router_;
  const Count count_;
  const std::function<void()> count_report_;
  const Tenancy tenancy_;
  mutable Mutex mutex_;
  // The asker by decision id, of the latest decisions, where there is a policy.
  mutable std::unordered_map<uint64_t, std::string> owners_ ABSL_GUARDED_BY(mutex_);
  mutable std::deque<uint64_t> owned_ ABSL_GUARDED_BY(mutex_);  // the oldest first
  mutable std::optional<std::pair<uint64_t, uint64_t>> given_out_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_GATEWAY_GRPC_ROUTE_CALLS_H_
