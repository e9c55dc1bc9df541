// Write puts a line into a bounded queue; one thread writes. The thread holds what it took in
// `text_` until the file or FIFO has taken it, and takes nothing more before that, so the memory is
// bounded by the queue and one text.

#include "indexer/security/audit.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <deque>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "indexer/base/clock.h"
#include "indexer/base/mutex.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

constexpr size_t kWaitingMax = 8192;  // lines
constexpr Duration kLookEvery = std::chrono::seconds(1);
constexpr Duration kRetryEvery = std::chrono::milliseconds(50);  // of a FIFO that takes nothing

// UTC with milliseconds.
std::string TimeNow() {
  const uint64_t ns = Clock::Real().WallNs();
  const auto seconds = static_cast<time_t>(ns / 1'000'000'000u);
  tm parts = {};
  gmtime_r(&seconds, &parts);
  char text[64];
  const size_t size = strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text + size, sizeof(text) - size, ".%03uZ",
                static_cast<unsigned>(ns / 1'000'000u % 1000u));
  return text;
}

// O_NONBLOCK: opening a FIFO without a reader fails with ENXIO instead of waiting, and writes to a
// full one return EAGAIN. O_NOFOLLOW: a link in its place would have the process append to another
// file.
int OpenToAppend(const std::string& path) {
  return open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
              0600);
}

class NoAudit final : public AuditLog {
 public:
  void Write(const AuditLine&) override {}
  uint64_t lines() const override { return 0; }
  uint64_t dropped() const override { return 0; }
};

class FileAudit final : public AuditLog {
 public:
  FileAudit(std::string path, std::string process, int fd)
      : path_(std::move(path)), process_(std::move(process)), fd_(fd), thread_([this] { Run(); }) {}

  ~FileAudit() override {
    {
      MutexLock lock(&mutex_);
      stopping_ = true;
      wake_.Signal();
    }
    thread_.join();
    if (fd_ >= 0) close(fd_);
  }

  // Never waits for the file. The text is made outside the lock, so a few lines more than
  // `kWaitingMax` may be queued.
  void Write(const AuditLine& line) override {
    lines_.fetch_add(1, std::memory_order_relaxed);
    {
      MutexLock lock(&mutex_);
      if (waiting_.size() >= kWaitingMax) {
        dropped_.fetch_add(1, std::memory_order_relaxed);
        ++lost_;
        return;
      }
    }
    // Made outside of the lock; a few lines too many may wait.
    std::string text = TextOf(line);
    MutexLock lock(&mutex_);
    waiting_.push_back(std::move(text));
    if (waiting_.size() == 1) wake_.Signal();
  }

  uint64_t lines() const override { return lines_.load(std::memory_order_relaxed); }
  uint64_t dropped() const override { return dropped_.load(std::memory_order_relaxed); }

 private:
  std::string TextOf(const AuditLine& line) const {
    nlohmann::ordered_json json;
    json["time"] = TimeNow();
    json["process"] = process_;
    json["event"] = line.event;
    json["allowed"] = line.allowed;
    json["identity"] = line.identity;
    for (const auto& [name, value] :
         {std::pair("peer", line.peer), std::pair("verb", line.verb),
          std::pair("target", line.target), std::pair("reason", line.reason)}) {
      if (!value.empty()) json[name] = value;
    }
    return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  }

  // The thread. 1. Waits for lines, or, while the FIFO is stuck, for `kRetryEvery`. 2. Takes the
  // whole queue if everything before is written. 3. Puts a "lost" line before the others if lines
  // had no room. 4. Writes. At the stop it goes on as long as everything is taken; what a stuck
  // FIFO leaves counts as dropped.
  void Run() {
    for (bool stop = false; !stop;) {
      std::deque<std::string> lines;
      uint64_t lost = 0;
      {
        MutexLock lock(&mutex_);
        const bool stuck = !text_.empty();
        if (!stopping_ && (stuck || waiting_.empty()))
          wake_.WaitFor(&mutex_, stuck ? kRetryEvery : kLookEvery);
        if (!stuck) lines.swap(waiting_);
        if (!stuck) lost = std::exchange(lost_, 0);
        stop = stopping_;
      }
      ReopenIfRenamed();
      if (text_.empty() && within_line_ && (lost > 0 || !lines.empty())) text_ += '\n';
      if (lost > 0) {
        lost_in_text_ = lost;
        text_ += TextOf({.event = "lost",
                         .allowed = false,
                         .identity = "",
                         .reason = std::to_string(lost) + " lines had no room"});
      }
      for (const std::string& line : lines) text_ += line;
      lines_in_text_ += lines.size();
      WriteText();
      MutexLock lock(&mutex_);
      if (stop && text_.empty() && !waiting_.empty()) stop = false;
      if (stop) dropped_.fetch_add(lines_in_text_ + waiting_.size(), std::memory_order_relaxed);
    }
  }

  // Compares the open file with the one of that name. If the new one cannot be opened, the old one
  // is used on, whatever its name.
  void ReopenIfRenamed() {
    struct stat named = {};
    struct stat opened = {};
    if (fd_ >= 0 && stat(path_.c_str(), &named) == 0 && fstat(fd_, &opened) == 0 &&
        named.st_ino == opened.st_ino && named.st_dev == opened.st_dev) {
      return;
    }
    const int fd = OpenToAppend(path_);
    if (fd < 0) return;  // on into the old one, whatever its name
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
    within_line_ = false;
  }

  // EAGAIN and EPIPE are of a FIFO: the text stays and is tried again. Other errors lose the text
  // (LoseText). `within_line_` remembers whether a partial write ended inside a line; the next one
  // then begins with a line end.
  void WriteText() {
    while (!text_.empty()) {
      if (fd_ < 0) return;
      const ssize_t wrote = write(fd_, text_.data(), text_.size());
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote < 0 && (errno == EAGAIN || errno == EPIPE)) return;
      if (wrote <= 0) return LoseText(errno);
      within_line_ = text_[static_cast<size_t>(wrote) - 1] != '\n';
      text_.erase(0, static_cast<size_t>(wrote));
    }
    lines_in_text_ = 0;
    lost_in_text_ = 0;
  }

  // Counts the lines in `text_`. A "lost" line that could not be written is not counted as a line;
  // its number goes back into `lost_`, so that the next one reports it.
  void LoseText(int error) {
    // An end alone at the start is that of a line which stands in the file.
    const auto from = text_.begin() + (text_.front() == '\n' ? 1 : 0);
    const auto ends = static_cast<size_t>(std::count(from, text_.end(), '\n'));
    const size_t lines = std::min(ends, lines_in_text_);
    dropped_.fetch_add(lines, std::memory_order_relaxed);
    LogEvery(limiter_, LogLevel::kError, "audit log cannot be written",
             {{"path", path_}, {"reason", strerror(error)}, {"lines_lost", lines}});
    {
      MutexLock lock(&mutex_);
      lost_ += lines + (ends > lines ? lost_in_text_ : 0);
    }
    text_.clear();
    lines_in_text_ = 0;
    lost_in_text_ = 0;
  }

  const std::string path_;
  const std::string process_;
  std::atomic<uint64_t> lines_{0};
  std::atomic<uint64_t> dropped_{0};
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::string> waiting_ ABSL_GUARDED_BY(mutex_);
  uint64_t lost_ ABSL_GUARDED_BY(mutex_) = 0;
  // The members below belong to the thread.
  std::string text_;          // not written yet
  size_t lines_in_text_ = 0;  // of the queue, besides the one that says how many were lost
  uint64_t lost_in_text_ = 0;
  bool within_line_ = false;  // the file ends there
  int fd_;                    // negative: a FIFO has no reader yet
  LogLimiter limiter_{std::chrono::seconds(10)};
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<AuditLog>> AuditLog::Open(const std::string& path,
                                                         std::string process) {
  if (path.empty()) return std::unique_ptr<AuditLog>(std::make_unique<NoAudit>());
  const int fd = OpenToAppend(path);
  if (fd < 0 && errno == ENXIO) {
    Log(LogLevel::kWarning, "the audit log waits for a reader", {{"path", path}});
  } else if (fd < 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot open the audit log ", path, ": ", strerror(errno)));
  }
  return std::unique_ptr<AuditLog>(std::make_unique<FileAudit>(path, std::move(process), fd));
}

}  // namespace kvatlas
