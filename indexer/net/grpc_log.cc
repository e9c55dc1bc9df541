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

void OnMessage(gpr_log_func_args* args) {
  static LogLimiter* const limiter = new LogLimiter(std::chrono::seconds(10));
  const std::string place = absl::StrCat(args->file, ":", args->line);
  LogEvery(*limiter, place, LevelOf(args->severity), "grpc", {{"message", args->message}});
}

}  // namespace

void RouteGrpcLog() {
  static const bool done = [] {
    gpr_set_log_function(OnMessage);
    return true;
  }();
  (void)done;
}

}  // namespace kvatlas
