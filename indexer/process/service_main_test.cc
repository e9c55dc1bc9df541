// Runs itself as a child service, and sends it real signals.

#include "indexer/process/service_main.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace kvatlas {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// The child: says ready, waits, says why it stops. With --hang it then waits for its own end.
int ChildMain(int argc, const char* const* argv) {
  bool hang = false;
  bool fail = false;
  bool bad = false;
  bool broken_pipe = false;
  bool stop_itself = false;
  bool deaf = false;
  ServiceMain service("kvatlas-child", "A child of a test.");
  service.flags().Add("hang", &hang, "do not end after the first signal");
  service.flags().Add("bad", &bad, "refuse what was told");
  service.flags().Add("fail", &fail, "fail at once");
  service.flags().Add("broken_pipe", &broken_pipe, "write to a pipe without a reader");
  service.flags().Add("stop_itself", &stop_itself, "call RequestStop in another thread");
  service.flags().Add("deaf", &deaf, "the watchdog is not told that all is well");
  std::string threads;
  service.flags().Add("threads", &threads, "what needs a restart");
  service.Start(argc, argv);
  if (const auto exit =
          service.Checked(bad ? absl::InvalidArgumentError("--threads: none") : absl::OkStatus()))
    return *exit;
  if (fail) return service.Fail(absl::UnavailableError("no port"));
  if (broken_pipe) {
    int fds[2];
    if (pipe(fds) != 0) return 3;
    close(fds[0]);
    if (write(fds[1], "x", 1) != -1 || errno != EPIPE) return 4;
  }
  if (service.WaitForSignal(Duration::zero()).has_value() || service.stopping()) return 5;
  const absl::Status ready =
      service.Ready({{"grpc", {"127.0.0.1", 7410}}, {"http", {"::1", 8090}}});
  if (!ready.ok()) return service.Fail(ready);
  // Its probes, in two lines.
  service.OnStopSignal([] {
    std::printf("not ready\n");
    std::fflush(stdout);
  });
  service.OnWatchdog([&] { return !deaf; });
  if (stop_itself) std::thread([&] { service.RequestStop(); }).join();
  const int signal = service.WaitForSignal();
  if (!service.stopping() || service.WaitForSignal() != signal) return 6;
  std::printf("stopping on %d\n", signal);
  std::fflush(stdout);
  while (hang) pause();
  return 0;
}

// A process with its stdout and stderr in pipes.
class Child {
 public:
  explicit Child(std::vector<std::string> flags) {
    EXPECT_EQ(pipe2(out_, O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(err_, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) Exec(flags);
    close(out_[1]);
    close(err_[1]);
    stream_ = fdopen(out_[0], "r");
  }

  ~Child() {
    fclose(stream_);
    close(err_[0]);
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }

  // The next line of stdout; empty at its end, which is when the last writer has ended.
  std::string ReadLine() {
    char buffer[512];
    return fgets(buffer, sizeof(buffer), stream_) == nullptr ? "" : buffer;
  }

  std::string ReadErrors() {
    std::string all;
    for (std::string more = ReadSomeErrors(); !more.empty(); more = ReadSomeErrors()) all += more;
    return all;
  }

  // What is written to stderr next; empty: nothing more.
  std::string ReadSomeErrors() {
    char buffer[4096];
    const ssize_t n = read(err_[0], buffer, sizeof(buffer));
    return n > 0 ? std::string(buffer, static_cast<size_t>(n)) : "";
  }

  // The rest of stdout.
  std::string ReadAll() {
    std::string all;
    for (std::string line = ReadLine(); !line.empty(); line = ReadLine()) all += line;
    return all;
  }

  void Signal(int signal) { kill(pid_, signal); }

  // The status it exited with, or minus the signal that killed it.
  int Wait() {
    int status = 0;
    waitpid(std::exchange(pid_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

 private:
  [[noreturn]] void Exec(const std::vector<std::string>& flags) {
    dup2(out_[1], 1);
    dup2(err_[1], 2);
    std::vector<const char*> argv = {"kvatlas-child", "--as_child"};
    for (const std::string& flag : flags) argv.push_back(flag.c_str());
    argv.push_back(nullptr);
    execv("/proc/self/exe", const_cast<char* const*>(argv.data()));
    _exit(127);
  }

  int out_[2];
  int err_[2];
  pid_t pid_ = -1;
  FILE* stream_ = nullptr;
};

constexpr char kReadyLine[] = "kvatlas-child ready grpc=127.0.0.1:7410 http=[::1]:8090\n";

TEST(ServiceMainTest, FirstSignalStopsGracefully) {
  for (const int signal : {SIGTERM, SIGINT}) {
    Child child({});
    EXPECT_EQ(child.ReadLine(), kReadyLine);
    child.Signal(signal);
    EXPECT_EQ(child.ReadLine(), "not ready\n");
    EXPECT_EQ(child.ReadLine(), "stopping on " + std::to_string(signal) + "\n");
    EXPECT_EQ(child.Wait(), 0);
    EXPECT_THAT(child.ReadErrors(), HasSubstr("level=info component=child event=stopping signal="));
  }
}

TEST(ServiceMainTest, SecondSignalEndsAtOnce) {
  Child child({"--hang"});
  EXPECT_EQ(child.ReadLine(), kReadyLine);
  child.Signal(SIGTERM);
  EXPECT_EQ(child.ReadLine(), "not ready\n");
  EXPECT_THAT(child.ReadLine(), StartsWith("stopping"));
  child.Signal(SIGINT);
  EXPECT_EQ(child.Wait(), 128 + SIGINT);
}

TEST(ServiceMainTest, RequestStopEndsTheWaitToo) {
  Child child({"--stop_itself", "--hang"});
  EXPECT_EQ(child.ReadLine(), kReadyLine);
  EXPECT_EQ(child.ReadLine(), "not ready\n");
  EXPECT_EQ(child.ReadLine(), "stopping on 0\n");
  child.Signal(SIGTERM);  // only the first signal
  child.Signal(SIGKILL);
  EXPECT_EQ(child.Wait(), -SIGKILL);
}

TEST(ServiceMainTest, BrokenPipeIsAnErrorAndNoSignal) {
  Child child({"--broken_pipe"});
  EXPECT_EQ(child.ReadLine(), kReadyLine);
  child.Signal(SIGTERM);
  EXPECT_EQ(child.Wait(), 0);
}

TEST(ServiceMainTest, FailureIsLoggedAndExitsWithOne) {
  Child child({"--fail", "--log_format=json"});
  EXPECT_EQ(child.Wait(), 1);
  EXPECT_THAT(child.ReadErrors(), HasSubstr("\"component\":\"child\",\"event\":\"failed\","
                                            "\"reason\":\"UNAVAILABLE: no port\"}"));
}

TEST(ServiceMainTest, FlagsAreParsed) {
  Child version({"--version"});
  EXPECT_EQ(version.ReadLine(), "kvatlas-child 0.1.0\n");
  EXPECT_EQ(version.Wait(), 0);
  Child bad({"--stop_deadline=soon"});
  EXPECT_EQ(bad.Wait(), 2);
  EXPECT_THAT(bad.ReadErrors(), HasSubstr("flag --stop_deadline=soon: not a duration"));
}

TEST(ServiceMainTest, LogLevelIsHeeded) {
  Child child({"--log_level=error"});
  EXPECT_EQ(child.ReadLine(), kReadyLine);
  child.Signal(SIGTERM);
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_THAT(child.ReadErrors(), IsEmpty());
}

TEST(ServiceMainTest, ReadyFileHoldsTheReadyLine) {
  const std::string path = ::testing::TempDir() + "/ready." + std::to_string(getpid());
  Child child({"--ready_file=" + path});
  EXPECT_EQ(child.ReadLine(), kReadyLine);
  child.Signal(SIGTERM);
  EXPECT_EQ(child.Wait(), 0);
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), kReadyLine);
  std::remove(path.c_str());
}

TEST(ServiceMainTest, ReadyFileThatCannotBeWrittenIsRefused) {
  Child child({"--ready_file=/nowhere/at/all"});
  EXPECT_EQ(child.Wait(), 2);
  EXPECT_THAT(
      child.ReadErrors(),
      HasSubstr("flag --ready_file=/nowhere/at/all: cannot write /nowhere/at/all: No such"));
}

TEST(ServiceMainTest, CheckPrintsWhatCountsAndStartsNothing) {
  Child child({"--check", "--log_level=error"});
  EXPECT_THAT(child.ReadAll(), HasSubstr("log_level = \"error\"  # flag --log_level\n"));
  EXPECT_EQ(child.Wait(), 0);
  Child bad({"--check", "--bad", "--threads=x"});
  EXPECT_EQ(bad.Wait(), 2);
  EXPECT_EQ(bad.ReadErrors(), "kvatlas-child: --threads: none (see --help)\n");
  EXPECT_EQ(bad.ReadAll(), "");
}

std::string Write(const std::string& text) {
  const std::string path = ::testing::TempDir() + "/child." + std::to_string(getpid()) + ".toml";
  std::ofstream(path + ".new") << text;
  std::rename((path + ".new").c_str(), path.c_str());
  return path;
}

// The lines of the log until one has `end`; a line is written at once.
std::string LogUntil(Child& child, const std::string& end) {
  std::string lines;
  while (lines.find(end) == std::string::npos) {
    const std::string more = child.ReadSomeErrors();
    if (more.empty()) break;
    lines += more;
  }
  return lines;
}

TEST(ServiceMainTest, HangupReadsTheConfigurationAgain) {
  const std::string path = Write("log_level = 'warning'\n[child]\nthreads = '1'\n");
  Child child({"--config=" + path});
  EXPECT_EQ(child.ReadLine(), kReadyLine);
  Write("log_level = 'info'\n[child]\nthreads = '2'\n");
  child.Signal(SIGHUP);
  std::string log = LogUntil(child, "configuration read again");
  EXPECT_THAT(log, HasSubstr("event=\"setting changed\" flag=log_level from=" + path + ":1"));
  EXPECT_THAT(log, HasSubstr("level=warning component=child event=\"setting needs a restart to "
                             "change\" flag=threads from=" +
                             path + ":3"));
  Write("log_level = 'loud'\n");
  child.Signal(SIGHUP);
  log = LogUntil(child, "stays as it was");
  EXPECT_THAT(log, HasSubstr("child." + std::to_string(getpid()) +
                             ".toml:1: log_level = loud: must be one of debug, info"));
  // It does not count as the first signal.
  child.Signal(SIGTERM);
  EXPECT_EQ(child.ReadLine(), "not ready\n");
  EXPECT_THAT(child.ReadLine(), StartsWith("stopping on"));
  EXPECT_EQ(child.Wait(), 0);
  std::remove(path.c_str());
}

TEST(ServiceMainTest, ManyHangupsLoseNoStop) {
  Child child({"--log_level=error"});
  EXPECT_EQ(child.ReadLine(), kReadyLine);
  for (int i = 0; i < 100000; ++i) child.Signal(SIGHUP);
  child.Signal(SIGTERM);
  EXPECT_EQ(child.ReadLine(), "not ready\n");
  EXPECT_EQ(child.ReadLine(), "stopping on " + std::to_string(SIGTERM) + "\n");
  EXPECT_EQ(child.Wait(), 0);
}

TEST(ServiceMainTest, DelayGoesOnServingAfterItSaidThatItIsNotReady) {
  const Clock& clock = Clock::Real();
  Child child({"--stop_delay=300ms"});
  EXPECT_EQ(child.ReadLine(), kReadyLine);
  const Time signalled = clock.Now();
  child.Signal(SIGTERM);
  EXPECT_EQ(child.ReadLine(), "not ready\n");
  child.Signal(SIGHUP);  // read again, while it still serves
  EXPECT_EQ(child.ReadLine(), "stopping on " + std::to_string(SIGTERM) + "\n");
  EXPECT_GE(clock.Now() - signalled, std::chrono::milliseconds(300));
  EXPECT_EQ(child.Wait(), 0);
  EXPECT_THAT(child.ReadErrors(), HasSubstr("event=stopping signal=15 delay_ms=300"));
}

TEST(ServiceMainTest, SecondSignalEndsTheDelay) {
  Child child({"--stop_delay=1h"});
  EXPECT_EQ(child.ReadLine(), kReadyLine);
  child.Signal(SIGTERM);
  EXPECT_EQ(child.ReadLine(), "not ready\n");
  child.Signal(SIGTERM);
  EXPECT_EQ(child.Wait(), 128 + SIGTERM);
}

// systemd's end of its socket.
class Systemd {
 public:
  Systemd() : path_("/tmp/kvatlas-systemd." + std::to_string(getpid())) {
    unlink(path_.c_str());
    socket_ = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    sockaddr_un at{};
    at.sun_family = AF_UNIX;
    path_.copy(at.sun_path, sizeof(at.sun_path) - 1);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&at), sizeof(at)), 0) << strerror(errno);
    const timeval patience{.tv_sec = 60, .tv_usec = 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setenv("NOTIFY_SOCKET", path_.c_str(), 1);
  }
  ~Systemd() {
    close(socket_);
    unlink(path_.c_str());
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
  }

  // Waits for the next message.
  std::string Read() {
    char buffer[512];
    const ssize_t n = recv(socket_, buffer, sizeof(buffer), 0);
    return n > 0 ? std::string(buffer, static_cast<size_t>(n)) : "";
  }
  // The next one that is not the watchdog's.
  std::string ReadState() {
    std::string message;
    do message = Read();
    while (message == "WATCHDOG=1");
    return message;
  }

 private:
  std::string path_;
  int socket_ = -1;
};

constexpr char kReadyState[] =
    "READY=1\nSTATUS=kvatlas-child ready grpc=127.0.0.1:7410 http=[::1]:8090";

TEST(ServiceMainTest, SystemdHearsOfReadyReloadAndStop) {
  Systemd systemd;
  Child child({});
  EXPECT_EQ(systemd.Read(), kReadyState);
  child.Signal(SIGHUP);
  EXPECT_THAT(systemd.Read(), StartsWith("RELOADING=1\nMONOTONIC_USEC="));
  EXPECT_EQ(systemd.Read(), kReadyState);
  child.Signal(SIGTERM);
  EXPECT_EQ(systemd.Read(), "STOPPING=1");
  EXPECT_EQ(child.Wait(), 0);
}

TEST(ServiceMainTest, SystemdsWatchdogIsToldAgainAndAgain) {
  Systemd systemd;
  // A message that finds no room in the socket is lost. With one message a second it does not fill
  // up while this process gets no processor.
  setenv("WATCHDOG_USEC", "2000000", 1);
  Child child({"--stop_delay=1h"});
  EXPECT_EQ(systemd.Read(), kReadyState);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(systemd.Read(), "WATCHDOG=1");
  child.Signal(SIGTERM);
  EXPECT_EQ(systemd.ReadState(), "STOPPING=1");
  EXPECT_EQ(systemd.Read(), "WATCHDOG=1");
  child.Signal(SIGTERM);  // ends the delay
  EXPECT_EQ(child.Wait(), 128 + SIGTERM);
}

TEST(ServiceMainTest, SystemdsWatchdogHearsNothingOfAProcessThatTakesNoConnections) {
  Systemd systemd;
  setenv("WATCHDOG_USEC", "2000", 1);
  Child child({"--deaf", "--stop_delay=50ms"});
  EXPECT_EQ(systemd.Read(), kReadyState);
  child.Signal(SIGTERM);
  EXPECT_EQ(systemd.Read(), "STOPPING=1");  // and nothing before it
  EXPECT_EQ(child.Wait(), 0);
}

TEST(ServiceMainTest, ExitWithParentLeavesNoOrphan) {
  Child parent({"--as_parent", "--exit_with_parent"});
  EXPECT_EQ(parent.ReadLine(), kReadyLine);
  parent.Signal(SIGKILL);
  EXPECT_EQ(parent.Wait(), -SIGKILL);
  EXPECT_EQ(parent.ReadLine(), "not ready\n");
  EXPECT_EQ(parent.ReadLine(), "stopping on " + std::to_string(SIGTERM) + "\n");
  EXPECT_EQ(parent.ReadLine(), "");  // the grandchild has closed its stdout
}

// The parent in between: starts the service as its child, and lives until it is killed.
int ParentMain(std::vector<const char*> argv) {
  argv.push_back(nullptr);
  if (fork() == 0) {
    execv("/proc/self/exe", const_cast<char* const*>(argv.data()));
    _exit(127);
  }
  while (true) pause();
}

}  // namespace
}  // namespace kvatlas

int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], "--as_child") == 0) {
    std::vector<const char*> rest(argv, argv + argc);
    rest.erase(rest.begin() + 1);
    if (rest.size() > 1 && std::strcmp(rest[1], "--as_parent") == 0) {
      rest[1] = "--as_child";
      return kvatlas::ParentMain(rest);
    }
    return kvatlas::ChildMain(static_cast<int>(rest.size()), rest.data());
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
