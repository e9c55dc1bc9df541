#include "indexer/index/flat.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "indexer/base/mutex.h"
#include "indexer/index/flat_blocks.h"
#include "indexer/index/flat_holders.h"

namespace kvatlas {
namespace {

class FlatIndex : public Index {
 public:
  explicit FlatIndex(const IndexOptions& options)
      : blocks_(options.blocks_max), holders_(options.holders_max) {}

  std::string_view Name() const override { return "flat"; }
  absl::StatusOr<HolderIndex> AddHolder() override;
  void RemoveHolder(HolderIndex holder) override;
  absl::Status Apply(HolderIndex holder, const Event& event, ChangeSink* changes) override;
  void SetMasked(HolderIndex holder, bool masked) override;
  void FindOverlaps(const OverlapQuery& query, std::vector<Overlap>* overlaps) const override;
  std::vector<Holding> HoldingsOf(HolderIndex holder) const override;
  Digest DigestOf(HolderIndex holder) const override;
  IndexStats Stats() const override;
  absl::Status Check() const override;

 private:
  // Blocks of an event that are fetched from memory together.
  static constexpr size_t kPrefetch = 16;

  // 64 holders of whom some are still in play.
  struct Candidates {
    uint32_t word = 0;
    uint64_t bits = 0;
  };
  // One thread's working memory for queries, kept so that they allocate
  // nothing.
  struct Scratch {
    std::vector<Candidates> candidates;
    std::vector<uint64_t> removals;  // by holder number; set for the candidates only
  };

  absl::Status Store(HolderIndex number, FlatHolder& holder, const Stored& stored,
                     ChangeSink* changes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder.mutex);
  void Remove(HolderIndex number, FlatHolder& holder, const Removed& removed, ChangeSink* changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder.mutex);
  void Clear(HolderIndex number, FlatHolder& holder, TierMask tiers, ChangeSink* changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder.mutex);
  void Took(HolderIndex number, FlatHolder& holder, SequenceHash block,
            const FlatBlocks::Change& change, ChangeSink* changes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder.mutex);
  void RemovalsFinished(HolderIndex holder);
  void PrefetchSome(const std::vector<SequenceHash>& blocks, size_t from,
                    const FlatHolder& holder) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(holder.mutex);

  void FindCandidates(const OverlapQuery& query, Scratch* scratch) const;
  void ReadRemovals(Scratch* scratch) const;
  void Walk(const OverlapQuery& query, Scratch* scratch, std::vector<Overlap>* overlaps) const;
  void Confirm(const OverlapQuery& query, const Scratch& scratch, size_t from,
               std::vector<Overlap>* overlaps) const;
  uint32_t OverlapAlone(HolderIndex holder, const OverlapQuery& query) const;
  absl::Status CheckHolder(HolderIndex number, const FlatHolder& holder) const;

  FlatBlocks blocks_;
  FlatHolders holders_;
  // Relaxed: a count, it publishes nothing.
  std::atomic<uint64_t> refused_blocks_{0};
};

// ---- Holders ----

absl::StatusOr<HolderIndex> FlatIndex::AddHolder() {
  absl::StatusOr<HolderIndex> number = holders_.Take();
  if (!number.ok()) return number;
  FlatHolderGroup& group = *holders_.GroupOf(Raw(*number) / 64);
  const uint64_t bit = uint64_t{1} << Raw(*number) % 64;
  FlatHolder& holder = group.holders[Raw(*number) % 64];
  MutexLock lock(&holder.mutex);
  holder.exists = true;
  group.masked.fetch_and(~bit, std::memory_order_relaxed);
  group.existing.fetch_or(bit, std::memory_order_relaxed);
  return number;
}

void FlatIndex::RemoveHolder(HolderIndex number) {
  FlatHolderGroup* const group = holders_.GroupOf(Raw(number) / 64);
  if (group == nullptr) return;
  FlatHolder& holder = group->holders[Raw(number) % 64];
  {
    MutexLock lock(&holder.mutex);
    if (!holder.exists) return;
    group->existing.fetch_and(~(uint64_t{1} << Raw(number) % 64), std::memory_order_relaxed);
    Clear(number, holder, TierMask::All(), nullptr);
    holder.exists = false;
  }
  holders_.Release(number);
}

void FlatIndex::SetMasked(HolderIndex number, bool masked) {
  FlatHolderGroup* const group = holders_.GroupOf(Raw(number) / 64);
  if (group == nullptr) return;
  const uint64_t bit = uint64_t{1} << Raw(number) % 64;
  if (masked) {
    group->masked.fetch_or(bit, std::memory_order_relaxed);
  } else {
    group->masked.fetch_and(~bit, std::memory_order_relaxed);
  }
}

// ---- Writes: under the holder's mutex, one shard's lock at a time ----

absl::Status FlatIndex::Apply(HolderIndex number, const Event& event, ChangeSink* changes) {
  FlatHolder* const holder = holders_.Find(number);
  if (holder == nullptr) return absl::NotFoundError("no such holder");
  MutexLock lock(&holder->mutex);
  if (!holder->exists) return absl::NotFoundError("no such holder");
  if (const Stored* stored = std::get_if<Stored>(&event))
    return Store(number, *holder, *stored, changes);
  if (const Removed* removed = std::get_if<Removed>(&event)) {
    Remove(number, *holder, *removed, changes);
  } else {
    Clear(number, *holder, std::get<Cleared>(event).tiers, changes);
  }
  return absl::OkStatus();
}

absl::Status FlatIndex::Store(HolderIndex number, FlatHolder& holder, const Stored& stored,
                              ChangeSink* changes) {
  SequenceHash parent = stored.parent;
  Position position = stored.position;
  for (size_t i = 0; i < stored.blocks.size(); ++i) {
    if (i % kPrefetch == 0) PrefetchSome(stored.blocks, i, holder);
    const SequenceHash block = stored.blocks[i];
    const FlatBlocks::Change change = blocks_.Store(number, block, stored.tier, position, parent);
    if (change.refused) {
      refused_blocks_.fetch_add(stored.blocks.size() - i, std::memory_order_relaxed);
      return absl::ResourceExhaustedError("blocks_max reached");
    }
    if (change.before.empty()) holder.held.insert(block);
    Took(number, holder, block, change, changes);
    parent = block;
    ++position;
  }
  return absl::OkStatus();
}

void FlatIndex::Remove(HolderIndex number, FlatHolder& holder, const Removed& removed,
                       ChangeSink* changes) {
  for (size_t i = 0; i < removed.blocks.size(); ++i) {
    if (i % kPrefetch == 0) PrefetchSome(removed.blocks, i, holder);
    const SequenceHash block = removed.blocks[i];
    const FlatBlocks::Change change = blocks_.Remove(number, block, removed.tier);
    if (!change.before.empty() && change.after.empty()) holder.held.erase(block);
    Took(number, holder, block, change, changes);
  }
  ShrinkIfSparse(&holder.held);
  RemovalsFinished(number);
}

void FlatIndex::Clear(HolderIndex number, FlatHolder& holder, TierMask tiers, ChangeSink* changes) {
  absl::flat_hash_set<SequenceHash>& held = holder.held;
  for (auto at = held.begin(); at != held.end();) {
    const auto block = at++;
    const FlatBlocks::Change change = blocks_.Remove(number, *block, tiers);
    Took(number, holder, *block, change, changes);
    if (change.after.empty()) held.erase(block);
  }
  ShrinkIfSparse(&held);
  RemovalsFinished(number);
}

// The tables are larger than any cache: blocks wait for memory together, not one after another.
void FlatIndex::PrefetchSome(const std::vector<SequenceHash>& blocks, size_t from,
                             const FlatHolder& holder) const {
  for (size_t i = from; i < std::min(blocks.size(), from + kPrefetch); ++i) {
    blocks_.Prefetch(blocks[i]);
    holder.held.prefetch(blocks[i]);
  }
}

// A change of one block is made: the digest and the listener follow.
void FlatIndex::Took(HolderIndex number, FlatHolder& holder, SequenceHash block,
                     const FlatBlocks::Change& change, ChangeSink* changes) {
  if (change.before == change.after) return;
  for (int i = 0; i < kTiers; ++i) {
    const Tier tier = static_cast<Tier>(i);
    if (change.after.Has(tier) && !change.before.Has(tier)) holder.digest.Add(tier, block);
    if (change.before.Has(tier) && !change.after.Has(tier)) holder.digest.Subtract(tier, block);
  }
  if (changes != nullptr) {
    changes->Changed(number, block, change.position, change.before, change.after);
  }
}

// Release: whoever reads this number or a later one (acquire in `ReadRemovals`)
// sees the removals too.
void FlatIndex::RemovalsFinished(HolderIndex holder) {
  holders_.RemovalsOf(holder).fetch_add(1, std::memory_order_release);
}

// ---- Reads: no lock but one shard's at a time ----
//
// A query looks at its blocks one after another while holders write, so its looks are separate
// instants. A holder that had q[0], lost it and then stored q[1] never had two blocks; adding up
// looks would count two. So:
//
//   1. FindCandidates  the holders at q[0] that answer (added, not masked): who is worth looking at.
//   2. ReadRemovals    each one's number of finished removals, v1.
//   3. Walk            from q[0] again, only them; each drops out where it is not found, and the
//                      depth there is its overlap.
//   4. Confirm         the number again, v2. If v1 = v2, the depth stands; else the holder is walked
//                      alone under its mutex (OverlapAlone), while it cannot change.
//
// Why v1 = v2 is enough. A holder's changes have an order, since its mutex is held for each event.
// An event either only adds or only takes away, and one that takes away adds 1 to `removals` when it
// is done, before the holder's next event.
//
//   - The walk sees all that was taken away before v1: the release in RemovalsFinished pairs with the
//     acquire in ReadRemovals, so those changes happened before the walk.
//   - The walk sees nothing that was added after removal number v2 + 1 was done. Had it seen such a
//     block, then the holder, which first counted and then added it, released that shard's lock before
//     the walk took it; so the second reading of the number, later in this thread, would have been
//     larger. The shards' locks give this order, so that reading can be relaxed.
//   - So the looks fall into a stretch of the holder's changes in which it first only adds and then
//     only takes away (a removal that is not finished at v2). At the turn between the two it had every
//     block that any look found: a block found before the turn was not lost until then, and one found
//     after it had been there. If the turn was before the query began, the holder had them all when it
//     began; if after it ended, when it ended. So the depth was true at an instant of the query.
//
// The depth may be too small when the holder adds meanwhile; for one that nobody writes it is exact.
// A number that is given to another holder meanwhile is no special case: its blocks were taken away.

void FlatIndex::FindOverlaps(const OverlapQuery& query, std::vector<Overlap>* overlaps) const {
  if (query.blocks.empty()) return;
  static thread_local Scratch scratch;
  const size_t from = overlaps->size();
  FindCandidates(query, &scratch);
  ReadRemovals(&scratch);
  Walk(query, &scratch, overlaps);
  Confirm(query, scratch, from, overlaps);
}

void FlatIndex::FindCandidates(const OverlapQuery& query, Scratch* scratch) const {
  scratch->candidates.clear();
  blocks_.ReadHolders(query.blocks[0], [&](const HolderSet& holders) {
    holders.ForEachWord(query.tiers, [&](uint32_t word, uint64_t bits) {
      bits &= holders_.GroupOf(word)->Answering();
      if (!query.only.empty()) bits &= word < query.only.size() ? query.only[word] : 0;
      if (bits != 0) scratch->candidates.push_back({.word = word, .bits = bits});
    });
  });
}

void FlatIndex::ReadRemovals(Scratch* scratch) const {
  if (scratch->candidates.empty()) return;
  const size_t numbers = (size_t{scratch->candidates.back().word} + 1) * 64;
  if (scratch->removals.size() < numbers) scratch->removals.resize(numbers);
  for (const Candidates& candidates : scratch->candidates) {
    const FlatHolderGroup& group = *holders_.GroupOf(candidates.word);
    for (uint64_t bits = candidates.bits; bits != 0; bits &= bits - 1) {
      const int bit = std::countr_zero(bits);
      scratch->removals[candidates.word * 64 + bit] =
          group.removals[bit].load(std::memory_order_acquire);
    }
  }
}

void FlatIndex::Walk(const OverlapQuery& query, Scratch* scratch,
                     std::vector<Overlap>* overlaps) const {
  std::vector<Candidates>& candidates = scratch->candidates;
  uint32_t depth = 0;
  const auto drop = [&](uint32_t word, uint64_t gone) {
    for (; depth > 0 && gone != 0; gone &= gone - 1) {
      const uint32_t bit = static_cast<uint32_t>(std::countr_zero(gone));
      overlaps->push_back({.holder = HolderIndex{word * 64 + bit}, .blocks = depth});
    }
  };
  for (; depth < query.blocks.size() && !candidates.empty(); ++depth) {
    const bool found = blocks_.ReadHolders(query.blocks[depth], [&](const HolderSet& holders) {
      HolderSet::WordReader reader(holders, query.tiers);
      for (Candidates& each : candidates) {
        const uint64_t here = reader.Bits(each.word);
        drop(each.word, each.bits & ~here);
        each.bits &= here;
      }
    });
    if (!found) break;
    std::erase_if(candidates, [](const Candidates& each) { return each.bits == 0; });
  }
  for (const Candidates& each : candidates) drop(each.word, each.bits);
}

void FlatIndex::Confirm(const OverlapQuery& query, const Scratch& scratch, size_t from,
                        std::vector<Overlap>* overlaps) const {
  size_t kept = from;
  for (size_t i = from; i < overlaps->size(); ++i) {
    Overlap overlap = (*overlaps)[i];
    const uint64_t now = holders_.RemovalsOf(overlap.holder).load(std::memory_order_relaxed);
    if (now != scratch.removals[Raw(overlap.holder)])
      overlap.blocks = OverlapAlone(overlap.holder, query);
    if (overlap.blocks > 0) (*overlaps)[kept++] = overlap;
  }
  overlaps->resize(kept);
}

uint32_t FlatIndex::OverlapAlone(HolderIndex number, const OverlapQuery& query) const {
  const FlatHolder& holder = *holders_.Find(number);
  MutexLock lock(&holder.mutex);
  uint32_t depth = 0;
  while (depth < query.blocks.size() &&
         blocks_.PlaceOf(number, query.blocks[depth]).tiers.Intersects(query.tiers)) {
    ++depth;
  }
  return depth;
}

// ---- Cuts, figures, checks ----

std::vector<Holding> FlatIndex::HoldingsOf(HolderIndex number) const {
  std::vector<Holding> holdings;
  const FlatHolder* const holder = holders_.Find(number);
  if (holder == nullptr) return holdings;
  MutexLock lock(&holder->mutex);
  holdings.reserve(holder->held.size());
  for (SequenceHash block : holder->held) {
    const FlatBlocks::Place place = blocks_.PlaceOf(number, block);
    holdings.push_back(
        {.block = block, .position = place.position, .parent = place.parent, .tiers = place.tiers});
  }
  return holdings;
}

Digest FlatIndex::DigestOf(HolderIndex number) const {
  const FlatHolder* const holder = holders_.Find(number);
  if (holder == nullptr) return {};
  MutexLock lock(&holder->mutex);
  return holder->digest;
}

IndexStats FlatIndex::Stats() const {
  IndexStats stats;
  const FlatBlocks::Size size = blocks_.size();
  stats.blocks = size.blocks;
  stats.holdings = size.holdings;
  stats.bytes = size.bytes + holders_.Bytes();
  stats.refused_blocks = refused_blocks_.load(std::memory_order_relaxed);
  holders_.ForEach([&](HolderIndex, const FlatHolder& holder) {
    MutexLock lock(&holder.mutex);
    stats.holders += holder.exists;
    stats.bytes += TableBytes(holder.held);
  });
  return stats;
}

absl::Status FlatIndex::Check() const {
  absl::Status status = blocks_.Check();
  uint64_t held = 0;
  holders_.ForEach([&](HolderIndex number, const FlatHolder& holder) {
    if (status.ok()) status = CheckHolder(number, holder);
    MutexLock lock(&holder.mutex);
    held += holder.held.size();
  });
  if (!status.ok()) return status;
  return held == blocks_.size().holdings
             ? absl::OkStatus()
             : absl::InternalError("flat: holders and blocks disagree on who holds what");
}

absl::Status FlatIndex::CheckHolder(HolderIndex number, const FlatHolder& holder) const {
  MutexLock lock(&holder.mutex);
  if (!holder.exists && !holder.held.empty())
    return absl::InternalError("flat: blocks of no holder");
  Digest digest;
  for (SequenceHash block : holder.held) {
    const TierMask tiers = blocks_.PlaceOf(number, block).tiers;
    if (tiers.empty()) return absl::InternalError("flat: a holder's block without the holder");
    for (int tier = 0; tier < kTiers; ++tier) {
      if (tiers.Has(static_cast<Tier>(tier))) digest.Add(static_cast<Tier>(tier), block);
    }
  }
  return digest == holder.digest ? absl::OkStatus() : absl::InternalError("flat: wrong digest");
}

}  // namespace

std::unique_ptr<Index> MakeFlatIndex(const IndexOptions& options) {
  return std::make_unique<FlatIndex>(options);
}

}  // namespace kvatlas
