// A record takes three steps: LogEnabled (one atomic load), FormatLine on the caller's thread, one
// write. The options are shared by pointer, so ConfigureLog never waits for records that are being
// written. LogLimiter, at the end, bounds how often a record with the same key is written.

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

// Bytes of a line that fields may not use: `fields_dropped` and the closing brace must fit behind
// them.
constexpr size_t kLineReserve = 40;
static_assert(kLineReserve >= sizeof(",\"fields_dropped\":18446744073709551615}\n") - 1);

// The process's log. The level is kept apart from the options, so that a disabled record takes no
// lock. The two are not replaced together: a record may see the new level with the old options.
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

// True if logfmt reads the text back as one word. Otherwise the value needs quotes.
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

// Builds one line, never longer than `kLogLineBytesMax`: a field that does not fit is taken back
// and counted, and later, shorter ones may still fit.
class LineBuilder {
 public:
  explicit LineBuilder(LogFormat format) : json_(format == LogFormat::kJson) {
    if (json_) line_.push_back('{');
  }

  // For text: sets what stands before the fields.
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

// logfmt and JSON have the same keys in the same order; text has its own head. `suppressed` comes
// last and so is the first to be dropped from a full line.
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

// One system call for each record, so that records of threads and processes do not mix. Blocks
// while the pipe is full. An error other than EINTR loses the record: there is no place to report
// it.
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

// The former options are destroyed after the lock is released, by whichever user drops them last.
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

// When the number of keys reaches a power of two from `kKeysSwept` on, keys whose period is over
// and that held back nothing are removed. So keys of workers that come and go do not fill the
// bound, at an amortised constant cost.
constexpr size_t kKeysSwept = 64;
bool IsSweptAt(size_t keys) { return keys >= kKeysSwept && std::has_single_bit(keys); }

}  // namespace

// 1. A new key may first sweep old ones. At `kLogKeysMax` keys with counts are removed too, and
//    their counts are lost.
// 2. If there is still no room, the key shares the entry "".
// 3. Within the period the record is counted and held back; after it, it passes with the count.
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
