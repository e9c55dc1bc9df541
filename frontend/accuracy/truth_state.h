// Everything that `Truth` keeps, and the questions it has under way. Only truth.cc and
// truth_checks.cc include it.
//
// *Threads*: one mutex; no finder, prober or log is called with it held. Callbacks keep the state
// alive.

#ifndef KVATLAS_FRONTEND_ACCURACY_TRUTH_STATE_H_
#define KVATLAS_FRONTEND_ACCURACY_TRUTH_STATE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "frontend/accuracy/sent_memory.h"
#include "frontend/accuracy/truth.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

struct Truth::State : std::enable_shared_from_this<Truth::State> {
  // Domain, cell, worker.
  using WorkerKey = std::tuple<Domain, std::string, HolderId>;

  struct WorkerRecord {
    explicit WorkerRecord(Duration half_life) : tally(half_life) {}
    std::string leaf_address;
    std::deque<Comparison> comparisons;
    std::deque<Check> checks;
    std::optional<LeafView> leaf, leaf_before;
    std::optional<Time> no_batch_since;
    WorkerTally tally;
    std::string own_contract;
    std::optional<UnreachableWorker> unreachable;  // by requests that failed
    Time touched{0};
  };

  // A finished prompt that is to be asked about.
  struct Waiting {
    uint64_t decision = 0;
    WorkerKey worker;
    std::string leaf_address;
    PromptFacts prompt;
    std::shared_ptr<const std::vector<SequenceHash>> leading;
    // The part of `leading` that `sent` may know.
    std::span<const SequenceHash> head() const {
      return std::span(*leading).first(std::min(head_blocks, leading->size()));
    }
    size_t head_blocks = 0;
    bool has_lora = false, has_salt = false;
    PromptForm form = PromptForm::kUnknown;
    Time reported_at{0};
    size_t asked = 0;  // times
    bool supposed = false;
  };

  struct Leaf {
    Time probed{0};
    bool ever = false;
    bool under_way = false;
    bool wanted = false;  // soon: a check failed there
    Time used{0};
  };
  using LeafKey = std::pair<std::string, Domain>;  // address

  State(TruthOptions o, OverlapFinder* f, LeafProber* p, const Clock* c)
      : options(std::move(o)),
        finder(f),
        prober(p),
        clock(c),
        decisions(options.decisions),
        sent(options.sent_max),
        check_tokens(options.checks_burst) {}

  // ---- truth.cc ----
  void CountTokens(const DecisionRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void CountReached(const DecisionRecord& record, const RouteReport& report, Time at)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void CountFailed(const WorkerKey& key, const RouteReport& report, Time at)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void CountServed(const WorkerKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  WorkerRecord& Touch(const WorkerKey& key, Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Compare(DecisionRecord* record, Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Count(const Comparison& comparison, WorkerRecord* worker, Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  std::vector<WorkerEvidence> Evidence(Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  std::vector<KnownFinding> Judge(Time now) ABSL_LOCKS_EXCLUDED(mutex);

  // ---- truth_checks.cc ----
  void PlanCheck(const DecisionRecord& record, const Comparison& comparison, WorkerRecord* worker,
                 Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void AskDue(Time now) ABSL_LOCKS_EXCLUDED(mutex);
  void Ask(Waiting waiting) ABSL_LOCKS_EXCLUDED(mutex);
  void OnAnswer(const std::shared_ptr<Waiting>& waiting, const WorkersAnswer& answer)
      ABSL_LOCKS_EXCLUDED(mutex);
  // All of the prompt is there, and this frontend had not sent it there.
  bool IsAllAt(const Waiting& asked, const HolderId& holder, uint32_t held) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  std::optional<HolderId> TurnedUp(const Waiting& asked, const Check& check) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Suppose(const std::shared_ptr<Waiting>& waiting, std::vector<WhatIfQuestion> questions)
      ABSL_LOCKS_EXCLUDED(mutex);
  void ProbeDue(Time now) ABSL_LOCKS_EXCLUDED(mutex);
  void OnProbe(const LeafKey& key, const LeafAnswer& answer, Time now) ABSL_LOCKS_EXCLUDED(mutex);

  const TruthOptions options;
  OverlapFinder* const finder;
  LeafProber* const prober;
  const Clock* const clock;

  mutable Mutex mutex;
  DecisionLog decisions ABSL_GUARDED_BY(mutex);
  SentMemory sent ABSL_GUARDED_BY(mutex);
  std::map<WorkerKey, WorkerRecord> workers ABSL_GUARDED_BY(mutex);
  std::multimap<Time, Waiting> waiting ABSL_GUARDED_BY(mutex);  // by when they are due
  double check_tokens ABSL_GUARDED_BY(mutex);
  Time check_tokens_as_of ABSL_GUARDED_BY(mutex){0};
  std::map<LeafKey, Leaf> leaves ABSL_GUARDED_BY(mutex);
  std::map<Domain, std::deque<TokensMade>> tokens_made ABSL_GUARDED_BY(mutex);
  std::optional<std::vector<UnreachableWorker>> unreachable ABSL_GUARDED_BY(mutex);  // as told
  TruthStats stats ABSL_GUARDED_BY(mutex);

  Time judged_at ABSL_GUARDED_BY(mutex){0};
  bool judged ABSL_GUARDED_BY(mutex) = false;
  std::vector<std::pair<Finding, Time>> findings ABSL_GUARDED_BY(mutex);  // with when first found
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ACCURACY_TRUTH_STATE_H_
