// The C interface over `Frontend`: arguments are checked, exceptions end here, and a forked child
// touches nothing. A route is counted by `Begin` and `End` (`UnderWay`), which
// `kvatlas_frontend_destroy` waits for; `End` is the last access to the handle.

#include "frontend/gateway/c/kvatlas_frontend.h"

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "frontend/gateway/c/arguments.h"
#include "frontend/gateway/c/frontend_handle.h"
#include "frontend/gateway/c/route_handle.h"
#include "frontend/gateway/c/route_question.h"
#include "frontend/prompt/prompt_router.h"
#include "frontend/prompt/request/prompt_request.h"
#include "frontend/router/frontend.h"
#include "indexer/base/mutex.h"
#include "indexer/base/version.h"
#include "indexer/process/c_api.h"

namespace kvatlas {
namespace {

static_assert(static_cast<int>(absl::StatusCode::kInvalidArgument) == KVATLAS_INVALID_ARGUMENT);
static_assert(static_cast<int>(absl::StatusCode::kNotFound) == KVATLAS_NOT_FOUND);
static_assert(static_cast<int>(absl::StatusCode::kResourceExhausted) == KVATLAS_RESOURCE_EXHAUSTED);
static_assert(static_cast<int>(absl::StatusCode::kFailedPrecondition) ==
              KVATLAS_FAILED_PRECONDITION);
static_assert(static_cast<int>(absl::StatusCode::kUnavailable) == KVATLAS_UNAVAILABLE);

// Reads the request and counts one more route under way. RESOURCE_EXHAUSTED: `routes_max` are.
absl::StatusOr<AskedRoute> Begin(kvatlas_frontend* frontend, const kvatlas_route_request* request) {
  absl::StatusOr<AskedRoute> asked = AskedOf(request);
  if (!asked.ok()) return asked;
  MutexLock lock(&frontend->mutex);
  if (frontend->under_way >= frontend->routes_max)
    return absl::ResourceExhaustedError("routes_max routes are under way");
  ++frontend->under_way;
  return asked;
}

// Signals under the lock: a destroyer that wakes up must not free the condition variable in use.
void End(kvatlas_frontend* frontend) {
  MutexLock lock(&frontend->mutex);
  if (--frontend->under_way == 0) frontend->idle.SignalAll();
}

// A route under way, ended with this object: on every path, exceptions included.
using UnderWay = std::unique_ptr<kvatlas_frontend, void (*)(kvatlas_frontend*)>;

// Starts the route with signals blocked, since gRPC may start threads in this call, which inherit
// the mask.
void RouteAsync(kvatlas_frontend* frontend, AskedRoute asked, PromptRouter::Callback callback) {
  const SignalsBlocked blocked;
  PromptRouter& router = *frontend->router;
  if (asked.body == nullptr) return router.Route(std::move(asked.question), std::move(callback));
  router.RouteBody(RequestPath::kChatOrCompletion, std::move(asked.body), std::move(asked.question),
                   std::move(callback));
}

// The same, waiting. The wait is outside of `RouteAsync`, so with the program's own signals.
// `waiter` is shared: the callback may still hold it when this returns.
absl::StatusOr<PromptRoute> RouteWaiting(kvatlas_frontend* frontend, AskedRoute asked) {
  struct Waiter {
    Mutex mutex;
    CondVar done;
    std::optional<absl::StatusOr<PromptRoute>> answer ABSL_GUARDED_BY(mutex);
  };
  auto waiter = std::make_shared<Waiter>();
  RouteAsync(frontend, std::move(asked), [waiter](absl::StatusOr<PromptRoute> answer) {
    MutexLock lock(&waiter->mutex);
    waiter->answer.emplace(std::move(answer));
    waiter->done.Signal();
  });
  MutexLock lock(&waiter->mutex);
  while (!waiter->answer.has_value()) waiter->done.Wait(&waiter->mutex);
  return *std::move(waiter->answer);
}

// OK and a route that the caller owns, or a code and its text.
int32_t Take(absl::StatusOr<PromptRoute> answer, kvatlas_route** route, std::string* error) {
  if (!answer.ok()) {
    *error = std::string(answer.status().message());
    return CodeOf(answer.status());
  }
  *route = new kvatlas_route{.answer = *std::move(answer), .json = {}};
  return KVATLAS_OK;
}

// A route by callback. It is over once the callback begins, or once it is known that it never will;
// what may still hold the function then finds nothing to do.
struct AsyncRoute {
  explicit AsyncRoute(UnderWay begun) : under_way(std::move(begun)) {}

  UnderWay under_way;
  std::atomic<bool> is_over = false;
};

// Without a route where the allocation of one fails; the callback is called in any case.
void Deliver(absl::StatusOr<PromptRoute> answer, kvatlas_route_callback callback, void* context) {
  kvatlas_route* route = nullptr;
  std::string error;
  const int32_t code = Guarded([&] { return Take(std::move(answer), &route, &error); });
  callback(context, code, error.c_str(), route);
}

template <typename Count>
// A negative count is "not known"; one beyond 32 bits is ignored as well.
void SetCount(int64_t given, Count* to) {
  if (given >= 0 && given <= std::numeric_limits<uint32_t>::max())
    *to = static_cast<uint32_t>(given);
}

}  // namespace
}  // namespace kvatlas

using kvatlas::Guarded;

void kvatlas_route_report_init(kvatlas_route_report* report, size_t struct_size) {
  kvatlas_route_report whole = {};
  whole.struct_size = struct_size;
  whole.cached_tokens = -1;
  whole.prompt_tokens = -1;
  kvatlas::InitStruct(whole, report, struct_size);
}

const char* kvatlas_frontend_version(void) { return kvatlas::kVersion; }

uint32_t kvatlas_frontend_abi(void) { return KVATLAS_FRONTEND_ABI; }

const char* kvatlas_frontend_code_name(int32_t code) { return kvatlas::CodeName(code); }

int32_t kvatlas_frontend_route(kvatlas_frontend* frontend, const kvatlas_route_request* request,
                               kvatlas_route** route, char* error, size_t error_size) {
  kvatlas::PutText("", error, error_size);
  if (route == nullptr) return KVATLAS_INVALID_ARGUMENT;
  *route = nullptr;
  if (frontend == nullptr) return KVATLAS_INVALID_ARGUMENT;
  if (!kvatlas::Usable(*frontend)) return KVATLAS_FAILED_PRECONDITION;
  return Guarded([&]() -> int32_t {
    absl::StatusOr<kvatlas::AskedRoute> asked = kvatlas::Begin(frontend, request);
    if (!asked.ok()) return kvatlas::PutStatus(asked.status(), error, error_size);
    const kvatlas::UnderWay under_way(frontend, &kvatlas::End);
    std::string why;
    const int32_t code =
        kvatlas::Take(kvatlas::RouteWaiting(frontend, *std::move(asked)), route, &why);
    kvatlas::PutText(why, error, error_size);
    return code;
  });
}

int32_t kvatlas_frontend_route_async(kvatlas_frontend* frontend,
                                     const kvatlas_route_request* request,
                                     kvatlas_route_callback callback, void* context) {
  if (frontend == nullptr || callback == nullptr) return KVATLAS_INVALID_ARGUMENT;
  if (!kvatlas::Usable(*frontend)) return KVATLAS_FAILED_PRECONDITION;
  return Guarded([&]() -> int32_t {
    absl::StatusOr<kvatlas::AskedRoute> asked = kvatlas::Begin(frontend, request);
    if (!asked.ok()) return kvatlas::CodeOf(asked.status());
    kvatlas::UnderWay under_way(frontend, &kvatlas::End);
    const auto call = std::make_shared<kvatlas::AsyncRoute>(std::move(under_way));
    try {
      kvatlas::RouteAsync(frontend, *std::move(asked),
                          [call, callback, context](absl::StatusOr<kvatlas::PromptRoute> answer) {
                            if (call->is_over.exchange(true)) return;
                            kvatlas::Deliver(std::move(answer), callback, context);
                            call->under_way = nullptr;
                          });
    } catch (...) {
      // The callback was called, or will never be: the header promises one of the two.
      if (call->is_over.exchange(true)) return KVATLAS_OK;
      call->under_way = nullptr;
      throw;
    }
    return KVATLAS_OK;
  });
}

// Unknown decisions are ignored: the frontend may have forgotten an old one.
int32_t kvatlas_frontend_report(kvatlas_frontend* frontend, uint64_t decision_id,
                                const kvatlas_route_report* report) {
  if (frontend == nullptr || !kvatlas::IsInitialized(report)) return KVATLAS_INVALID_ARGUMENT;
  if (!kvatlas::Usable(*frontend)) return KVATLAS_FAILED_PRECONDITION;
  return Guarded([&] {
    const kvatlas_route_report given = kvatlas::Whole(*report, &kvatlas_route_report_init);
    kvatlas::RouteReport said;
    said.accepted = given.accepted != 0;
    said.finished = given.finished != 0;
    said.abandoned = given.abandoned != 0;
    said.unreachable = given.unreachable != 0;
    said.decode_unreachable = given.decode_unreachable != 0;
    said.error = kvatlas::StringOf(given.error);
    kvatlas::SetCount(given.cached_tokens, &said.cached_tokens);
    kvatlas::SetCount(given.prompt_tokens, &said.prompt_tokens);
    frontend->frontend->Report(decision_id, said);
    return int32_t{KVATLAS_OK};
  });
}

int32_t kvatlas_frontend_get_stats(kvatlas_frontend* frontend, kvatlas_frontend_stats* stats) {
  if (frontend == nullptr || !kvatlas::IsInitialized(stats)) return KVATLAS_INVALID_ARGUMENT;
  if (!kvatlas::Usable(*frontend)) return KVATLAS_FAILED_PRECONDITION;
  return Guarded([&] {
    const kvatlas::FrontendStats now = frontend->frontend->stats();
    kvatlas_frontend_stats whole = {};
    whole.routes = now.routes;
    whole.failed = now.failed;
    // Index 0 is "none": routes that needed no fallback.
    whole.fallbacks = now.routes - now.by_fallback[0];
    whole.in_flight = now.in_flight;
    whole.cells = now.cells;
    whole.workers = now.workers;
    {
      kvatlas::MutexLock lock(&frontend->mutex);
      whole.under_way = frontend->under_way;
    }
    kvatlas::PutStruct(whole, stats);
    return int32_t{KVATLAS_OK};
  });
}
