#include "indexer/index/atlas/atlas_index.h"

#include <algorithm>
#include <string>
#include <utility>

#include "indexer/index/atlas/atlas.h"
#include "indexer/index/atlas/digest_term.h"
#include "indexer/index/atlas/epoch.h"
#include "indexer/index/atlas/pause.h"

namespace kvatlas {

std::unique_ptr<Index> MakeAtlasIndex(const IndexOptions& options) {
  return atlas::AtlasIndex::Create(options);
}

namespace atlas {

std::unique_ptr<AtlasIndex> AtlasIndex::Create(const IndexOptions& options) {
  std::unique_ptr<Heap> heap = Heap::Create(options.retained_bytes, options.address_bytes_max);
  if (heap == nullptr || options.holders_max > uint32_t{1} << kHolderBits) return nullptr;
  // Where the heap lies is as good a secret as any: nobody outside can choose names that collide.
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

HolderState* AtlasIndex::StateOf(HolderIndex holder) const {
  if (Raw(holder) >= options_.holders_max) return nullptr;
  HolderState* const state = holders_[Raw(holder)].load(std::memory_order_acquire);
  return state != nullptr && state->in_use.load(std::memory_order_acquire) ? state : nullptr;
}

absl::StatusOr<HolderIndex> AtlasIndex::AddHolder() {
  MutexLock lock(&admin_mutex_);
  if (holder_count_ >= options_.holders_max)
    return absl::ResourceExhaustedError("holders_max reached");
  uint32_t number = holders_end();
  if (!free_numbers_.empty()) {
    number = *free_numbers_.begin();
    free_numbers_.erase(free_numbers_.begin());
  }
  ++holder_count_;
  if (HolderState* const old = holders_[number].load(std::memory_order_relaxed); old != nullptr) {
    old->in_use.store(true, std::memory_order_release);
  } else {
    holders_[number].store(new HolderState(heap_.get(), number), std::memory_order_release);
  }
  if (number >= holders_end()) holders_end_.store(number + 1, std::memory_order_release);
  alive_[number / 64].fetch_or(uint64_t{1} << (number % 64), std::memory_order_release);
  return HolderIndex{number};
}

void AtlasIndex::RemoveHolder(HolderIndex holder) {
  HolderState* const state = StateOf(holder);
  if (state == nullptr) return;
  SetMasked(holder, true);
  {
    MutexLock lock(&state->mutex);
    Inside inside(this, /*brief=*/false);
    Clear(state, TierMask::All(), nullptr);
    state->Reset();
    state->in_use.store(false, std::memory_order_release);
  }
  heap_->Reclaim();
  MutexLock lock(&admin_mutex_);
  free_numbers_.insert(Raw(holder));
  --holder_count_;
}

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

absl::Status AtlasIndex::Apply(HolderIndex holder, const Event& event, ChangeSink* changes) {
  HolderState* const state = StateOf(holder);
  if (state == nullptr) return absl::NotFoundError("no such holder");
  absl::Status status;
  {
    MutexLock lock(&state->mutex);
    const Stored* const stored = std::get_if<Stored>(&event);
    const Removed* const removed = std::get_if<Removed>(&event);
    const size_t blocks = stored != nullptr    ? stored->blocks.size()
                          : removed != nullptr ? removed->blocks.size()
                                               : state->holdings;
    Inside inside(this, /*brief=*/blocks <= kBriefBlocks);
    if (stored != nullptr) {
      status = Store(state, {.tier = stored->tier, .changes = changes}, *stored);
    } else if (removed != nullptr) {
      Remove(state, {.tier = removed->tier, .changes = changes}, removed->blocks);
    } else {
      Clear(state, std::get<Cleared>(event).tiers, changes);
    }
  }
  if (std::holds_alternative<Cleared>(event)) heap_->Reclaim();
  return status;
}

// ---- Places ----

void AtlasIndex::Release(Place* place) const {
  if (place->run != nullptr) UnlockRun(place->run);
  *place = {};
}

bool AtlasIndex::LockBlock(SequenceHash block, Place* place, BlockTable::Home* fetched) const {
  for (int round = 0;; ++round) {
    const Ref word =
        fetched != nullptr && round == 0 ? table_->Find(block, fetched) : table_->Find(block);
    if (word == 0) return false;
    const Ref ref = heap_->RunOf(word);
    Run* const run = RunAt(ref);
    Pause();
    LockRun(run);
    const uint32_t offset = OffsetOf(ref, word);
    if (run->alive.load(std::memory_order_relaxed) &&
        offset < run->len.load(std::memory_order_relaxed) && HashAt(*run, offset) == Raw(block)) {
      *place = {.ref = ref, .run = run, .offset = offset};
      return true;
    }
    UnlockRun(run);
    // It moved, or went, between the table and the run: look again.
    SpinWait(round);
  }
}

// A run that some holder's list names. It may be another one, in the same place.
bool AtlasIndex::LockListed(Ref ref, Place* place) const {
  if (!heap_->IsRun(ref)) return false;
  Run* const run = RunAt(ref);
  LockRun(run);
  if (!run->alive.load(std::memory_order_relaxed)) {
    UnlockRun(run);
    return false;
  }
  *place = {.ref = ref, .run = run, .offset = 0};
  return true;
}

bool AtlasIndex::AddToList(HolderState* holder, Ref ref) {
  LockInside lock(*table_->gate(), &holder->runs_lock);
  return holder->runs.Add(ref);
}

bool AtlasIndex::HasAnything(Run* run, uint32_t holder) const {
  const TierMask tiers = Members::TiersOf(heap_.get(), *run);
  for (int i = 0; i < kTiers; ++i) {
    const Tier tier = static_cast<Tier>(i);
    if (tiers.Has(tier) && MembersOf(run, tier).Has(holder)) return true;
  }
  return false;
}

// The same without the run's lock: true when it is not known.
bool AtlasIndex::MayHaveAnything(Run* run, uint32_t holder) const {
  if (!run->alive.load(std::memory_order_acquire)) return false;
  const uint32_t version = run->version.load(std::memory_order_acquire);
  const Holders first = run->holders[0].load(std::memory_order_acquire);
  if (version % 2 != 0 || HasAnything(run, holder)) return true;
  std::atomic_thread_fence(std::memory_order_acquire);
  // Holders may have moved from the run into sections meanwhile.
  return run->version.load(std::memory_order_relaxed) != version ||
         run->holders[0].load(std::memory_order_relaxed) != first;
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

void AtlasIndex::Account(HolderState* holder, const Write& write, Run* run, const Offsets& changed,
                         bool added) {
  const int tier = static_cast<int>(write.tier);
  uint64_t sum = 0;
  uint64_t holdings = 0;
  const uint64_t count = changed.Count();
  Offsets elsewhere[kTiers];
  bool any_elsewhere = false;
  const TierMask others = Members::TiersOf(heap_.get(), *run) & ~TierMask(write.tier);
  for (int i = 0; i < kTiers && !others.empty(); ++i) {
    if (!others.Has(static_cast<Tier>(i))) continue;
    elsewhere[i] = MembersOf(run, static_cast<Tier>(i)).Of(holder->number, run->Live());
    any_elsewhere |= elsewhere[i].Any();
  }
  if (write.changes == nullptr && !any_elsewhere) {
    changed.ForEach([&](uint32_t offset) { sum += DigestTermOf(HashAt(*run, offset)); });
    holdings = count;
  } else {
    changed.ForEach([&](uint32_t offset) {
      const uint64_t hash = HashAt(*run, offset);
      sum += DigestTermOf(hash);
      TierMask kept;
      for (int i = 0; i < kTiers; ++i) {
        if (elsewhere[i].Has(offset)) kept = kept | static_cast<Tier>(i);
      }
      if (kept.empty()) ++holdings;
      if (write.changes == nullptr) return;
      const TierMask both = kept | write.tier;
      write.changes->Changed(HolderIndex{holder->number}, SequenceHash{hash}, run->start + offset,
                             added ? kept : both, added ? both : kept);
    });
  }
  Digest::OfTier& digest = holder->digest.tiers[tier];
  if (added) {
    digest.blocks += count;
    digest.sum += sum;
    holder->holdings += holdings;
  } else {
    digest.blocks -= count;
    digest.sum -= sum;
    holder->holdings -= holdings;
  }
}

// W5; a run that is never ended is dead (W6).
void AtlasIndex::BeginTaking(Run* run) {
  Pause();
  run->version.store(run->version.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  // Partner: the acquire fence of R3.
  std::atomic_thread_fence(std::memory_order_release);
  Pause();
}

void AtlasIndex::EndTaking(Run* run) {
  Pause();
  run->version.store(run->version.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  Pause();
}

void AtlasIndex::BeginTaking(uint32_t holder) {
  std::atomic<uint32_t>& number = removals_[holder];
  number.store(number.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  // Partner: the acquire fence of R5. Who sees what is taken sees the odd number.
  std::atomic_thread_fence(std::memory_order_release);
}

void AtlasIndex::EndTaking(uint32_t holder) {
  std::atomic<uint32_t>& number = removals_[holder];
  number.store(number.load(std::memory_order_relaxed) + 1, std::memory_order_release);
}

}  // namespace atlas
}  // namespace kvatlas
