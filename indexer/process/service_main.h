// How a binary starts, says that it is ready, and stops.
//
// `ServiceMain` is what every main() has in common: the flags all share, signals, the ready line.
//   --log_level, --log_format   see log.h
//   --stop_delay                how long serving goes on after a signal to stop, while probes hear that the process is not ready
//   --stop_deadline             how long running calls may take to finish after that
//   --ready_file PATH           the ready line goes there too, whole, by rename
//   --exit_with_parent          SIGTERM when the thread that started this process ends (Linux), so
//                               that a dead cluster runner leaves no orphans; one that dies before
//                               this process reads its flags is not noticed
// and, of programs named kvatlas-SECTION (or "kvatlas SECTION"):
//   --config FILE, KVATLAS_…    file and environment, see flags.h
//   --otlp_endpoint, --trace_ratio     where spans go, see tracing/tracer.h: `Tracer::OfProcess()` from `Start` on
//   --tls_cert, --access_policy, …     which peers it trusts, see security/security.h: `Security::OfProcess()` from `Start` on
//   --check                     everything is looked at, what counts is printed; no port is opened
//
// systemd: a unit of Type=notify is notified of ready, reload and stop, and `WaitForSignal` feeds
// its watchdog (`systemd_notify.h`).
//
// Signals: the first SIGINT or SIGTERM ends `WaitForSignal` after --stop_delay, for a graceful
// stop; the second ends the process at once with status
//     128 + its number. SIGHUP has programs with a configuration read it again within
//     `WaitForSignal` (`FlagSet::Reload`): what may change without a restart is what
//     `flags().OnReload` names, the log's level always; the log tells what changed, what needs a
//     restart, and why everything stays as it was where something is wrong. SIGPIPE does nothing:
//     writes say EPIPE instead. Children do not inherit any of this.
// Threads: one `ServiceMain` per process, made in main() before other threads; `RequestStop` and
//     `stopping` from any.
//
// Example:
//   int main(int argc, char** argv) {
//     kvatlas::ServiceMain service("kvatlas-leaf", "The index of one cell.");
//     kvatlas::Address grpc_address{"127.0.0.1", 7410};
//     service.flags().Group("Addresses");
//     service.flags().Add("grpc", &grpc_address, "address for gRPC").Listens();
//     service.Start(argc, argv);
//     const absl::Status bad = …;                             // what flags say together
//     if (const auto exit = service.Checked(bad)) return *exit;
//     kvatlas::GrpcServer grpc({.listen = grpc_address});
//     if (absl::Status status = grpc.Start(); !status.ok()) return service.Fail(OfFlag("grpc",
//     status));
//     service.flags().OnReload(…);                            // what may change, where something may
//     service.Ready({{"grpc", grpc.address()}});
//     service.WaitForSignal();
//     grpc.Stop(service.stop_deadline());
//     return 0;
//   }

#ifndef KVATLAS_INDEXER_PROCESS_SERVICE_MAIN_H_
#define KVATLAS_INDEXER_PROCESS_SERVICE_MAIN_H_

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/process/flags.h"
#include "indexer/process/systemd_notify.h"
#include "indexer/security/security.h"

namespace kvatlas {

class ServiceMain {
 public:
  // `program` as in the ready line; logs leave out its "kvatlas-".
  // `log_format` is the default of --log_format.
  ServiceMain(std::string program, std::string about, std::string log_format = "logfmt");
  // Spans that wait are sent, for some seconds at most.
  ~ServiceMain();

  ServiceMain(const ServiceMain&) = delete;
  ServiceMain& operator=(const ServiceMain&) = delete;

  // For the binary's own flags, before `Start`.
  FlagSet& flags() { return flags_; }

  // Parses flags (and exits, where they say so), then sets up logs and signals, raises the limit of
  // descriptors, and fits a limit of addresses. Files of the flags of the group "Security" that are
  // missing or wrong end the process likewise.
  void Start(int argc, const char* const* argv);

  // Whether nothing is to be started (--check): files may be read, addresses are only to be well
  // formed.
  bool checking() const { return flags_.checking(); }
  bool logs_text() const { return log_format_ == "text"; }

  // When main() has looked at what the flags say together, and before anything is started. Returns
  // the status to exit with: 2 after `status` was printed; 0 with --check, after the settings were
  // printed. Nothing: go on.
  std::optional<int> Checked(const absl::Status& status) const;

  // Prints one line on stdout, for scripts to wait for, and writes --ready_file. For example
  //   kvatlas-leaf ready grpc=127.0.0.1:7410 http=127.0.0.1:8090
  // An error is of the file only. `quiet`: nothing on stdout, which is another's.
  absl::Status Ready(const std::vector<std::pair<std::string, Address>>& addresses,
                     bool quiet = false);

  // Logs `status`, and returns the status to exit with: 1, or 2 where it is INVALID_ARGUMENT, which
  // is printed as a refused flag is. An error about what a flag named, such as a port in use, is
  // made by `OfFlag`.
  int Fail(const absl::Status& status) const;
  // The same of flags that contradict each other or name what is not there: as `FlagSet` refuses
  // one, 2.
  int RefuseFlags(const absl::Status& status) const;

  // Called at once at a signal to stop, before --stop_delay begins, to answer probes that this
  // process is not ready. Runs in `WaitForSignal`.
  void OnStopSignal(std::function<void()> not_ready) { not_ready_ = std::move(not_ready); }
  // Whether systemd's watchdog may be fed; runs in `WaitForSignal`.
  void OnWatchdog(std::function<bool()> live) { live_ = std::move(live); }

  // For the thread of main(). Blocks until a signal to stop arrived, or `RequestStop` was called,
  // --stop_delay ago. Returns the signal, or 0.
  int WaitForSignal();
  // The same for at most `timeout`; nothing, if that ran out.
  std::optional<int> WaitForSignal(Duration timeout);

  // As a first signal would, from within; a signal after it still counts as the first.
  void RequestStop();
  bool stopping() const;

  Duration stop_deadline() const { return stop_deadline_; }

 private:
  void DeclareSecurity();
  absl::Status StartSecurity();
  void DeclareTracing();
  void StartTracing() const;
  void SetUpLog() const;
  void TellFacts() const;
  void Reload();
  void SayReady();
  void BeginStop(int reason);

  FlagSet flags_;
  std::string log_level_ = "info";
  std::string log_format_;
  Duration stop_deadline_ = std::chrono::seconds(5);
  std::string ready_file_;
  bool exit_with_parent_ = false;
  SecurityOptions security_;
  std::vector<std::string> http_names_;
  std::string otlp_endpoint_;
  double trace_ratio_ = 0.1;
  Duration stop_delay_{0};
  std::string ready_line_;
  std::function<void()> not_ready_;
  std::function<bool()> live_;
  SystemdNotify systemd_;
  std::optional<int> stop_reason_;  // of the thread that waits, as are those around it
  Time stop_at_{0};
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_PROCESS_SERVICE_MAIN_H_
