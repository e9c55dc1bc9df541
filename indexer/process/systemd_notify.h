// Notifies systemd (sd_notify): units of `Type=notify` or `notify-reload` learn when the process is
// ready, reads its configuration again and stops, and their watchdog that it still runs.
//
// One datagram per message goes to the socket that $NOTIFY_SOCKET names, a path or an abstract name
// that begins with '@'. Without that variable nothing is sent. A watchdog is there when
// $WATCHDOG_USEC says so for this process ($WATCHDOG_PID).
//
// *Threads*: one. *Cost*: a system call a message, which never waits: one that does not fit the
// socket's queue is lost and logged.
//
// Example:
//   SystemdNotify systemd;
//   systemd.Ready("serving on 127.0.0.1:7410");
//   if (clock.Now() >= systemd.watchdog_at()) systemd.Watchdog(clock.Now(), live);

#ifndef KVATLAS_INDEXER_PROCESS_SYSTEMD_NOTIFY_H_
#define KVATLAS_INDEXER_PROCESS_SYSTEMD_NOTIFY_H_

#include <chrono>
#include <string>
#include <string_view>

#include "indexer/base/clock.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {

class SystemdNotify {
 public:
  // Reads the environment.
  SystemdNotify();
  ~SystemdNotify();

  SystemdNotify(const SystemdNotify&) = delete;
  SystemdNotify& operator=(const SystemdNotify&) = delete;

  void Ready(std::string_view status);
  void Reloading(Time now);  // then `Ready`
  void Stopping();

  bool has_watchdog() const { return period_ > Duration::zero(); }
  // When to call `Watchdog` next: twice in the watchdog's time. REQUIRES: has_watchdog().
  Time watchdog_at() const { return watchdog_at_; }
  // Feeds the watchdog, unless the process is not `live`: then systemd ends it in time, and starts
  // it again if its unit says so.
  void Watchdog(Time now, bool live);

 private:
  void Send(std::string_view message);

  std::string path_;  // empty: nothing is sent
  int socket_ = -1;
  Duration period_{0};
  Time watchdog_at_{0};
  LogLimiter limiter_{std::chrono::seconds(10)};
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_PROCESS_SYSTEMD_NOTIFY_H_
