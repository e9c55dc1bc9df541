// One route from question to answer: the steps of the frontend's ladder, driven by the answers that come back.
//
//   1. `Start`          refuses bad input, hashes tokens
//   2. `AskTop`         the hierarchy's top: one question, or one to each of the shards that matter; the answer ranks cells by
//                       expected cost
//   3. `AskNext`        the best K not asked yet, as far as they can win. Nodes among them: `AskNodes`, whose cells then take
//                       their place. Else `AskLeaves`, in parallel; nobody with a worker among them: the next K; none left or
//                       too many asked: the next rung (remembered nodes, remembered cells, configured leaves)
//   4. `Conclude`       some of them only prefill, and nobody who answered decodes: `AskForDecoders`, whoever else may
//   5. `Decide`         cheapest worker over all answers; without any, over remembered workers; `WaitOrReject` when all are
//                       over their thresholds
//
// Whoever is asked may have replicas: `FirstAnswer`.
//
// *Threads*: one step at a time; only the answers of one wave come in parallel, and the one that completes it goes on. What
// comes later finds its wave closed.
// *Lifetime*: kept alive by the callbacks it has given out.

#ifndef KVATLAS_FRONTEND_ROUTE_ROUTE_TASK_H_
#define KVATLAS_FRONTEND_ROUTE_ROUTE_TASK_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "frontend/route/asked_ahead.h"
#include "frontend/route/first_answer.h"
#include "frontend/route/frontend.h"
#include "frontend/route/known_nodes.h"
#include "frontend/route/policy/policy.h"
#include "frontend/route/policy/sessions.h"
#include "frontend/route/policy/worker_fit.h"
#include "frontend/route/shard_plan.h"
#include "indexer/base/mutex.h"
#include "indexer/base/shard_map.h"

namespace kvatlas {

// Of what is left, the part that one level of hierarchies may use, and a wave of leaves when others could follow it.
inline constexpr double kHierarchyShare = 0.4;
inline constexpr double kWaveShare = 0.6;

inline Duration Share(Duration of, double share) {
  return Duration(static_cast<int64_t>(static_cast<double>(of.count()) * share));
}

// UNAVAILABLE.
absl::Status StoppedError();

// RESOURCE_EXHAUSTED, with what `RetryAfter` reads.
absl::Status OverloadedError(const std::string& message, Duration retry_after);

// What a route keeps for another try.
class RoutedPrompt {
 public:
  explicit RoutedPrompt(RouteInput input) : input_(std::move(input)) {}
  const RouteInput& input() const { return input_; }

 private:
  const RouteInput input_;  // prepared
};

class RouteTask;

// What the routes of one frontend share.
struct Frontend::Shared {
  FrontendOptions options;
  CellFinder* cell_finder = nullptr;
  OverlapFinder* overlap_finder = nullptr;
  const Clock* clock = nullptr;
  Timer* timer = nullptr;

  mutable Mutex mutex;
  std::shared_ptr<const ShardMap> hierarchies ABSL_GUARDED_BY(mutex);
  mutable Mutex leaves_mutex;  // innermost
  std::vector<ConfiguredLeaf> leaves ABSL_GUARDED_BY(leaves_mutex);
  std::vector<ConfiguredLeaf> Leaves() const {
    MutexLock lock(&leaves_mutex);
    return leaves;
  }
  // Of each shard the replica that answered last: it is asked first.
  absl::flat_hash_map<std::string, std::string> preferred ABSL_GUARDED_BY(mutex);
  FleetMemory memory ABSL_GUARDED_BY(mutex);
  Suspects suspects ABSL_GUARDED_BY(mutex);
  Sessions sessions ABSL_GUARDED_BY(mutex);
  std::set<std::string> draining ABSL_GUARDED_BY(mutex);
  // For a worker below its thresholds.
  std::map<const RouteTask*, std::shared_ptr<RouteTask>> waiting ABSL_GUARDED_BY(mutex);
  bool stopped ABSL_GUARDED_BY(mutex) = false;
  KnownNodes nodes ABSL_GUARDED_BY(mutex);
  uint64_t next_decision ABSL_GUARDED_BY(mutex);
  FrontendStats stats ABSL_GUARDED_BY(mutex);
  OverloadThresholds overload ABSL_GUARDED_BY(mutex);
  std::map<std::string, std::string> engines ABSL_GUARDED_BY(mutex);
  // The policy by the name of a model; of all others, by "".
  using Policies = std::map<std::string, std::shared_ptr<const Policy>>;
  std::shared_ptr<const Policies> policies ABSL_GUARDED_BY(leaves_mutex);
  std::shared_ptr<const Policy> PolicyOf(const std::string& model) const;

  absl::Status Prepare(RouteInput* input);

  // A node does not take questions under this frontend's schedule: the route goes on without it, so this is told loudly.
  void OnRefused(const std::string& node, const absl::Status& why);

  // Where the worker's engine takes requests; empty: nobody said.
  std::string UrlOf(const Domain& domain, const std::string& cell, const HolderId& worker) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  // What a report says of who was reached: `worker` prefills, `taker` takes the request from its client.
  void JudgeReached(const CellWorker& worker, const CellWorker& taker, const RouteReport& report)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  Shared(FrontendOptions o, CellFinder* cells, OverlapFinder* overlaps, const Clock* c, Timer* t);
};

class RouteTask : public std::enable_shared_from_this<RouteTask> {
 public:
  RouteTask(std::shared_ptr<Frontend::Shared> shared, RouteInput input,
            Frontend::Callback callback);

  void Start();
  // Of a route that waits, and does so no more.
  void EndWaiting();

 private:
  using CellsOutcome = FirstAnswer<CellsAnswer>::Outcome;
  using WorkersOutcome = FirstAnswer<WorkersAnswer>::Outcome;

  // A cell or node that may be asked.
  struct Target {
    CellAsked asked;  // name, address and bounds; the rest once it was asked
    std::vector<std::string> other_addresses;
    bool is_node = false;
    double distance = 0;
    uint32_t expected_blocks = 0;  // covered, or sent there so lately that no report shows it
    double cost = 0;               // expected; for the order
    double best_cost = 0;          // if its upper bound were true, and a worker there idle
    bool for_decoders = false;     // asked for who decodes: the first cell that has such is enough
  };
  // What one node is asked; shared with the calls.
  struct NodeQuestion {
    std::string name;  // of the node, or of the shard
    std::vector<std::string> addresses;
    std::vector<SequenceHash> waypoints;
    std::vector<Position> positions;
    const WaypointSchedule* schedule = nullptr;
    uint32_t blocks = 0;
    uint32_t best = 0;  // cells wanted; 0: all
  };
  using NodeQuestions = std::vector<std::shared_ptr<const NodeQuestion>>;
  // Nodes that are asked together; the last answer goes on.
  struct NodeWave {
    Mutex mutex;
    std::vector<CellsOutcome> outcomes ABSL_GUARDED_BY(mutex);
    size_t pending ABSL_GUARDED_BY(mutex) = 0;
  };
  // One leaf of a wave.
  struct Pending {
    Target target;
    WorkersOutcome outcome;
    bool answered = false;
    Time answered_at{0};
  };
  struct LeafWave {
    Mutex mutex;
    std::vector<Pending> leaves ABSL_GUARDED_BY(mutex);
    bool closed ABSL_GUARDED_BY(mutex) = false;
    // Immutable: for calls that go on when the route has started over.
    std::shared_ptr<const std::vector<SequenceHash>> sequence;
    std::shared_ptr<const Domain> domain;
    std::shared_ptr<AskedAhead> ahead;
  };
  // What a worker is chosen by.
  struct Seen {
    const std::string& cell;
    const HolderId& worker;
    const std::optional<Load>& load;
    uint32_t overlap = 0;
    FetchedBlocks fetched = {};
    double distance = 0;
  };
  // A worker that decodes what others prefill.
  struct Decoder {
    std::string cell;
    HolderId worker = {};
    CostInput input;
  };
  struct Candidates {
    std::vector<CostCandidate> costs;
    std::vector<ReceiptCandidate> details;
    std::vector<bool> prefill_only;
    std::vector<Decoder> decoders;
  };
  // Best first: whoever stands worse is chosen only when nobody else is left.
  enum class Standing { kGood, kSuspect, kTried, kNobody };
  // Of those of a cell who may be chosen, the best by what they do.
  struct Choosable {
    Standing alone = Standing::kNobody;  // prefills and decodes
    Standing prefills = Standing::kNobody;
    Standing decodes = Standing::kNobody;

    Standing best() const { return std::min(alone, prefills); }
  };
  struct Answered {
    std::string cell;
    double distance = 0;
    std::shared_ptr<const WorkersAnswer> answer;
    Choosable choosable;
  };

  absl::Status Prepare();
  void SetPrompt(PreparedPrompt::Ptr prompt);
  // The most that a route may promise of its prompt.
  uint32_t ReusableMax() const { return static_cast<uint32_t>(reusable_sequence_->size()); }
  // A different block size than the one hashed with was heard: starts over, once. True when it did.
  bool StartOver(uint32_t block_size);

  // ---- The top of the hierarchy ----
  void AskTop();
  NodeQuestions TopQuestions() const;
  void OnTop(const NodeQuestions& questions, std::vector<CellsOutcome> outcomes);
  // No shard that has this prompt's waypoints answers: the others know the shallow ones.
  bool AskOtherShards(const NodeQuestions& questions);
  std::shared_ptr<const NodeQuestion> ToNodeQuestion(ShardQuestion question,
                                                     const ShardMap::Shard& shard) const;
  // Nobody knows who covers what: `why` goes into the receipt.
  void FallBack(const std::string& why);

  // ---- Nodes ----
  void AskCells(const NodeQuestions& questions, Duration budget,
                std::function<void(std::vector<CellsOutcome> outcomes)> done);
  void AskNodes(std::vector<Target> nodes, std::vector<Target> leaves);
  void OnNodes(std::vector<Target> nodes, std::vector<Target> leaves,
               std::vector<CellsOutcome> outcomes);
  void Remember(const std::vector<CellFound>& cells, const std::string& by);
  void AddReasons(const std::string& what, const CellsOutcome& outcome);
  // What a failed question says of the fleet: nothing, or that it has no worker of the domain.
  void CountFailure(const absl::Status& why);
  // Nobody could be chosen: UNAVAILABLE, unless all who were asked answered and know nobody.
  absl::Status NobodyError() const;

  // ---- Who is worth asking ----
  std::vector<Target> ToTargets(const std::vector<CellFound>& cells) const;
  Target ToTarget(const CellFound& cell, const SentTo& sent) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  bool OnlyDecodes(const CellFound& cell) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  void Rank(std::vector<Target>* targets) const;
  std::vector<Target> KnownNodeTargets() const;
  std::vector<Target> KnownCellTargets() const;
  std::vector<Target> ConfiguredTargets() const;
  double DistanceOf(const std::map<std::string, std::string>& labels) const;
  // At least `reported`: what this frontend lately sent to the cell, or below the node, counts too.
  uint32_t ExpectedBlocks(const Target& target, uint32_t reported, const SentTo& sent) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  double ExpectedCost(const std::string& cell, const std::optional<Load>& load, uint32_t overlap,
                      double distance) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  double BestCost(uint32_t blocks_below, double distance) const;
  uint32_t AtOnce() const;
  // Leaves that answered with workers before the rest of the rung is left out: more where coverage says little of what is
  // reusable, since it is of the main class.
  uint32_t UsefulLeavesMax() const;
  // What the cheapest worker found so far costs.
  double ToBeat() const;
  std::vector<Target> TakeTargets();

  // ---- Leaves ----
  void AskNext();
  bool NextRung();
  void AskLeaves(std::vector<Target> targets);
  // Asks leaves that will probably be worth it, for `AskLeaf` to find their answers.
  void AskAhead();
  std::vector<std::string> GuessedLeaves() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  void AskLeaf(const std::shared_ptr<LeafWave>& wave, size_t leaf, Time until);
  // False: too late, and `outcome` is as it was.
  bool OnWorkers(const std::shared_ptr<LeafWave>& wave, size_t leaf, WorkersOutcome* outcome);
  // It was asked for decoders, and another one was enough; the next route may want them.
  void OnLateDecoders(const Target& leaf, WorkersOutcome outcome);
  // Somebody who has not answered yet could still win over those who have.
  bool WorthWaiting(const LeafWave& wave) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(wave.mutex);
  void OnWave(std::vector<Pending> leaves);
  // The block size it names, 0 when none.
  uint32_t TakeAnswer(Pending leaf);
  // One that was not asked, since it could not win over what was expected, can win over what was found.
  bool NextCanWin() const;
  double BestCostOf(const WorkersAnswer& answer, const std::string& cell, double distance) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);

  Standing StandingOf(const std::string& cell, const HolderId& worker) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  // Who there may be chosen; those who may not be are counted.
  Choosable ChoosableOf(const std::string& cell, const WorkersAnswer& answer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  // By their labels alone.
  CellRoles RolesIn(const Target& leaf, const WorkersAnswer& answer) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  // Somebody is suspected, and nobody who is remembered stands better than the best of them.
  bool NobodyStandsBetterThanSuspected() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  WorkerFilter Filter() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  const Labels* CellLabels(const std::string& cell) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  void LeaveTheBestStanding(Candidates* candidates) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);

  // ---- Prefill here, decode there (`route_decoders.cc`) ----
  // Everybody who was to be asked has been.
  void Conclude();
  // Somebody who only prefills could be chosen, and nobody who answered decodes.
  bool LacksDecoder() const;
  bool DecoderAnswered() const;
  bool AnyStandsWell(const std::vector<Decoder>& decoders) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  bool HasDecoder(const WorkersAnswer& answer, const std::string& cell) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  // False: there is nobody left to ask, or no time.
  bool AskForDecoders();
  // Cells that are about to be asked are known to have none: the best that is known to is asked beside them.
  void AddDecoders(std::vector<Target>* leaves);
  // It did not answer: it is not asked ahead of others for them before it has.
  void ForgetRoles(const std::string& cell);
  bool WasAsked(const Target& target) const;
  Target TakeTarget(const CellRoles& roles);
  // At most so many cells that are known to decode and were not asked in this route, best first.
  std::vector<Target> TakeDecodeCells(size_t cells_max)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  // Those that did not say within `fresh` that they do not; or nodes, when there are no such cells, and nodes are wanted.
  std::vector<Target> TakeCellsThatMayDecode(size_t cells_max, Duration fresh, bool nodes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  // The hierarchy named its best cells alone: now it names all of them. False: there is none, or no time.
  bool AskForAllCells();
  void OnAllCells(const NodeQuestions& questions, std::vector<CellsOutcome> outcomes);
  void AddRememberedDecoders(Candidates* candidates) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  // Every worker that only prefills gets the way to the best decoder into its cost, or is left out when there is none.
  void PairWithDecoders(Candidates* candidates) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  const Decoder* BestDecoder(const std::vector<Decoder>& decoders, const std::string& cell) const;

  // ---- The choice (`route_choice.cc`) ----
  void Decide();
  // Those who answered went over the thresholds since, by what other routes sent there.
  bool AllCameOver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  // Those who are suspected, and below their thresholds, are to be chosen among. False: there are none.
  bool TakeSuspects() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  // False: there is nobody to choose.
  bool Choose(RouteResult* result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  void Remember(const RankedCandidate& best, const Candidates& candidates, RouteResult* result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  void Finish(RouteResult result);
  // Everybody is over the thresholds: waits, and asks again; or refuses.
  void WaitOrReject();
  Candidates AnsweredCandidates() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  void AddAnswered(const Answered& answered, bool prefills, Candidates* candidates) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  Candidates RememberedCandidates() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  CostInput InputFor(const Seen& seen) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  // Blocks of the prompt that its sibling's worker is about to have; 0: there is none.
  uint32_t BlocksOfSibling() const;
  void LookForSibling() ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  // The sibling's worker has the blocks: no more than that is expected of it.
  void LookWhetherShown(const std::string& cell, const WorkersAnswer& answer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  // As at the beginning, but for the input.
  void Reset();
  void Fail(absl::Status status);

  Time Now() const { return shared_->clock->Now(); }
  static uint64_t Microseconds(Duration duration) {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(duration).count());
  }
  uint32_t MillisecondsSince(Time time) const {
    return static_cast<uint32_t>(
        std::chrono::duration_cast<std::chrono::milliseconds>(Now() - time).count());
  }
  Duration Left() const { return started_ + deadline_ - Now(); }

  const std::shared_ptr<Frontend::Shared> shared_;
  RouteInput input_;
  const std::shared_ptr<const Policy> policy_;
  Frontend::Callback callback_;

  Time began_{0};    // the route
  Time started_{0};  // it, or after waiting in vain its latest try
  Duration deadline_{0};
  std::optional<CellWorker> session_;   // where its last request went
  SentTo sent_;                         // its latest sibling
  uint64_t least_excess_ = UINT64_MAX;  // blocks that the least overloaded worker is over
  PreparedPrompt::Ptr prompt_;
  bool started_over_ = false;
  std::shared_ptr<const std::vector<SequenceHash>> sequence_;
  // What leaves are asked: `sequence_` without the block of the prompt's last token, which engines always compute.
  std::shared_ptr<const std::vector<SequenceHash>> reusable_sequence_;
  std::vector<SequenceHash> waypoints_;  // of the leaves' schedule
  std::shared_ptr<const ShardMap> top_;
  bool asked_other_shards_ = false;
  Time step_started_{0};

  Fallback rung_ = Fallback::kNone;
  bool remembered_cells_ = false;  // of the rung `kLastGoodCells`, its second half
  std::vector<Target> targets_;    // of this rung, best first
  int levels_ = 0;                 // below the top
  std::set<std::string> asked_addresses_;
  uint32_t cells_wanted_ = 0;    // of a hierarchy; 0: all
  bool cells_left_out_ = false;  // by the hierarchy, which named the best alone
  uint32_t overloaded_decoders_ = 0;
  bool no_room_to_decode_ = false;     // nobody could be chosen for that reason
  std::shared_ptr<AskedAhead> ahead_;  // null: nobody
  size_t leaves_asked_ = 0;
  uint32_t unanswered_ = 0;  // questions that failed, but for "I know no such worker"
  bool some_answered_ = false;
  uint32_t useful_leaves_ = 0;  // answered, with workers
  // Somebody's main class holds more of the prompt than its leaf's best worker can reuse.
  bool coverage_overstates_ = false;
  std::vector<Answered> answered_;             // with at least one worker that stands well
  std::vector<Answered> suspected_;            // with no such, or with nobody at all
  Fallback suspected_rung_ = Fallback::kNone;  // on which the first of them answered
  Receipt receipt_;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTE_ROUTE_TASK_H_
