// How is a binary of this repository started, killed and started again? A child process that says
// when it is ready, as all our services do (`indexer/process/service_main.h`).
//
// *Truth*: `Spawn` returns before the child is ready; `WaitReady` reads its ready line. A child is
// told to end with its parent, and its destructor kills what still runs: no orphans.
// *Threads*: none; one thread uses a process. The child ends when the thread that spawned it does.
// *Bounds*: `WaitReady` and `Stop` take a limit. What the child says goes to its log file; errors
// quote the log's last lines.
//
// Example:
//   Process leaf({.name = "leaf-0", .binary = path, .args = {"--grpc=127.0.0.1:0"}, .log =
//   "/tmp/x/leaf-0.log"});
//   if (absl::Status status = leaf.Start(std::chrono::seconds(30)); !status.ok()) …
//   leaf.address("grpc");   // "127.0.0.1:40123"

#ifndef KVATLAS_TOOLS_TESTING_CLUSTER_PROCESS_H_
#define KVATLAS_TOOLS_TESTING_CLUSTER_PROCESS_H_

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "indexer/base/clock.h"
#include "tools/testing/servers/reserved_test_ports.h"

namespace kvatlas {

struct ProcessOptions {
  std::string name;    // in messages
  std::string binary;  // a path
  // An argument "--NAME=HOST:0", or "--NAME=tcp://HOST:0", becomes, when the process is started
  // again, the port that it took first.
  std::vector<std::string> args;
  std::string log;  // stdout after the ready line and stderr are appended here
};

class Process {
 public:
  explicit Process(ProcessOptions options) : options_(std::move(options)) {}
  ~Process();

  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Starts it. INTERNAL: it cannot be started. REQUIRES: not running.
  absl::Status Spawn();
  // Waits for the ready line. UNAVAILABLE with the log's end: the child ended, or the time ran out.
  absl::Status WaitReady(Duration timeout);
  // Both.
  absl::Status Start(Duration timeout);

  // kill -9, and waits for its end.
  void Kill();
  // SIGTERM without waiting.
  void Terminate();
  // SIGTERM, then kill -9 when it has not ended in time.
  void Stop(Duration timeout);

  bool running() const { return pid_ > 0; }
  pid_t pid() const { return pid_; }
  const std::string& name() const { return options_.name; }

  // HOST:PORT from the ready line; empty when it names none such. Once the process has ended, its
  // ports are kept for it.
  std::string address(const std::string& what) const;

 private:
  std::vector<std::string> Arguments() const;
  absl::Status ParseReady(const std::string& line);
  bool WaitEnd(Duration timeout);
  void Reap();
  absl::Status Failed(const std::string& what) const;

  const ProcessOptions options_;
  pid_t pid_ = 0;
  int out_ = -1;  // read end of the child's stdout; its end is the child's
  std::map<std::string, std::string> addresses_;
  ReservedTestPorts held_;
};

// The last `lines` lines of a file, empty when there is none.
std::string TailOf(const std::string& path, size_t lines);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_CLUSTER_PROCESS_H_
