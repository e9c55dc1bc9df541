// The process's log: records for a person or a log store to read.
//
// A record is one line: time, level, component, event, then named fields. An event is a short
// constant phrase ("stream refused"); what varies goes into fields, so that records can be counted.
//
// Format: logfmt  `time=2026-01-02T03:04:05.678901Z level=info component=leaf event="stream
// refused"
//         holder=w7`, or JSON, one object with the same keys; or text for a terminal,
//         `12:04:05 ! stream refused  holder=w7`, with the local time, ! from warnings on, and no
//         component. Text is escaped in all: a record never spans lines, and bytes that are not
//         UTF-8 become U+FFFD.
// Threads: any. A record is one write(2) of at most `kLogLineBytesMax`, which a pipe takes whole,
// so
//         lines never mix, even among processes that share one.
// Cost: a disabled level costs one atomic load and building its fields. An enabled one costs a few
//         allocations, a short lock and the write, which blocks while stderr is a full pipe.
// Bounds: text over `kLogTextBytesMax` is cut; fields that do not fit the line are left out and
//         counted in `fields_dropped`. A failed write loses the record.
//
// Example:
//   Log(LogLevel::kInfo, "stream refused", {{"holder", name}, {"reason", status}});
//   static LogLimiter limiter(10s);
//   LogEvery(limiter, holder, LogLevel::kWarning, "gap", {{"holder", holder}, {"from", from}});

#ifndef KVATLAS_INDEXER_TELEMETRY_LOG_H_
#define KVATLAS_INDEXER_TELEMETRY_LOG_H_

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kLogfmt, kJson, kText };

inline constexpr size_t kLogLineBytesMax = 4096;  // PIPE_BUF
inline constexpr size_t kLogTextBytesMax = 1024;  // of one value, before escaping
inline constexpr size_t kLogKeysMax = 1024;       // of one LogLimiter

// A name and a value as text. `name` is a literal in [a-z0-9_].
struct LogField {
  LogField(std::string_view name, std::string_view text);
  LogField(std::string_view name, const char* text) : LogField(name, std::string_view(text)) {}
  LogField(std::string_view name, const std::string& text)
      : LogField(name, std::string_view(text)) {}
  LogField(std::string_view name, const absl::Status& status);
  LogField(std::string_view name, Duration duration);  // as in "1.5s"
  template <std::same_as<bool> Bool>
  LogField(std::string_view name, Bool value)
      : name(name), value(value ? "true" : "false"), is_text(false) {}
  template <std::integral Number>
    requires(!std::same_as<Number, bool>)
  LogField(std::string_view name, Number value)
      : name(name), value(std::to_string(value)), is_text(false) {}
  LogField(std::string_view name, double value);

  std::string_view name;
  std::string value;
  bool is_text;  // quoted where the format asks for it
};

using LogFields = std::initializer_list<LogField>;

struct LogOptions {
  std::string component;
  LogLevel level_min = LogLevel::kInfo;
  LogFormat format = LogFormat::kLogfmt;
  int fd = 2;                               // not owned
  uint64_t (*wall_time_ns)() = WallTimeNs;  // for `time`
  const Clock* clock = &Clock::Real();      // for LogEvery
};

// Replaces the options of this process; records being written finish under the old ones.
void ConfigureLog(LogOptions options);

bool LogEnabled(LogLevel level);
void Log(LogLevel level, std::string_view event, LogFields fields = {});
// As `Log`, of fields that are not known where it is called.
void LogAll(LogLevel level, std::string_view event, const std::vector<LogField>& fields);

// The line that `Log` would write, with its newline.
std::string FormatLogLine(const LogOptions& options, uint64_t wall_time_ns, LogLevel level,
                          std::string_view event, LogFields fields);

// Lets one record through per key and period, and counts the others.
//
// Bounds: `kLogKeysMax` keys. Past that, keys whose period is over are forgotten (with their
// counts); if none is, new keys share one.
class LogLimiter {
 public:
  explicit LogLimiter(Duration period);

  LogLimiter(const LogLimiter&) = delete;
  LogLimiter& operator=(const LogLimiter&) = delete;

  // Returns how many were held back since the last one let through, or nothing to hold back this
  // one.
  std::optional<uint64_t> Admit(std::string_view key, Time now);

 private:
  struct Entry {
    Time until;
    uint64_t suppressed = 0;
  };

  const Duration period_;
  Mutex mutex_;
  std::unordered_map<std::string, Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

// As `Log`, but at most once per `limiter`'s period and key, with a field `suppressed` when records
// were held back in between.
void LogEvery(LogLimiter& limiter, std::string_view key, LogLevel level, std::string_view event,
              LogFields fields = {});
inline void LogEvery(LogLimiter& limiter, LogLevel level, std::string_view event,
                     LogFields fields = {}) {
  LogEvery(limiter, "", level, event, fields);
}

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TELEMETRY_LOG_H_
