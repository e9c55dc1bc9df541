// Holders of one run in one tier: those that have all of it, those that have part, and both.
//
// Small is inline: up to three holders in the run itself. `MakeSections` moves them out once and
// for all; from then on a tier's section grows (`GrowSection`), as does its table of partial
// holders (`GrowPartials`). Growth builds a new object, publishes it with one release store and
// retires the old one, so a reader sees one or the other whole. Within an object single words
// change.

#include "indexer/index/atlas/members.h"
#include "indexer/index/atlas/pause.h"

#include <algorithm>
#include <bit>
#include <new>

namespace kvatlas::atlas {
namespace {

// Up to this many holder numbers a bit each is at most 64 bytes; that is never worth a list.
constexpr uint32_t kBitsOnly = 512;

// Up to this capacity `LookAt` scans a table of partial holders instead of searching it.
constexpr uint32_t kFewEntries = 16;

// Sizes of lists of holders: a section is then 32, 64, 128, 256 bytes.
constexpr uint16_t kListSizes[] = {4, 12, 28, 60};

uint32_t WordsFor(uint32_t holders_end) { return (holders_end + 63) / 64; }

}  // namespace

// ---- Where ----

// Sections of a run form a list, one a tier in use, in no particular order. Where the tier has none
// this is the end of the list, at which one may be appended.
std::atomic<Holders>* Members::Link() const {
  std::atomic<Holders>* link = &run_->holders[0];
  for (;;) {
    Section* const at = SectionAt(heap_, link->load(std::memory_order_acquire));
    if (at == nullptr || at->tier == tier_) return link;
    link = &at->next;
  }
}

TierMask Members::TiersOf(Heap* heap, const Run& run) {
  TierMask tiers;
  const Holders first = run.holders[0].load(std::memory_order_acquire);
  if (Section* at = SectionAt(heap, first); at != nullptr) {
    for (; at != nullptr; at = SectionAt(heap, at->next.load(std::memory_order_acquire)))
      tiers = tiers | at->tier;
    return tiers;
  }
  for (const std::atomic<Holders>& slot : run.holders) {
    const Holders one = slot.load(std::memory_order_relaxed);
    if (one != kFree) tiers = tiers | TierOf(one);
  }
  return tiers;
}

// Inline runs alone: sections say "several" even if one holder is left.
Holders Members::Sole(const Run& run) {
  Holders sole = kFree;
  for (const std::atomic<Holders>& slot : run.holders) {
    const Holders one = slot.load(std::memory_order_relaxed);
    if ((one & kSectionBit) != 0) return kFree;
    if (one == kFree) continue;
    if (sole != kFree) return kFree;
    sole = one;
  }
  return sole;
}

// ---- All ----

bool Members::HasAll(uint32_t holder) const {
  if (holder == kNoHolder) return false;
  if (is_inline()) {
    const Holders wanted = InlineHolder(tier_, holder);
    for (const std::atomic<Holders>& slot : run_->holders) {
      if (slot.load(std::memory_order_relaxed) == wanted) return true;
    }
    return false;
  }
  Section* const at = section();
  return at != nullptr && HasAll(at, holder);
}

bool Members::HasAll(Section* at, uint32_t holder) {
  if (at->words != 0) {
    return holder / 64 < at->words &&
           (at->bits()[holder / 64].load(std::memory_order_relaxed) >> (holder % 64) & 1) != 0;
  }
  for (uint32_t i = 0; i < at->listed_max; ++i) {
    if (at->listed()[i].load(std::memory_order_relaxed) == holder) return true;
  }
  return false;
}

uint32_t Members::CountAll(uint32_t at_most) const {
  uint32_t count = 0;
  if (is_inline()) {
    for (const std::atomic<Holders>& slot : run_->holders) {
      const Holders one = slot.load(std::memory_order_relaxed);
      count += one != kFree && TierOf(one) == tier_ ? 1 : 0;
    }
    return count;
  }
  Section* const at = section();
  return at == nullptr ? 0 : CountAll(at, at_most);
}

// May count a little beyond `at_most`: a word of bits is counted whole.
uint32_t Members::CountAll(Section* at, uint32_t at_most) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < at->words && count < at_most; ++i)
    count += static_cast<uint32_t>(std::popcount(at->bits()[i].load(std::memory_order_relaxed)));
  for (uint32_t i = 0; i < at->listed_max && count < at_most; ++i)
    count += at->listed()[i].load(std::memory_order_relaxed) != kNoHolder ? 1 : 0;
  return count;
}

// 1. A free place in the run itself, in any tier: the places are shared by all tiers.
// 2. Else sections are made, and a bit or a free place in the tier's list is taken.
// 3. Else the section grows, and 2 again.
// A holder that had part is still there as well; the caller removes it (W4).
bool Members::AddAll(uint32_t holder) {
  if (is_inline()) {
    for (std::atomic<Holders>& slot : run_->holders) {
      if (slot.load(std::memory_order_relaxed) != kFree) continue;
      slot.store(InlineHolder(tier_, holder), std::memory_order_release);
      return true;
    }
    if (!MakeSections()) return false;
  }
  for (;;) {
    Section* const at = section();
    if (at != nullptr && at->words != 0 && holder / 64 < at->words) {
      Add(at, holder);
      return true;
    }
    for (uint32_t i = 0; at != nullptr && i < at->listed_max; ++i) {
      if (at->listed()[i].load(std::memory_order_relaxed) != kNoHolder) continue;
      at->listed()[i].store(holder, std::memory_order_release);
      return true;
    }
    if (!GrowSection(holder)) return false;
  }
}

// REQUIRES: the run is inline or has a section of this tier. Sections never shrink: the run's next
// replacement makes new ones.
void Members::RemoveAll(uint32_t holder) {
  if (is_inline()) {
    for (std::atomic<Holders>& slot : run_->holders) {
      if (slot.load(std::memory_order_relaxed) == InlineHolder(tier_, holder))
        slot.store(kFree, std::memory_order_release);
    }
    return;
  }
  Section* const at = section();
  if (at->words != 0) {
    std::atomic<uint64_t>& word = at->bits()[holder / 64];
    word.store(word.load(std::memory_order_relaxed) & ~(uint64_t{1} << (holder % 64)),
               std::memory_order_release);
    return;
  }
  for (uint32_t i = 0; i < at->listed_max; ++i) {
    if (at->listed()[i].load(std::memory_order_relaxed) == holder)
      at->listed()[i].store(kNoHolder, std::memory_order_release);
  }
}

// REQUIRES: there is room.
void Members::Add(Section* section, uint32_t holder) {
  if (section->words != 0) {
    std::atomic<uint64_t>& word = section->bits()[holder / 64];
    word.store(word.load(std::memory_order_relaxed) | uint64_t{1} << (holder % 64),
               std::memory_order_release);
    return;
  }
  uint32_t i = 0;
  while (section->listed()[i].load(std::memory_order_relaxed) != kNoHolder) ++i;
  section->listed()[i].store(holder, std::memory_order_release);
}

// An empty section with room for `holders` of numbers up to `holder_max`; null when there is no
// memory. A list while it is smaller than a bit for every holder number in use, and never again
// once a section had bits (`bits`).
Section* Members::NewSection(Tier tier, uint32_t holders, uint32_t holder_max, bool bits,
                             Ref* ref) const {
  Section shape;
  const uint32_t words = WordsFor(std::max(holders_end_, holder_max + 1));
  if (words * 64 > kBitsOnly && !bits) {
    for (uint16_t size : kListSizes) {
      if (size < holders) continue;
      shape.listed_max = size;
      break;
    }
  }
  if (shape.listed_max == 0 || shape.listed_max * 4u >= words * 8) {
    shape.listed_max = 0;
    shape.words = static_cast<uint16_t>(words);
  }
  *ref = heap_->Allocate(shape.bytes());
  if (*ref == 0) return nullptr;
  Section* const fresh = new (heap_->At<void>(*ref)) Section;
  fresh->words = shape.words;
  fresh->listed_max = shape.listed_max;
  fresh->tier = tier;
  for (uint32_t i = 0; i < fresh->words; ++i) fresh->bits()[i].store(0, std::memory_order_relaxed);
  for (uint32_t i = 0; i < fresh->listed_max; ++i)
    fresh->listed()[i].store(kNoHolder, std::memory_order_relaxed);
  return fresh;
}

// Moves the holders of the run itself into sections, one a tier and one for this tier in any case.
// They are linked while no reader sees them and published by one store to `holders[0]`: the section
// bit there makes readers ignore the other places. False without memory: nothing changed.
bool Members::MakeSections() {
  Holders first = kFree;
  for (int i = 0; i < kTiers; ++i) {
    const Tier tier = static_cast<Tier>(i);
    uint32_t holders[kInlineHolders];
    uint32_t count = 0;
    uint32_t largest = 0;
    for (const std::atomic<Holders>& slot : run_->holders) {
      const Holders one = slot.load(std::memory_order_relaxed);
      if (one == kFree || TierOf(one) != tier) continue;
      holders[count++] = HolderOf(one);
      largest = std::max(largest, HolderOf(one));
    }
    if (count == 0 && tier != tier_) continue;
    Ref ref;
    Section* const fresh = NewSection(tier, count + 1, largest, /*bits=*/false, &ref);
    if (fresh == nullptr) {
      while (Section* const made = SectionAt(heap_, first)) {
        const Ref gone = first & ~kSectionBit;
        first = made->next.load(std::memory_order_relaxed);
        heap_->Free(gone, made->bytes());
      }
      return false;
    }
    for (uint32_t each = 0; each < count; ++each) Add(fresh, holders[each]);
    fresh->next.store(first, std::memory_order_relaxed);
    first = ref | kSectionBit;
  }
  Pause();
  run_->holders[0].store(first, std::memory_order_release);
  return true;
}

// A section with room for `holder`, and all that the old one says. REQUIRES: the run has sections.
bool Members::GrowSection(uint32_t holder) {
  std::atomic<Holders>* const link = Link();
  Section* const old = section();
  Ref ref;
  Section* const fresh = NewSection(tier_, old == nullptr ? 1 : old->listed_max + 1u, holder,
                                    /*bits=*/old != nullptr && old->words != 0, &ref);
  if (fresh == nullptr) return false;
  if (old != nullptr) {
    fresh->next.store(old->next.load(std::memory_order_relaxed), std::memory_order_relaxed);
    fresh->partials.store(old->partials.load(std::memory_order_relaxed), std::memory_order_relaxed);
    for (uint32_t i = 0; i < old->words; ++i)
      fresh->bits()[i].store(old->bits()[i].load(std::memory_order_relaxed),
                             std::memory_order_relaxed);
    for (uint32_t i = 0; i < old->listed_max; ++i) {
      const uint32_t each = old->listed()[i].load(std::memory_order_relaxed);
      if (each != kNoHolder) Add(fresh, each);
    }
  }
  const Ref old_ref = link->load(std::memory_order_relaxed) & ~kSectionBit;
  link->store(ref | kSectionBit, std::memory_order_release);
  if (old != nullptr) heap_->Retire(old_ref, old->bytes());
  return true;
}

// ---- Part ----

int Members::FindPart(Partials* partials, uint32_t holder) {
  const uint32_t mask = partials->capacity - 1;
  uint32_t at = (holder * 0x9E3779B9u) >> 16;
  for (uint32_t i = 0; i < partials->capacity; ++i, ++at) {
    const uint32_t name = partials->names()[at & mask].load(std::memory_order_relaxed);
    if (name == holder) return static_cast<int>(at & mask);
    if (name == kNoHolder) return -1;
  }
  return -1;
}

Offsets Members::Load(Partials* partials, uint32_t entry) {
  Offsets offsets;
  for (uint32_t i = 0; i < partials->words; ++i)
    offsets.words[i] = partials->offsets(entry)[i].load(std::memory_order_relaxed);
  return offsets;
}

void Members::Insert(Partials* partials, uint32_t holder, const Offsets& offsets) {
  const uint32_t mask = partials->capacity - 1;
  uint32_t at = (holder * 0x9E3779B9u) >> 16;
  while (partials->names()[at & mask].load(std::memory_order_relaxed) != kNoHolder) ++at;
  at &= mask;
  for (uint32_t i = 0; i < partials->words; ++i)
    partials->offsets(at)[i].store(offsets.words[i], std::memory_order_relaxed);
  partials->names()[at].store(holder, std::memory_order_release);
  ++partials->used;
  ++partials->holders;
}

uint32_t Members::CountPartials() const {
  const Partials* const part = partials();
  return part == nullptr ? 0 : part->holders;
}

// 1. A section is needed for the table of partial holders, even if no holder has all.
// 2. A holder that is in the table gets its new bits word by word: a reader may see some old and
//    some new ones, so callers that take bits away do it under an odd version (W4).
// 3. Else a new entry, in a larger table if this one is 7/8 used (`GrowPartials`).
bool Members::SetPart(uint32_t holder, const Offsets& offsets) {
  if (is_inline() && !MakeSections()) return false;
  if (section() == nullptr && !GrowSection(holder)) return false;
  Partials* part = partials();
  const int entry = part == nullptr ? -1 : FindPart(part, holder);
  if (entry >= 0) {
    for (uint32_t i = 0; i < part->words; ++i)
      part->offsets(static_cast<uint32_t>(entry))[i].store(offsets.words[i],
                                                           std::memory_order_release);
    return true;
  }
  if (part == nullptr || part->used + 1 > part->capacity - part->capacity / 8) {
    if (!GrowPartials()) return false;
    part = partials();
  }
  Insert(part, holder, offsets);
  return true;
}

// A table with room for one more, without entries of holders that are gone: these only leave in
// this way, since a search must not end at them.
bool Members::GrowPartials() {
  Partials* const old = partials();
  const uint32_t words = (run_->capacity + 63u) / 64;
  const uint32_t wanted = (old == nullptr ? 0 : old->holders) + 1;
  uint32_t capacity = 1;
  while (capacity - capacity / 8 < wanted) capacity *= 2;
  const Ref ref = heap_->Allocate(Partials::Bytes(words, capacity));
  if (ref == 0) return false;
  Partials* const fresh = new (heap_->At<void>(ref)) Partials;
  fresh->words = static_cast<uint16_t>(words);
  fresh->capacity = capacity;
  for (uint32_t i = 0; i < capacity; ++i)
    fresh->names()[i].store(kNoHolder, std::memory_order_relaxed);
  Section* const at = section();
  const Ref old_ref = at->partials.load(std::memory_order_relaxed);
  for (uint32_t i = 0; old != nullptr && i < old->capacity; ++i) {
    const uint32_t name = old->names()[i].load(std::memory_order_relaxed);
    if (name < kGone) Insert(fresh, name, Load(old, i));
  }
  at->partials.store(ref, std::memory_order_release);
  if (old != nullptr) heap_->Retire(old_ref, old->bytes());
  return true;
}

// The entry becomes kGone and keeps its bits. The table goes with its last holder.
void Members::RemovePart(uint32_t holder) {
  Partials* const part = partials();
  const int entry = part == nullptr ? -1 : FindPart(part, holder);
  if (entry < 0) return;
  part->names()[entry].store(kGone, std::memory_order_release);
  Pause();
  if (--part->holders > 0) return;
  Section* const at = section();
  const Ref ref = at->partials.load(std::memory_order_relaxed);
  at->partials.store(0, std::memory_order_release);
  heap_->Retire(ref, part->bytes());
}

// Looks at everything that `WithdrawOne` has to know, in one pass and without changing anything.
// `usual` is false where the removal is more than a bit: another tier, a holder of all, or its last
// block here. Without a table, or without an entry in it, the holder has nothing of this run.
Members::One Members::LookAt(Heap* heap, Run* run, Tier tier, uint32_t holder, uint32_t offset) {
  Section* const at = SectionAt(heap, run->holders[0].load(std::memory_order_relaxed));
  const bool only = (at->next.load(std::memory_order_relaxed) & kSectionBit) == 0;
  if (!only || at->tier != tier || HasAll(at, holder)) return {};
  const Ref ref = at->partials.load(std::memory_order_relaxed);
  if (ref == 0) return {.usual = true};
  Partials* const part = heap->At<Partials>(ref);
  const uint32_t word = offset / 64;
  const uint64_t bit = uint64_t{1} << (offset % 64);
  // All of a few entries are looked at: the order is as good as random, and a branch would be a
  // guess.
  const bool few = part->capacity <= kFewEntries;
  int entry = -1;
  uint64_t others = 0;
  if (few) {
    for (uint32_t i = 0; i < part->capacity; ++i) {
      const uint32_t name = part->names()[i].load(std::memory_order_relaxed);
      const uint64_t bits = part->offsets(i)[word].load(std::memory_order_relaxed);
      const bool is_it = name == holder;
      entry = is_it ? static_cast<int>(i) : entry;
      others |= bits & -uint64_t{!is_it && name < kGone};
    }
  } else {
    entry = FindPart(part, holder);
  }
  if (entry < 0) return {.usual = true};
  std::atomic<uint64_t>* const mine = part->offsets(static_cast<uint32_t>(entry));
  uint64_t rest = ~bit & mine[word].load(std::memory_order_relaxed);
  for (uint32_t i = 0; i < part->words; ++i)
    rest |= i == word ? 0 : mine[i].load(std::memory_order_relaxed);
  One one{.usual = rest != 0,
          .has = (mine[word].load(std::memory_order_relaxed) & bit) != 0,
          .shared = (others & bit) != 0 || CountAll(at, 1) != 0,
          .bits = &mine[word]};
  for (uint32_t i = 0; !few && i < part->capacity && !one.shared; ++i) {
    const bool other =
        static_cast<int>(i) != entry && part->names()[i].load(std::memory_order_relaxed) < kGone;
    one.shared = other && (part->offsets(i)[word].load(std::memory_order_relaxed) & bit) != 0;
  }
  return one;
}

// ---- Both ----

Offsets Members::Of(uint32_t holder, const Offsets& live) const {
  if (HasAll(holder)) return live;
  Partials* const part = partials();
  const int entry = part == nullptr ? -1 : FindPart(part, holder);
  return entry < 0 ? Offsets{} : Load(part, static_cast<uint32_t>(entry));
}

// Two holders of all, or one beside `except`, have everything that lives; `except` may be among
// those. Else partial holders are joined until they cover everything.
Offsets Members::Union(uint32_t except, const Offsets& live) const {
  Offsets all;
  // `except` may be kNoHolder, which holds nothing.
  if (CountAll(2) >= (HasAll(except) ? 2u : 1u)) return live;
  Partials* const part = partials();
  if (part == nullptr) return all;
  for (uint32_t i = 0; i < part->capacity; ++i) {
    const uint32_t name = part->names()[i].load(std::memory_order_relaxed);
    if (name >= kGone || name == except) continue;
    all = all | Load(part, i);
    if (all == live) break;
  }
  return all;
}

// Follows the list of sections; an inline run has nothing to give back.
void Members::Discard(Heap* heap, Run* run, bool seen) {
  Holders link = run->holders[0].load(std::memory_order_relaxed);
  while (Section* const at = SectionAt(heap, link)) {
    const Ref ref = link & ~kSectionBit;
    const Ref part_ref = at->partials.load(std::memory_order_relaxed);
    link = at->next.load(std::memory_order_relaxed);
    if (seen) {
      if (part_ref != 0) heap->Retire(part_ref, heap->At<Partials>(part_ref)->bytes());
      heap->Retire(ref, at->bytes());
    } else {
      if (part_ref != 0) heap->Free(part_ref, heap->At<Partials>(part_ref)->bytes());
      heap->Free(ref, at->bytes());
    }
  }
}

}  // namespace kvatlas::atlas
