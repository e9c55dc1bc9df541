// Holders, the steps of an event (`ApplyOne`), places and accounts. The protocol is in the header;
// storing, removing and reshaping have files of their own.
//
// Lock order: a holder's mutex, then `writer_`. Between two steps of a long event `writer_` is
// given away (`MakeRoom`), the holder's mutex is not.

#include "indexer/index/atlas/atlas_index.h"

#include <algorithm>
#include <string>
#include <utility>

#include "indexer/base/assert.h"
#include "indexer/index/atlas/atlas.h"
#include "indexer/index/atlas/digest_term.h"
#include "indexer/index/atlas/pause.h"

namespace kvatlas {

std::unique_ptr<Index> MakeAtlasIndex(const IndexOptions& options) {
  return atlas::AtlasIndex::Create(options);
}

namespace atlas {

// Null if memory or address space is missing, or if `holders_max` is more than `InlineHolder` can
// name; the caller refuses the domain.
std::unique_ptr<AtlasIndex> AtlasIndex::Create(const IndexOptions& options) {
  std::unique_ptr<Heap> heap = Heap::Create(options.retained_bytes, options.address_bytes_max);
  if (heap == nullptr || options.holders_max > uint32_t{1} << kHolderBits) return nullptr;
  // Where the heap lies is as good a secret as any: no sender can choose names that collide.
  const uint64_t seed = reinterpret_cast<uintptr_t>(heap.get()) * 0xBF58476D1CE4E5B9u;
  std::unique_ptr<BlockTable> table = BlockTable::Create(heap.get(), seed);
  if (table == nullptr) return nullptr;
  std::unique_ptr<AtlasIndex> index(new AtlasIndex(options, std::move(heap), std::move(table)));
  if (index->alive_ == nullptr || index->removals_ == nullptr || index->holders_ == nullptr)
    return nullptr;
  return index;
}

AtlasIndex::AtlasIndex(const IndexOptions& options, std::unique_ptr<Heap> heap,
                       std::unique_ptr<BlockTable> table)
    : options_(options),
      heap_(std::move(heap)),
      table_(std::move(table)),
      alive_(MakeZeroed<std::atomic<uint64_t>>((options.holders_max + 63) / 64)),
      removals_(MakeZeroed<std::atomic<uint32_t>>(options.holders_max)),
      holders_(MakeZeroed<std::atomic<HolderState*>>(options.holders_max)) {}

AtlasIndex::~AtlasIndex() {
  for (uint32_t holder = 0; holder < holders_end(); ++holder)
    delete holders_[holder].load(std::memory_order_relaxed);
}

// ---- Holders ----

// Null: no such holder. A state stays allocated when its holder goes, so a pointer that was found
// is valid for ever.
HolderState* AtlasIndex::StateOf(HolderIndex holder) const {
  if (Raw(holder) >= options_.holders_max) return nullptr;
  HolderState* const state = holders_[Raw(holder)].load(std::memory_order_acquire);
  return state != nullptr && state->in_use.load(std::memory_order_acquire) ? state : nullptr;
}

// The smallest free number, so that bit sets stay short. It is in answers from its bit in `alive_`
// on, which is set last.
absl::StatusOr<HolderIndex> AtlasIndex::AddHolder() {
  WriterLock lock(&writer_);
  if (holder_count_.load(std::memory_order_relaxed) >= options_.holders_max)
    return absl::ResourceExhaustedError("holders_max reached");
  uint32_t number = holders_end();
  if (!free_numbers_.empty()) {
    number = *free_numbers_.begin();
    free_numbers_.erase(free_numbers_.begin());
  }
  Count(&holder_count_, 1);
  if (HolderState* const old = holders_[number].load(std::memory_order_relaxed); old != nullptr) {
    old->in_use.store(true, std::memory_order_release);
  } else {
    holders_[number].store(new HolderState(heap_.get(), number), std::memory_order_release);
  }
  if (number >= holders_end()) holders_end_.store(number + 1, std::memory_order_release);
  alive_[number / 64].fetch_or(uint64_t{1} << (number % 64), std::memory_order_release);
  return HolderIndex{number};
}

// 1. Masked: in no answer.
// 2. Cleared in steps, with its mutex held: a thread that found the state before sees an empty
//    holder afterwards.
// 3. Reset and given back. `Reclaim` runs before the number is free for another holder.
void AtlasIndex::RemoveHolder(HolderIndex holder) {
  HolderState* const state = StateOf(holder);
  if (state == nullptr) return;
  SetMasked(holder, true);
  MutexLock order(&state->mutex);
  Clear(state, TierMask::All(), nullptr);
  WriterLock lock(&writer_);
  state->Reset();
  state->in_use.store(false, std::memory_order_release);
  heap_->Reclaim();
  free_numbers_.insert(Raw(holder));
  Count(&holder_count_, -uint64_t{1});
}

// Read-modify-write: other holders of the word may be masked at the same time, by threads that hold
// no lock of the index.
void AtlasIndex::SetMasked(HolderIndex holder, bool masked) {
  if (StateOf(holder) == nullptr) return;
  std::atomic<uint64_t>& word = alive_[Raw(holder) / 64];
  const uint64_t bit = uint64_t{1} << (Raw(holder) % 64);
  if (masked) {
    word.fetch_and(~bit, std::memory_order_acq_rel);
  } else {
    word.fetch_or(bit, std::memory_order_acq_rel);
  }
}

absl::Status AtlasIndex::Apply(HolderIndex holder, const Event& event, ChangeLog* changes) {
  HolderState* const state = StateOf(holder);
  if (state == nullptr) return absl::NotFoundError("no such holder");
  MutexLock order(&state->mutex);
  WriterLock lock(&writer_);
  size_t room = kStepBlocks;
  return ApplyOne(state, event, changes, &room);
}

// One lock for all events. `room` is what is left of the present step, over several events: many
// small ones together give the writer away as often as one large one.
Applied AtlasIndex::ApplyAll(HolderIndex holder, std::span<const Event> events,
                             ChangeLog* changes) {
  HolderState* const state = StateOf(holder);
  if (state == nullptr)
    return {.events = 1, .changed = 0, .status = absl::NotFoundError("no such holder")};
  MutexLock order(&state->mutex);
  WriterLock lock(&writer_);
  size_t room = kStepBlocks;
  Applied applied;
  for (const Event& event : events) {
    const size_t before = changes->blocks();
    applied.status = ApplyOne(state, event, changes, &room);
    applied.changed = changes->blocks() - before;
    changes->EndEvent();
    ++applied.events;
    if (!GoesOn(event, applied)) break;
  }
  return applied;
}

// Cuts the event into steps of at most `kStepBlocks`. The second step of a stored event goes on
// behind the last block of the first, as if it were another event. A refused step ends the event,
// and the rest counts as refused.
absl::Status AtlasIndex::ApplyOne(HolderState* holder, const Event& event, ChangeLog* changes,
                                  size_t* room) {
  if (const Stored* const stored = std::get_if<Stored>(&event)) {
    Incoming next{.position = stored->position,
                  .parent = stored->parent,
                  .blocks = stored->blocks,
                  .local_hashes = stored->local_hashes};
    if (next.local_hashes.size() != next.blocks.size()) next.local_hashes = {};
    while (!next.blocks.empty()) {
      Incoming step = next;
      step.blocks = next.blocks.first(std::min(next.blocks.size(), kStepBlocks));
      if (!step.local_hashes.empty())
        step.local_hashes = step.local_hashes.first(step.blocks.size());
      MakeRoom(step.blocks.size(), room);
      absl::Status status = Store(holder, {.tier = stored->tier, .changes = changes}, step);
      heap_->MaybeReclaim();
      if (!status.ok()) {
        Count(&refused_, next.blocks.size() - step.blocks.size());
        return status;
      }
      next.position += static_cast<Position>(step.blocks.size());
      next.parent = step.blocks.back();
      next.blocks = next.blocks.subspan(step.blocks.size());
      if (!next.local_hashes.empty())
        next.local_hashes = next.local_hashes.subspan(step.blocks.size());
    }
  } else if (const Removed* const removed = std::get_if<Removed>(&event)) {
    for (std::span<const SequenceHash> next = removed->blocks; !next.empty();) {
      const size_t count = std::min(next.size(), kStepBlocks);
      MakeRoom(count, room);
      Remove(holder, {.tier = removed->tier, .changes = changes}, next.first(count));
      heap_->MaybeReclaim();
      next = next.subspan(count);
    }
  } else {
    // In steps of its own.
    writer_.Unlock();
    Clear(holder, std::get<Cleared>(event).tiers, changes);
    writer_.Lock();
    heap_->Reclaim();
    *room = kStepBlocks;
  }
  return absl::OkStatus();
}

// `writer_` is held again on return; places found before are void.
void AtlasIndex::MakeRoom(size_t blocks, size_t* room) {
  if (blocks > *room) {
    writer_.Unlock();
    writer_.Yield();
    writer_.Lock();
    *room = kStepBlocks;
  }
  *room -= blocks;
}

// ---- Places ----

// The place of a word that the table knows: by W2 it is a live block's, in a run that is alive.
AtlasIndex::Place AtlasIndex::PlaceOf(Ref word) const {
  const Ref ref = heap_->RunOf(word);
  const Place place{.ref = ref, .run = RunAt(ref), .offset = OffsetOf(ref, word)};
  KVATLAS_ASSERT(place.run->alive && place.offset < place.run->len.load(std::memory_order_relaxed));
  return place;
}

bool AtlasIndex::Locate(SequenceHash block, Place* place) const {
  BlockTable::Lookup lookup;
  table_->StartLookup(block, &lookup);
  const Ref word = table_->FindEntry(block, lookup).word;
  if (word != 0) *place = PlaceOf(word);
  return word != 0;
}

// The run that a holder's list names, at offset 0. The entry may be old: then there is no run, or
// another one in the same place, so the caller looks whether the holder is in it.
bool AtlasIndex::LocateListed(Ref ref, Place* place) const {
  if (!heap_->IsRun(ref) || !RunAt(ref)->alive) return false;
  *place = {.ref = ref, .run = RunAt(ref), .offset = 0};
  return true;
}

bool AtlasIndex::HasAnything(Run* run, uint32_t holder) const {
  const TierMask tiers = Members::TiersOf(heap_.get(), *run);
  for (int i = 0; i < kTiers; ++i) {
    const Tier tier = static_cast<Tier>(i);
    if (tiers.Has(tier) && MembersOf(run, tier).Has(holder)) return true;
  }
  return false;
}

// Counts a holder once a tier; up to about `at_most`.
uint32_t AtlasIndex::HoldersIn(Run* run, uint32_t at_most) const {
  uint32_t count = 0;
  const TierMask tiers = Members::TiersOf(heap_.get(), *run);
  for (int tier = 0; tier < kTiers && count < at_most; ++tier) {
    if (!tiers.Has(static_cast<Tier>(tier))) continue;
    const Members members = MembersOf(run, static_cast<Tier>(tier));
    count += members.CountAll(at_most) + members.CountPartials();
  }
  return count;
}

// ---- Accounts ----

// The holder got `changed` of the run in one tier, or lost it: updates digest and counts, and logs
// the changes. Called after the blocks were added and before they are taken, while their hashes are
// in the run. Blocks that the holder has in another tier as well are no new holdings; they are
// logged one by one with both masks, the others in runs (`Log`).
void AtlasIndex::Account(HolderState* holder, const Write& write, Run* run, const Offsets& changed,
                         bool added) {
  Offsets left = changed;
  uint64_t sum = 0;
  changed.ForEach([&](uint32_t offset) { sum += DigestTermOf(HashAt(*run, offset)); });
  uint64_t gone = changed.Count();  // holdings that began or ended
  const uint64_t count = gone;
  // Blocks that it has in other tiers as well: seldom any.
  const TierMask others = Members::TiersOf(heap_.get(), *run) & ~TierMask(write.tier);
  if (!others.empty()) {
    Offsets elsewhere[kTiers];
    Offsets any;
    for (int i = 0; i < kTiers; ++i) {
      if (!others.Has(static_cast<Tier>(i))) continue;
      elsewhere[i] = MembersOf(run, static_cast<Tier>(i)).Of(holder->number, run->Live()) & changed;
      any = any | elsewhere[i];
    }
    gone -= any.Count();
    left = changed - any;
    any.ForEach([&](uint32_t offset) {
      TierMask kept;
      for (int i = 0; i < kTiers; ++i) {
        if (elsewhere[i].Has(offset)) kept = kept | static_cast<Tier>(i);
      }
      const TierMask both = kept | write.tier;
      if (write.changes != nullptr)
        write.changes->Add(SequenceHash{HashAt(*run, offset)}, run->start + offset,
                           added ? kept : both, added ? both : kept);
    });
  }
  if (write.changes != nullptr) Log(*run, left, write.tier, added, write.changes);
  Digest::OfTier& digest = holder->digest.tiers[static_cast<int>(write.tier)];
  digest.blocks += added ? count : -count;
  digest.sum += added ? sum : -sum;
  holder->holdings += added ? gone : -gone;
  Count(&holdings_, added ? gone : -gone);
}

// Logs neighbouring blocks as runs: one entry of the log and a copy of hashes for each.
void AtlasIndex::Log(const Run& run, const Offsets& changed, Tier tier, bool added,
                     ChangeLog* changes) {
  const TierMask has(tier);
  for (uint32_t from = changed.First(); from < kRunBlocksMax;) {
    const uint32_t to = changed.FirstMissing(from);
    SequenceHash* const blocks = changes->AddRun(
        to - from, run.start + from, added ? TierMask() : has, added ? has : TierMask());
    for (uint32_t offset = from; offset < to; ++offset)
      blocks[offset - from] = SequenceHash{HashAt(run, offset)};
    from = to < kRunBlocksMax ? changed.Next(to) : to;
  }
}

// W4; a run that is never ended is dead (W5).
void AtlasIndex::BeginShrink(Run* run) {
  Pause();
  const uint32_t version = run->version.load(std::memory_order_relaxed);
  KVATLAS_ASSERT(version % 2 == 0);
  run->version.store(version + 1, std::memory_order_relaxed);
  // Partner: the acquire fence of R3.
  std::atomic_thread_fence(std::memory_order_release);
  Pause();
}

void AtlasIndex::EndShrink(Run* run) {
  Pause();
  run->version.store(run->version.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  Pause();
}

void AtlasIndex::BeginRemovals(uint32_t holder) {
  std::atomic<uint32_t>& number = removals_[holder];
  number.store(number.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  // Partner: the acquire fence of R5. A reader that sees what is taken sees the odd number.
  std::atomic_thread_fence(std::memory_order_release);
}

void AtlasIndex::EndRemovals(uint32_t holder) {
  std::atomic<uint32_t>& number = removals_[holder];
  number.store(number.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

}  // namespace atlas
}  // namespace kvatlas
