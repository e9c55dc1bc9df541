// How does the table grow and shrink? Segments that grow, split and shrink, and what is looked at now and then.
//
//   1. `Rebuild` locks every bucket of the segment, in order; whoever else wants to rebuild it waits at the first
//      and then sees that the directory does not lead there any more.
//   2. A full segment gives half of its entries to a new one (`Split`). Else `Fill` copies the entries into segments that
//      nobody sees yet.
//   3. The directory gets them, the half with the larger index first, then the depth, then the other half: who
//      finds the smaller half by an old depth sees that it is not his (`FindHome`) and looks again.
//   4. Halves that are both empty become one again (`MergeEmpty`): what grows again later splits, which is cheaper than many
//      segments that grow.
//   5. The old buckets are unlocked: a writer that waited there starts again from the directory. Readers may go on reading
//      them; unless they are a half that stays, nobody changes them any more.

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "indexer/index/atlas/block_table.h"
#include "indexer/index/atlas/pause.h"

namespace kvatlas::atlas {
namespace {

// Sizes of segments in buckets.
constexpr uint32_t kSizes[] = {1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64};

}  // namespace

uint32_t BlockTable::BucketsFor(uint32_t entries) {
  for (uint32_t size : kSizes) {
    if (size * kSlots * 7 / 10 >= entries) return size;
  }
  return kBucketsMax;
}

bool BlockTable::Grow(const Segment& segment) {
  if (segment.buckets != 0) return Rebuild(segment, Aim::kGrow);
  Segment fresh = segment;
  fresh.buckets = 1;
  fresh.ref = heap_->Allocate(kLineBytes);
  if (fresh.ref == 0) return false;
  std::memset(heap_->At<char>(fresh.ref), 0, kLineBytes);
  SpinLockHolder lock(&shape_lock_);
  if (IsCurrent(segment)) {
    directory_[segment.index].store(Pack(fresh), std::memory_order_release);
  } else {
    heap_->Free(fresh.ref, kLineBytes);
  }
  return true;
}

// A bucket became empty: if its neighbours are, and some others as good as, the segment is counted. What is half empty is left
// to `Tend`: blocks come and go, and each step down would be a step up again.
void BlockTable::MaybeShrink(const Home& home) {
  constexpr uint32_t kSamples = 5;
  for (uint32_t i = 1; i < kNeighbours; ++i) {
    if (home.has_beside(i) && !IsEmpty(home.beside(i))) return;
  }
  if (!IsCurrent(home)) return;
  const Segment segment = home.segment();
  const uint32_t bucket = home.bucket();
  const auto count = [&](uint32_t number) {
    return kSlots - static_cast<uint32_t>(std::popcount(FreeSlots(BucketAt(segment, number))));
  };
  uint32_t sampled = 0;
  for (uint32_t i = 1; i <= kSamples && sampled <= kSamples / 2; ++i)
    sampled += count((bucket + i * (segment.buckets / (kSamples + 1) + 1)) % segment.buckets);
  if (sampled > kSamples / 2) return;
  uint32_t entries = 0;
  for (uint32_t i = 0; i < segment.buckets; ++i) entries += count(i);
  if (entries == 0 || BucketsFor(entries) * 8 <= segment.buckets) Rebuild(segment, Aim::kFit);
}

bool BlockTable::Rebuild(const Segment& segment, Aim aim) {
  Slot* const slots = BucketAt(segment, 0);
  for (uint32_t bucket = 0; bucket < segment.buckets; ++bucket)
    __builtin_prefetch(slots + bucket * kSlots, 1);
  Lock(slots);
  if (!IsCurrent(segment)) {
    Unlock(slots);
    return true;
  }
  for (uint32_t bucket = 1; bucket < segment.buckets; ++bucket) Lock(slots + bucket * kSlots);
  const bool split = aim == Aim::kGrow && segment.buckets == kBucketsMax && Split(segment);
  const int parts = split ? 0 : Reshape(segment, aim);
  for (uint32_t bucket = 0; bucket < segment.buckets; ++bucket) Unlock(slots + bucket * kSlots);
  if (parts > 0) heap_->Retire(segment.ref, size_t{segment.buckets} * kLineBytes);
  if (aim == Aim::kFit && parts > 0) MergeEmpty({.index = segment.index, .depth = segment.depth});
  return split || parts > 0;
}

// The half with the larger index, and a depth that leads to it; the other half follows.
void BlockTable::PublishSecond(const Segment& half) {
  SpinLockHolder lock(&shape_lock_);
  directory_[half.index].store(Pack(half), std::memory_order_release);
  --at_depth_[half.depth - 1];
  at_depth_[half.depth] += 2;
  if (depth_.load(std::memory_order_relaxed) < half.depth)
    depth_.store(half.depth, std::memory_order_release);
}

// An empty segment and its other half become one while that is empty, too. Who looks meanwhile finds that both are, or that
// the one is that has the names of both from now on.
void BlockTable::MergeEmpty(Segment segment) {
  SpinLockHolder lock(&shape_lock_);
  while (segment.depth > 0) {
    const uint32_t bit = uint32_t{1} << (segment.depth - 1);
    const Segment first = {.index = segment.index & ~bit, .depth = segment.depth};
    const Segment second = {.index = segment.index | bit, .depth = segment.depth};
    if (!IsCurrent(first) || !IsCurrent(second)) break;
    segment = {.index = first.index, .depth = first.depth - 1};
    directory_[first.index].store(Pack(segment), std::memory_order_release);
    Pause();
    directory_[second.index].store(0, std::memory_order_release);
    at_depth_[first.depth] -= 2;
    ++at_depth_[segment.depth];
  }
  int depth = depth_.load(std::memory_order_relaxed);
  while (at_depth_[depth] == 0) --depth;
  depth_.store(depth, std::memory_order_release);
}

// A full segment gives the entries of its second half to a new one; those that stay keep their slots, unless they live
// beside their home, and find room in it now. False when that cannot be, or when it is not full: then its halves need less
// room.
//
// Until the first half's own entry in the directory changes, which is after all copies and before anything goes, who looks
// for a block that stays finds it in its old slot or in its new one; and who looks for one of the second half, whose slots may
// be used again by then, sees that the directory leads elsewhere.
bool BlockTable::Split(const Segment& segment) {
  if (segment.depth >= kDepthMax) return false;
  Slot* const slots = BucketAt(segment, 0);
  static_assert(kBucketsMax == 64, "a home is six bits");
  Half stays;
  Half goes;
  uint16_t strays[kSlotsMax];
  uint32_t count = 0;
  uint32_t used = 0;
  const int shift = 31 - segment.depth;  // brings the bit that tells the halves apart to the top
  for (uint32_t i = 0; i < kSlotsMax; i += kSlots) {
    for (uint32_t left =
             Divide(slots + i, i / kSlots, shift, stays.slots + i, goes.slots + i, &used);
         left != 0; left &= left - 1)
      strays[count++] = static_cast<uint16_t>(i + static_cast<uint32_t>(std::countr_zero(left)));
  }
  if (used < kSlotsMax * 5 / 8) return false;
  Segment first = segment;
  Segment second = segment;
  first.depth = second.depth = segment.depth + 1;
  second.index |= uint32_t{1} << segment.depth;
  second.ref = heap_->Allocate(sizeof(Half::slots));
  if (second.ref == 0) return false;
  // Before any goes to where another was.
  const auto middle =
      std::partition(strays, strays + count, [&](uint16_t i) { return goes.slots[i] == 0; });
  for (uint16_t* stray = strays; stray != strays + count; ++stray)
    (stray < middle ? stays : goes).BringHome(*stray);

  goes.DropOld();
  std::memcpy(heap_->At<char>(second.ref), goes.slots, sizeof(goes.slots));
  PublishSecond(second);
  Pause();
  for (uint16_t copy : std::span(stays.copies, stays.moved)) Put(&slots[copy], stays.slots[copy]);
  Pause();
  directory_[first.index].store(Pack(first), std::memory_order_release);
  Pause();
  stays.DropOld();
  const uint64_t lock = gate_.alone() ? 0 : kStateBit;
  for (uint32_t i = 0; i < kSlotsMax; i += kSlots) {
    slots[i].store(stays.slots[i] | lock, std::memory_order_release);
    for (uint32_t slot = i + 1; slot < i + kSlots; ++slot)
      slots[slot].store(stays.slots[slot], std::memory_order_release);
  }
  return true;
}

// Copies an entry that lives beside its home into it, or says that it lives there.
void BlockTable::Half::BringHome(uint16_t stray) {
  const uint32_t home = HomeIn(slots[stray], kBucketsMax);
  uint64_t* const bucket = slots + home * kSlots;
  for (uint32_t slot = 0; slot < kSlots; ++slot) {
    if ((bucket[slot] & kWordMask) != 0) continue;
    bucket[slot] |= slots[stray] & ~kStateBit;
    copies[moved] = static_cast<uint16_t>(home * kSlots + slot);
    old[moved++] = stray;
    return;
  }
  bucket[home ^ (stray / kSlots)] |= kStateBit;
}

void BlockTable::Half::DropOld() {
  for (uint16_t slot : std::span(old, moved)) slots[slot] &= kStateBit;
}

// The entries in one segment of another size, or in two, which the directory gets. Returns how many; 0 when that cannot be.
int BlockTable::Reshape(const Segment& segment, Aim aim) {
  uint64_t all[kSlotsMax];
  uint32_t count = 0;
  for (uint32_t i = 0; i < segment.slots(); ++i) {
    const uint64_t entry = BucketAt(segment, 0)[i].load(std::memory_order_relaxed) & ~kStateBit;
    all[count] = entry;
    count += entry != 0 ? 1 : 0;
  }
  const std::span<uint64_t> entries(all, count);
  const bool grow = aim == Aim::kGrow;
  // An almost empty segment with a full neighbourhood: growing would never end.
  if (grow && segment.buckets >= 16 && entries.size() * 4 < segment.slots()) return 0;
  Segment halves[2];
  halves[0] = {.index = segment.index, .depth = segment.depth};
  const uint32_t least =
      grow ? std::bit_ceil(segment.buckets + 1) : BucketsFor(static_cast<uint32_t>(entries.size()));
  int parts = Fill(entries, least, &halves[0]) ? 1 : 0;
  if (parts == 0 && grow && segment.depth < kDepthMax && FillHalves(segment, entries, halves))
    parts = 2;
  if (parts == 2) PublishSecond(halves[1]);
  if (parts > 0) directory_[segment.index].store(Pack(halves[0]), std::memory_order_release);
  Pause();
  return parts;
}

bool BlockTable::FillHalves(const Segment& segment, std::span<uint64_t> entries,
                            Segment* halves) const {
  const uint64_t bit = uint64_t{1} << (segment.depth + 32);
  const auto middle = std::partition(entries.begin(), entries.end(),
                                     [&](uint64_t entry) { return (entry & bit) == 0; });
  const std::span<uint64_t> half[2] = {{entries.begin(), middle}, {middle, entries.end()}};
  for (int i = 0; i < 2; ++i) {
    halves[i] = {.index = segment.index | (i == 0 ? 0 : static_cast<uint32_t>(bit >> 32)),
                 .depth = segment.depth + 1};
    if (Fill(half[i], BucketsFor(static_cast<uint32_t>(half[i].size())), &halves[i])) continue;
    if (i == 1 && halves[0].ref != 0)
      heap_->Free(halves[0].ref, size_t{halves[0].buckets} * kLineBytes);
    return false;
  }
  return true;
}

// The smallest size from `least` buckets on in which every entry finds a place near its home.
bool BlockTable::Fill(std::span<const uint64_t> entries, uint32_t least, Segment* to) const {
  if (entries.empty()) return true;
  for (uint32_t size : kSizes) {
    if (size < least) continue;
    to->buckets = size;
    if (TryFill(entries, to)) return true;
  }
  return false;
}

// Nobody sees the segment yet.
bool BlockTable::TryFill(std::span<const uint64_t> entries, Segment* to) const {
  const size_t bytes = size_t{to->buckets} * kLineBytes;
  to->ref = heap_->Allocate(bytes);
  if (to->ref == 0) return false;
  Slot* const slots = BucketAt(*to, 0);
  std::memset(static_cast<void*>(slots), 0, bytes);
  uint8_t used[kBucketsMax] = {};
  for (uint64_t entry : entries) {
    const uint32_t home = HomeIn(entry, to->buckets);
    uint32_t bucket = home;
    for (uint32_t i = 1; used[bucket] == kSlots && i < kNeighbours; ++i) {
      if ((home ^ i) < to->buckets) bucket = home ^ i;
    }
    if (used[bucket] == kSlots) {
      heap_->Free(to->ref, bytes);
      to->ref = 0;
      return false;
    }
    Slot* const slot = slots + bucket * kSlots + used[bucket]++;
    slot->store((slot->load(std::memory_order_relaxed) & kStateBit) | entry,
                std::memory_order_relaxed);
    if (bucket != home) SetState(&slots[home * kSlots + (home ^ bucket)], true);
  }
  return true;
}

size_t BlockTable::Tend(uint32_t* cursor, size_t steps, std::vector<Ref>* words) {
  const uint32_t end = uint32_t{1} << depth_.load(std::memory_order_acquire);
  size_t looked = 0;
  for (uint32_t i = 0; i < end && looked < steps; ++i, ++looked) {
    if (*cursor >= end) *cursor = 0;
    const uint32_t index = (*cursor)++;
    const uint64_t entry = directory_[index].load(std::memory_order_acquire);
    if (entry == 0) continue;
    const Segment segment = Unpack(entry, index);
    const size_t before = words->size();
    for (uint32_t slot = 0; slot < segment.slots(); ++slot) {
      const Ref word = BucketAt(segment, 0)[slot].load(std::memory_order_acquire) & kWordMask;
      if (word != 0) words->push_back(word);
    }
    looked += segment.slots();
    const uint32_t fitting = BucketsFor(static_cast<uint32_t>(words->size() - before));
    if (segment.buckets > fitting ||
        (segment.buckets != 0 &&
         heap_->BetterElsewhere(segment.ref, size_t{segment.buckets} * kLineBytes)))
      Rebuild(segment, Aim::kFit);
  }
  return looked;
}

BlockTable::Shape BlockTable::CountShape() const {
  Shape shape;
  const uint32_t end = uint32_t{1} << depth_.load(std::memory_order_acquire);
  for (uint32_t index = 0; index < end; ++index) {
    const uint64_t entry = directory_[index].load(std::memory_order_acquire);
    if (entry == 0) continue;
    const Segment segment = Unpack(entry, index);
    ++shape.segments;
    shape.slots += segment.slots();
    for (uint32_t i = 0; i < segment.slots(); ++i) {
      const uint64_t slot = BucketAt(segment, 0)[i].load(std::memory_order_relaxed);
      if ((slot & kWordMask) == 0) continue;
      ++shape.entries;
      if (HomeIn(slot, segment.buckets) != i / kSlots) ++shape.displaced;
    }
  }
  return shape;
}

}  // namespace kvatlas::atlas
