#include "indexer/net/grpc_log.h"

#include <grpc/support/log.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

LogLevel LevelOf(gpr_log_severity severity) {
  switch (severity) {
    case GPR_LOG_SEVERITY_DEBUG:
      return LogLevel::kDebug;
    case GPR_LOG_SEVERITY_INFO:
      return LogLevel::kInfo;
    case GPR_LOG_SEVERITY_ERROR:
      break;
  }
  return LogLevel::kWarning;  // what gRPC calls an error is often a peer that went away
}

// Called by gRPC on any thread. The limiter counts by the place in gRPC's source, so that one noisy
// place does not hide others; it is never destroyed, since gRPC may log while static objects go.
void OnMessage(gpr_log_func_args* args) {
  static LogLimiter* const limiter = new LogLimiter(std::chrono::seconds(10));
  const std::string place = absl::StrCat(args->file, ":", args->line);
  LogEvery(*limiter, place, LevelOf(args->severity), "grpc", {{"message", args->message}});
}

}  // namespace

// Once per process; servers and channels all call it, since any of them may be first.
void RouteGrpcLog() {
  static const bool done = [] {
    gpr_set_log_function(OnMessage);
    return true;
  }();
  (void)done;
}

}  // namespace kvatlas
