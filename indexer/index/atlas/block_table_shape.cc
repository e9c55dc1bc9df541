// Growth and upkeep of the table: segments that grow, split and shrink.
//
//   1. A full segment gives half of its entries to a new one (`Split`). Else `Fill` copies the
//      entries into segments that no reader sees yet.
//   2. The directory gets them, the half with the larger index first, then the depth, then the
//      other half: a reader that finds the smaller half by an old depth sees that it is not its own
//      (`StartLookup`) and looks again.
//   3. Halves that are both empty become one again (`MergeEmpty`): what grows again later splits,
//      which is cheaper than many segments that grow.
//   4. Readers may go on reading a segment that was replaced; unless it is a half that stays, it
//     does not change any more.

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "indexer/base/assert.h"
#include "indexer/index/atlas/block_table.h"
#include "indexer/index/atlas/pause.h"

namespace kvatlas::atlas {
namespace {

// Sizes of segments in buckets, which have a class each of the heap, and from 4 on at most a
// quarter between them.
constexpr uint32_t kSizes[] = {1,  2,  3,  4,  5,  6,  7,  8,  10, 12,
                               14, 16, 20, 24, 28, 32, 40, 48, 56, 64};

// Upkeep fills segments up to so many of 20 slots, and leaves those alone that are as full as that.
constexpr uint32_t kFullIn20 = 16;
constexpr uint32_t kSparseIn20 = 12;

}  // namespace

// The smallest size of which so many entries fill at most 16 of 20 slots.
uint32_t BlockTable::BucketsFor(uint32_t entries) {
  for (uint32_t size : kSizes) {
    if (size * kSlots * kFullIn20 / 20 >= entries) return size;
  }
  return kBucketsMax;
}

// An empty segment gets its first bucket; any other is rebuilt. False: no memory, or no way to
// grow.
bool BlockTable::Grow(const Segment& segment) {
  if (segment.buckets != 0) return Rebuild(segment, Aim::kGrow);
  Segment fresh = segment;
  fresh.buckets = 1;
  fresh.ref = heap_->Allocate(kLineBytes);
  if (fresh.ref == 0) return false;
  std::memset(heap_->At<char>(fresh.ref), 0, kLineBytes);
  directory_[segment.index].store(Pack(fresh), std::memory_order_release);
  ++rebuilds_;
  return true;
}

// Replaces a segment: split in place if it is of full size, else reshaped. The old memory is
// retired, not freed, since readers may be in it; after a split it lives on as the first half.
bool BlockTable::Rebuild(const Segment& segment, Aim aim) {
  KVATLAS_ASSERT(IsCurrent(segment));
  ++rebuilds_;
  longest_step_ = std::max(longest_step_, segment.slots());
  const bool split = aim == Aim::kGrow && segment.buckets == kBucketsMax && Split(segment);
  const int parts = split ? 0 : Reshape(segment, aim);
  if (parts > 0) heap_->Retire(segment.ref, size_t{segment.buckets} * kLineBytes);
  if (aim == Aim::kFit && parts > 0) MergeEmpty({.index = segment.index, .depth = segment.depth});
  return split || parts > 0;
}

// Publishes the half with the larger index, then a depth that leads to it; the caller publishes the
// other half afterwards. In between, a reader of the old entry still finds all blocks of both
// halves in the old memory.
void BlockTable::PublishSecond(const Segment& half) {
  directory_[half.index].store(Pack(half), std::memory_order_release);
  --at_depth_[half.depth - 1];
  at_depth_[half.depth] += 2;
  if (depth_.load(std::memory_order_relaxed) < half.depth)
    depth_.store(half.depth, std::memory_order_release);
}

// An empty segment and its other half become one while that is empty, too. A reader meanwhile finds
// that both are, or that the one is that has the names of both from now on.
void BlockTable::MergeEmpty(Segment segment) {
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

// A full segment gives the entries of its second half to a new one; those that stay keep their
// slots, unless they live beside their home, and find room in it now. False when that cannot be, or
// when it is not full: then its halves need less room.
//
// Until the first half's own entry in the directory changes, which is after all copies and before
// anything goes, a reader finds a block that stays in its old slot or in its new one; and one that
// looks for a block of the second half, whose slots may be used again by then, sees that the
// directory leads elsewhere.
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
             PartitionBucket(slots + i, i / kSlots, shift, stays.slots + i, goes.slots + i, &used);
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
  for (uint32_t i = 0; i < kSlotsMax; ++i)
    slots[i].store(stays.slots[i], std::memory_order_release);
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

// The entries in one segment of another size, or in two, which the directory gets. Returns how
// many; 0 when that cannot be.
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
  // An almost empty segment with a full neighbourhood: the hashes collide, and growing would never
  // end.
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

// The bit of the hash that the next depth adds decides. If the second half finds no memory, the
// first is given back: nothing has been published.
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

// No reader sees the segment yet.
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

// A walk over the directory from where the last call ended. Each segment's words go to the caller,
// for the upkeep of runs; a segment that is sparse and would fit a smaller size, or that keeps a
// page of the heap from running empty, is rebuilt. *Cost*: a step an entry of the directory and a
// slot.
size_t BlockTable::Maintain(uint32_t* cursor, size_t steps, std::vector<Ref>* words) {
  const uint32_t end = uint32_t{1} << depth_.load(std::memory_order_relaxed);
  size_t looked = 0;
  for (uint32_t i = 0; i < end && looked < steps; ++i, ++looked) {
    if (*cursor >= end) *cursor = 0;
    const uint32_t index = (*cursor)++;
    const uint64_t entry = directory_[index].load(std::memory_order_relaxed);
    if (entry == 0) continue;
    const Segment segment = Unpack(entry, index);
    if (segment.buckets == 0) continue;
    const size_t before = words->size();
    for (uint32_t slot = 0; slot < segment.slots(); ++slot) {
      const Ref word = BucketAt(segment, 0)[slot].load(std::memory_order_relaxed) & kWordMask;
      if (word != 0) words->push_back(word);
    }
    looked += segment.slots();
    const uint32_t entries = static_cast<uint32_t>(words->size() - before);
    const bool sparse = entries * 20 < segment.slots() * kSparseIn20 &&
                        (entries == 0 || BucketsFor(entries) < segment.buckets);
    if (sparse || heap_->IsOnSparsePage(segment.ref, size_t{segment.buckets} * kLineBytes))
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
