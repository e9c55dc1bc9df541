#include "indexer/leaf/http_access_log.h"

#include <cerrno>
#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "indexer/service/text_escape.h"

namespace kvatlas {

HttpAccessLog::~HttpAccessLog() {
  MutexLock lock(&mutex_);
  if (file_ != nullptr) std::fclose(file_);
}

absl::Status HttpAccessLog::Open() {
  std::FILE* const file = std::fopen(file_name_.c_str(), "a");
  if (file == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cannot open ", file_name_, ": ", std::strerror(errno)));
  }
  MutexLock lock(&mutex_);
  if (file_ != nullptr) std::fclose(file_);
  file_ = file;
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
  if (file_ == nullptr || std::fwrite(line.data(), 1, line.size(), file_) != line.size() ||
      std::fflush(file_) != 0) {
    ++lost_;
  }
}

uint64_t HttpAccessLog::lost() const {
  MutexLock lock(&mutex_);
  return lost_;
}

}  // namespace kvatlas
