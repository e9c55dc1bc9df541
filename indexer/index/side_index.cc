// A row has 32 bits (`kShared`, class, holder with tiers, or number in the pool). With one holder
// everything is in the row; the second one moves both to a `HolderSet` in the pool (`SetTiers`),
// and the last but one that goes brings the other back. Rows without holders are erased.
//
// Writers work in pieces of `kNamesPerLock` names, prefetched together; walks over everything
// (`Step`) in pieces of `kNamesPerStep`, with a cursor that stays valid while rows come and go.

#include "indexer/index/side_index.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvatlas {
namespace {

constexpr size_t kNamesPerStep = 4096;  // looked at under the lock
static_assert(SideIndex::kNamesPerLock <= BucketTable::kPrefetchMax);

}  // namespace

// ---- Holders of a row ----

// Free places are reused, last freed first. `pool_bytes_` counts objects and what they have on the
// heap.
uint32_t SideIndex::AddToPool(HolderSet set) {
  pool_bytes_ += set.HeapBytes();
  if (pool_free_.empty()) {
    pool_bytes_ += sizeof(HolderSet);
    pool_.push_back(std::move(set));
    return static_cast<uint32_t>(pool_.size() - 1);
  }
  const uint32_t number = pool_free_.back();
  pool_free_.pop_back();
  pool_[number] = std::move(set);
  return number;
}

void SideIndex::FreeOfPool(uint32_t number) {
  pool_bytes_ -= pool_[number].HeapBytes();
  pool_[number] = HolderSet();
  pool_free_.push_back(number);
}

TierMask SideIndex::TiersOf(uint32_t holders, HolderIndex holder) const {
  if ((holders & kShared) != 0) return pool_[holders & kHoldersMask].Get(holder);
  return (holders & kHoldersMask) >> kTiers == Raw(holder)
             ? TierMask(static_cast<uint8_t>(holders & ((1u << kTiers) - 1)))
             : TierMask();
}

// Sets the tiers of one holder in a row that exists.
// 1. The row's only holder: changed in place, or the row goes with it.
// 2. Another holder beside it: both go to the pool.
// 3. A row in the pool: the set changes, and a set of one comes back into the row.
void SideIndex::SetTiers(size_t row, HolderIndex holder, TierMask before, TierMask after) {
  if (before.empty()) ++counts_.holdings;
  if (after.empty()) --counts_.holdings;
  const uint32_t of_class = HoldersAt(row) & kClassMask;
  const uint32_t holders = HoldersAt(row) & kHoldersMask;
  if ((HoldersAt(row) & kShared) == 0) {
    if (holders >> kTiers == Raw(holder)) {
      if (!after.empty()) return SetHolders(row, of_class | Pack(holder, after));
      return rows_.Erase(row);
    }
    HolderSet set;
    set.Set(HolderIndex(holders >> kTiers),
            TierMask(static_cast<uint8_t>(holders & ((1u << kTiers) - 1))));
    set.Set(holder, after);
    return SetHolders(row, kShared | of_class | AddToPool(std::move(set)));
  }
  HolderSet& set = pool_[holders];
  pool_bytes_ -= set.HeapBytes();
  set.Set(holder, after);
  pool_bytes_ += set.HeapBytes();
  if (set.size() != 1) return;
  // One holder is left: it is kept in the row again.
  uint32_t packed = 0;
  set.ForEachWord(TierMask::All(), [&](uint32_t word, uint64_t bits) {
    const HolderIndex last{word * 64 + static_cast<uint32_t>(std::countr_zero(bits))};
    packed = Pack(last, set.Get(last));
  });
  SetHolders(row, of_class | packed);
  FreeOfPool(holders);
}

// Classes get numbers in the order in which they are first stored, and keep them. Beyond
// `kClassesMax` names have no class: they are held and found all the same.
uint32_t SideIndex::ClassBits(const CacheClass* of) {
  if (of == nullptr) return 0;
  const uint64_t tag = SideTag(*of);
  size_t number = 0;
  while (number < tags_.size() && tags_[number] != tag) ++number;
  if (number == kClassesMax) return 0;
  if (number == tags_.size()) tags_.push_back(tag);
  return static_cast<uint32_t>(number + 1) << kClassShift;
}

void SideIndex::Prefetch(std::span<const SequenceHash> names) const {
  uint64_t keys[kNamesPerLock];
  for (size_t i = 0; i < names.size(); ++i) keys[i] = Raw(names[i]);
  rows_.Prefetch({keys, names.size()});
}

// ---- Writes ----

// A name that was stored without a class gets one with the first store that has it. Each name
// checks the bounds: those before the refused one are stored, those behind it are not.
absl::Status SideIndex::Store(HolderIndex holder, Tier tier, std::span<const SequenceHash> names,
                              const CacheClass* of, const Changed& changed) {
  if (Raw(holder) >= kHoldersEnd) return absl::ResourceExhaustedError("too many holders");
  while (!names.empty()) {
    const auto some = names.first(std::min(names.size(), kNamesPerLock));
    names = names.subspan(some.size());
    WriterLock lock(&mutex_);
    const uint32_t of_class = ClassBits(of);
    Prefetch(some);
    for (SequenceHash name : some) {
      const size_t row = rows_.Find(Raw(name));
      const TierMask before =
          row == BucketTable::kNone ? TierMask() : TiersOf(HoldersAt(row), holder);
      if (row != BucketTable::kNone && (HoldersAt(row) & kClassMask) == 0)
        SetHolders(row, HoldersAt(row) | of_class);
      if (before.Has(tier)) continue;
      const bool pool_full = pool_.size() - pool_free_.size() == kPoolEnd;
      if (pool_full || (bytes_max_ != 0 && BytesNow() >= bytes_max_) ||
          (memory_ != nullptr && memory_->level() >= MemoryLevel::kFull)) {
        counts_.refused += 1;
        return absl::ResourceExhaustedError("side blocks are at their limit");
      }
      const TierMask after(before.bits() | TierMask(tier).bits());
      if (row == BucketTable::kNone) {
        SetHolders(rows_.Insert(Raw(name)), of_class | Pack(holder, after));
        ++counts_.holdings;
      } else {
        SetTiers(row, holder, before, after);
      }
      if (changed) changed(name, before, after);
    }
  }
  return absl::OkStatus();
}

void SideIndex::Remove(HolderIndex holder, Tier tier, std::span<const SequenceHash> names,
                       const Changed& changed) {
  while (!names.empty()) {
    const auto some = names.first(std::min(names.size(), kNamesPerLock));
    names = names.subspan(some.size());
    WriterLock lock(&mutex_);
    Prefetch(some);
    for (SequenceHash name : some) {
      const size_t row = rows_.Find(Raw(name));
      if (row == BucketTable::kNone) continue;
      const TierMask before = TiersOf(HoldersAt(row), holder);
      if (!before.Has(tier)) continue;
      const TierMask after(before.bits() & ~TierMask(tier).bits());
      SetTiers(row, holder, before, after);
      if (changed) changed(name, before, after);
    }
  }
}

// Looks under the shared lock and removes under the exclusive one: a name that another call has
// removed in between is passed over. The holder's own calls are serialised, so nothing is added
// behind the cursor.
void SideIndex::Clear(HolderIndex holder, TierMask tiers, const Changed& changed) {
  std::vector<Found> found;
  std::vector<SequenceHash> names;
  uint64_t cursor = 0;
  for (bool more = true; more;) {
    more = Step(holder, tiers, &cursor, &found);
    names.clear();
    for (const Found& held : found) names.push_back(held.name);
    for (int tier = 0; tier < kTiers; ++tier)
      if (tiers.Has(static_cast<Tier>(tier)))
        Remove(holder, static_cast<Tier>(tier), names, changed);
  }
}

// Chunks of versions are made at the first write of one of their holders. Holders beyond all chunks
// have no version: it reads as 0, never written.
void SideIndex::Bump(HolderIndex holder) {
  const uint32_t chunk = Raw(holder) / kVersionsPerChunk;
  if (chunk >= kVersionChunks) return;
  Versions* versions = versions_[chunk].load(std::memory_order_acquire);
  if (versions == nullptr) {
    WriterLock lock(&mutex_);
    versions = versions_[chunk].load(std::memory_order_relaxed);
    if (versions == nullptr) {
      version_chunks_.push_back(std::make_unique<Versions>());
      versions = version_chunks_.back().get();
      versions_[chunk].store(versions, std::memory_order_release);
    }
  }
  // Partner: `VersionOf`. Sequentially consistent, so that neither side's reads or writes of
  // holdings move past it.
  (*versions)[Raw(holder) % kVersionsPerChunk].fetch_add(1, std::memory_order_seq_cst);
}

// ---- Reads ----

// From the cursor on through whole buckets, until enough names were looked at. False: the end was
// reached.
bool SideIndex::Step(HolderIndex holder, TierMask tiers, uint64_t* cursor,
                     std::vector<Found>* found) const {
  found->clear();
  ReaderLock lock(&mutex_);
  for (size_t looked = 0; looked < kNamesPerStep;) {
    if (rows_.buckets() == 0) return false;
    const size_t bucket = rows_.BucketOfCursor(*cursor);
    for (size_t at = 0; at < rows_.RowsIn(bucket); ++at) {
      const size_t row = BucketTable::RowAt(bucket, at);
      if (rows_.IsBefore(row, *cursor)) continue;
      const TierMask held(TiersOf(HoldersAt(row), holder).bits() & tiers.bits());
      if (held.empty()) continue;
      const uint32_t of_class = (HoldersAt(row) & kClassMask) >> kClassShift;
      found->push_back({.name = SequenceHash{rows_.KeyOf(row)},
                        .tiers = held,
                        .tag = of_class == 0 ? 0 : tags_[of_class - 1]});
    }
    looked += 1 + rows_.RowsIn(bucket);
    *cursor = rows_.CursorBehind(bucket);
    if (*cursor == 0) return false;
  }
  return true;
}

void SideIndex::ForEachOf(
    HolderIndex holder,
    const std::function<void(SequenceHash name, TierMask tiers, uint64_t tag)>& visit) const {
  std::vector<Found> found;
  uint64_t cursor = 0;
  for (bool more = true; more;) {
    more = Step(holder, TierMask::All(), &cursor, &found);
    for (const Found& held : found) visit(held.name, held.tiers, held.tag);
  }
}

TierMask SideIndex::Get(HolderIndex holder, SequenceHash name) const {
  ReaderLock lock(&mutex_);
  const size_t row = rows_.Find(Raw(name));
  return row == BucketTable::kNone ? TierMask() : TiersOf(HoldersAt(row), holder);
}

// Two passes: the first finds all rows and fetches the sets of those in the pool, the second reads
// them, so that the misses overlap.
void SideIndex::Reader::Rows(std::span<const SequenceHash> names, TierMask tiers, size_t words,
                             uint64_t* rows) const {
  static_assert(kNamesAtOnce <= kNamesPerLock);
  index_.Prefetch(names);
  uint32_t holders[kNamesAtOnce] = {};
  for (size_t i = 0; i < names.size(); ++i) {
    const size_t found = index_.rows_.Find(Raw(names[i]));
    if (found == BucketTable::kNone) continue;
    holders[i] = index_.HoldersAt(found);
    if ((holders[i] & kShared) != 0) __builtin_prefetch(&index_.pool_[holders[i] & kHoldersMask]);
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const std::span<uint64_t> row(rows + i * words, words);
    if ((holders[i] & kShared) != 0) {
      index_.pool_[holders[i] & kHoldersMask].Read(tiers, row);
      continue;
    }
    std::fill(row.begin(), row.end(), 0);
    const uint32_t holder = (holders[i] & kHoldersMask) >> kTiers;
    if ((holders[i] & tiers.bits()) != 0 && holder / 64 < words)
      row[holder / 64] = uint64_t{1} << (holder % 64);
  }
}

SideIndex::Stats SideIndex::GetStats() const {
  ReaderLock lock(&mutex_);
  Stats stats = counts_;
  stats.names = rows_.size();
  stats.bytes = BytesNow();
  return stats;
}

absl::Status SideIndex::Check() const {
  ReaderLock lock(&mutex_);
  Stats counted;
  uint64_t bytes = pool_.size() * sizeof(HolderSet);
  for (const HolderSet& set : pool_) bytes += set.HeapBytes();
  size_t shared = 0;
  for (size_t bucket = 0; bucket < rows_.buckets(); ++bucket) {
    for (size_t at = 0; at < rows_.RowsIn(bucket); ++at) {
      const size_t row = BucketTable::RowAt(bucket, at);
      const uint32_t holders = HoldersAt(row);
      if (rows_.Find(rows_.KeyOf(row)) != row) return absl::InternalError("a name twice");
      if ((holders & kClassMask) >> kClassShift > tags_.size())
        return absl::InternalError("a name of a class without a number");
      if ((holders & kShared) == 0) {
        ++counted.holdings;
        continue;
      }
      ++shared;
      const HolderSet& set = pool_[holders & kHoldersMask];
      if (set.size() < 2) return absl::InternalError("a shared name with less than two holders");
      if (absl::Status bad = set.Check(); !bad.ok()) return bad;
      counted.holdings += set.size();
    }
  }
  if (const std::string wrong = rows_.Check(); !wrong.empty()) return absl::InternalError(wrong);
  if (shared + pool_free_.size() != pool_.size())
    return absl::InternalError("a set in the pool has no name");
  if (counted.holdings != counts_.holdings || bytes != pool_bytes_) {
    return absl::InternalError(absl::StrCat("counts: holdings ", counts_.holdings, " of ",
                                            counted.holdings, ", bytes of the pool ", pool_bytes_,
                                            " of ", bytes));
  }
  return absl::OkStatus();
}

}  // namespace kvatlas
