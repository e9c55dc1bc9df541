// One rank's resident set and its streams. Events change both under `mutex_`: the set first, then
// every pump gets the changes that the set reports, so a snapshot taken under the lock fits the
// stream.

#include "publisher/relay/relay_rank.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "indexer/telemetry/log.h"

namespace kvatlas {

// Adds first and gives back on failure: two concurrent calls cannot both pass the bound.
bool BlockBudget::Take(uint64_t blocks) {
  const uint64_t before = used_.fetch_add(blocks, std::memory_order_relaxed);
  if (blocks_max_ == 0 || before + blocks <= blocks_max_) return true;
  GiveBack(blocks);
  return false;
}

std::string_view RelayStandName(RelayStand stand) {
  switch (stand) {
    case RelayStand::kNew:
      return "new";
    case RelayStand::kOffered:
      return "offered";
    case RelayStand::kQuiet:
      return "quiet";
    case RelayStand::kWithdrawn:
      return "withdrawn";
  }
  return "unknown";
}

RelayRank::RelayRank(RelayRankOptions options) : options_(std::move(options)) {
  MutexLock lock(&mutex_);
  identity_ = options_.identity;
  leaves_ = options_.leaves;
}

RelayRank::~RelayRank() {
  Stop(/*goodbye=*/false, Duration(0));
  MutexLock lock(&mutex_);
  options_.budget->GiveBack(resident_.size());
}

// ---- What the engine's worker says ----

// Called with the worker's lock held: nothing here waits for a connection, and the flusher is only
// woken.
Applied RelayRank::Apply(std::span<const Event> events) {
  Applied applied;
  {
    MutexLock lock(&mutex_);
    applied = ApplyInOrder(
        events, [this](const Event& event, uint64_t* changed)
                    ABSL_NO_THREAD_SAFETY_ANALYSIS { return ApplyLocked(event, changed); });
  }
  Wake();
  return applied;
}

// Room is taken for all blocks of a stored event before it is known how many are new, and what was
// too much is given back: the budget is never exceeded. An event that does not fit is shed as a
// whole.
absl::Status RelayRank::ApplyLocked(const Event& event, uint64_t* changed) {
  const uint64_t before = resident_.size();
  const uint64_t room =
      std::holds_alternative<Stored>(event) ? uint64_t{BlockCount(event)} : uint64_t{0};
  if (!options_.budget->Take(room)) {
    Shed(room);
    return absl::ResourceExhaustedError("the relay's bound of blocks is reached");
  }
  const std::vector<Event> changes = resident_.Apply(event);
  // Gives back what was taken beforehand, less the growth of the set.
  options_.budget->GiveBack(before + room - resident_.size());
  for (const Event& change : changes) *changed += BlockCount(change);
  if (links_ != nullptr && !changes.empty())
    for (const Link& link : *links_) link.pump->Append(changes, std::nullopt);
  // Whatever there was no room for is gone too.
  const Cleared* const cleared = std::get_if<Cleared>(&event);
  if (cleared != nullptr && cleared->tiers == TierMask::All()) shedding_ = false;
  TellDoubt();
  return absl::OkStatus();
}

// From here on the set lacks blocks that the engine has: answers are marked until the engine clears
// or restarts.
void RelayRank::Shed(uint64_t blocks) {
  static LogLimiter limiter{std::chrono::seconds(10)};
  LogEvery(limiter, options_.identity.holder.name, LogLevel::kWarning, "no room for blocks",
           {{"worker", options_.identity.holder.name},
            {"rank", options_.identity.holder.rank},
            {"held", options_.budget->used()}});
  shed_ += blocks;
  shedding_ = true;
  TellDoubt();
}

void RelayRank::SetTrust(Trust trust) {
  {
    MutexLock lock(&mutex_);
    trust_ = trust;
    TellDoubt();
  }
  Wake();
}

// Without streams the layout goes out with the next snapshot.
void RelayRank::SetLayout(const CacheLayout& layout) {
  MutexLock lock(&mutex_);
  if (!resident_.SetLayout(layout) || links_ == nullptr) return;
  for (const Link& link : *links_) link.pump->NoteLayout();
}

// Three independent reasons; `Stats` names the first.
bool RelayRank::Degraded() const { return trust_ != Trust::kExact || !certain_ || shedding_; }

// Called after every change of one of the reasons, under the lock, so that the mark is in the order
// of the stream.
void RelayRank::TellDoubt() {
  const bool degraded = Degraded();
  if (degraded == told_degraded_ || links_ == nullptr) return;
  told_degraded_ = degraded;
  for (const Link& link : *links_) link.pump->SetDegraded(degraded);
}

// ---- Whether leaves hear of it ----

// The transitions of the header's picture. A quiet rank keeps its streams without heartbeats;
// beyond `lease_ttl` they end, and begin anew as a new incarnation. Offering and stopping take
// no lock of this rank while they wait.
void RelayRank::SetStream(bool heard, bool settled, bool certain, Time now) {
  std::shared_ptr<Links> ended;
  bool offer = false;
  {
    MutexLock lock(&mutex_);
    if (stopped_) return;
    if (heard) last_heard_ = now;
    certain_ = certain_ || certain;
    TellDoubt();
    if (links_ == nullptr) {
      offer = heard && settled;
    } else {
      stand_ = heard ? RelayStand::kOffered : RelayStand::kQuiet;
      if (!heard && now - last_heard_ > options_.lease_ttl) {
        stand_ = RelayStand::kWithdrawn;
        ended = std::exchange(links_, nullptr);
      }
    }
  }
  if (offer) Offer();
  if (ended == nullptr) return;
  for (const Link& link : *ended) link.pump->Stop(/*goodbye=*/false, Duration(0));
}

// Opens a stream to every leaf. Each time as a new incarnation: what leaves were told by the one
// before may have changed since. A stop or another offer may have come in between, hence the second
// check.
void RelayRank::Offer() {
  std::shared_ptr<Links> made = std::make_shared<Links>();
  {
    MutexLock lock(&mutex_);
    if (stopped_ || links_ != nullptr) return;
    told_degraded_ = Degraded();
    for (const std::string& leaf : leaves_) made->push_back(MakeLink(leaf));
    links_ = made;
    stand_ = RelayStand::kOffered;
    ever_offered_.store(true, std::memory_order_relaxed);
  }
  for (const Link& link : *made) link.pump->Start();
}

// The epoch grows with each link, also when the clock does not.
RelayRank::Link RelayRank::MakeLink(const std::string& leaf) {
  identity_.epoch = std::max<Epoch>(identity_.epoch + 1, WallTimeNs());
  identity_.instance_id = RandomInstanceId();
  auto pump = std::make_shared<SenderPump>(options_.sender, identity_, &resident_, &mutex_,
                                           options_.make_link(leaf, identity_), options_.clock);
  pump->SetDegraded(told_degraded_);
  const HolderId& holder = identity_.holder;
  auto watch = std::make_shared<ConnectionWatch>(
      "leaf", leaf, std::vector<LogField>{{"worker", holder.name}, {"rank", holder.rank}},
      options_.clock);
  return {leaf, std::move(pump), std::move(watch)};
}

// Links of leaves that stay are taken over; `links_` is replaced, not changed, since readers hold
// copies of the pointer.
void RelayRank::SetLeaves(const std::vector<std::string>& leaves) {
  Links made, dropped;
  {
    MutexLock lock(&mutex_);
    if (stopped_ || leaves == leaves_) return;
    leaves_ = leaves;
    if (links_ == nullptr) return;
    auto now = std::make_shared<Links>();
    for (const std::string& leaf : leaves) {
      const auto known = std::find_if(links_->begin(), links_->end(),
                                      [&](const Link& link) { return link.leaf == leaf; });
      if (known == links_->end()) made.push_back(MakeLink(leaf));
      now->push_back(known == links_->end() ? made.back() : *known);
    }
    for (const Link& link : *links_)
      if (std::find(leaves.begin(), leaves.end(), link.leaf) == leaves.end())
        dropped.push_back(link);
    links_ = std::move(now);
  }
  for (const Link& link : made) link.pump->Start();
  for (const Link& link : dropped) link.pump->Stop(/*goodbye=*/false, Duration(0));
}

std::shared_ptr<RelayRank::Links> RelayRank::links() const {
  MutexLock lock(&mutex_);
  return links_;
}

// At most one entry of this rank is in the flusher's list: `Flush` clears the mark before it looks,
// so a change that comes later wakes anew.
void RelayRank::Wake() {
  if (!awake_.exchange(true)) options_.wake(shared_from_this());
}

// Called by the flusher, and by `Relay::Stop` after it. Without the lock: pumps write to
// connections.
void RelayRank::Flush() {
  awake_.store(false);
  const std::shared_ptr<Links> all = links();
  if (all == nullptr) return;
  for (const Link& link : *all) link.pump->Flush();
}

// Quiet ranks are passed over: their missing heartbeats let the lease at the leaf run out.
void RelayRank::Tick() {
  {
    MutexLock lock(&mutex_);
    if (stand_ != RelayStand::kOffered) return;
  }
  Flush();
  const std::shared_ptr<Links> all = links();
  if (all == nullptr) return;
  for (const Link& link : *all) link.watch->Set(link.pump->Progress());
}

// After the engine's events have ended. A pump's `Stop` may take `flush_for`, so it runs without
// the lock.
void RelayRank::Stop(bool goodbye, Duration flush_for) {
  std::shared_ptr<Links> ended;
  {
    MutexLock lock(&mutex_);
    stopped_ = true;
    ended = std::exchange(links_, nullptr);
    if (ended != nullptr) stand_ = RelayStand::kWithdrawn;
  }
  if (ended == nullptr) return;
  for (const Link& link : *ended) link.pump->Stop(goodbye, flush_for);
}

// ---- What others ask ----

RelayRankStats RelayRank::Stats() const {
  RelayRankStats stats;
  std::shared_ptr<Links> all;
  {
    MutexLock lock(&mutex_);
    stats.identity = identity_;
    stats.stand = stand_;
    stats.trust = Degraded() ? Trust::kDegraded : Trust::kExact;
    if (shedding_) {
      stats.doubt = "no room for all of its blocks";
    } else if (trust_ != Trust::kExact) {
      stats.doubt = "some of its events were missed";
    } else if (!certain_) {
      stats.doubt = "nothing was heard from it yet";
    }
    stats.blocks = resident_.size();
    stats.digest = resident_.digest();
    stats.shed = shed_;
    all = links_;
  }
  if (all == nullptr) return stats;
  for (const Link& link : *all) {
    const SenderPump& pump = *link.pump;
    stats.links.push_back({.leaf = link.leaf,
                           .connected = pump.connected(),
                           .welcomed = pump.welcomed(),
                           .at_rest = pump.AtRest(),
                           .last_number = pump.last_number(),
                           .acknowledged = pump.acknowledged(),
                           .sender = pump.stats(),
                           .status = pump.Progress().value_or(absl::OkStatus()),
                           .connection = link.watch->Get()});
  }
  return stats;
}

RelayRankDump RelayRank::Dump() const {
  RelayRankDump dump;
  MutexLock lock(&mutex_);
  dump.identity = identity_;
  dump.runs = resident_.AsRuns();
  dump.layout = resident_.layout();
  dump.trust = Degraded() ? Trust::kDegraded : Trust::kExact;
  if (links_ == nullptr) return dump;
  for (const Link& link : *links_)
    dump.last_number = std::max(dump.last_number, link.pump->last_number());
  return dump;
}

}  // namespace kvatlas
