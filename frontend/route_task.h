// One route from question to answer: the steps of the frontend's ladder, driven by the answers that come back.
//
//   1. `Start`          refuses bad input, hashes tokens
//   2. `AskHierarchy`   one after the other, each with its share of the time; an answer ranks cells by expected cost
//   3. `AskNextCells`   the best K not asked yet, in parallel; nobody with a worker among them: the next K; none left or too
//                       many asked: the next rung (remembered cells, then configured leaves)
//   4. `Decide`         cheapest worker over all answers; without any, over remembered workers
//
// *Threads*: one step at a time; only the answers of one wave of leaves come in parallel, and the last of them goes on.
// *Lifetime*: kept alive by the callbacks it has given out.

#ifndef KVATLAS_FRONTEND_ROUTE_TASK_H_
#define KVATLAS_FRONTEND_ROUTE_TASK_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "frontend/frontend.h"
#include "indexer/base/mutex.h"

namespace kvatlas {

// What the routes of one frontend share.
struct Frontend::Shared {
  FrontendOptions options;
  CellFinder* cell_finder = nullptr;
  OverlapFinder* overlap_finder = nullptr;
  const Clock* clock = nullptr;
  // The hierarchy that answered last is asked first.
  std::atomic<uint32_t> preferred_hierarchy{0};

  mutable Mutex mutex;
  FleetMemory memory ABSL_GUARDED_BY(mutex);
  uint64_t next_decision ABSL_GUARDED_BY(mutex);
  FrontendStats stats ABSL_GUARDED_BY(mutex);

  Shared(FrontendOptions o, CellFinder* cells, OverlapFinder* overlaps, const Clock* c);
};

class RouteTask : public std::enable_shared_from_this<RouteTask> {
 public:
  RouteTask(std::shared_ptr<Frontend::Shared> shared, RouteInput input,
            Frontend::Callback callback);

  void Start();

 private:
  // A cell that may be asked.
  struct Target {
    CellAsked asked;  // name, address and bounds; the rest once it was asked
    double distance = 0;
    uint32_t expected_blocks = 0;  // covered, or sent there so lately that no report shows it
    double cost = 0;               // expected; for the order
  };
  // One leaf of the wave under way.
  struct Pending {
    Target target;
    absl::StatusOr<WorkersAnswer> answer = absl::UnknownError("not answered");
    Time asked_at{0};
    Time answered_at{0};
  };
  struct Answered {
    std::string cell;
    double distance = 0;
    std::shared_ptr<const WorkersAnswer> answer;
  };

  absl::Status CheckInput() const;
  // False: the prompt is over the bound.
  bool Hash();
  // A different block size than the one hashed with was heard: starts over, once. True when it did.
  bool StartOver(uint32_t block_size);

  void AskHierarchy();
  void OnCells(uint32_t hierarchy, absl::StatusOr<CellsAnswer> answer);
  // Nobody knows who covers what: `why` goes into the receipt.
  void FallBack(const std::string& why);

  std::vector<Target> RankFoundCells(const std::vector<CellFound>& cells);
  std::vector<Target> RankKnownCells();
  std::vector<Target> ConfiguredTargets() const;
  double DistanceOf(const std::map<std::string, std::string>& labels) const;
  // At least `reported`: what this frontend lately sent to the cell counts too.
  uint32_t ExpectedBlocks(const std::string& cell, uint32_t reported, const SentTo& sent) const;
  double ExpectedCost(const std::string& cell, const std::optional<Load>& load, uint32_t overlap,
                      double distance) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);

  void AskNextCells();
  bool NextRung();
  std::vector<Target> TakeTargets();
  Duration WaveDeadline(bool more) const;
  void OnWorkers(size_t pending, absl::StatusOr<WorkersAnswer> answer);
  void OnWave();

  void Decide();
  std::vector<CostCandidate> AnsweredCandidates(std::vector<ReceiptCandidate>* details)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  std::vector<CostCandidate> RememberedCandidates(std::vector<ReceiptCandidate>* details)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  CostInput InputFor(const std::string& cell, const HolderId& worker,
                     const std::optional<Load>& load, uint32_t overlap, double distance) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shared_->mutex);
  void Fail(absl::Status status);

  Time Now() const { return shared_->clock->Now(); }
  Duration Left() const { return started_ + deadline_ - Now(); }

  const std::shared_ptr<Frontend::Shared> shared_;
  RouteInput input_;
  Frontend::Callback callback_;

  Time started_{0};
  Duration deadline_{0};
  uint32_t block_size_ = 0;
  bool started_over_ = false;
  std::vector<SequenceHash> sequence_;
  std::vector<SequenceHash> waypoints_;
  uint32_t hierarchies_asked_ = 0;
  Time step_started_{0};

  Fallback rung_ = Fallback::kNone;
  std::vector<Target> targets_;  // of this rung, best first
  std::set<std::string> asked_addresses_;
  std::vector<Answered> answered_;  // with at least one worker
  Receipt receipt_;

  Mutex wave_mutex_;
  std::vector<Pending> wave_ ABSL_GUARDED_BY(wave_mutex_);
  size_t wave_pending_ ABSL_GUARDED_BY(wave_mutex_) = 0;
};

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_ROUTE_TASK_H_
