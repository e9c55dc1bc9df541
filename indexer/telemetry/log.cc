#include "indexer/telemetry/log.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "indexer/telemetry/text_escape.h"

namespace kvatlas {
namespace {

// Left free in a line for `fields_dropped` and the closing brace.
constexpr size_t kLineReserve = 40;
static_assert(kLineReserve >= sizeof(",\"fields_dropped\":18446744073709551615}\n") - 1);

// What Log reads. The level stands apart so that a disabled record takes no lock.
struct Sink {
  std::atomic<LogLevel> level_min{LogLevel::kInfo};
  Mutex mutex;
  std::shared_ptr<const LogOptions> options ABSL_GUARDED_BY(mutex) = std::make_shared<LogOptions>();
};

// Never destroyed: threads may log while the process exits.
Sink& TheSink() {
  static Sink* const sink = new Sink;
  return *sink;
}

std::shared_ptr<const LogOptions> CurrentOptions() {
  Sink& sink = TheSink();
  MutexLock lock(&sink.mutex);
  return sink.options;
}

const char* LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "unknown";
}

// logfmt needs quotes round anything that would not read back as one word.
bool IsWord(std::string_view text) {
  for (const char c : text) {
    if (c <= ' ' || c == '"' || c == '=' || c == '\\' || c == 0x7F) return false;  // and above 0x7F
  }
  return !text.empty();
}

void AppendQuoted(std::string* out, std::string_view text) {
  out->push_back('"');
  AppendJsonEscaped(out, text);
  out->push_back('"');
}

// Builds one line and keeps it within `kLogLineBytesMax`.
class LineBuilder {
 public:
  explicit LineBuilder(LogFormat format) : json_(format == LogFormat::kJson) {
    if (json_) line_.push_back('{');
  }

  // Of text for a terminal: what stands before the fields.
  void Begin(std::string head) {
    line_ = std::move(head);
    first_ = false;
  }

  void Add(std::string_view name, std::string_view value, bool is_text) {
    const size_t before = line_.size();
    if (!first_) line_.push_back(json_ ? ',' : ' ');
    if (json_) {
      AppendQuoted(&line_, name);
      line_.push_back(':');
    } else {
      line_.append(name);
      line_.push_back('=');
    }
    value = value.substr(0, kLogTextBytesMax);
    if (is_text && (json_ || !IsWord(value))) {
      AppendQuoted(&line_, value);
    } else {
      line_.append(value);
    }
    if (line_.size() > kLogLineBytesMax - kLineReserve) {
      line_.resize(before);
      ++dropped_;
      return;
    }
    first_ = false;
  }

  std::string Finish() {
    if (dropped_ > 0) {
      absl::StrAppend(&line_, json_ ? ",\"fields_dropped\":" : " fields_dropped=", dropped_);
    }
    line_.append(json_ ? "}\n" : "\n");
    return std::move(line_);
  }

 private:
  const bool json_;
  bool first_ = true;
  size_t dropped_ = 0;
  std::string line_;
};

std::string FormatLine(const LogOptions& options, uint64_t wall_time_ns, LogLevel level,
                       std::string_view event, std::span<const LogField> fields,
                       uint64_t suppressed) {
  const absl::Time time = absl::FromUnixNanos(static_cast<int64_t>(wall_time_ns));
  LineBuilder line(options.format);
  if (options.format == LogFormat::kText) {
    const bool wrong = level >= LogLevel::kWarning;
    std::string head = absl::FormatTime("%H:%M:%S", time, absl::LocalTimeZone());
    absl::StrAppend(&head, wrong ? " ! " : "   ", Shown(event.substr(0, kLogTextBytesMax)),
                    fields.size() + suppressed > 0 ? " " : "");
    head.resize(std::min(head.size(), kLogLineBytesMax - kLineReserve));
    line.Begin(std::move(head));
    for (const LogField& field : fields) line.Add(field.name, field.value, field.is_text);
    if (suppressed > 0) line.Add("suppressed", std::to_string(suppressed), false);
    return line.Finish();
  }
  line.Add("time", absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", time, absl::UTCTimeZone()), true);
  line.Add("level", LevelName(level), true);
  if (!options.component.empty()) line.Add("component", options.component, true);
  line.Add("event", event, true);
  for (const LogField& field : fields) line.Add(field.name, field.value, field.is_text);
  if (suppressed > 0) line.Add("suppressed", std::to_string(suppressed), false);
  return line.Finish();
}

void Write(LogLevel level, std::string_view event, std::span<const LogField> fields,
           uint64_t suppressed) {
  const std::shared_ptr<const LogOptions> options = CurrentOptions();
  const std::string line =
      FormatLine(*options, options->wall_time_ns(), level, event, fields, suppressed);
  while (write(options->fd, line.data(), line.size()) < 0 && errno == EINTR) {
  }
}

}  // namespace

LogField::LogField(std::string_view name, std::string_view text)
    : name(name), value(text.substr(0, kLogTextBytesMax)), is_text(true) {}

LogField::LogField(std::string_view name, const absl::Status& status)
    : LogField(name, std::string_view(status.ToString())) {}

LogField::LogField(std::string_view name, Duration duration)
    : LogField(name, std::string_view(absl::FormatDuration(absl::FromChrono(duration)))) {}

// JSON has no infinity and no NaN, so those are text.
LogField::LogField(std::string_view name, double value)
    : name(name), value(absl::StrCat(value)), is_text(!(value - value == 0)) {}

void ConfigureLog(LogOptions options) {
  Sink& sink = TheSink();
  sink.level_min.store(options.level_min, std::memory_order_relaxed);
  auto shared = std::make_shared<const LogOptions>(std::move(options));
  MutexLock lock(&sink.mutex);
  sink.options.swap(shared);
}

bool LogEnabled(LogLevel level) {
  return level >= TheSink().level_min.load(std::memory_order_relaxed);
}

void Log(LogLevel level, std::string_view event, LogFields fields) {
  if (LogEnabled(level)) Write(level, event, {fields.begin(), fields.size()}, 0);
}

void LogAll(LogLevel level, std::string_view event, const std::vector<LogField>& fields) {
  if (LogEnabled(level)) Write(level, event, fields, 0);
}

std::string FormatLogLine(const LogOptions& options, uint64_t wall_time_ns, LogLevel level,
                          std::string_view event, LogFields fields) {
  return FormatLine(options, wall_time_ns, level, event, {fields.begin(), fields.size()}, 0);
}

LogLimiter::LogLimiter(Duration period) : period_(period) {}

namespace {

// Keys that come and go, as of workers, do not fill the bound: whenever there are so many, those
// with nothing left to tell go.
constexpr size_t kKeysSwept = 64;
bool IsSweptAt(size_t keys) { return keys >= kKeysSwept && std::has_single_bit(keys); }

}  // namespace

std::optional<uint64_t> LogLimiter::Admit(std::string_view key, Time now) {
  MutexLock lock(&mutex_);
  auto entry = entries_.find(std::string(key));
  if (entry == entries_.end()) {
    const bool at_most = entries_.size() >= kLogKeysMax;
    if (at_most || IsSweptAt(entries_.size())) {
      std::erase_if(entries_, [&](const auto& other) {
        return other.second.until <= now && (at_most || other.second.suppressed == 0);
      });
    }
    const bool full = entries_.size() >= kLogKeysMax;
    entry = entries_.try_emplace(std::string(full ? "" : key), Entry{Time::min(), 0}).first;
  }
  if (now < entry->second.until) {
    ++entry->second.suppressed;
    return std::nullopt;
  }
  entry->second.until = now + period_;
  return std::exchange(entry->second.suppressed, 0);
}

void LogEvery(LogLimiter& limiter, std::string_view key, LogLevel level, std::string_view event,
              LogFields fields) {
  if (!LogEnabled(level)) return;
  const std::optional<uint64_t> suppressed = limiter.Admit(key, CurrentOptions()->clock->Now());
  if (suppressed.has_value()) Write(level, event, {fields.begin(), fields.size()}, *suppressed);
}

}  // namespace kvatlas
