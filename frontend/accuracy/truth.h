// Do engines serve what the index promises, and if not, why? Keeps what was decided, compares it
// with what is reported, asks leaves again about prompts that engines have finished, and names
// causes.
//
//   Frontend ── OnDecided ──▶ DecisionLog ◀── Find(id)
//       ╰────── OnReported ─▶ comparison, per worker ─╮
//   leaf ◀── the same prompt again, later; under other suppositions ── checks ─┤
//   leaf ◀── what it says of its workers ────────────────────────────── views ─┴▶ DiagnoseDomain ─▶ findings: log, metrics, HTTP
//
// *Truth*: a finding is a guess with its reasons; `confidence` orders them. A worker without
// reports is not judged by what it serves. A prompt is asked about again when its prediction
// failed, when the engine counts other tokens than we do, when little is known of its worker, and
// else one in 16.
// *Threads*: any. `Tick` from a timer, every second or so: it asks leaves, and judges.
// *Cost*: a few microseconds a decision and a report; checks are bounded by `checks_per_s`, about
// 20 small questions each at most.
// *Bounds*: `TruthOptions`; about 130 MB when all are reached.
// *Lifetime*: finder, prober and clock outlive it; the frontend that it observes and its routes do
// not.
//
// Example:
//   Truth truth({}, &overlap_finder, &prober, &Clock::Real());
//   Frontend frontend({.observer = &truth}, …);
//   frontend.Report(route->decision_id, {.finished = true, .cached_tokens = 512, .prompt_tokens =
//   700});
//   truth.Tick();
//   for (const Finding& finding : truth.findings()) Alarm(CauseName(finding.cause),
//   finding.evidence);

#ifndef KVATLAS_FRONTEND_ACCURACY_TRUTH_H_
#define KVATLAS_FRONTEND_ACCURACY_TRUTH_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "frontend/accuracy/decision_log.h"
#include "frontend/accuracy/evidence.h"
#include "frontend/accuracy/finding.h"
#include "frontend/accuracy/leaf_prober.h"
#include "frontend/accuracy/worker_tally.h"
#include "frontend/router/frontend.h"
#include "frontend/router/lookup_clients.h"
#include "frontend/router/route_observer.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/ids.h"

namespace kvatlas {

struct TruthOptions {
  DecisionLogOptions decisions;
  size_t workers_max = 1024;                     // the one touched longest ago is forgotten
  size_t comparisons_max = 64;                   // of a worker, the latest
  size_t checks_max = 32;                        // likewise
  Duration window = std::chrono::minutes(10);    // older ones count for nothing
  Duration half_life = std::chrono::minutes(5);  // of what is counted per worker
  size_t sent_max = 262144;                      // `SentMemory`
  double checks_per_s = 4;
  double checks_burst = 64;
  size_t checks_waiting_max = 256;
  // When a finished prompt is asked about, and again while it is not all there. Not empty.
  std::vector<Duration> check_after = {std::chrono::seconds(2), std::chrono::seconds(6),
                                       std::chrono::seconds(20)};
  Duration ask_deadline = std::chrono::seconds(1);
  Duration probe_every = std::chrono::seconds(10);  // a leaf; sooner when a check failed there
  Duration probe_again = std::chrono::seconds(1);   // that soon
  Duration diagnose_every = std::chrono::seconds(2);
  std::vector<uint64_t> more_seeds;  // to suppose, beside the usual ones
};

struct WorkerTruth {
  Domain domain;
  std::string cell;
  HolderId worker;
  TallyFigures figures;
  size_t checks = 0;
  size_t checks_whole = 0;   // all of the prompt was there
  size_t checks_missed = 0;  // nothing of it
  std::optional<LeafView> leaf;
};

struct TruthStats {
  uint64_t decisions = 0;
  uint64_t reports = 0;
  uint64_t reports_unknown = 0;  // of ids that were never given, or are forgotten
  uint64_t exact = 0, less = 0, more = 0;
  uint64_t without_figures = 0;
  uint64_t lengths_differ = 0;
  uint64_t errors = 0;
  uint64_t predicted_tokens = 0;
  uint64_t served_tokens = 0;
  uint64_t reported_blocks = 0;  // full blocks of the prompts of these
  uint64_t cached_blocks = 0;    // of them, served from cache
  uint64_t checks = 0;
  uint64_t checks_missed = 0;
  uint64_t checks_dropped = 0;  // by a bound
  uint64_t probes = 0;
  uint64_t probes_failed = 0;
  size_t decisions_kept = 0;
  size_t decision_bytes = 0;
};

struct KnownFinding {
  Finding finding;
  Duration since{0};  // it was first found, without a break
};

class Truth : public RouteObserver {
 public:
  // Without a prober nothing is known of what leaves say of workers; without a finder no prompt is
  // asked about again.
  Truth(TruthOptions options, OverlapFinder* finder, LeafProber* prober, const Clock* clock);
  ~Truth() override;

  Truth(const Truth&) = delete;
  Truth& operator=(const Truth&) = delete;

  void OnDecided(const Decided& decided) override;
  void OnReported(uint64_t decision_id, const RouteReport& report, Time at) override;

  // Engines that do not answer, of all that the caller asks itself: those are then told of by what
  // it says alone, and not by requests that fail. Called when it has looked.
  void SetUnreachable(std::vector<UnreachableWorker> engines);

  // Asks what is due, forgets what is too old, and judges every `diagnose_every`; findings are
  // logged, each once in five minutes as long as it lasts.
  void Tick();

  // Nothing: unknown or forgotten.
  std::optional<DecisionRecord> Find(uint64_t decision_id) const;
  // Ids, the latest first.
  std::vector<uint64_t> LatestDecisions(size_t max) const;

  // As of the last time of judging; the most certain first.
  std::vector<KnownFinding> findings() const;
  // Judges now, and returns that.
  std::vector<KnownFinding> Diagnose();

  // The worst first: by tokens that predictions missed.
  std::vector<WorkerTruth> workers(size_t max) const;
  TruthStats stats() const;
  // The evidence that a diagnosis would see now.
  std::vector<WorkerEvidence> evidence() const;

 private:
  struct State;
  const std::shared_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ACCURACY_TRUTH_H_
