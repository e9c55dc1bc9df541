// The access log: one line of JSON per request, in a file.
//
//   {"ts":"2026-11-21T20:00:00.123Z","trace_id":"7","method":"POST","path":"/query","model":"m","status":200,"duration_ms":0.041}
//
// *Threads*: any. *Cost*: one write to the file per line, on the thread that answered. A line that
// cannot be written whole is lost and counted in the log; a part of it may stand in the file, on a
// line of its own.

#ifndef KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_ACCESS_LOG_H_
#define KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_ACCESS_LOG_H_

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/net/http_server.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {

class HttpAccessLog {
 public:
  explicit HttpAccessLog(std::string file) : file_name_(std::move(file)) {}
  ~HttpAccessLog();

  HttpAccessLog(const HttpAccessLog&) = delete;
  HttpAccessLog& operator=(const HttpAccessLog&) = delete;

  // Opens the file, again after it was moved away. UNAVAILABLE: it cannot be; lines then go where
  // they went.
  absl::Status Open();

  void Write(const HttpRequest& request, std::string_view method, const HttpResponse& response,
             Duration took);

 private:
  const std::string file_name_;
  Mutex mutex_;
  int file_ ABSL_GUARDED_BY(mutex_) = -1;
  bool cut_ ABSL_GUARDED_BY(mutex_) = false;  // the file ends within a line
  uint64_t lost_ ABSL_GUARDED_BY(mutex_) = 0;
  LogLimiter limiter_{std::chrono::seconds(10)};
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_COMPAT_DYNAMO_HTTP_ACCESS_LOG_H_
