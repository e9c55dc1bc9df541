// What does an attack cost the others? A real process under attack, and who watches it meanwhile.
//
//   Siege siege({.program = kLeaf});           a leaf process, /healthz asked all the time, a neighbour that asks over gRPC
//   … the attack, with `RawSocket`s to siege.grpc() and siege.http() …
//   siege.ExpectUnharmed();                    what is promised below, and prints how it was
//
// *Truth*: `ExpectUnharmed` fails unless the process lives; /healthz was answered within 5 seconds
// every time, perhaps on a second connection when one was cut off (the slowest answer and those cut
// off are printed); the neighbour, on a connection made before the attack, was always answered;
// memory (RSS) grew by at most `memory_growth_max`; and a new gRPC connection is served.
// *Threads*: the test's; the watchers have their own.
// *Bounds*: a question of the neighbour's has 5 seconds.

#ifndef KVATLAS_TESTS_HOSTILE_SIEGE_H_
#define KVATLAS_TESTS_HOSTILE_SIEGE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "tools/testing/cluster/process.h"

namespace kvatlas {

inline constexpr char kLeaf[] = "indexer/leaf/kvatlas-leaf";
inline constexpr char kHierarchy[] = "hierarchy/kvatlas-hierarchy";
inline constexpr char kFrontend[] = "frontend/kvatlas-frontend";

struct SiegeOptions {
  std::string program = kLeaf;
  std::vector<std::string> args = {};  // beside --grpc and --http
  // What the process starts with, as of `ulimit`; 0: what the test has.
  uint32_t descriptors_soft = 0;
  uint32_t descriptors_hard = 0;
  uint64_t addresses_max = 0;  // bytes
  uint64_t memory_growth_max = 64 << 20;
  // The watchers begin once /ready is 200, within a minute: for what happens while a process
  // starts. Absent: of frontends alone, which are ready once a leaf has answered.
  std::optional<bool> watch_when_ready = {};
};

// Processor time of a process so far.
double CpuSecondsOf(pid_t pid);

class Siege {
 public:
  // Starts the process and the watchers; a failure is the test's, and `ok()` is false.
  explicit Siege(SiegeOptions options);
  ~Siege();
  Siege(const Siege&) = delete;
  Siege& operator=(const Siege&) = delete;

  bool ok() const;
  Address grpc() const { return Of("grpc"); }
  Address http() const { return Of("http"); }
  Address Of(const std::string& name) const;  // as in the ready line
  pid_t pid() const { return process_->pid(); }

  bool Alive() const;
  uint64_t RssBytes() const;
  uint64_t RssPeakBytes() const;  // since its start
  uint64_t rss_before() const { return rss_before_; }
  // What came before was no attack.
  void CountMemoryFromHere() { rss_before_ = RssBytes(); }
  size_t Descriptors() const;
  double CpuSeconds() const { return CpuSecondsOf(pid()); }
  std::string LogTail(size_t lines = 30) const;

  // A gRPC health check on a connection of its own: nothing, or what went wrong.
  std::optional<std::string> NewGrpcConnectionFails() const;
  // GET on a connection of its own, its status; 0: no answer within 5 seconds.
  int HttpStatus(const std::string& path) const;

  // How long the watchers look on before `ExpectUnharmed` asks them: so many more answers of each.
  void Watch(uint32_t answers);
  void ExpectUnharmed();

 private:
  class HealthProber;
  class Neighbour;

  const SiegeOptions options_;
  std::unique_ptr<Process> leaf_;  // of a frontend
  std::unique_ptr<Process> process_;
  std::string log_;
  uint64_t rss_before_ = 0;
  std::unique_ptr<HealthProber> health_;
  std::unique_ptr<Neighbour> neighbour_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TESTS_HOSTILE_SIEGE_H_
