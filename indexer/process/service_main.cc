#include "indexer/process/service_main.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "indexer/net/connection_account.h"
#include "indexer/net/http_host.h"
#include "indexer/net/redis_url.h"
#include "indexer/process/path_flag.h"
#include "indexer/process/process_facts.h"
#include "indexer/telemetry/log.h"
#include "indexer/telemetry/process_memory.h"
#include "indexer/telemetry/tracing/tracer.h"

namespace kvatlas {
namespace {

// The state that signal handlers touch. Handlers are used rather than a blocked mask, which
// children would inherit through exec (and then ignore our SIGTERM); for the same reason SIGPIPE
// has a handler and not SIG_IGN.
//
// 1. OnStopSignal, in any thread, writes the signal's number to the pipe; OnReloadSignal does the
//    same, unless its last byte is still unread (`g_reload`).
// 2. WaitForSignal, in main(), reads the byte: it begins to stop and keeps the reason for later
//    calls, or it reads the configuration again.
// 3. The second stop signal ends the process at once, in the handler.
//
// Handlers call only write and _exit, which are safe there, and keep errno for the code that they
// interrupt.
std::atomic<int> g_signals_seen{0};
std::atomic<bool> g_stopping{false};
std::atomic<bool> g_reload{false};
int g_pipe[2] = {-1, -1};  // written once, by OpenPipe, before the handlers are set
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void Wake(unsigned char reason) {
  g_stopping.store(true, std::memory_order_relaxed);
  // A full pipe has been written to already, and the first byte is what counts.
  [[maybe_unused]] const ssize_t written = write(g_pipe[1], &reason, 1);
}

void OnStopSignal(int signal) {
  const int saved_errno = errno;
  if (g_signals_seen.fetch_add(1, std::memory_order_relaxed) > 0) _exit(128 + signal);
  Wake(static_cast<unsigned char>(signal));
  errno = saved_errno;
}

void OnReloadSignal(int signal) {
  const int saved_errno = errno;
  const unsigned char reason = static_cast<unsigned char>(signal);
  if (!g_reload.exchange(true)) {
    [[maybe_unused]] const ssize_t written = write(g_pipe[1], &reason, 1);
  }
  errno = saved_errno;
}

// For SIGPIPE: writes return EPIPE, and exec sets the default again for children.
void OnIgnoredSignal(int) {}

// Non-blocking at both ends: a handler must never wait, and WaitForSignal polls.
void OpenPipe() {
  if (g_pipe[0] >= 0) return;
  if (pipe2(g_pipe, O_CLOEXEC | O_NONBLOCK) != 0) {
    std::perror("pipe2");
    std::abort();
  }
}

// SA_RESTART: system calls elsewhere go on after a signal instead of failing with EINTR.
void CatchSignals(bool reload) {
  struct sigaction action = {};
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  action.sa_handler = OnStopSignal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = OnReloadSignal;
  if (reload) sigaction(SIGHUP, &action, nullptr);
  action.sa_handler = OnIgnoredSignal;
  sigaction(SIGPIPE, &action, nullptr);
}

LogLevel LevelOf(const std::string& name) {
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return LogLevel::kInfo;
}

// "leaf" for "kvatlas-leaf" and "kvatlas leaf". Empty: another kind of program, without
// configuration, security and tracing.
std::string SectionOf(const std::string& program) {
  constexpr std::string_view kName = "kvatlas";
  const bool ours = program.starts_with(kName) && program.size() > kName.size() + 1 &&
                    (program[kName.size()] == '-' || program[kName.size()] == ' ');
  return ours ? program.substr(kName.size() + 1) : "";
}

// Writes another file and renames it, so that a reader never sees a part. The pid keeps two
// processes with the same path apart.
absl::Status WriteWhole(const std::string& path, const std::string& text) {
  const std::string partial = absl::StrCat(path, ".", getpid(), ".partial");
  std::ofstream file(partial, std::ios::trunc);
  file << text;
  file.close();
  if (!file || std::rename(partial.c_str(), path.c_str()) != 0) {
    const int error = errno;
    std::remove(partial.c_str());
    return absl::UnavailableError(absl::StrCat("cannot write ", path, ": ", strerror(error)));
  }
  return absl::OkStatus();
}

// The command line is in /proc for every user of the machine.
void WarnOfPasswords(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (!HasRedisPassword(argument)) continue;
    // The flag's name, whether it is written as --redis=URL or as two arguments.
    const std::string_view flag = argument.starts_with("--") ? argument : argv[i - 1];
    Log(LogLevel::kWarning, "a Redis password is on the command line, which others can read",
        {{"flag", std::string(flag.substr(0, flag.find('=')))},
         {"remedy",
          "put the URL into a file of mode 0640 or less and give @FILE instead; where addresses "
          "may stand too, redis://@/FILE"}});
  }
}

}  // namespace

// Declares the shared flags before the program's own; --help prints them behind those all the same
// (`FlagSet::Groups`).
ServiceMain::ServiceMain(std::string program, std::string about, std::string log_format)
    : flags_(std::move(program), std::move(about)), log_format_(std::move(log_format)) {
  OpenPipe();
  flags_.Group(FlagSet::kLastGroup);
  if (const std::string section = SectionOf(flags_.program()); !section.empty()) {
    flags_.ReadConfig(section);
    DeclareSecurity();
    DeclareTracing();
    flags_.Group(FlagSet::kLastGroup);
  }
  flags_.AddChoice("log_level", &log_level_, "least level that is logged",
                   {"debug", "info", "warning", "error"});
  flags_.AddChoice("log_format", &log_format_,
                   "how log lines are written; text: the time, ! where something is wrong, what "
                   "happened",
                   {"text", "logfmt", "json"});
  flags_.Add("stop_delay", &stop_delay_,
             "how long serving goes on after a signal to stop, while probes hear that this process "
             "is not ready",
             Duration::zero(), std::chrono::hours(1));
  flags_.Add("stop_deadline", &stop_deadline_, "how long running calls may take to finish",
             Duration::zero(), std::chrono::hours(1));
  flags_.Add("ready_file", &ready_file_, "where the ready line is written as well")
      .Check(CheckFileToWrite);
  flags_.Add("exit_with_parent", &exit_with_parent_,
             "stop when the thread that started this process ends");
  flags_.Group("");
  flags_.OnReload({"log_level"}, [this]() -> absl::StatusOr<FlagSet::Commit> {
    return FlagSet::Commit([this] { SetUpLog(); });
  });
}

void ServiceMain::DeclareSecurity() {
  flags_.CommonGroup("Security");
  flags_.Add("tls_cert", &security_.tls.certificate,
             "PEM file with this process's certificate and its intermediates; watched, as are all "
             "files of this group");
  flags_.Add("tls_key", &security_.tls.key, "PEM file with its key, of mode 0640 or less");
  flags_.Add("tls_ca", &security_.tls.ca,
             "PEM file with the CAs that peers' certificates are checked against");
  flags_.Add("access_policy", &security_.policy,
             "JSON file that says who may do what (kvatlas policy check); empty: everybody may "
             "do everything");
  flags_.Add("access_tokens", &security_.tokens.tokens,
             "file with hashes of bearer tokens and whose they are (kvatlas policy token)");
  flags_.Add("jwks", &security_.tokens.jwks, "JWKS file with the keys that sign JWTs");
  flags_.Add("jwt_issuer", &security_.tokens.jwt_issuer, "\"iss\" that a JWT must have");
  flags_.Add("jwt_audience", &security_.tokens.jwt_audience, "\"aud\" that a JWT must have");
  flags_
      .Add("audit_log", &security_.audit_log,
           "file for a line of JSON per decision of the policy; empty: none")
      .Check(CheckFileToWrite);
  flags_.Add("tls_connection_age", &security_.connection_age,
             "under a policy, age at which new gRPC calls of a client come over a new connection, "
             "with its "
             "certificate of then; replace certificates at least so long before they expire",
             std::chrono::milliseconds(100));
  flags_.Add("insecure", &security_.insecure,
             "may listen beyond loopback without TLS and policy: everyone who reaches a port may "
             "speak for any worker, cell and tenant");
  flags_.Add("http_names", &http_names_,
             "host names by which HTTP may ask this process while it listens on loopback without "
             "TLS and policy, beside addresses, localhost and names of one label; *: all, also "
             "those that a page in a browser makes up");
}

// Replacing the tracer destroys it, which sends what waits.
ServiceMain::~ServiceMain() {
  if (Tracer::OfProcess()->on()) Tracer::SetOfProcess(Tracer::Start({}));
}

void ServiceMain::DeclareTracing() {
  flags_.CommonGroup("Tracing");
  flags_
      .Add("otlp_endpoint", &otlp_endpoint_,
           "HOST:PORT of an OpenTelemetry collector's gRPC, which is sent spans, by TLS where this "
           "process has a "
           "certificate; empty: no tracing")
      .Check([](const std::string& text) {
        return text.empty() ? absl::OkStatus() : Address::Parse(text).status();
      });
  flags_.Add("trace_ratio", &trace_ratio_,
             "part of the requests that are traced, of those that come without a trace context; "
             "others as their "
             "context says",
             0.0, 1.0);
}

void ServiceMain::StartTracing() const {
  if (otlp_endpoint_.empty() || checking()) return;
  Tracer::SetOfProcess(Tracer::Start(
      {.endpoint = otlp_endpoint_, .ratio = trace_ratio_, .program = flags_.program()}));
}

// With --check too: the files are read and checked, so that a bad one is reported.
absl::Status ServiceMain::StartSecurity() {
  if (SectionOf(flags_.program()).empty()) return absl::OkStatus();
  security_.process = flags_.program();
  SetHttpNames(http_names_);
  absl::StatusOr<std::shared_ptr<Security>> security = Security::Start(security_);
  if (!security.ok()) return security.status();
  Security::SetOfProcess(*std::move(security));
  return absl::OkStatus();
}

// Called at the start and after each reload: /status shows the flags that count now.
void ServiceMain::TellFacts() const {
  std::vector<ToldFlag> flags;
  for (FlagSet::Told& told : flags_.AllTold())
    flags.push_back({std::move(told.name), std::move(told.value), std::move(told.where)});
  SetFactsOfProcess(flags_.program(), std::move(flags));
}

void ServiceMain::SetUpLog() const {
  LogOptions log;
  const std::string section = SectionOf(flags_.program());
  log.component = section.empty() ? flags_.program() : section;
  log.level_min = LevelOf(log_level_);
  log.format = log_format_ == "json"   ? LogFormat::kJson
               : log_format_ == "text" ? LogFormat::kText
                                       : LogFormat::kLogfmt;
  ConfigureLog(std::move(log));
}

// The order matters: the log is set up before anything logs, security before a port could open, and
// the tracer last, since its connection uses the TLS files.
void ServiceMain::Start(int argc, const char* const* argv) {
  flags_.ParseOrExit(argc, argv);
  SetUpLog();
  TellFacts();
  WarnOfPasswords(argc, argv);
  FitAddressSpace();  // before the first thread, which is of what security starts
  if (const absl::Status bad = StartSecurity(); !bad.ok()) std::exit(RefuseFlags(bad));
  CatchSignals(/*reload=*/!SectionOf(flags_.program()).empty());
  RaiseDescriptorLimit();
  StartTracing();
  if (exit_with_parent_ && prctl(PR_SET_PDEATHSIG, SIGTERM) != 0) {
    Log(LogLevel::kWarning, "cannot exit with parent", {{"reason", strerror(errno)}});
  }
}

// The last point of a run with --check. 1: the output could not be written.
std::optional<int> ServiceMain::Checked(const absl::Status& status) const {
  if (!status.ok()) return RefuseFlags(status);
  if (!checking()) return std::nullopt;
  const std::string text = flags_.Effective();
  std::fwrite(text.data(), 1, text.size(), stdout);
  return std::fflush(stdout) == 0 ? 0 : 1;
}

// To systemd and stdout before the file: an error of the file is returned when the others know.
absl::Status ServiceMain::Ready(const std::vector<std::pair<std::string, Address>>& addresses,
                                bool quiet) {
  if (checking()) {
    std::fprintf(stderr, "%s: started with --check: main() did not call Checked()\n",
                 flags_.program().c_str());
    std::abort();
  }
  SetListensOfProcess(addresses);
  std::string& line = ready_line_;
  line = absl::StrCat(flags_.program(), " ready");
  for (const auto& [name, address] : addresses) {
    absl::StrAppend(&line, " ", name, "=", address.ToString());
  }
  line.push_back('\n');
  if (!quiet) std::fwrite(line.data(), 1, line.size(), stdout);
  std::fflush(stdout);
  SayReady();
  return ready_file_.empty() ? absl::OkStatus() : WriteWhole(ready_file_, line);
}

// To systemd, without the line's end.
void ServiceMain::SayReady() {
  systemd_.Ready(std::string_view(ready_line_).substr(0, ready_line_.size() - 1));
}

int ServiceMain::Fail(const absl::Status& status) const {
  if (absl::IsInvalidArgument(status)) return RefuseFlags(status);
  const std::string message = flags_.Refusal(std::string(status.message()));
  Log(LogLevel::kError, "failed", {{"reason", absl::Status(status.code(), message)}});
  return 1;
}

int ServiceMain::RefuseFlags(const absl::Status& status) const {
  std::fprintf(stderr, "%s: %s (see --help)\n", flags_.command().c_str(),
               flags_.Refusal(std::string(status.message())).c_str());
  return 2;
}

// systemd's `Type=notify-reload` wants RELOADING before and READY after, whatever the result.
// Before the first `Ready` and after a stop has begun it hears of neither.
void ServiceMain::Reload() {
  const bool told = !ready_line_.empty() && !stop_reason_.has_value();
  if (told) systemd_.Reloading(Clock::Real().Now());
  const absl::StatusOr<FlagSet::Reloaded> reloaded = flags_.Reload();
  if (told) SayReady();
  if (!reloaded.ok()) {
    Log(LogLevel::kError, "configuration stays as it was",
        {{"reason", std::string(reloaded.status().message())}});
    return;
  }
  TellFacts();
  for (const FlagSet::Change& change : reloaded->changed)
    Log(LogLevel::kInfo, "setting changed", {{"flag", change.flag}, {"from", change.where}});
  for (const FlagSet::Change& change : reloaded->need_restart)
    Log(LogLevel::kWarning, "setting needs a restart to change",
        {{"flag", change.flag}, {"from", change.where}});
  Log(LogLevel::kInfo, "configuration read again",
      {{"changed", reloaded->changed.size()}, {"need_restart", reloaded->need_restart.size()}});
}

int ServiceMain::WaitForSignal() { return *WaitForSignal(Duration::max()); }

// The main loop of every process, on the thread of main():
// 1. A byte in the pipe: SIGHUP reloads; a stop signal begins to stop (BeginStop), while serving
//    goes on.
// 2. --stop_delay later it returns the reason, and the caller stops its servers.
// 3. In between it feeds systemd's watchdog.
std::optional<int> ServiceMain::WaitForSignal(Duration timeout) {
  const Clock& clock = Clock::Real();
  const Time start = clock.Now();
  while (true) {
    unsigned char reason;
    if (read(g_pipe[0], &reason, 1) == 1) {
      if (reason == SIGHUP) {
        g_reload.store(false);
        Reload();
      } else if (!stop_reason_.has_value()) {
        BeginStop(reason);
      }
      continue;
    }
    const Time now = clock.Now();
    if (stop_reason_.has_value() && now >= stop_at_) return stop_reason_;
    if (now - start >= timeout) return std::nullopt;
    if (systemd_.has_watchdog() && now >= systemd_.watchdog_at())
      systemd_.Watchdog(now, live_ == nullptr || live_());
    // The rest until the next of these times. Rounded up to ms, so that the last part is not spent
    // spinning, and at most an hour, to fit poll's int.
    Duration rest = std::min<Duration>(timeout - (now - start), std::chrono::hours(1));
    if (stop_reason_.has_value()) rest = std::min(rest, stop_at_ - now);
    if (systemd_.has_watchdog()) rest = std::min(rest, systemd_.watchdog_at() - now);
    const auto rest_ms = std::chrono::ceil<std::chrono::milliseconds>(rest).count();
    pollfd readable = {g_pipe[0], POLLIN, 0};
    poll(&readable, 1, static_cast<int>(rest_ms));  // a signal or a time-out: look again
  }
}

// Probes hear "not ready" first: load balancers need --stop_delay to take the process out.
void ServiceMain::BeginStop(int reason) {
  stop_reason_ = reason;
  stop_at_ = Clock::Real().Now() + stop_delay_;
  if (not_ready_ != nullptr) not_ready_();
  systemd_.Stopping();
  Log(LogLevel::kInfo, "stopping",
      {{"signal", reason},
       {"delay_ms", std::chrono::duration_cast<std::chrono::milliseconds>(stop_delay_).count()}});
}

void ServiceMain::RequestStop() { Wake(0); }

bool ServiceMain::stopping() const { return g_stopping.load(std::memory_order_relaxed); }

}  // namespace kvatlas
