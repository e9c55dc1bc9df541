#include "indexer/process/systemd_notify.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Half of $WATCHDOG_USEC, so that one late message does not end the process; 0: no watchdog, or it
// is for another process ($WATCHDOG_PID). Capped at half a day, against overflow.
Duration WatchdogPeriod() {
  const std::string pid = Environment("WATCHDOG_PID");
  int64_t of = 0;
  if (!pid.empty() && (!absl::SimpleAtoi(pid, &of) || of != getpid())) return Duration::zero();
  uint64_t micros = 0;
  constexpr uint64_t kDayMicros = uint64_t{24} * 3600 * 1'000'000;
  if (!absl::SimpleAtoi(Environment("WATCHDOG_USEC"), &micros) || micros == 0)
    return Duration::zero();
  return std::chrono::microseconds(std::min(micros, kDayMicros)) / 2;
}

}  // namespace

// Non-blocking: a systemd that does not read must not stop the process.
SystemdNotify::SystemdNotify() : path_(Environment("NOTIFY_SOCKET")) {
  if (path_.empty()) return;
  if (path_.size() >= sizeof(sockaddr_un::sun_path) || (path_[0] != '/' && path_[0] != '@')) {
    Log(LogLevel::kWarning, "systemd is told nothing",
        {{"NOTIFY_SOCKET", path_}, {"reason", "expected a path, or @NAME, of at most 107 bytes"}});
    path_.clear();
    return;
  }
  socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  period_ = WatchdogPeriod();
}

SystemdNotify::~SystemdNotify() {
  if (socket_ >= 0) close(socket_);
}

void SystemdNotify::Ready(std::string_view status) {
  Send(absl::StrCat("READY=1\nSTATUS=", absl::string_view(status.data(), status.size())));
}

// `Type=notify-reload` compares this time with that of its signal. It is of CLOCK_MONOTONIC, which
// `Clock` reads too.
void SystemdNotify::Reloading(Time now) {
  const auto micros = std::chrono::duration_cast<std::chrono::microseconds>(now).count();
  Send(absl::StrCat("RELOADING=1\nMONOTONIC_USEC=", micros));
}

void SystemdNotify::Stopping() { Send("STOPPING=1"); }

// A process that is not live stays silent, and systemd acts when the time is over.
void SystemdNotify::Watchdog(Time now, bool live) {
  watchdog_at_ = now + period_;
  if (live) Send("WATCHDOG=1");
}

void SystemdNotify::Send(std::string_view message) {
  if (path_.empty()) return;
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  memcpy(to.sun_path, path_.data(), path_.size());
  // An abstract name begins with a zero, and is as long as the address says.
  if (path_[0] == '@') to.sun_path[0] = '\0';
  const size_t size = offsetof(sockaddr_un, sun_path) + path_.size();
  const ssize_t sent = sendto(socket_, message.data(), message.size(), MSG_NOSIGNAL,
                              reinterpret_cast<const sockaddr*>(&to), static_cast<socklen_t>(size));
  if (sent < 0) {
    LogEvery(
        limiter_, LogLevel::kWarning, "systemd was not told",
        {{"message", std::string(message)}, {"NOTIFY_SOCKET", path_}, {"reason", strerror(errno)}});
  }
}

}  // namespace kvatlas
