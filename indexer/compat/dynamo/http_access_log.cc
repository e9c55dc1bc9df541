// One write per line, so that lines of several threads, and of several processes that append to one
// file, do not mix. A disk that is full may cut a line: the next one then begins with a newline.

#include "indexer/compat/dynamo/http_access_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "indexer/telemetry/text_escape.h"

namespace kvatlas {

HttpAccessLog::~HttpAccessLog() {
  MutexLock lock(&mutex_);
  if (file_ >= 0) close(file_);
}

// Opens the new file before the old one is closed: on an error the old one stays. `cut_` is kept
// only if both are the same file.
absl::Status HttpAccessLog::Open() {
  const int file = open(file_name_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot open ", file_name_, ": ", std::strerror(errno)));
  }
  struct stat before = {}, now = {};
  MutexLock lock(&mutex_);
  const bool is_same = file_ >= 0 && fstat(file_, &before) == 0 && fstat(file, &now) == 0 &&
                       before.st_ino == now.st_ino && before.st_dev == now.st_dev;
  if (file_ >= 0) close(file_);
  file_ = file;
  cut_ = cut_ && is_same;
  return absl::OkStatus();
}

void HttpAccessLog::Write(const HttpRequest& request, std::string_view method,
                          const HttpResponse& response, Duration took) {
  const absl::Time now = absl::FromUnixNanos(static_cast<int64_t>(WallTimeNs()));
  std::string line = "{\"ts\":\"";
  line += absl::FormatTime("%Y-%m-%d%ET%H:%M:%E3SZ", now, absl::UTCTimeZone());
  line += "\",\"trace_id\":\"";
  AppendJsonEscaped(&line, request.trace_id);
  line += "\",\"method\":\"";
  AppendJsonEscaped(&line, method);
  line += "\",\"path\":\"";
  AppendJsonEscaped(&line, request.path);
  line += "\",\"model\":\"";
  AppendJsonEscaped(&line, response.about);
  const double ms = std::chrono::duration<double, std::milli>(took).count();
  absl::StrAppendFormat(&line, "\",\"status\":%d,\"duration_ms\":%.3f}\n", response.status, ms);
  MutexLock lock(&mutex_);
  // The mutex orders the writes and guards the descriptor against `Open`.
  if (cut_) line.insert(line.begin(), '\n');
  const ssize_t written = write(file_, line.data(), line.size());
  if (written > 0) cut_ = line[static_cast<size_t>(written) - 1] != '\n';
  if (written == static_cast<ssize_t>(line.size())) return;
  LogEvery(limiter_, LogLevel::kError, "the access log loses lines",
           {{"path", file_name_},
            {"reason", written < 0 ? std::strerror(errno) : "no room"},
            {"lost", ++lost_}});
}

}  // namespace kvatlas
