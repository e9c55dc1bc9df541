#include "tools/testing/cluster/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <fstream>
#include <sstream>
#include <utility>

#include "absl/status/statusor.h"
#include "indexer/base/address.h"

extern char** environ;

namespace kvatlas {
namespace {

constexpr size_t kLogLinesShown = 20;

int MillisecondsLeft(Time until) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::Real().Now());
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1'000'000));
}

// One line without its newline, or nothing when the other end closed or the time ran out.
bool ReadLine(int fd, Time until, std::string* line) {
  line->clear();
  for (;;) {
    pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
    const int ready = poll(&waiting, 1, MillisecondsLeft(until));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    char c;
    const ssize_t got = read(fd, &c, 1);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    if (c == '\n') return true;
    line->push_back(c);
  }
}

}  // namespace

std::string TailOf(const std::string& path, size_t lines) {
  std::ifstream in(path);
  std::deque<std::string> tail;
  for (std::string line; std::getline(in, line);) {
    tail.push_back(line);
    if (tail.size() > lines) tail.pop_front();
  }
  std::string text;
  for (const std::string& line : tail) text += "  " + line + "\n";
  return text;
}

Process::~Process() { Kill(); }

absl::Status Process::Start(Duration timeout) {
  if (absl::Status status = Spawn(); !status.ok()) return status;
  return WaitReady(timeout);
}

absl::Status Process::Spawn() {
  int pipe_fds[2];
  if (pipe2(pipe_fds, O_CLOEXEC) != 0) return absl::InternalError(std::strerror(errno));
  const int log = open(options_.log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log < 0) {
    close(pipe_fds[0]);
    close(pipe_fds[1]);
    return absl::InternalError(options_.log + ": " + std::strerror(errno));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, log, STDERR_FILENO);
  const std::vector<std::string> arguments = Arguments();
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int error =
      posix_spawn(&pid, options_.binary.c_str(), &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_fds[1]);
  close(log);
  if (error != 0) {
    close(pipe_fds[0]);
    return absl::InternalError(options_.name + ": " + options_.binary + ": " +
                               std::strerror(error));
  }
  pid_ = pid;
  out_ = pipe_fds[0];
  return absl::OkStatus();
}

std::vector<std::string> Process::Arguments() const {
  std::vector<std::string> arguments = {options_.binary};
  for (const std::string& argument : options_.args) {
    arguments.push_back(argument);
    if (argument.rfind("--", 0) != 0 || !argument.ends_with(":0")) continue;
    const size_t equals = argument.find('=');
    if (equals == std::string::npos) continue;
    auto taken = addresses_.find(argument.substr(2, equals - 2));
    if (taken == addresses_.end()) continue;
    constexpr std::string_view kTcp = "tcp://";
    const bool tcp = argument.compare(equals + 1, kTcp.size(), kTcp) == 0;
    arguments.back() = argument.substr(0, equals + 1 + (tcp ? kTcp.size() : 0)) + taken->second;
  }
  arguments.push_back("--exit_with_parent");
  return arguments;
}

absl::Status Process::WaitReady(Duration timeout) {
  std::string line;
  if (!ReadLine(out_, Clock::Real().Now() + timeout, &line)) {
    absl::Status failed = Failed("did not become ready");
    Kill();
    return failed;
  }
  return ParseReady(line);
}

absl::Status Process::ParseReady(const std::string& line) {
  std::istringstream words(line);
  std::string word;
  words >> word >> word;
  if (word != "ready") return Failed("said \"" + line + "\" where a ready line was expected");
  while (words >> word) {
    const size_t equals = word.find('=');
    if (equals != std::string::npos) addresses_[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return absl::OkStatus();
}

std::string Process::address(const std::string& what) const {
  auto it = addresses_.find(what);
  return it == addresses_.end() ? "" : it->second;
}

void Process::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  Reap();
}

void Process::Terminate() {
  if (pid_ > 0) kill(pid_, SIGTERM);
}

void Process::Stop(Duration timeout) {
  if (pid_ <= 0) return;
  Terminate();
  if (!WaitEnd(timeout)) kill(pid_, SIGKILL);
  Reap();
}

// The child's end closes its stdout.
bool Process::WaitEnd(Duration timeout) {
  const Time until = Clock::Real().Now() + timeout;
  std::string ignored;
  while (ReadLine(out_, until, &ignored)) {
  }
  pollfd waiting{.fd = out_, .events = POLLIN, .revents = 0};
  return poll(&waiting, 1, 0) > 0 && (waiting.revents & POLLHUP) != 0;
}

void Process::Reap() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  close(out_);
  out_ = -1;
  pid_ = 0;
  for (const auto& [name, text] : addresses_) {
    if (const absl::StatusOr<Address> address = Address::Parse(text); address.ok())
      (void)held_.Hold(*address);
  }
}

absl::Status Process::Failed(const std::string& what) const {
  return absl::UnavailableError(options_.name + " " + what + "; its log ends with:\n" +
                                TailOf(options_.log, kLogLinesShown));
}

}  // namespace kvatlas
