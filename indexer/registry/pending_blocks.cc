// Tellings lie in `slots_` and are reached four ways: by (frontend, decision) for `End` and
// `Confirm`, by some of their blocks for `Find`, by holder for events, by frontend and age for the
// bounds. `Tell` enters all four and `Erase` leaves all four; nothing else adds or removes one.
// `number` is never 0 in use and never used twice, so a slot number kept elsewhere can be checked.

#include "indexer/registry/pending_blocks.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"

namespace kvatlas {
namespace {

// Room for this many tellings is kept when nothing is pending (`Tick`).
constexpr size_t kSlotsKept = 1024;

// Leading blocks that two pieces of sequences, which begin at one position, have in common. Equal
// hashes mean equal prefixes, so the place where they part is found by halving.
size_t CommonBlocks(std::span<const SequenceHash> a, std::span<const SequenceHash> b) {
  size_t low = 0, high = std::min(a.size(), b.size());
  if (high == 0 || a[high - 1] == b[high - 1]) return high;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    a[middle] == b[middle] ? low = middle + 1 : high = middle;
  }
  return low;
}

}  // namespace

void PendingCounts::Add(const PendingCounts& other) {
  told += other.told;
  confirmed += other.confirmed;
  failed += other.failed;
  contradicted += other.contradicted;
  timed_out += other.timed_out;
  dropped += other.dropped;
}

// An estimate from the telling alone, so that `Erase` subtracts what `Tell` added.
uint64_t PendingBlocks::BytesOf(const Telling& telling) const {
  constexpr uint64_t kEntry = 48;  // of `by_block_`, at half its load
  return 256 + telling.blocks.size() * sizeof(SequenceHash) +
         (telling.blocks.size() / options_.stride + 2) * kEntry;
}

// The blocks under which a telling is found: the first, the last, and those at strides between
// them, each once. A question probes at the same strides (`Find`), so it meets a telling that
// shares at least a stride with it.
std::vector<SequenceHash> PendingBlocks::IndexedBlocks(const Telling& telling) const {
  std::vector<SequenceHash> indexed;
  if (telling.blocks.empty()) return indexed;
  const Position last = telling.end() - 1;
  indexed.reserve(telling.blocks.size() / options_.stride + 2);
  indexed.push_back(telling.blocks.front());
  for (Position beyond = LastStrideBefore(telling.first + 1) + options_.stride; beyond <= last;
       beyond += options_.stride)
    indexed.push_back(telling.blocks[beyond - 1 - telling.first]);
  if (last != telling.first) indexed.push_back(telling.blocks.back());
  return indexed;
}

// Adds a telling to the sums of its holder, or takes it out (`sign` -1). Callers take it out before
// they change `shown`, and add it again afterwards.
void PendingBlocks::Count(const Telling& telling, int sign) {
  OfHolder& of = holders_[Raw(telling.holder)];
  auto own = std::find_if(of.by_frontend.begin(), of.by_frontend.end(),
                          [&](const auto& sum) { return sum.first == telling.frontend; });
  if (own == of.by_frontend.end())
    own = of.by_frontend.insert(of.by_frontend.end(), {telling.frontend, Sum()});
  for (Sum* sum : {&of.sum, &own->second}) {
    sum->blocks += sign > 0 ? telling.missing() : -telling.missing();
    sum->requests += telling.counts() ? static_cast<uint32_t>(sign) : 0;
  }
  if (own->second.blocks == 0 && own->second.requests == 0) of.by_frontend.erase(own);
}

// 1. A decision that is known is ignored: the telling was repeated.
// 2. The session is remembered even where the telling itself finds no room.
// 3. Room is made by dropping the oldest tellings (`MakeRoom`).
// 4. A slot is taken and entered in all four maps. `any_` tells readers that the lock is worth
//    taking.
// A telling without blocks counts as a request for a short time (`kOnlyRequest`).
void PendingBlocks::Tell(HolderIndex holder, uint64_t frontend, const Routed& routed, Time now) {
  if (options_.bytes_max == 0) return;
  MutexLock lock(&mutex_);
  if (by_key_.contains({frontend, routed.decision})) return;
  if (routed.session != 0) Remember(holder, routed, now);
  ++holders_[Raw(holder)].counts.told;
  Telling telling{.frontend = frontend,
                  .decision = routed.decision,
                  .holder = holder,
                  .first = routed.first,
                  .blocks = {routed.blocks.begin(), routed.blocks.end()},
                  .until = now + std::clamp(routed.ttl, Duration(0), kRoutedTtlMax),
                  .number = ++next_number_};
  if (telling.blocks.empty()) telling.until = std::min(telling.until, now + kOnlyRequest);
  const uint64_t bytes = BytesOf(telling);
  if (bytes > options_.bytes_max || bytes > options_.frontend_bytes_max) {
    ++holders_[Raw(holder)].counts.dropped;
    return;
  }
  MakeRoom(frontend, bytes);
  Slot slot = static_cast<Slot>(slots_.size());
  if (free_.empty()) {
    slots_.emplace_back();
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  bytes_ += bytes;
  OfFrontend& of_frontend = frontends_[frontend];
  of_frontend.bytes += bytes;
  ++of_frontend.tellings;
  of_frontend.by_age.emplace_back(slot, telling.number);
  by_key_[{frontend, routed.decision}] = slot;
  for (SequenceHash block : IndexedBlocks(telling)) by_block_[block].push_back(slot);
  holders_[Raw(holder)].tellings.push_back(slot);
  Count(telling, 1);
  slots_[slot] = std::move(telling);
  any_.store(true, std::memory_order_relaxed);
  // Before the caller looks for the block. Partner: the fence of `OnChanged`.
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

// Drops the frontend's own oldest tellings until it is within its bound, then the oldest of the
// frontend that has most: one that floods displaces itself. REQUIRES: `bytes` is within both
// bounds, so both loops end.
void PendingBlocks::MakeRoom(uint64_t frontend, uint64_t bytes) {
  for (auto of = frontends_.find(frontend);
       of != frontends_.end() && of->second.bytes + bytes > options_.frontend_bytes_max;
       of = frontends_.find(frontend))
    Erase(OldestOf(of->second), &PendingCounts::dropped);
  while (bytes_ + bytes > options_.bytes_max) {
    const auto most = std::max_element(
        frontends_.begin(), frontends_.end(),
        [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; });
    Erase(OldestOf(most->second), &PendingCounts::dropped);
  }
}

// Counts how it ended (`as`). The slot is emptied first: its number 0 makes entries in `by_age`
// stale, which are dropped lazily.
void PendingBlocks::Erase(Slot slot, uint64_t PendingCounts::* as) {
  Telling telling = std::move(slots_[slot]);
  slots_[slot] = {};
  free_.push_back(slot);
  Count(telling, -1);
  OfHolder& of_holder = holders_.at(Raw(telling.holder));
  ++(of_holder.counts.*as);
  std::erase(of_holder.tellings, slot);
  for (SequenceHash block : IndexedBlocks(telling)) {
    const auto at = by_block_.find(block);
    auto& slots = at->second;
    slots.erase(std::find(slots.begin(), slots.end(), slot));
    if (slots.empty()) by_block_.erase(at);
  }
  by_key_.erase({telling.frontend, telling.decision});
  const uint64_t bytes = BytesOf(telling);
  bytes_ -= bytes;
  const auto of_frontend = frontends_.find(telling.frontend);
  of_frontend->second.bytes -= bytes;
  if (--of_frontend->second.tellings == 0) {
    frontends_.erase(of_frontend);
  } else {
    // Stale entries go from the old end as they are met; where old tellings outlive many younger
    // ones, all stale ones are dropped at twice the number in use.
    std::deque<std::pair<Slot, uint64_t>>& by_age = of_frontend->second.by_age;
    const auto is_over = [&](const std::pair<Slot, uint64_t>& told) ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                             mutex_) { return slots_[told.first].number != told.second; };
    while (is_over(by_age.front())) by_age.pop_front();
    if (by_age.size() > 2 * of_frontend->second.tellings + 64) std::erase_if(by_age, is_over);
  }
  if (by_key_.empty()) any_.store(false, std::memory_order_relaxed);
}

// Notes where the session's latest prompt went and keeps at most `kSessionSamples` of its blocks,
// by which the holders of its prompts are found later. If two requests are told in another order
// than they were sent, the one that is told last counts.
void PendingBlocks::Remember(HolderIndex holder, const Routed& routed, Time now) {
  SessionSeen& seen = sessions_[routed.session];
  seen.session = routed.session;
  seen.holder = holder;
  seen.at = now;
  ++seen.prompts;
  seen.first = routed.first;
  seen.blocks = routed.first + static_cast<Position>(routed.blocks.size());
  // Samples before the told blocks belong to an earlier prompt that this one probably continues.
  // Deeper ones are of a prompt that differs. Where there are too many, every second of the kept
  // ones goes.
  seen.samples.erase(
      std::remove_if(seen.samples.begin(), seen.samples.end(),
                     [&](const auto& sample) { return sample.first > routed.first; }),
      seen.samples.end());
  const size_t kept = seen.samples.size();
  const size_t added = std::min(routed.blocks.size(), kSessionSamples / 2);
  for (size_t i = 1; i <= added; ++i) {
    const size_t end = routed.blocks.size() * i / added;
    seen.samples.emplace_back(routed.first + static_cast<Position>(end), routed.blocks[end - 1]);
  }
  for (size_t i = 0; seen.samples.size() > kSessionSamples && i < kept && i < seen.samples.size();
       ++i)
    seen.samples.erase(seen.samples.begin() + static_cast<ptrdiff_t>(i));
  sessions_by_age_.emplace_back(now, routed.session);
  any_sessions_.store(true, std::memory_order_relaxed);
  ForgetSessions(now);
}

// By age: an entry is stale if the session was seen again since. Stale entries go from the old end,
// and all of them at twice the number of sessions.
void PendingBlocks::ForgetSessions(Time now) {
  const auto is_old = [&](const std::pair<Time, uint64_t>& known)
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
                            const auto found = sessions_.find(known.second);
                            return found == sessions_.end() || found->second.at != known.first;
                          };
  while (!sessions_by_age_.empty() &&
         (sessions_.size() > options_.sessions_max || is_old(sessions_by_age_.front()) ||
          sessions_by_age_.front().first + options_.session_ttl <= now)) {
    if (!is_old(sessions_by_age_.front())) sessions_.erase(sessions_by_age_.front().second);
    sessions_by_age_.pop_front();
  }
  if (sessions_by_age_.size() > 2 * sessions_.size() + 64) std::erase_if(sessions_by_age_, is_old);
  any_sessions_.store(!sessions_.empty(), std::memory_order_relaxed);
}

// A request that is over was computed: its blocks must be announced within `kAnnouncedWithin`, else
// the worker contradicts the telling (`Tick`).
void PendingBlocks::End(uint64_t frontend, const RouteOver& over, Time now) {
  if (!any()) return;
  MutexLock lock(&mutex_);
  const auto found = by_key_.find({frontend, over.decision});
  if (found == by_key_.end()) return;
  Telling& telling = slots_[found->second];
  if (over.failed) return Erase(found->second, &PendingCounts::failed);
  if (telling.blocks.empty()) return Erase(found->second, &PendingCounts::confirmed);
  telling.finished = true;
  telling.until = std::min(telling.until, now + kAnnouncedWithin);
}

void PendingBlocks::Leave(uint64_t frontend) {
  if (!any()) return;
  MutexLock lock(&mutex_);
  for (auto of = frontends_.find(frontend); of != frontends_.end(); of = frontends_.find(frontend))
    Erase(OldestOf(of->second), &PendingCounts::failed);
}

PendingBlocks::Slot PendingBlocks::OldestOf(OfFrontend& of) {
  while (slots_[of.by_age.front().first].number != of.by_age.front().second) of.by_age.pop_front();
  return of.by_age.front().first;
}

void PendingBlocks::Confirm(uint64_t frontend, uint64_t decision) {
  MutexLock lock(&mutex_);
  const auto found = by_key_.find({frontend, decision});
  if (found != by_key_.end()) Erase(found->second, &PendingCounts::confirmed);
}

// `shown` only grows. The sums are corrected for it.
void PendingBlocks::Show(Slot slot, Position shown) {
  Telling& telling = slots_[slot];
  if (shown <= std::max(telling.shown, telling.first)) return;
  Count(telling, -1);
  telling.shown = shown;
  Count(telling, 1);
}

// Called with the holder's mutex held, after each event that stored something. Only blocks that
// became held in a first tier matter. A run shows as much of a telling as the two have in common
// from where both begin; a telling that is shown to its end is confirmed. A telling may be noted
// twice: erased, it has no blocks any more.
// Teller and holder each change something and then look for the other's change (`any_`, the index):
// with a fence between the two on both sides at least one of them sees it.
void PendingBlocks::OnChanged(HolderIndex holder, const ChangeLog& changes) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!any()) return;
  MutexLock lock(&mutex_);
  const auto of = holders_.find(Raw(holder));
  if (of == holders_.end() || of->second.tellings.empty()) return;
  std::vector<Slot> confirmed;
  for (size_t i = 0; i < changes.size(); ++i) {
    const ChangeLog::Run run = changes[i];
    if (!run.before.empty() || run.after.empty()) continue;
    const Position end = run.position + static_cast<Position>(run.blocks.size());
    for (Slot slot : of->second.tellings) {
      const Telling& telling = slots_[slot];
      const Position from = std::max(run.position, telling.first);
      const Position to = std::min(end, telling.end());
      if (from >= to) continue;
      const size_t common =
          CommonBlocks(run.blocks.subspan(from - run.position, to - from),
                       std::span(telling.blocks).subspan(from - telling.first, to - from));
      if (common > 0) Show(slot, from + static_cast<Position>(common));
      if (telling.shown == telling.end()) confirmed.push_back(slot);
    }
  }
  for (Slot slot : confirmed)
    if (!slots_[slot].blocks.empty()) Erase(slot, &PendingCounts::confirmed);
}

void PendingBlocks::Forget(HolderIndex holder) {
  MutexLock lock(&mutex_);
  const auto of = holders_.find(Raw(holder));
  if (of == holders_.end()) return;
  while (!of->second.tellings.empty()) Erase(of->second.tellings.back(), &PendingCounts::failed);
  gone_.Add(of->second.counts);
  holders_.erase(of);
  absl::erase_if(sessions_, [&](const auto& known) { return known.second.holder == holder; });
}

// *Cost*: a look at every slot, a few times a second.
void PendingBlocks::Tick(Time now) {
  MutexLock lock(&mutex_);
  for (Slot slot = 0; slot < slots_.size(); ++slot) {
    const Telling& telling = slots_[slot];
    if (telling.number == 0 || telling.until > now) continue;
    // Without blocks there was nothing to announce.
    Erase(slot, telling.blocks.empty() ? &PendingCounts::confirmed
                : telling.finished     ? &PendingCounts::contradicted
                                       : &PendingCounts::timed_out);
  }
  ForgetSessions(now);
  // A burst's room is given back.
  if (by_key_.empty() && slots_.size() > kSlotsKept) {
    slots_ = {};
    free_ = {};
    by_key_ = {};
    by_block_ = {};
  }
}

// Raises the depth of each holder of whose telling `sequence[at]` is an indexed block, by the
// blocks in common from there on. A comparison is limited to a stride, since a longer match is met
// at the next stride as well. With stride 1 positions are ordinals of possibly different schedules:
// the hash alone counts.
void PendingBlocks::Reach(std::span<const SequenceHash> sequence, Position at,
                          absl::flat_hash_map<uint32_t, uint32_t>* depth) const {
  const auto found = by_block_.find(sequence[at]);
  if (found == by_block_.end()) return;
  for (Slot slot : found->second) {
    const Telling& telling = slots_[slot];
    if (options_.stride == 1) {
      uint32_t& reached = (*depth)[Raw(telling.holder)];
      reached = std::max(reached, at + 1);
      continue;
    }
    if (at < telling.first || at >= telling.end()) continue;  // of a frontend that tells nonsense
    // Where more than a stride were equal, the next stride was met before.
    const uint32_t most =
        IsStride(at) ? std::min(telling.end(), at + options_.stride) : telling.end();
    uint32_t& reached = (*depth)[Raw(telling.holder)];
    if (reached >= most) continue;
    const auto common = static_cast<uint32_t>(CommonBlocks(
        sequence.subspan(at), std::span(telling.blocks).subspan(at - telling.first, most - at)));
    reached = std::max(reached, at + common);
  }
}

// 1. Strides are probed from the deepest to the first, then the last block of the question.
// 2. For each holder with tellings the block behind what it has is probed, too: there a telling
//    begins that continues it exactly.
// 3. Sums of the asking frontend are subtracted: it knows its own requests.
// 4. The depth is shown only where it goes beyond what the holder has.
void PendingBlocks::Find(
    std::span<const SequenceHash> sequence,
    std::span<const std::pair<HolderIndex, uint32_t>> holders, uint64_t frontend, uint64_t session,
    const std::function<void(size_t place, const Pending& pending)>& visit) const {
  if (!MayFind(session)) return;
  MutexLock lock(&mutex_);
  absl::flat_hash_map<uint32_t, uint32_t> depth;
  const auto known = sessions_.find(session);
  const auto blocks = static_cast<Position>(sequence.size());
  for (Position beyond = by_block_.empty() ? 0 : LastStrideBefore(blocks); beyond > 0;
       beyond -= options_.stride)
    Reach(sequence, beyond - 1, &depth);
  if (blocks > 0) Reach(sequence, blocks - 1, &depth);
  for (size_t place = 0; place < holders.size(); ++place) {
    const auto& [number, has] = holders[place];
    Pending pending{.session = known != sessions_.end() && known->second.holder == number};
    const auto of = holders_.find(Raw(number));
    if (of == holders_.end() || of->second.tellings.empty()) {
      if (pending.session) visit(place, pending);
      continue;
    }
    if (has < blocks) Reach(sequence, has, &depth);
    pending.blocks = of->second.sum.blocks;
    pending.requests = of->second.sum.requests;
    for (const auto& [whose, sum] : of->second.by_frontend) {
      if (whose != frontend) continue;
      pending.blocks -= sum.blocks;
      pending.requests -= sum.requests;
    }
    if (const auto reached = depth.find(Raw(number)); reached != depth.end())
      pending.depth = reached->second > has ? reached->second : 0;
    if (pending != Pending()) visit(place, pending);
  }
}

std::vector<SessionSeen> PendingBlocks::Sessions(uint64_t session, size_t max) const {
  std::vector<SessionSeen> found;
  MutexLock lock(&mutex_);
  if (session != 0) {
    if (const auto seen = sessions_.find(session); seen != sessions_.end() && max > 0)
      found.push_back(seen->second);
    return found;
  }
  absl::flat_hash_set<uint64_t> met;  // of one moment a session may be there more than once
  for (auto known = sessions_by_age_.rbegin();
       known != sessions_by_age_.rend() && found.size() < max; ++known) {
    const auto seen = sessions_.find(known->second);
    if (seen != sessions_.end() && seen->second.at == known->first &&
        met.insert(known->second).second)
      found.push_back(seen->second);
  }
  return found;
}

uint64_t PendingBlocks::bytes() const {
  MutexLock lock(&mutex_);
  return bytes_;
}

PendingStats PendingBlocks::Stats() const {
  MutexLock lock(&mutex_);
  PendingStats stats{.counts = gone_, .bytes = bytes_};
  for (const auto& [number, of] : holders_) {
    stats.counts.Add(of.counts);
    stats.blocks += of.sum.blocks;
    stats.requests += of.sum.requests;
  }
  return stats;
}

PendingStats PendingBlocks::StatsOf(HolderIndex holder) const {
  MutexLock lock(&mutex_);
  const auto of = holders_.find(Raw(holder));
  if (of == holders_.end()) return {};
  return {.counts = of->second.counts,
          .blocks = of->second.sum.blocks,
          .requests = of->second.sum.requests};
}

}  // namespace kvatlas
