// Which processes die while a trace runs, and when? A plan made of a seed: one after the other they
// are killed without warning, stay away for a while, and are started again.
//
//   request  0 ····· kill leaf-2 ··· restart ····· kill hierarchy ··· restart ····· kill redis ···
//   restart ····· end
//
// *Truth*: the same seed, targets and number of requests give the same plan. One process is down at
// a time; every kind of target has its turn before one comes again, and none is down when the last
// tenth of the trace begins.
// *Threads*: none; `Before` is called by the thread that started the cluster.
//
// Example:
//   Chaos chaos(MakeChaosPlan({.seed = 7, .requests = trace.size(), .turns = {{"leaf-0", "leaf-1"},
//   {"hierarchy"}}}),
//               [&](const ChaosStep& step) { return step.kill ? cluster.Kill(step.process) : cluster.Restart(step.process); });
//   for (size_t i = 0; i < trace.size(); ++i) { chaos.Before(i); … }

#ifndef KVATLAS_TOOLS_TESTING_CLUSTER_CHAOS_H_
#define KVATLAS_TOOLS_TESTING_CLUSTER_CHAOS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace kvatlas {

struct ChaosStep {
  size_t request = 0;  // before which it happens
  bool kill = true;    // else a restart
  std::string process;

  friend bool operator==(const ChaosStep&, const ChaosStep&) = default;
};

struct ChaosOptions {
  uint64_t seed = 1;
  size_t requests = 0;
  // In turn one process of each kind is killed; which one of them is drawn.
  std::vector<std::vector<std::string>> turns;
  // A kill every so many requests on average; 0: such that each kind has its turn three times, or
  // as often as fits.
  size_t every = 0;
};

// Steps in order. Empty when there are too few requests for a kill and a restart.
std::vector<ChaosStep> MakeChaosPlan(const ChaosOptions& options);

class Chaos {
 public:
  using DoFn = std::function<absl::Status(const ChaosStep& step)>;

  Chaos(std::vector<ChaosStep> plan, DoFn act) : plan_(std::move(plan)), act_(std::move(act)) {}

  // What the plan has before this request. An error is kept and nothing more is done.
  void Before(size_t request);
  // What the plan still has, restarts first of all; to be called when requests end early or late.
  void Finish();

  const absl::Status& status() const { return status_; }
  const std::vector<ChaosStep>& done() const { return done_; }

 private:
  const std::vector<ChaosStep> plan_;
  const DoFn act_;
  size_t next_ = 0;
  std::vector<ChaosStep> done_;
  absl::Status status_;
};

// "request 120 kill leaf-2", a line each.
std::string ToText(const std::vector<ChaosStep>& steps);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_CLUSTER_CHAOS_H_
