// How does a structure for one thread serve many? It belongs to one lane of an executor, and
// everything is a message to it.
//
//   Apply ──▶ copy ──▶┐
//   Find… ──▶ wait ──▶┤ queue ──▶ one lane ──▶ structure
//
// *From*: "Flash Indexer" §2; Dynamo's first indexer was one around its radix tree, which
// `MakeActorIndex` makes.
// *Truth*: that of the structure inside; each call is one instant. A question comes after every
// event that was applied before it, and waits for all of them: reads queue behind writes. *Events*
// are copied and not waited for: `Apply` is OK when the event is in the queue. What the structure
// says of it later is counted: "failed_events" in `IndexStats::shape`, beside "queued_events_max".
// With a `ChangeLog` `Apply` waits, because the sink is told before it returns; then it returns
// what the structure says.
// *Threads*: any but the executor's own: a call from a task of lane 0 would wait for itself.
// Without an executor calls run on their caller's thread, one at a time.
// *Bounds*: `kActorEventsMax` events wait at most; `Apply` waits for room.
// *Lifetime*: the destructor waits until the queue is empty.

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"
#include "indexer/index/field/field.h"

namespace kvatlas {
namespace {

constexpr uint32_t kLane = 0;

class ActorIndex : public Index {
 public:
  ActorIndex(std::string_view name, std::unique_ptr<Index> inside, Executor* executor)
      : name_(name), inside_(std::move(inside)), executor_(executor) {}
  ~ActorIndex() override {
    Ask([] {});
  }

  std::string_view Name() const override { return name_; }

  absl::StatusOr<HolderIndex> AddHolder() override {
    absl::StatusOr<HolderIndex> holder = HolderIndex{0};
    Ask([&] { holder = inside_->AddHolder(); });
    return holder;
  }
  void RemoveHolder(HolderIndex holder) override {
    Ask([&] { inside_->RemoveHolder(holder); });
  }
  void SetMasked(HolderIndex holder, bool masked) override {
    Ask([&] { inside_->SetMasked(holder, masked); });
  }
  absl::Status Apply(HolderIndex holder, const Event& event, ChangeLog* changes) override;
  bool Sweep(HolderIndex holder, size_t blocks_max, ChangeLog* changes) override {
    bool more = false;
    Ask([&] { more = inside_->Sweep(holder, blocks_max, changes); });
    return more;
  }
  void Maintain(size_t steps) override {
    Ask([&] { inside_->Maintain(steps); });
  }

  void FindOverlaps(const OverlapQuery& query, std::vector<Overlap>* overlaps) const override {
    Ask([&] { inside_->FindOverlaps(query, overlaps); });
  }
  void FindTierOverlaps(const OverlapQuery& query,
                        std::vector<TierOverlap>* overlaps) const override {
    Ask([&] { inside_->FindTierOverlaps(query, overlaps); });
  }
  void FindSteps(const OverlapQuery& query, OverlapSteps* steps) const override {
    Ask([&] { inside_->FindSteps(query, steps); });
  }

  std::vector<Holding> HoldingsOf(HolderIndex holder) const override {
    std::vector<Holding> holdings;
    Ask([&] { holdings = inside_->HoldingsOf(holder); });
    return holdings;
  }
  Digest DigestOf(HolderIndex holder) const override {
    Digest digest;
    Ask([&] { digest = inside_->DigestOf(holder); });
    return digest;
  }
  IndexStats Stats() const override;
  absl::Status Check() const override {
    absl::Status status;
    Ask([&] { status = inside_->Check(); });
    return status;
  }

 private:
  // Runs `call` on the lane after everything before it, and returns when it has run. `mutex_`
  // guards `inside_` where there is no lane.
  template <typename Call>
  void Ask(const Call& call) const;

  void TakeRoom();
  void ApplyQueued(HolderIndex holder, const Event& event);

  const std::string_view name_;
  const std::unique_ptr<Index> inside_;
  Executor* const executor_;

  mutable Mutex mutex_;
  CondVar has_room_;
  size_t queued_events_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t queued_events_max_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t failed_events_ ABSL_GUARDED_BY(mutex_) = 0;
};

template <typename Call>
void ActorIndex::Ask(const Call& call) const {
  if (executor_ == nullptr) {
    MutexLock lock(&mutex_);
    call();
    return;
  }
  // On this thread's stack: the lane is through with them when `done` is seen, because it signals
  // under the mutex.
  bool done = false;
  CondVar answered;
  executor_->Schedule(kLane, [this, &call, &done, &answered] {
    call();
    MutexLock lock(&mutex_);
    done = true;
    answered.Signal();
  });
  MutexLock lock(&mutex_);
  while (!done) answered.Wait(&mutex_);
}

absl::Status ActorIndex::Apply(HolderIndex holder, const Event& event, ChangeLog* changes) {
  if (executor_ == nullptr || changes != nullptr) {
    absl::Status status;
    Ask([&] { status = inside_->Apply(holder, event, changes); });
    return status;
  }
  TakeRoom();
  executor_->Schedule(kLane, [this, holder, event] { ApplyQueued(holder, event); });
  return absl::OkStatus();
}

void ActorIndex::TakeRoom() {
  MutexLock lock(&mutex_);
  while (queued_events_ >= kActorEventsMax) has_room_.Wait(&mutex_);
  ++queued_events_;
  queued_events_max_ = std::max(queued_events_max_, queued_events_);
}

void ActorIndex::ApplyQueued(HolderIndex holder, const Event& event) {
  const absl::Status status = inside_->Apply(holder, event, nullptr);
  MutexLock lock(&mutex_);
  if (!status.ok()) ++failed_events_;
  if (queued_events_-- == kActorEventsMax) has_room_.SignalAll();
}

IndexStats ActorIndex::Stats() const {
  IndexStats stats;
  Ask([&] { stats = inside_->Stats(); });
  MutexLock lock(&mutex_);
  stats.shape.emplace_back("failed_events", failed_events_);
  stats.shape.emplace_back("queued_events_max", queued_events_max_);
  return stats;
}

}  // namespace

std::unique_ptr<Index> MakeActorIndex(const IndexOptions& options) {
  return MakeActorIndex("actor", MakeRadixIndex(options), options.executor);
}

std::unique_ptr<Index> MakeActorIndex(std::string_view name, std::unique_ptr<Index> inside,
                                      Executor* executor) {
  return std::make_unique<ActorIndex>(name, std::move(inside), executor);
}

}  // namespace kvatlas
