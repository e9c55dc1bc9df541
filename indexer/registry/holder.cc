// One holder of a domain: its stream (messages, lease), the calls of a local reader, restoring and
// cutting for checkpoints, the sink that the receiver writes to, and what queries read of it.
//
// Lock order: `mutex_`, then those of index, side index and pending blocks, and `view_mutex_` last.
// The observer is called with `mutex_` held and `view_mutex_` not.

#include "indexer/registry/holder.h"

#include <algorithm>
#include <bit>
#include <map>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "indexer/stream/message_size.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {
namespace {

std::shared_ptr<const HolderInfo> WithVersion(HolderInfo info) {
  info.labels_version = info.labels.empty() ? 0 : absl::HashOf(info.id, info.labels) | 1;
  return std::make_shared<const HolderInfo>(std::move(info));
}

// A clear is of the main class and of all side classes: it counts as main here (`ApplyInTurn`).
bool IsOfSide(const Event& event) {
  const Stored* const stored = std::get_if<Stored>(&event);
  const Removed* const removed = std::get_if<Removed>(&event);
  return (stored != nullptr && stored->side != 0) || (removed != nullptr && removed->side != 0);
}

}  // namespace

Holder::Holder(Index* index, SideIndex* sides, HolderIndex number, DomainObserver* observer,
               PendingBlocks* pending, DomainCounters* counters, const ReceiverOptions& options,
               HolderId id)
    : index_(index),
      sides_(sides),
      number_(number),
      observer_(observer),
      pending_(pending),
      counters_(counters),
      id_(std::move(id)),
      local_(false),
      lease_ttl_(options.lease_ttl),
      blocks_max_(options.blocks_max),
      receiver_(options, this) {
  MutexLock lock(&view_mutex_);
  view_.info = std::make_shared<HolderInfo>(HolderInfo{.id = id_, .address = "", .labels = {}});
  Publish();
}

Holder::Holder(Index* index, SideIndex* sides, HolderIndex number, DomainObserver* observer,
               PendingBlocks* pending, DomainCounters* counters, HolderInfo info, Time now)
    : index_(index),
      sides_(sides),
      number_(number),
      observer_(observer),
      pending_(pending),
      counters_(counters),
      id_(info.id),
      local_(true),
      lease_ttl_(Duration::max()),
      blocks_max_(0),
      receiver_({}, this) {
  published_.live.store(true, std::memory_order_relaxed);
  Heard(now);
  MutexLock lock(&view_mutex_);
  view_.info = WithVersion(std::move(info));
  Publish();
}

// ---- Messages ----

// 1. A retired holder, a local one and one that is being restored take no stream.
// 2. The receiver compares epochs and welcomes or refuses. A refusal answers the new connection
//    alone; the connection that has the stream keeps it.
// 3. `session_` names the new connection from here on: `OnMessage` and `OnDisconnected` of the
//    older one find another number and have no effect.
// 4. The info and the view are published before `Welcome` is sent, so a sender that was welcomed
//    finds itself in answers.
Holder::Taken Holder::OnHello(const Hello& hello, SessionId session, const ReplyFn& reply, Time now,
                              absl::Status* why, Epoch* replaced) {
  MutexLock lock(&mutex_);
  if (retired_) return Taken::kRetired;
  if (local_) {
    *why = absl::FailedPreconditionError(
        "holder " + ToString(id_) + " is fed by this process itself, from its engine's events");
    reply(Refuse{.code = why->code(), .reason = std::string(why->message())});
    return Taken::kRefused;
  }
  if (restoring_) {
    *why = absl::UnavailableError("holder " + ToString(id_) + " is being restored");
    reply(Refuse{.code = why->code(), .reason = std::string(why->message())});
    return Taken::kRefused;
  }
  std::vector<ReceiverMessage> out;
  const Epoch before = receiver_.epoch();
  const bool another = receiver_.instance_id() != hello.instance_id;
  *why = receiver_.OnMessage(hello, now, &out);
  for (const ReceiverMessage& message : out) {
    const Refuse* refuse = std::get_if<Refuse>(&message);
    if (refuse != nullptr) *why = absl::Status(refuse->code, refuse->reason);
  }
  if (!why->ok()) {
    // The stream stays with the connection that has it: neither `session_` nor `reply_` changed.
    for (ReceiverMessage& message : out) reply(std::move(message));
    return Taken::kRefused;
  }
  if (another) *replaced = before;
  welcomed_ = true;
  session_ = session;
  reply_ = reply;
  {
    MutexLock view_lock(&view_mutex_);
    view_.info =
        WithVersion(HolderInfo{.id = id_, .address = hello.address, .labels = hello.labels});
    Publish();
  }
  UpdateView(now);
  Reply(&out);
  return Taken::kYes;
}

absl::Status Holder::OnMessage(const SenderMessage& message, SessionId session, Time now) {
  MutexLock lock(&mutex_);
  if (retired_) return absl::FailedPreconditionError("the holder was forgotten: say hello again");
  if (session_ != session) {
    return absl::FailedPreconditionError("another connection of this stream replaced this one");
  }
  counters_->bytes_received.fetch_add(HoldingsBytes(message), std::memory_order_relaxed);
  std::vector<ReceiverMessage> out;
  const absl::Status status = receiver_.OnMessage(message, now, &out);
  UpdateView(now);
  Reply(&out);
  return status;
}

// The holder keeps its blocks and its lease: a connection that breaks is no statement about the
// cache. `reply_` is dropped under the lock: no call to it begins after this returns.
void Holder::OnDisconnected(SessionId session, Time now) {
  MutexLock lock(&mutex_);
  if (session_ != session) return;
  session_ = 0;
  reply_ = nullptr;
  transport_lost_since_.reset();
  if (retired_) return;
  receiver_.OnDisconnected(now);
  UpdateView(now);
}

void Holder::OnTransportLost(SessionId session, bool lost, Time now) {
  MutexLock lock(&mutex_);
  if (session_ != session || retired_) return;
  if (!lost) transport_lost_since_.reset();
  if (lost && !transport_lost_since_.has_value()) transport_lost_since_ = now;
  UpdateView(now);
}

void Holder::Reply(std::vector<ReceiverMessage>* messages) {
  if (!reply_) return;
  for (ReceiverMessage& message : *messages) reply_(std::move(message));
}

// ---- Lease ----

// 1. The receiver repeats a due `Need`, or gives up a repair.
// 2. A transport that has been lost for `sweep_after` no longer keeps the lease
//    (`OnTransportLost`).
// 3. `UpdateView` masks the holder if its lease is over.
// 4. A holder masked for `sweep_after` is retired; the caller takes it out of the table, and
//    `Sweep` empties it.
Holder::Lease Holder::Tick(Duration sweep_after, Time now) {
  MutexLock lock(&mutex_);
  if (retired_) return Lease::kOver;
  if (local_) return masked_ ? Lease::kMasked : Lease::kLive;
  if (!welcomed_) return Lease::kLive;  // its hello is on the way
  std::vector<ReceiverMessage> out;
  receiver_.Tick(now, &out);
  Reply(&out);
  const bool was_masked = masked_;
  if (transport_lost_since_.has_value() && now - *transport_lost_since_ >= sweep_after) {
    transport_lost_since_.reset();
  }
  UpdateView(now);
  if (!masked_) return Lease::kLive;
  if (now - receiver_.lease_began() - lease_ttl_ >= sweep_after) {
    retired_ = true;
    return Lease::kOver;
  }
  return was_masked ? Lease::kMasked : Lease::kJustMasked;
}

// The one place that turns what the receiver knows into what queries see. A message that ends a
// masked phase is applied while `masked_` is still set, so the observer is not told of its changes
// one by one; `Unmask` then tells of everything that is held, these included.
void Holder::UpdateView(Time now) {
  // A lease does not run out while no stream can be heard. A holder that was masked before stays
  // masked.
  const bool kept = transport_lost_since_.has_value() && !masked_;
  const bool expired = receiver_.Expired(now) && !kept;
  if (expired && !masked_) Mask();
  if (!expired && masked_) Unmask();
  published_.last_heard_ns.store(receiver_.last_heard().count(), std::memory_order_relaxed);
  const Time lease_began = kept ? now : receiver_.lease_began();
  published_.lease_began_ns.store(lease_began.count(), std::memory_order_relaxed);
  SetTrust(receiver_.trust(now), now);
  published_.live.store(!masked_, std::memory_order_relaxed);
}

void Holder::SetTrust(Trust trust, Time now) {
  MutexLock lock(&view_mutex_);
  ShowTrust(trust, now);
}

void Holder::ShowTrust(Trust trust, Time now) {
  if (trust == view_.trust) return;
  if (trust == Trust::kExact) view_.exact_since = now;
  view_.trust = trust;
  Publish();
}

// The index leaves the holder out first, then the observer hears that all of it is lost: coverage
// never claims a block that queries cannot see.
void Holder::Mask() {
  masked_ = true;
  index_->SetMasked(number_, true);
  published_.live.store(false, std::memory_order_relaxed);
  if (observer_ == nullptr) return;
  TellHoldings(/*gained=*/false);
  observer_->OnLoad(number_, std::nullopt);
}

// Tells the observer that all blocks of the holder are gained, or lost. *Cost*: O(blocks of the
// holder), with `mutex_` held.
void Holder::TellHoldings(bool gained) {
  changes_.Clear();
  for (const Holding& holding : index_->HoldingsOf(number_))
    changes_.Add(holding.block, holding.position, gained ? TierMask() : holding.tiers,
                 gained ? holding.tiers : TierMask());
  observer_->OnChanged(number_, changes_, nullptr);
}

void Holder::Unmask() {
  masked_ = false;
  index_->SetMasked(number_, false);
  if (observer_ == nullptr) return;
  TellHoldings(/*gained=*/true);
  std::optional<Load> load;
  {
    MutexLock lock(&view_mutex_);
    load = view_.load;
  }
  if (load.has_value()) observer_->OnLoad(number_, load);
}

void Holder::Retire() {
  MutexLock lock(&mutex_);
  retired_ = true;
  if (!masked_) Mask();
}

// For a holder that was made for a hello which its receiver then refused: without this it would
// stay for ever, since no lease runs before the first welcome (`Tick`).
bool Holder::RetireIfNew() {
  MutexLock lock(&mutex_);
  if (welcomed_ || local_ || restoring_) return false;
  retired_ = true;
  if (!masked_) Mask();
  return true;
}

// Side blocks go all at once: the side index has no list of a holder's names, so a step would cost
// as much as all of them.
bool Holder::Sweep(uint64_t blocks_max) {
  MutexLock lock(&mutex_);
  if (side_blocks_.load(std::memory_order_relaxed) != 0)
    sides_->Clear(number_, TierMask::All(), CountSides());
  return index_->Sweep(number_, blocks_max, nullptr);
}

// ---- A local one ----

Applied Holder::ApplyLocal(std::span<const Event> events) {
  MutexLock lock(&mutex_);
  if (retired_) {
    return {.events = 1,
            .changed = 0,
            .status = absl::FailedPreconditionError("the holder was forgotten")};
  }
  return ApplyInTurn(events);
}

void Holder::ForEachLocal(
    const std::function<void(SequenceHash, SequenceHash, LocalHash)>& visit) const {
  std::vector<Holding> holdings;
  {
    MutexLock lock(&mutex_);
    if (!retired_) holdings = index_->HoldingsOf(number_);
  }
  for (const Holding& holding : holdings) visit(holding.block, holding.parent, holding.local);
}

void Holder::SetLocalTrust(Trust trust, Time now) {
  MutexLock lock(&view_mutex_);
  view_.told = trust;
  if (reached()) ShowTrust(trust, now);
}

void Holder::SetLocalReached(bool reached, Time now) {
  MutexLock lock(&view_mutex_);
  reached_.store(reached, std::memory_order_relaxed);
  ShowTrust(reached ? view_.told : Trust::kStale, now);
}

void Holder::SetLocalLayout(const CacheLayout& layout) {
  MutexLock lock(&mutex_);
  if (!retired_) SetLayout(layout);
}

void Holder::SetLocalMasked(bool masked) {
  MutexLock lock(&mutex_);
  if (retired_ || masked == masked_) return;
  masked ? Mask() : Unmask();
  published_.live.store(!masked, std::memory_order_relaxed);
}

void Holder::SetLocalLoad(const Load& load) {
  MutexLock lock(&mutex_);
  if (!retired_) SetLoad(load);
}

void Holder::Heard(Time now) {
  published_.last_heard_ns.store(now.count(), std::memory_order_relaxed);
  published_.lease_began_ns.store(now.count(), std::memory_order_relaxed);
}

// ---- Checkpoints ----

void Holder::BeginRestore(const CacheLayout& layout) {
  MutexLock lock(&mutex_);
  restoring_ = true;
  SetLayout(layout);
}

absl::Status Holder::RestoreRun(const Stored& run) {
  MutexLock lock(&mutex_);
  return Apply(run);
}

// 1. The contents are compared with the image's digest: a difference makes the position not
//    `whole`, so the receiver asks for a snapshot.
// 2. The receiver goes on behind the image's position; age and lease count from when the earlier
//    process heard the sender.
// 3. Hellos are taken from here on, and the view shows what the image says of itself.
// 4. The load goes to the observer only if the holder is not masked, as with `Unmask`.
bool Holder::FinishRestore(HolderImage image, bool lease_goes_on, Time now) {
  MutexLock lock(&mutex_);
  const bool same = DigestNow() == image.digest;
  image.stream.whole = image.stream.whole && same;
  const Time heard = now - image.silent;
  // A holder whose lease is over stays masked until its sender is heard. Its lease counts as begun
  // at most `lease_ttl_` ago, so that it is forgotten no sooner than a holder masked just now.
  const Time lease_from = lease_goes_on ? now : std::max(heard, now - lease_ttl_);
  receiver_.Restore(image.stream, heard, lease_from);
  restoring_ = false;
  welcomed_ = true;
  {
    MutexLock view_lock(&view_mutex_);
    view_.info = WithVersion(std::move(image.info));
    view_.load = image.load;
    Publish();
  }
  UpdateView(now);
  if (!masked_ && image.load.has_value() && observer_ != nullptr)
    observer_->OnLoad(number_, image.load);
  return same;
}

// `mutex_` keeps the stream waiting while the contents are copied, so position, digest and blocks
// are of one instant. Queries go on.
absl::StatusOr<HolderCut> Holder::Cut(Time now) const {
  HolderCut cut;
  MutexLock lock(&mutex_);
  if (local_ || !welcomed_ || retired_)
    return absl::FailedPreconditionError("holder " + ToString(id_) + " has no stream");
  cut.holdings = index_->HoldingsOf(number_);
  cut.sides = SideHoldings();
  cut.image.digest = DigestNow();
  cut.image.layout = layout_;
  cut.image.stream = receiver_.position();
  cut.image.silent = std::max(Duration::zero(), now - receiver_.last_heard());
  cut.image.lease_over = masked_ || receiver_.Expired(now);
  MutexLock view_lock(&view_mutex_);
  cut.image.info = *view_.info;
  cut.image.load = view_.load;
  return cut;
}

std::optional<ReceiverPosition> Holder::StreamPosition() const {
  MutexLock lock(&mutex_);
  if (local_ || !welcomed_ || retired_) return std::nullopt;
  return receiver_.position();
}

// ---- What the receiver learns ----

// The bound counts every block of the run as new: known blocks may be refused near the limit, but a
// holder never goes beyond it. A refusal sheds; the receiver then suspends digests and asks for a
// snapshot later. Removals, clears and side blocks always pass here; side blocks have a bound of
// their own (`ApplyToSides`).
absl::Status Holder::Apply(const Event& event) {
  const Stored* const stored = std::get_if<Stored>(&event);
  const uint64_t blocks_max = stored == nullptr || stored->side != 0 ? 0 : BlocksMax();
  if (blocks_max != 0 &&
      blocks_.load(std::memory_order_relaxed) + stored->blocks.size() > blocks_max) {
    counters_->blocks_stored.fetch_add(stored->blocks.size(), std::memory_order_relaxed);
    return absl::ResourceExhaustedError("the holder has as many blocks as it may");
  }
  return ApplyInTurn({&event, 1}).status;
}

// Applies events to index and side index in their order. Runs of events that concern the index
// alone go there in one call; a side event, or a clear, ends such a run. The holder's version is
// odd meanwhile: a query sees by it whether main and side blocks were of one instant
// (`HybridOverlaps::Find`).
Applied Holder::ApplyInTurn(std::span<const Event> events) {
  const bool has_sides =
      has_layout_ ||
      std::any_of(events.begin(), events.end(), [](const Event& event) { return IsOfSide(event); });
  if (!has_sides) return ApplyToIndex(events);
  sides_->BeginWrite(number_);
  Applied applied;
  while (applied.events < events.size()) {
    // To the next event that is not the index's alone.
    const std::span<const Event> left = events.subspan(applied.events);
    size_t count = 0;
    while (count < left.size() && !IsOfSide(left[count]) &&
           (count == 0 || !std::holds_alternative<Cleared>(left[count - 1])))
      ++count;
    Applied part = {.events = 1, .changed = 0, .status = {}};
    if (count == 0) {
      part.status = ApplyToSides(left[0]);
    } else {
      part = ApplyToIndex(left.first(count));
    }
    const Event& last = left[part.events - 1];
    if (const Cleared* const cleared = std::get_if<Cleared>(&last))
      sides_->Clear(number_, cleared->tiers, CountSides());
    part.events += applied.events;
    applied = std::move(part);
    if (!GoesOn(last, applied)) break;
  }
  sides_->EndWrite(number_);
  return applied;
}

// Keeps count and digest of the side blocks. The side index calls back for each name that changed,
// on this thread and with `mutex_` held, as all that changes side blocks.
SideIndex::Changed Holder::CountSides() {
  return [this](SequenceHash name, TierMask before, TierMask after) {
    if (before.empty()) side_blocks_.fetch_add(1, std::memory_order_relaxed);
    if (after.empty()) side_blocks_.fetch_sub(1, std::memory_order_relaxed);
    for (int t = 0; t < kTiers; ++t) {
      const Tier tier = static_cast<Tier>(t);
      if (before.Has(tier) == after.Has(tier)) continue;
      after.Has(tier) ? side_digest_.Add(tier, name) : side_digest_.Subtract(tier, name);
    }
  };
}

// A class that the layout does not have is stored as unknown: queries look names up without it.
// Four side blocks a main block are the bound that `SnapshotBlocksMax` counts with as well.
absl::Status Holder::ApplyToSides(const Event& event) {
  if (const Removed* removed = std::get_if<Removed>(&event)) {
    counters_->blocks_removed.fetch_add(removed->blocks.size(), std::memory_order_relaxed);
    sides_->Remove(number_, removed->tier, removed->blocks, CountSides());
    return absl::OkStatus();
  }
  const Stored& stored = std::get<Stored>(event);
  counters_->blocks_stored.fetch_add(stored.blocks.size(), std::memory_order_relaxed);
  const uint64_t blocks_max = BlocksMax();
  if (blocks_max != 0 &&
      side_blocks_.load(std::memory_order_relaxed) + stored.blocks.size() > 4 * blocks_max)
    return absl::ResourceExhaustedError("the holder has as many side blocks as it may");
  const bool known = stored.side <= layout_.sides.size();
  return sides_->Store(number_, stored.tier, stored.blocks,
                       known ? &layout_.sides[stored.side - 1] : nullptr, CountSides());
}

// The layout is published before any block that needs it is visible. A query that read the older
// layout sees `layouts_version` changed afterwards, and asks again.
void Holder::SetLayout(const CacheLayout& layout) {
  if (layout == layout_ || (layout.plain() && layout_.plain())) return;
  layout_ = layout;
  has_layout_ = true;
  sides_->BeginWrite(number_);
  {
    MutexLock lock(&view_mutex_);
    view_.layout = layout.plain() ? nullptr : std::make_shared<const CacheLayout>(layout);
  }
  counters_->layouts_version.fetch_add(1);
  sides_->EndWrite(number_);
}

std::shared_ptr<const CacheLayout> Holder::layout() const {
  MutexLock lock(&view_mutex_);
  return view_.layout;
}

std::vector<SideHolding> Holder::SideHoldings() const {
  std::vector<SideHolding> sides;
  if (side_blocks_.load(std::memory_order_relaxed) == 0) return sides;
  std::vector<uint64_t> tags;
  for (const CacheClass& of : layout_.sides) tags.push_back(SideTag(of));
  sides_->ForEachOf(number_, [&](SequenceHash name, TierMask tiers, uint64_t tag) {
    const auto of = static_cast<size_t>(std::find(tags.begin(), tags.end(), tag) - tags.begin());
    sides.push_back({.name = name,
                     .tiers = tiers,
                     .side = of == tags.size() ? kUnknownSide : static_cast<SideClass>(of + 1)});
  });
  return sides;
}

Digest Holder::DigestNow() const {
  Digest digest = index_->DigestOf(number_);
  for (int tier = 0; tier < kTiers; ++tier) {
    digest.tiers[tier].blocks += side_digest_.tiers[tier].blocks;
    digest.tiers[tier].sum += side_digest_.tiers[tier].sum;
  }
  return digest;
}

// 1. The tiers are noted, before the index shows a block in them: a query that finds the block
//    knows that the tier is in use.
// 2. The index applies the events and logs what really changed.
// 3. The observer (coverage) is told per event, and pending blocks are confirmed, on this thread.
// `changes_` is reused from call to call for its memory.
Applied Holder::ApplyToIndex(std::span<const Event> events) {
  uint8_t tiers = 0;
  for (const Event& event : events)
    if (const Stored* const stored = std::get_if<Stored>(&event))
      tiers |= TierMask(stored->tier).bits();
  if ((counters_->tiers_seen.load(std::memory_order_relaxed) & tiers) != tiers)
    counters_->tiers_seen.fetch_or(tiers);  // before the index shows the blocks
  changes_.Clear();
  Applied applied = index_->ApplyAll(number_, events, &changes_);
  // One writer at a time: no need for a locked instruction.
  blocks_.store(
      blocks_.load(std::memory_order_relaxed) + static_cast<uint64_t>(changes_.held_delta()),
      std::memory_order_relaxed);
  uint64_t stored_blocks = 0, removed_blocks = 0;
  const bool observed = observer_ != nullptr && !masked_;
  for (size_t i = 0; i < applied.events; ++i) {
    const Stored* const stored = std::get_if<Stored>(&events[i]);
    (stored != nullptr ? stored_blocks : removed_blocks) += BlockCount(events[i]);
    if (!observed) continue;
    const ChangeLog::Part changes = changes_.OfEvent(i);
    if (!changes.empty()) observer_->OnChanged(number_, changes, stored);
  }
  if (stored_blocks != 0) pending_->OnChanged(number_, changes_);
  counters_->blocks_stored.fetch_add(stored_blocks, std::memory_order_relaxed);
  counters_->blocks_removed.fetch_add(removed_blocks, std::memory_order_relaxed);
  return applied;
}

// The least of the three limits that are set: the process's, that of the peer's identity, and its
// multiple of the pool that the holder's load reports. The last one is at least 1, since 0 would
// mean "no limit".
uint64_t Holder::BlocksMax() const {
  uint64_t max = blocks_max_;
  const auto at_most = [&max](uint64_t bound) { max = max == 0 ? bound : std::min(max, bound); };
  if (allowed_.max != 0) at_most(allowed_.max);
  if (allowed_.pool_times > 0 && pool_blocks_ != 0) {
    const double blocks = allowed_.pool_times * static_cast<double>(pool_blocks_);
    at_most(std::max<uint64_t>(1, static_cast<uint64_t>(blocks)));
  }
  return max;
}

void Holder::SetBlocks(PeerAllowance::Blocks allowed) {
  MutexLock lock(&mutex_);
  allowed_ = allowed;
}

void Holder::SetLoad(const Load& load) {
  pool_blocks_ = load.used_blocks + load.free_blocks;
  {
    MutexLock lock(&view_mutex_);
    view_.load = load;
    Publish();
  }
  if (observer_ != nullptr && !masked_) observer_->OnLoad(number_, load);
}

void Holder::ForEachHeld(const std::function<void(SequenceHash, TierMask, SideClass)>& visit) {
  for (const Holding& holding : index_->HoldingsOf(number_)) visit(holding.block, holding.tiers, 0);
  for (const SideHolding& side : SideHoldings()) visit(side.name, side.tiers, side.side);
}

Digest Holder::CurrentDigest() { return DigestNow(); }

// ---- What others ask ----

std::shared_ptr<const PeerQuotas::Charge> Holder::charge() const {
  MutexLock lock(&view_mutex_);
  return view_.charge;
}

// The earlier charge is destroyed after the lock is given up: it takes the quotas' own.
void Holder::SetCharge(std::shared_ptr<const PeerQuotas::Charge> charge) {
  MutexLock lock(&view_mutex_);
  view_.charge.swap(charge);
}

std::shared_ptr<const HolderInfo> Holder::info() const {
  MutexLock lock(&view_mutex_);
  return view_.info;
}

// The lease binds from the moment it is over, not from the next tick.
bool Holder::Live(Time asked) const {
  return published_.live.load(std::memory_order_relaxed) &&
         asked - Time(published_.lease_began_ns.load(std::memory_order_relaxed)) < lease_ttl_;
}

// The writer of the protocol above `PublishedState`. `live`, `last_heard_ns` and `lease_began_ns`
// are not part of it: each has a meaning by itself and is stored alone.
void Holder::Publish() {
  const Load load = view_.load.value_or(Load{});
  const uint64_t words[kLoadWords] = {uint64_t{load.running_requests} << 32 | load.waiting_requests,
                                      load.used_blocks,
                                      load.free_blocks,
                                      load.waiting_prefill_blocks,
                                      std::bit_cast<uint64_t>(load.tokens_per_s),
                                      load.workers};
  // Partner: `Read`. Releases, so that the odd version is seen before what it stands for.
  const uint32_t version = published_.version.load(std::memory_order_relaxed);
  published_.version.store(version + 1, std::memory_order_relaxed);
  published_.trust.store(view_.trust, std::memory_order_release);
  published_.exact_since_ns.store(view_.exact_since.count(), std::memory_order_release);
  published_.info.store(view_.info.get(), std::memory_order_release);
  published_.has_load.store(view_.load.has_value(), std::memory_order_release);
  for (size_t i = 0; i < kLoadWords; ++i)
    published_.load[i].store(words[i], std::memory_order_release);
  published_.version.store(version + 2, std::memory_order_release);
}

bool Holder::Read(HolderOverlap* overlap, Time* exact_since) const {
  const uint32_t version = published_.version.load(std::memory_order_acquire);
  overlap->holder = published_.info.load(std::memory_order_acquire);
  overlap->trust = published_.trust.load(std::memory_order_acquire);
  *exact_since = Time(published_.exact_since_ns.load(std::memory_order_acquire));
  const bool has_load = published_.has_load.load(std::memory_order_acquire);
  const auto word = [&](size_t i) { return published_.load[i].load(std::memory_order_acquire); };
  if (has_load) {
    Load& load = overlap->load.emplace();
    const uint64_t requests = word(0);
    load.running_requests = static_cast<uint32_t>(requests >> 32);
    load.waiting_requests = static_cast<uint32_t>(requests);
    load.used_blocks = word(1);
    load.free_blocks = word(2);
    load.waiting_prefill_blocks = word(3);
    load.tokens_per_s = std::bit_cast<double>(word(4));
    load.workers = static_cast<uint32_t>(word(5));
  } else {
    overlap->load.reset();
  }
  return version % 2 == 0 && published_.version.load(std::memory_order_relaxed) == version;
}

bool Holder::Describe(Time asked, HolderOverlap* overlap) const {
  constexpr int kReadsMax = 16;  // then its writer sleeps
  if (!Live(asked)) return false;
  Time exact_since{0};
  int reads = 0;
  while (reads < kReadsMax && !Read(overlap, &exact_since)) ++reads;
  if (reads == kReadsMax) {
    MutexLock lock(&view_mutex_);
    overlap->holder = view_.info.get();
    overlap->trust = view_.trust;
    overlap->load = view_.load;
    exact_since = view_.exact_since;
  }
  // A repair may have finished between the index's answer and this look: what the index said was of
  // the time before, so it is not called exact.
  if (overlap->trust == Trust::kExact && exact_since > asked) overlap->trust = Trust::kDegraded;
  overlap->age = std::max(Duration::zero(),
                          asked - Time(published_.last_heard_ns.load(std::memory_order_relaxed)));
  return true;
}

HolderStats Holder::Stats(Time now) const {
  HolderStats stats;
  MutexLock lock(&mutex_);
  stats.epoch = receiver_.epoch();
  stats.applied = receiver_.applied();
  stats.age = now - Time(published_.last_heard_ns.load(std::memory_order_relaxed));
  const bool kept = transport_lost_since_.has_value();  // and in answers
  stats.masked = masked_ || (!local_ && !kept && receiver_.Expired(now));
  stats.connected = local_ ? !masked_ : session_ != 0;
  stats.blocks = blocks_.load(std::memory_order_relaxed);
  stats.side_blocks = side_blocks_.load(std::memory_order_relaxed);
  stats.layout = layout_;
  stats.receiver = receiver_.stats();
  stats.behind_batches = receiver_.behind();
  stats.snapshot_bytes = receiver_.snapshot_bytes();
  MutexLock view_lock(&view_mutex_);
  stats.trust = local_ ? view_.trust : receiver_.trust(now);
  stats.holder = view_.info;
  stats.load = view_.load;
  return stats;
}

ReceiverStats Holder::receiver_stats() const {
  MutexLock lock(&mutex_);
  return receiver_.stats();
}

absl::StatusOr<HolderDump> Holder::Dump(Time now) const {
  HolderDump dump;
  std::vector<Holding> holdings;
  std::vector<SideHolding> sides;
  {
    MutexLock lock(&mutex_);
    if (retired_) return absl::NotFoundError("holder " + ToString(id_) + " was forgotten");
    holdings = index_->HoldingsOf(number_);
    sides = SideHoldings();
    dump.layout = layout_;
    dump.applied = receiver_.applied();
    MutexLock view_lock(&view_mutex_);
    dump.trust = local_ ? view_.trust : receiver_.trust(now);
    dump.holder = view_.info;
  }
  dump.runs = AsRuns(&holdings);
  for (Stored& run : AsRuns(sides)) dump.runs.push_back(std::move(run));
  return dump;
}

std::vector<Stored> AsRuns(const std::vector<SideHolding>& sides) {
  std::vector<Stored> runs;
  std::map<std::pair<int, SideClass>, size_t> open;  // the run that has room, by tier and class
  for (const SideHolding& side : sides) {
    for (int tier = 0; tier < kTiers; ++tier) {
      if (!side.tiers.Has(static_cast<Tier>(tier))) continue;
      const auto [at, is_new] = open.try_emplace({tier, side.side}, runs.size());
      if (is_new || runs[at->second].blocks.size() == kBatchBlocksMax) {
        at->second = runs.size();
        runs.push_back({.tier = static_cast<Tier>(tier), .blocks = {}, .side = side.side});
      }
      runs[at->second].blocks.push_back(side.name);
    }
  }
  return runs;
}

// By position, so that a parent comes before its children. `run_by_tail` maps the last block of
// each run to the run: a block whose parent is such a tail goes on with that run if it has room,
// and is its tail from then on. Only the first child goes on; its siblings begin runs.
std::vector<Stored> AsRuns(std::vector<Holding>* holdings) {
  std::sort(holdings->begin(), holdings->end(),
            [](const Holding& a, const Holding& b) { return a.position < b.position; });
  std::vector<Stored> runs;
  for (int tier = 0; tier < kTiers; ++tier) {
    absl::flat_hash_map<SequenceHash, size_t> run_by_tail;
    for (const Holding& holding : *holdings) {
      if (!holding.tiers.Has(static_cast<Tier>(tier))) continue;
      const auto tail = run_by_tail.find(holding.parent);
      const bool follows =
          tail != run_by_tail.end() && holding.parent != kNoParent &&
          runs[tail->second].blocks.size() < kBatchBlocksMax &&
          runs[tail->second].position + runs[tail->second].blocks.size() == holding.position;
      if (!follows) {
        run_by_tail[holding.block] = runs.size();
        runs.push_back({.tier = static_cast<Tier>(tier),
                        .position = holding.position,
                        .parent = holding.parent,
                        .blocks = {holding.block}});
        continue;
      }
      const size_t run = tail->second;
      run_by_tail.erase(tail);
      run_by_tail[holding.block] = run;
      runs[run].blocks.push_back(holding.block);
    }
  }
  return runs;
}

double QueuedPrefillBlocksPerWorker(const std::optional<Load>& load) {
  if (!load.has_value()) return 0;
  const double sum = static_cast<double>(load->waiting_prefill_blocks) + load->running_requests +
                     load->waiting_requests;
  return sum / std::max<uint32_t>(load->workers, 1);
}

}  // namespace kvatlas
