#include "indexer/index/side_index.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvatlas {
namespace {

constexpr size_t kSlotsMin = 16;

bool TooFull(size_t used, size_t slots) { return used * 8 >= slots * 7; }
size_t Larger(size_t slots) { return std::max(kSlotsMin, slots + slots / 4 + 4); }

}  // namespace

// ---- Slots: linear probing, removal shifts back ----

const SideIndex::Slot* SideIndex::FindFrom(const Segment& segment, size_t home, uint64_t name) {
  const size_t size = segment.slots.size();
  for (size_t at = home;; at = at + 1 == size ? 0 : at + 1) {
    const Slot& slot = segment.slots[at];
    if (slot.holders == 0 || NameOf(slot) == name) return &slot;
  }
}

SideIndex::Slot* SideIndex::FindOrInsert(uint64_t name) {
  Segment& segment = segments_[name >> 56];
  const Slot* found = Find(segment, name);
  if (found != nullptr && found->holders != 0) return const_cast<Slot*>(found);
  if (TooFull(segment.used + 1, segment.slots.size())) {
    Resize(&segment, Larger(segment.slots.size()));
    found = Find(segment, name);
  }
  Slot* const slot = const_cast<Slot*>(found);
  slot->low = static_cast<uint32_t>(name);
  slot->high = static_cast<uint32_t>(name >> 32);
  return slot;
}

void SideIndex::Erase(Segment* segment, Slot* slot) {
  const size_t size = segment->slots.size();
  size_t hole = static_cast<size_t>(slot - segment->slots.data());
  --segment->used;
  for (size_t at = hole + 1 == size ? 0 : hole + 1;; at = at + 1 == size ? 0 : at + 1) {
    const Slot& next = segment->slots[at];
    if (next.holders == 0) break;
    const size_t home = HomeOf(*segment, NameOf(next));
    // It may move back when its home is not in (hole, at], seen around the end.
    const bool between = hole < at ? (home > hole && home <= at) : (home > hole || home <= at);
    if (between) continue;
    segment->slots[hole] = next;
    hole = at;
  }
  segment->slots[hole] = {};
  if (size > kSlotsMin && segment->used * 2 < size) Resize(segment, Larger(segment->used));
}

void SideIndex::Resize(Segment* segment, size_t slots) {
  std::vector<Slot> old(slots);
  old.swap(segment->slots);
  bytes_ += slots * sizeof(Slot);
  bytes_ -= old.size() * sizeof(Slot);
  for (const Slot& slot : old)
    if (slot.holders != 0) *const_cast<Slot*>(Find(*segment, NameOf(slot))) = slot;
}

// ---- Holders of a slot ----

uint32_t SideIndex::AddToPool(HolderSet set) {
  bytes_ += set.HeapBytes();
  if (pool_free_.empty()) {
    bytes_ += sizeof(HolderSet);
    pool_.push_back(std::move(set));
    return static_cast<uint32_t>(pool_.size() - 1);
  }
  const uint32_t number = pool_free_.back();
  pool_free_.pop_back();
  pool_[number] = std::move(set);
  return number;
}

void SideIndex::FreeOfPool(uint32_t number) {
  bytes_ -= pool_[number].HeapBytes();
  pool_[number] = HolderSet();
  pool_free_.push_back(number);
}

TierMask SideIndex::TiersOf(const Slot& slot, HolderIndex holder) const {
  if (slot.holders == 0) return TierMask();
  if ((slot.holders & kShared) != 0) return pool_[slot.holders & ~kShared].Get(holder);
  return slot.holders >> kTiers == Raw(holder)
             ? TierMask(static_cast<uint8_t>(slot.holders & ((1u << kTiers) - 1)))
             : TierMask();
}

bool SideIndex::SetTiers(Segment* segment, Slot* slot, HolderIndex holder, TierMask before,
                         TierMask after) {
  if (before.empty()) ++counts_.holdings;
  if (after.empty()) --counts_.holdings;
  if (slot->holders == 0) {
    slot->holders = Pack(holder, after);
    ++segment->used;
    ++counts_.names;
    return false;
  }
  if ((slot->holders & kShared) == 0) {
    if (slot->holders >> kTiers == Raw(holder)) {
      if (!after.empty()) {
        slot->holders = Pack(holder, after);
        return false;
      }
      --counts_.names;
      Erase(segment, slot);
      return true;
    }
    HolderSet set;
    set.Set(HolderIndex(slot->holders >> kTiers),
            TierMask(static_cast<uint8_t>(slot->holders & ((1u << kTiers) - 1))));
    set.Set(holder, after);
    slot->holders = AddToPool(std::move(set)) | kShared;
    return false;
  }
  const uint32_t number = slot->holders & ~kShared;
  HolderSet& set = pool_[number];
  bytes_ -= set.HeapBytes();
  set.Set(holder, after);
  bytes_ += set.HeapBytes();
  if (set.size() != 1) return false;
  // The last one stands in the slot again.
  set.ForEachWord(TierMask::All(), [&](uint32_t word, uint64_t bits) {
    const HolderIndex last{word * 64 + static_cast<uint32_t>(std::countr_zero(bits))};
    slot->holders = Pack(last, set.Get(last));
  });
  FreeOfPool(number);
  return false;
}

// ---- Writes ----

absl::Status SideIndex::Store(HolderIndex holder, Tier tier, std::span<const SequenceHash> names,
                              const Changed& changed) {
  if (Raw(holder) >= kHoldersEnd) return absl::ResourceExhaustedError("too many holders");
  while (!names.empty()) {
    const auto some = names.first(std::min(names.size(), kNamesPerLock));
    names = names.subspan(some.size());
    WriterLock lock(&mutex_);
    for (SequenceHash name : some) {
      const Segment& segment = SegmentOf(Raw(name));
      if (!segment.slots.empty())
        __builtin_prefetch(segment.slots.data() + HomeOf(segment, Raw(name)));
    }
    for (SequenceHash name : some) {
      if ((bytes_max_ != 0 && bytes_ >= bytes_max_) ||
          (memory_ != nullptr && memory_->level() >= MemoryLevel::kFull)) {
        const Slot* const known = Find(SegmentOf(Raw(name)), Raw(name));
        if (known == nullptr || !TiersOf(*known, holder).Has(tier)) {
          counts_.refused += 1;
          return absl::ResourceExhaustedError("side blocks are at their byte limit");
        }
        continue;
      }
      Slot* const slot = FindOrInsert(Raw(name));
      const TierMask before = TiersOf(*slot, holder);
      if (before.Has(tier)) continue;
      const TierMask after(before.bits() | TierMask(tier).bits());
      SetTiers(&segments_[Raw(name) >> 56], slot, holder, before, after);
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
    for (SequenceHash name : some) {
      Segment& segment = segments_[Raw(name) >> 56];
      Slot* const slot = const_cast<Slot*>(Find(segment, Raw(name)));
      if (slot == nullptr) continue;
      const TierMask before = TiersOf(*slot, holder);
      if (!before.Has(tier)) continue;
      const TierMask after(before.bits() & ~TierMask(tier).bits());
      SetTiers(&segment, slot, holder, before, after);
      if (changed) changed(name, before, after);
    }
  }
}

void SideIndex::Clear(HolderIndex holder, TierMask tiers, const Changed& changed) {
  for (size_t s = 0; s < kSegments; ++s) {
    std::vector<SequenceHash> names;
    {
      ReaderLock lock(&mutex_);
      for (const Slot& slot : segments_[s].slots) {
        if (!TierMask(TiersOf(slot, holder).bits() & tiers.bits()).empty())
          names.push_back(SequenceHash{NameOf(slot)});
      }
    }
    for (int tier = 0; tier < kTiers; ++tier)
      if (tiers.Has(static_cast<Tier>(tier)))
        Remove(holder, static_cast<Tier>(tier), names, changed);
  }
}

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
  // Partner: `VersionOf`. Sequentially consistent, so that neither side's reads or writes of holdings move past it.
  (*versions)[Raw(holder) % kVersionsPerChunk].fetch_add(1, std::memory_order_seq_cst);
}

// ---- Reads ----

void SideIndex::ForEachOf(
    HolderIndex holder, const std::function<void(SequenceHash name, TierMask tiers)>& visit) const {
  std::vector<std::pair<SequenceHash, TierMask>> found;
  for (size_t s = 0; s < kSegments; ++s) {
    found.clear();
    {
      ReaderLock lock(&mutex_);
      for (const Slot& slot : segments_[s].slots) {
        const TierMask tiers = TiersOf(slot, holder);
        if (!tiers.empty()) found.emplace_back(SequenceHash{NameOf(slot)}, tiers);
      }
    }
    for (const auto& [name, tiers] : found) visit(name, tiers);
  }
}

TierMask SideIndex::Get(HolderIndex holder, SequenceHash name) const {
  ReaderLock lock(&mutex_);
  const Slot* const slot = Find(SegmentOf(Raw(name)), Raw(name));
  return slot == nullptr ? TierMask() : TiersOf(*slot, holder);
}

void SideIndex::Reader::Rows(std::span<const SequenceHash> names, TierMask tiers, size_t words,
                             uint64_t* rows) const {
  const Segment* segments[kNamesAtOnce];
  size_t homes[kNamesAtOnce];
  for (size_t i = 0; i < names.size(); ++i) {
    segments[i] = &index_.SegmentOf(Raw(names[i]));
    homes[i] = HomeOf(*segments[i], Raw(names[i]));
    __builtin_prefetch(segments[i]->slots.data() + homes[i]);
  }
  uint32_t holders[kNamesAtOnce] = {};
  for (size_t i = 0; i < names.size(); ++i) {
    if (segments[i]->slots.empty()) continue;
    holders[i] = FindFrom(*segments[i], homes[i], Raw(names[i]))->holders;
    if ((holders[i] & kShared) != 0) __builtin_prefetch(&index_.pool_[holders[i] & ~kShared]);
  }
  for (size_t i = 0; i < names.size(); ++i) {
    const std::span<uint64_t> row(rows + i * words, words);
    if ((holders[i] & kShared) != 0) {
      index_.pool_[holders[i] & ~kShared].Read(tiers, row);
      continue;
    }
    std::fill(row.begin(), row.end(), 0);
    const uint32_t holder = holders[i] >> kTiers;
    if ((holders[i] & tiers.bits()) != 0 && holder / 64 < words)
      row[holder / 64] = uint64_t{1} << (holder % 64);
  }
}

SideIndex::Stats SideIndex::GetStats() const {
  ReaderLock lock(&mutex_);
  Stats stats = counts_;
  stats.bytes = bytes_;
  return stats;
}

absl::Status SideIndex::Check() const {
  ReaderLock lock(&mutex_);
  Stats counted;
  uint64_t bytes = pool_.size() * sizeof(HolderSet);
  for (const HolderSet& set : pool_) bytes += set.HeapBytes();
  size_t shared = 0;
  for (size_t s = 0; s < kSegments; ++s) {
    const Segment& segment = segments_[s];
    size_t used = 0;
    bytes += segment.slots.size() * sizeof(Slot);
    for (const Slot& slot : segment.slots) {
      if (slot.holders == 0) continue;
      ++used;
      if (NameOf(slot) >> 56 != s) return absl::InternalError("a name in a wrong segment");
      if (Find(segment, NameOf(slot)) != &slot) return absl::InternalError("a name out of reach");
      if ((slot.holders & kShared) == 0) {
        ++counted.holdings;
        continue;
      }
      ++shared;
      const HolderSet& set = pool_[slot.holders & ~kShared];
      if (set.size() < 2) return absl::InternalError("a shared name with less than two holders");
      if (absl::Status bad = set.Check(); !bad.ok()) return bad;
      counted.holdings += set.size();
    }
    if (used != segment.used) return absl::InternalError("a segment miscounts its names");
    counted.names += used;
  }
  if (shared + pool_free_.size() != pool_.size())
    return absl::InternalError("a set in the pool has no name");
  if (counted.names != counts_.names || counted.holdings != counts_.holdings || bytes != bytes_) {
    return absl::InternalError(absl::StrCat("counts: names ", counts_.names, " of ", counted.names,
                                            ", holdings ", counts_.holdings, " of ",
                                            counted.holdings, ", bytes ", bytes_, " of ", bytes));
  }
  return absl::OkStatus();
}

}  // namespace kvatlas
