// Who asked what, and how long did it take? One line of JSON a request, in a file.
//
//   {"ts":"2026-11-21T20:00:00.123Z","trace_id":"7","method":"POST","path":"/query","model":"m","status":200,"duration_ms":0.041}
//
// *Threads*: any. *Cost*: a write to the file a line, on the thread that answered. A line that cannot be written is
// counted and lost.

#ifndef KVATLAS_INDEXER_LEAF_HTTP_ACCESS_LOG_H_
#define KVATLAS_INDEXER_LEAF_HTTP_ACCESS_LOG_H_

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/service/http_server.h"

namespace kvatlas {

class HttpAccessLog {
 public:
  explicit HttpAccessLog(std::string file) : file_name_(std::move(file)) {}
  ~HttpAccessLog();

  HttpAccessLog(const HttpAccessLog&) = delete;
  HttpAccessLog& operator=(const HttpAccessLog&) = delete;

  // Opens the file, again after it was moved away. UNAVAILABLE: it cannot be; lines then go where they went.
  absl::Status Open();

  void Write(const HttpRequest& request, std::string_view method, const HttpResponse& response,
             Duration took);

  uint64_t lost() const;

 private:
  const std::string file_name_;
  mutable Mutex mutex_;
  std::FILE* file_ ABSL_GUARDED_BY(mutex_) = nullptr;
  uint64_t lost_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_LEAF_HTTP_ACCESS_LOG_H_
