// How does a test start real programs that know each other, and make a mistake with one of them?
//
// In arguments {NAME:WHAT} is an address of a program that was started before ({leaf:grpc}), {NAME}
// what a test set by `Set`, {dead} an address where nothing listens.
//
// *Threads*: one. *Lifetime*: programs end with this object.
//
// Example:
//   Programs programs("MyTest");
//   programs.Start({.name = "hierarchy", .kind = "hierarchy"});
//   programs.Start({.name = "leaf", .kind = "leaf", .args = {"--parents={hierarchy:grpc}"}});
//   programs.Get("leaf", "/status");

#ifndef KVATLAS_TESTS_PROGRAMS_H_
#define KVATLAS_TESTS_PROGRAMS_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tools/testing/cluster/process.h"

namespace kvatlas {

struct Program {
  std::string name;
  std::string kind;  // "leaf", "hierarchy", "frontend", "relay", "engine", "zmq_engine"
  std::vector<std::string> args = {};
  bool prefills = false;  // of an engine: it stores two blocks, with the sequence hashes 1 and 2
  bool heard = false;     // of one that prefills: its leaf has them before the next program starts
  std::string folder = {};  // where its binary is; empty: this build's
};

// A port that is taken, so that nothing else gets it, and where nothing listens.
class DeadPort {
 public:
  DeadPort();
  ~DeadPort();
  DeadPort(const DeadPort&) = delete;
  DeadPort& operator=(const DeadPort&) = delete;
  const std::string& address() const { return address_; }

 private:
  const int fd_;
  std::string address_;
};

class Programs {
 public:
  // `test` begins the names of their log files.
  explicit Programs(std::string test);

  void Set(const std::string& name, const std::string& text) { texts_["{" + name + "}"] = text; }
  std::string Filled(std::string text) const;

  absl::Status Start(const Program& program);
  // kill -9 and another start of the same; an engine stores its blocks again.
  absl::Status Restart(const Program& program);
  Process& Of(const std::string& name) { return *processes_.at(name); }
  // kill -9.
  void Kill(const std::string& name) { Of(name).Kill(); }
  // SIGTERM, and until it has ended.
  void Stop(const std::string& name);

  std::string Log(const std::string& name) const;
  // The body of GET, or the reason why there is none.
  std::string Get(const std::string& name, const std::string& path) const;

 private:
  std::string LogFileOf(const std::string& name) const;
  absl::Status Prefill(const Program& engine) const;

  const std::string test_;
  const DeadPort dead_;
  std::map<std::string, std::string> texts_;
  std::map<std::string, std::unique_ptr<Process>> processes_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TESTS_PROGRAMS_H_
