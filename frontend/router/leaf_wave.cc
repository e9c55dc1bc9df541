// `LeafWave` is one wave: it asks every leaf at once and decides after each answer whether to go on
// waiting. Questions keep the wave alive; answers after its end are still learnt (`Learn` runs
// before `closed_` is looked at) but change nothing. `mutex_` is held for the bookkeeping alone,
// never while a finder, the memory or `done_` runs.

#include "frontend/router/leaf_wave.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "frontend/router/first_answer.h"
#include "frontend/router/fleet_view.h"
#include "indexer/base/mutex.h"

namespace kvatlas {
namespace {

using WorkersOutcome = FirstAnswer<WorkersAnswer>::Outcome;

// A replica that knows no worker of the domain is of no use: the next one is asked.
absl::Status CheckWorkers(const WorkersAnswer& answer) {
  return answer.workers.empty() ? absl::NotFoundError("no workers") : absl::OkStatus();
}

class LeafWave : public std::enable_shared_from_this<LeafWave> {
 public:
  LeafWave(RequestPtr request, std::vector<Target> targets, const LeafWaveOptions& options,
           std::function<void(std::vector<AskedLeaf>)> done)
      : request_(std::move(request)),
        targets_(std::move(targets)),
        options_(options),
        began_(request_->Now()),
        done_(std::move(done)),
        leaves_(targets_.size()) {
    for (size_t i = 0; i < targets_.size(); ++i) leaves_[i].target = targets_[i];
  }

  // Leaves may answer before `AskLeaf` returns, and such an answer may close the wave:
  // `IsWorthWaiting` counts the leaves that are not asked yet among the late ones, so none of these
  // could win.
  void Ask() {
    for (size_t i = 0; i < targets_.size() && !closed(); ++i) AskLeaf(i);
  }

 private:
  bool closed() {
    MutexLock lock(&mutex_);
    return closed_;
  }

  void AskLeaf(size_t leaf) {
    const FleetState& fleet = *request_->fleet;
    FirstAnswer<WorkersAnswer>::Start(
        {.addresses = targets_[leaf].Addresses(),
         .until = began_ + options_.budget,
         .hedge_after = fleet.options.hedge_after,
         .clock = fleet.clock,
         .timer = fleet.timer},
        [self = shared_from_this()](const std::string& address, Duration deadline,
                                    FirstAnswer<WorkersAnswer>::Reply reply) {
          self->AskReplica(address, deadline, std::move(reply));
        },
        CheckWorkers,
        [self = shared_from_this(), leaf](WorkersOutcome outcome) {
          self->OnOutcome(leaf, std::move(outcome));
        });
  }

  // An answer that was asked for ahead arrives by its own deadline, which
  // `SpeculativeLookup::Guess` sets before that of any wave; each is taken once.
  void AskReplica(const std::string& address, Duration deadline,
                  FirstAnswer<WorkersAnswer>::Reply reply) {
    if (options_.ahead != nullptr && options_.ahead->Take(address, reply)) {
      ++request_->fleet->counts.asked_ahead_used;
      return;
    }
    request_->FindOverlaps(address, deadline, std::move(reply));
  }

  // One leaf is done, in the thread of its answer:
  //   1. The answer is learnt and becomes a candidate (`Learn`); a failure becomes the leaf's error
  //      in the receipt.
  //   2. It is put in its place, unless the wave has closed.
  //   3. `IsWorthWaiting` decides. The answer that ends the waiting closes the wave, marks the late
  //      leaves (`Close`) and calls `done_`, outside of the lock. `closed_` makes that happen once.
  void OnOutcome(size_t leaf, WorkersOutcome outcome) {
    AskedLeaf asked{.target = targets_[leaf], .answered = true};
    CellAsked& row = asked.target.asked;
    row.address = outcome.address;
    row.us = Microseconds(request_->Now() - began_);
    if (outcome.answer.ok()) {
      auto answer = std::make_shared<const WorkersAnswer>(*std::move(outcome.answer));
      row.best_blocks = DeepestOf(*answer).reusable;
      asked.found = Learn(*request_,
                          {.cell = row.cell,
                           .distance = asked.target.distance,
                           .fallback = options_.fallback,
                           .answer = std::move(answer),
                           .leaves = LeavesOf(leaf, row.address)},
                          row.address, row.blocks_at_least);
    } else {
      asked.failure = outcome.answer.status();
      row.error = asked.failure.ToString();
      if (asked.target.for_decoders) ForgetRoles(row.cell);
    }
    std::vector<AskedLeaf> leaves;
    {
      MutexLock lock(&mutex_);
      if (closed_) return;
      leaves_[leaf] = std::move(asked);
      if (IsWorthWaiting()) return;
      closed_ = true;
      Close();
      leaves.swap(leaves_);
    }
    std::exchange(done_, nullptr)(std::move(leaves));
  }

  // The replicas that will hear of a choice of this cell. The one that answered is first, since its
  // index made the choice. Null: leaves are not told.
  std::shared_ptr<const std::vector<std::string>> LeavesOf(size_t leaf,
                                                           const std::string& answered) const {
    if (!request_->options().tell_leaves) return nullptr;
    std::vector<std::string> leaves = targets_[leaf].Addresses();
    const auto at = std::find(leaves.begin(), leaves.end(), answered);
    if (at != leaves.end()) std::rotate(leaves.begin(), at, at + 1);
    return std::make_shared<const std::vector<std::string>>(std::move(leaves));
  }

  // A cell that failed to answer for its decoders is forgotten as one that has some: it is not
  // asked ahead of other cells before it has answered again. `SawRoles` with no roles erases the
  // entry.
  void ForgetRoles(const std::string& cell) {
    const std::shared_ptr<ModelFleet> model = request_->Model();
    MutexLock lock(&model->mutex);
    model->memory.SawRoles(request_->domain(), {.cell = cell, .address = ""}, request_->Now());
  }

  // Whether a late leaf could change the choice. A late leaf asked for prefixes could, if nothing
  // good was found or if its best possible cost is below the cheapest found. A late leaf asked for
  // decoders could, until any decoder has answered.
  bool IsWorthWaiting() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const double none = std::numeric_limits<double>::infinity();
    double best_of_late = none, cheapest = none;
    bool late = false, found = false, decoders_late = false, decoders_found = false;
    for (const AskedLeaf& leaf : leaves_) {
      if (!leaf.answered && leaf.target.for_decoders) {
        decoders_late = true;
      } else if (!leaf.answered) {
        late = true;
        best_of_late = std::min(best_of_late, leaf.target.best_cost);
      } else if (leaf.found.has_value()) {
        found = true;
        cheapest = std::min(cheapest, leaf.found->best_cost);
        decoders_found = decoders_found || leaf.found->standing.decodes == Standing::kGood;
      }
    }
    if (decoders_late && !decoders_found) return true;
    return late && (!found || best_of_late < cheapest);
  }

  // Late leaves stay `answered == false`: the route counts them as unanswered but names them in no
  // reason.
  void Close() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (AskedLeaf& leaf : leaves_) {
      if (leaf.answered) continue;
      leaf.failure = absl::DeadlineExceededError("late, and could not win any more");
      leaf.target.asked.error = std::string(leaf.failure.message());
      leaf.target.asked.us = Microseconds(request_->Now() - began_);
    }
  }

  const RequestPtr request_;
  const std::vector<Target> targets_;
  const LeafWaveOptions options_;
  const Time began_;
  std::function<void(std::vector<AskedLeaf>)> done_;  // of the one that closes
  Mutex mutex_;
  std::vector<AskedLeaf> leaves_ ABSL_GUARDED_BY(mutex_);
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

void AskLeaves(const RequestPtr& request, std::vector<Target> leaves,
               const LeafWaveOptions& options, std::function<void(std::vector<AskedLeaf>)> done) {
  std::make_shared<LeafWave>(request, std::move(leaves), options, std::move(done))->Ask();
}

}  // namespace kvatlas
