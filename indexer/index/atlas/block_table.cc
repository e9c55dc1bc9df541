#include "indexer/index/atlas/block_table.h"

#include <sys/mman.h>

#if defined(__SSE4_1__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "indexer/index/atlas/pause.h"
#include "indexer/index/atlas/spin_lock.h"
#include "indexer/index/atlas/tsan.h"

namespace kvatlas::atlas {
namespace {

constexpr size_t kDirectoryBytes = (size_t{1} << 22) * sizeof(uint64_t);

// Sizes of segments in buckets.
constexpr uint32_t kSizes[] = {1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64};

constexpr uint64_t kValid = uint64_t{1} << 63;

uint32_t LowBits(uint32_t value, int bits) {
  return bits >= 32 ? value : value & ((uint32_t{1} << bits) - 1);
}

}  // namespace

std::unique_ptr<BlockTable> BlockTable::Create(Heap* heap, uint64_t seed) {
  void* memory = mmap(nullptr, kDirectoryBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  return std::unique_ptr<BlockTable>(
      new BlockTable(heap, static_cast<std::atomic<uint64_t>*>(memory), seed));
}

BlockTable::BlockTable(Heap* heap, std::atomic<uint64_t>* directory, uint64_t seed)
    : heap_(heap), directory_(directory), seed_(seed) {
  static_assert(kDirectoryBytes == (size_t{1} << kDepthMax) * sizeof(uint64_t));
  static_assert(kSizes[std::size(kSizes) - 1] == kBucketsMax);
  directory_[0].store(Pack({}), std::memory_order_release);
}

BlockTable::~BlockTable() { munmap(static_cast<void*>(directory_), kDirectoryBytes); }

// ---- Where a hash belongs ----

inline uint32_t BlockTable::Mix(SequenceHash block) const {
  const unsigned __int128 product =
      static_cast<unsigned __int128>(Raw(block) ^ seed_) * 0x9E3779B97F4A7C15u;
  return static_cast<uint32_t>(static_cast<uint64_t>(product) ^
                               static_cast<uint64_t>(product >> 64) ^
                               static_cast<uint64_t>(product >> 32));
}

uint64_t BlockTable::Pack(const Segment& segment) {
  return kValid | uint64_t(segment.depth) << 56 | uint64_t{segment.buckets} << 40 | segment.ref;
}

BlockTable::Segment BlockTable::Unpack(uint64_t entry, uint32_t index) {
  return {.index = index,
          .depth = static_cast<int>(entry >> 56 & 0x7f),
          .buckets = static_cast<uint32_t>(entry >> 40 & 0xff),
          .ref = static_cast<Ref>(entry & kWordMask)};
}

inline void BlockTable::FindHome(uint32_t mixed, Home* home) const {
  home->mixed = mixed;
  for (;;) {
    const int depth = depth_.load(std::memory_order_acquire);
    uint32_t index = LowBits(mixed, depth);
    uint64_t entry = directory_[index].load(std::memory_order_acquire);
    while (entry == 0) {
      index ^= std::bit_floor(index);
      entry = directory_[index].load(std::memory_order_acquire);
    }
    // Else split while we looked: the other half is published before this one.
    if (LowBits(mixed, static_cast<int>(entry >> 56 & 0x7f)) != index) continue;
    home->index = index;
    home->entry = entry;
    const uint32_t buckets = static_cast<uint32_t>(entry >> 40 & 0xff);
    home->slots = buckets == 0 ? nullptr
                               : heap_->At<Slot>(static_cast<Ref>(entry & kWordMask)) +
                                     size_t{BucketOf(mixed, buckets)} * kSlots;
    return;
  }
}

void BlockTable::FetchHome(SequenceHash block, Home* home) const {
  FindHome(Mix(block), home);
  __builtin_prefetch(home->slots, 1);
}

// ---- A bucket's own state ----

inline bool BlockTable::TryLock(Slot* bucket) const {
  if (gate_.alone()) return true;
  return (bucket[kLockSlot].fetch_or(kStateBit, std::memory_order_acquire) & kStateBit) == 0;
}

inline void BlockTable::Lock(Slot* bucket) const {
  for (int round = 0; !TryLock(bucket);) {
    do {
      SpinWait(round++);
    } while ((bucket[kLockSlot].load(std::memory_order_relaxed) & kStateBit) != 0);
  }
}

inline void BlockTable::Unlock(Slot* bucket) const {
  if (gate_.alone()) return;
  bucket[kLockSlot].store(bucket[kLockSlot].load(std::memory_order_relaxed) & ~kStateBit,
                          std::memory_order_release);
}

void BlockTable::SetState(Slot* slot, bool to) {
  const uint64_t bit = to ? kStateBit : 0;
  slot->store((slot->load(std::memory_order_relaxed) & ~kStateBit) | bit,
              std::memory_order_release);
}

uint32_t BlockTable::Displaced(const Slot* bucket) {
  uint32_t count = 0;
  for (int i = 0; i < 3; ++i) {
    const uint64_t bit = bucket[kCountSlot + i].load(std::memory_order_relaxed) & kStateBit;
    count |= bit != 0 ? 1u << i : 0;
  }
  return count;
}

void BlockTable::SetDisplaced(Slot* bucket, uint32_t count) {
  if (count != 0) SetState(&bucket[kSomeSlot], true);
  for (int i = 0; i < 3; ++i) SetState(&bucket[kCountSlot + i], (count >> i & 1) != 0);
  if (count == 0) SetState(&bucket[kSomeSlot], false);
}

inline void BlockTable::Put(Slot* slot, uint64_t entry) {
  // Partner: the acquire loads of `FindIn`, so that who finds the word sees the hash in it.
  slot->store((slot->load(std::memory_order_relaxed) & kStateBit) | entry,
              std::memory_order_release);
}

// ---- Eight slots at once ----
//
// Words change one by one and are never torn, so that they may be read two by two. Which slots look like something is
// a hint to a reader: he loads those again.

#if defined(__SSE4_1__) && !KVATLAS_THREAD_SANITIZER

namespace {

// The low (0) or high (1) halves of four pairs of words as a bit each.
template <int kHalf>
uint32_t Gather(__m128i a, __m128i b, __m128i c, __m128i d) {
  constexpr int kPick = kHalf == 0 ? 0x88 : 0xdd;
  const __m128 first = _mm_shuffle_ps(_mm_castsi128_ps(a), _mm_castsi128_ps(b), kPick);
  const __m128 second = _mm_shuffle_ps(_mm_castsi128_ps(c), _mm_castsi128_ps(d), kPick);
  return static_cast<uint32_t>(_mm_movemask_ps(first) | _mm_movemask_ps(second) << 4);
}

}  // namespace

inline uint32_t BlockTable::LikeIt(const Slot* bucket, uint32_t mixed) {
  const __m128i* const pairs = reinterpret_cast<const __m128i*>(bucket);
  const __m128i wanted = _mm_set1_epi32(static_cast<int>(mixed));
  return Gather<1>(_mm_cmpeq_epi32(_mm_load_si128(pairs), wanted),
                   _mm_cmpeq_epi32(_mm_load_si128(pairs + 1), wanted),
                   _mm_cmpeq_epi32(_mm_load_si128(pairs + 2), wanted),
                   _mm_cmpeq_epi32(_mm_load_si128(pairs + 3), wanted));
}

inline uint32_t BlockTable::Free(const Slot* bucket) {
  const __m128i* const pairs = reinterpret_cast<const __m128i*>(bucket);
  const __m128i mask = _mm_set1_epi64x(static_cast<int64_t>(kWordMask));
  const __m128i zero = _mm_setzero_si128();
  return Gather<0>(_mm_cmpeq_epi32(_mm_and_si128(_mm_load_si128(pairs), mask), zero),
                   _mm_cmpeq_epi32(_mm_and_si128(_mm_load_si128(pairs + 1), mask), zero),
                   _mm_cmpeq_epi32(_mm_and_si128(_mm_load_si128(pairs + 2), mask), zero),
                   _mm_cmpeq_epi32(_mm_and_si128(_mm_load_si128(pairs + 3), mask), zero));
}

#else

uint32_t BlockTable::LikeIt(const Slot* bucket, uint32_t mixed) {
  uint32_t like_it = 0;
  for (int i = 0; i < kSlots; ++i)
    like_it |= uint32_t{bucket[i].load(std::memory_order_relaxed) >> 32 == mixed} << i;
  return like_it;
}

uint32_t BlockTable::Free(const Slot* bucket) {
  uint32_t free = 0;
  for (int i = 0; i < kSlots; ++i)
    free |= uint32_t{(bucket[i].load(std::memory_order_relaxed) & kWordMask) == 0} << i;
  return free;
}

#endif

// ---- Reading ----

Ref BlockTable::FindIn(const Home& home, SequenceHash block, bool* changes) const {
  const auto look = [&](const Slot* bucket) -> Ref {
    uint32_t like_it = LikeIt(bucket, static_cast<uint32_t>(home.mixed));
    for (; like_it != 0; like_it &= like_it - 1) {
      const Slot& slot = bucket[std::countr_zero(like_it)];
      const uint64_t entry = slot.load(std::memory_order_acquire);
      if (entry >> 32 != home.mixed) {
        *changes = true;
        continue;
      }
      const Ref word = static_cast<Ref>(entry & kWordMask);
      Pause();
      // Whoever looks for the block will want its run.
      __builtin_prefetch(heap_->At<char>(heap_->RunOf(word)));
      if (word == 0) continue;
      // Partner: the release store of whoever uses the word for another block, after the entry led elsewhere: who
      // sees the one sees the other.
      if (heap_->word(word).load(std::memory_order_acquire) == Raw(block)) return word;
      *changes = *changes || slot.load(std::memory_order_relaxed) != entry;
    }
    return 0;
  };
  Pause();
  const Ref at_home = look(home.slots);
  Pause();
  if (at_home != 0 || !SomeDisplaced(home.slots)) return at_home;
  const Segment segment = home.segment();
  for (uint32_t i = 1; i < kNeighbours; ++i) {
    const uint32_t next = home.bucket() ^ i;
    const Ref word = next < segment.buckets ? look(BucketAt(segment, next)) : 0;
    if (word != 0) return word;
  }
  return 0;
}

Ref BlockTable::Find(SequenceHash block) const {
  Home home;
  FindHome(Mix(block), &home);
  for (;;) {
    bool changes = false;
    const Ref word = home.slots == nullptr ? 0 : FindIn(home, block, &changes);
    if (word != 0) return word;
    // An entry of a segment that was replaced is what it was, wherever the block went since.
    const uint64_t entry = home.entry;
    FindHome(static_cast<uint32_t>(home.mixed), &home);
    if (!changes && entry == home.entry) return 0;
  }
}

// What looks like the block at home: a hint. Nothing depends on what is there, so that several of them wait together.
Ref BlockTable::Candidate(const Home& home) const {
  if (home.slots == nullptr) return 0;
  const uint32_t like_it = LikeIt(home.slots, static_cast<uint32_t>(home.mixed));
  const uint64_t entry =
      home.slots[std::countr_zero(like_it | 0x80u)].load(std::memory_order_relaxed);
  return static_cast<Ref>(entry & kWordMask) * (like_it != 0);
}

void BlockTable::Prefetch(SequenceHash block) const {
  Home home;
  FetchHome(block, &home);
}

// ---- Writing ----

inline void BlockTable::LockHome(Home* home) const {
  while (home->slots != nullptr) {
    Lock(home->slots);
    if (!Moved(home->slots)) return;
    Unlock(home->slots);
    FindHome(static_cast<uint32_t>(home->mixed), home);
  }
}

BlockTable::Inserted BlockTable::Insert(SequenceHash block, Ref word) {
  Home home;
  FindHome(Mix(block), &home);
  LockHome(&home);
  return InsertSlowly(&home, block, word);
}

size_t BlockTable::InsertMany(std::span<const SequenceHash> blocks, Ref first, Inserted* stopped) {
  // A chunk is inserted while the next one is fetched: fetching waits for nothing, and a lock would make it wait.
  Home homes[2][kAhead];
  const auto fetch = [&](size_t begin, Home* to) {
    const size_t end = std::min(begin + kAhead, blocks.size());
    for (size_t i = begin; i < end; ++i) FetchHome(blocks[i], to + (i - begin));
  };
  fetch(0, homes[0]);
  for (size_t begin = 0; begin < blocks.size(); begin += kAhead) {
    Home* const now = homes[begin / kAhead % 2];
    fetch(begin + kAhead, homes[1 - begin / kAhead % 2]);
    const size_t end = std::min(begin + kAhead, blocks.size());
    for (size_t i = begin; i < end; ++i) {
      *stopped = InsertAt(now + (i - begin), blocks[i], first + static_cast<Ref>(i));
      if (stopped->what != Inserted::kInserted) return i;
    }
  }
  return blocks.size();
}

// What a locked bucket looks like to a new entry.
inline BlockTable::Glance BlockTable::Look(const Slot* bucket, uint32_t mixed) {
  Glance seen;
  seen.like_it = LikeIt(bucket, mixed);
  seen.free = Free(bucket);
  seen.displaced = SomeDisplaced(bucket);
  return seen;
}

// The block's hash, and the entry that leads to it.
void BlockTable::Place(Slot* slot, uint64_t entry, SequenceHash block) const {
  heap_->word(static_cast<Ref>(entry & kWordMask)).store(Raw(block), std::memory_order_release);
  Pause();
  Put(slot, entry);
}

// The usual case: there is room at home, and nothing there looks like it.
inline BlockTable::Inserted BlockTable::InsertAt(Home* home, SequenceHash block, Ref word) {
  LockHome(home);
  if (home->slots == nullptr) return InsertSlowly(home, block, word);
  const Glance seen = Look(home->slots, static_cast<uint32_t>(home->mixed));
  if (seen.free == 0 || seen.like_it != 0 || seen.displaced) return InsertSlowly(home, block, word);
  const int at = std::countr_zero(seen.free);
  // Slot 0 is the lock as well: writing it unlocked publishes the entry.
  const uint64_t entry = home->mixed << 32 | word;
  if (at != kLockSlot) {
    Put(&home->slots[at], entry);
    Unlock(home->slots);
  } else {
    home->slots[kLockSlot].store(entry, std::memory_order_release);
  }
  return {};
}

// Home is locked, unless it has no memory.
BlockTable::Inserted BlockTable::InsertSlowly(Home* home, SequenceHash block, Ref word) {
  const uint64_t entry = home->mixed << 32 | word;
  for (int round = 0;; ++round) {
    if (home->slots != nullptr) {
      bool again = false;
      const Inserted inserted = InsertNear(*home, block, entry, &again);
      Unlock(home->slots);
      if (inserted.what != Inserted::kNoMemory) return inserted;
      if (again) {
        SpinWait(round);
        LockHome(home);
        continue;
      }
    }
    if (!Grow(home->segment())) return {.what = Inserted::kNoMemory};
    FindHome(static_cast<uint32_t>(home->mixed), home);
    LockHome(home);
  }
}

// At home or in one of the next buckets, unless it is there. kNoMemory: there is no room near home, or, `again`, one of
// the next buckets is taken.
BlockTable::Inserted BlockTable::InsertNear(const Home& home, SequenceHash block, uint64_t entry,
                                            bool* again) const {
  bool changes = false;  // not under the lock
  const Ref existing = FindIn(home, block, &changes);
  if (existing != 0) return {.what = Inserted::kExists, .existing = existing};
  const int free = FreeSlot(home.slots);
  if (free >= 0) {
    Place(&home.slots[free], entry, block);
    return {};
  }
  const Segment segment = home.segment();
  for (uint32_t i = 1; i < kNeighbours; ++i) {
    if ((home.bucket() ^ i) >= segment.buckets) continue;
    Slot* const next = BucketAt(segment, home.bucket() ^ i);
    // Never waits for it: its owner may be waiting for ours.
    if (!TryLock(next)) {
      *again = true;
      continue;
    }
    const int slot = FreeSlot(next);
    if (slot >= 0) {
      SetDisplaced(home.slots, std::min(Displaced(home.slots) + 1, kCountMax));
      Place(&next[slot], entry, block);
    }
    Unlock(next);
    if (slot >= 0) return {};
  }
  return {.what = Inserted::kNoMemory};
}

bool BlockTable::Replace(const Home& home, Ref from, Ref to) {
  const uint64_t entry = home.mixed << 32 | from;
  const uint64_t replacement = to == 0 ? 0 : (home.mixed << 32 | to);
  for (uint32_t like_it = LikeIt(home.slots, static_cast<uint32_t>(home.mixed)); like_it != 0;
       like_it &= like_it - 1) {
    Slot* const slot = &home.slots[std::countr_zero(like_it)];
    if ((slot->load(std::memory_order_relaxed) & ~kStateBit) != entry) continue;
    Put(slot, replacement);
    Pause();
    return true;
  }
  const Segment segment = home.segment();
  for (uint32_t i = 1; i < kNeighbours; ++i) {
    if ((home.bucket() ^ i) >= segment.buckets) continue;
    Slot* const at = BucketAt(segment, home.bucket() ^ i);
    for (int slot = 0; slot < kSlots; ++slot) {
      if ((at[slot].load(std::memory_order_relaxed) & ~kStateBit) != entry) continue;
      if (!TryLock(at)) return false;
      Put(&at[slot], replacement);
      Unlock(at);
      const uint32_t displaced = Displaced(home.slots);
      if (to == 0 && displaced < kCountMax) SetDisplaced(home.slots, displaced - 1);
      return true;
    }
  }
  return true;  // Only a bug leads here; `Check` of the index finds it.
}

void BlockTable::Move(SequenceHash block, Ref from, Ref to) {
  Home home;
  FindHome(Mix(block), &home);
  for (int round = 0;; ++round) {
    LockHome(&home);
    if (home.slots == nullptr) return;
    const bool done = Replace(home, from, to);
    Unlock(home.slots);
    if (done) return;
    SpinWait(round);
  }
}

void BlockTable::Erase(SequenceHash block, Ref word) {
  Home home;
  FindHome(Mix(block), &home);
  EraseAt(&home, word);
}

void BlockTable::EraseAt(Home* home, Ref word) {
  for (int round = 0;; ++round) {
    LockHome(home);
    if (home->slots == nullptr) return;
    const bool done = Replace(*home, word, 0);
    const bool empty = done && Free(home->slots) == (1u << kSlots) - 1;
    Unlock(home->slots);
    if (!done) {
      SpinWait(round);
      continue;
    }
    if (empty) MaybeShrink(home->segment(), home->bucket());
    return;
  }
}

void BlockTable::EraseMany(std::span<const SequenceHash> blocks, std::span<const Ref> words) {
  Home homes[kAhead];
  for (size_t begin = 0; begin < words.size(); begin += kAhead) {
    const size_t end = std::min(begin + kAhead, words.size());
    for (size_t i = begin; i < end; ++i) FetchHome(blocks[i], &homes[i - begin]);
    for (size_t i = begin; i < end; ++i) EraseAt(&homes[i - begin], words[i]);
  }
}

// ---- Segments that grow, split and shrink ----
//
//   1. `Rebuild` locks every bucket of the segment, in order; whoever else wants to rebuild it waits at the first
//      and then sees `moved`.
//   2. `Fill` copies the entries into segments that nobody sees yet.
//   3. The directory gets them, the half with the larger index first, then the depth, then the other half: who
//      finds the smaller half by an old depth sees that it is not his (`SegmentOf`) and looks again.
//   4. Every old bucket is marked `moved` and unlocked: a writer that waited there starts again from the
//      directory. Readers may go on reading it; nobody changes it any more.

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
  uint64_t expected = Pack(segment);
  if (!directory_[segment.index].compare_exchange_strong(expected, Pack(fresh),
                                                         std::memory_order_acq_rel))
    heap_->Free(fresh.ref, kLineBytes);
  return true;
}

// A bucket became empty: if some others are as good as empty, the segment is counted. What is half empty is left
// to `Tend`: blocks come and go, and each step down would be a step up again.
void BlockTable::MaybeShrink(const Segment& segment, uint32_t bucket) {
  constexpr uint32_t kSamples = 6;
  // Before most of them are empty, many are: every fourth one asks.
  constexpr uint32_t kFew = 8;
  if (segment.buckets > kFew && bucket % 4 != 0) return;
  const auto count = [&](uint32_t number) {
    uint32_t entries = 0;
    for (int slot = 0; slot < kSlots; ++slot)
      entries += (BucketAt(segment, number)[slot].load(std::memory_order_relaxed) & kWordMask) != 0;
    return entries;
  };
  // The one beside it most likely says enough.
  uint32_t sampled = count((bucket ^ 1) % segment.buckets);
  for (uint32_t i = 1; i <= kSamples && sampled <= kSamples / 2; ++i)
    sampled += count((bucket + i * (segment.buckets / kSamples + 1)) % segment.buckets);
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
  if (Moved(slots)) {
    Unlock(slots);
    return true;
  }
  for (uint32_t bucket = 1; bucket < segment.buckets; ++bucket) Lock(slots + bucket * kSlots);

  Segment halves[2];
  int parts = aim == Aim::kGrow && segment.buckets == kBucketsMax ? Split(segment, halves) : 0;
  if (parts == 0) {
    uint64_t entries[kBucketsMax * kSlots];
    uint32_t count = 0;
    for (uint32_t i = 0; i < segment.slots(); ++i) {
      const uint64_t entry = slots[i].load(std::memory_order_relaxed) & ~kStateBit;
      entries[count] = entry;
      count += entry != 0 ? 1 : 0;
    }
    parts = Reshape(segment, aim, std::span(entries, count), halves);
  }
  if (parts == 2) {
    directory_[halves[1].index].store(Pack(halves[1]), std::memory_order_release);
    int depth = depth_.load(std::memory_order_relaxed);
    while (depth < halves[1].depth &&
           !depth_.compare_exchange_weak(depth, halves[1].depth, std::memory_order_acq_rel)) {
    }
  }
  Pause();
  if (parts > 0) directory_[segment.index].store(Pack(halves[0]), std::memory_order_release);
  Pause();
  for (uint32_t bucket = 0; bucket < segment.buckets; ++bucket) {
    Slot* at = slots + bucket * kSlots;
    if (parts > 0) SetState(&at[kMovedSlot], true);
    Unlock(at);
  }
  if (parts > 0) heap_->Retire(segment.ref, size_t{segment.buckets} * kLineBytes);
  return parts > 0;
}

// A full segment as two of its size, every entry in its slot: a bucket is two masks of eight slots. Returns 2, or 0 when
// that cannot be, or when it is not full: then its halves need less room.
int BlockTable::Split(const Segment& segment, Segment* halves) const {
  if (segment.depth >= kDepthMax) return 0;
  const size_t bytes = size_t{segment.buckets} * kLineBytes;
  const Slot* const from = BucketAt(segment, 0);
  uint32_t used = 0;
  for (uint32_t i = 0; i < segment.slots(); ++i)
    used += (from[i].load(std::memory_order_relaxed) & kWordMask) != 0;
  if (used < segment.slots() * 5 / 8) return 0;
  for (int i = 0; i < 2; ++i) {
    halves[i] = segment;
    halves[i].depth = segment.depth + 1;
    halves[i].ref = heap_->Allocate(bytes);
  }
  halves[1].index |= uint32_t{1} << segment.depth;
  if (halves[0].ref == 0 || halves[1].ref == 0) {
    for (int i = 0; i < 2; ++i)
      if (halves[i].ref != 0) heap_->Free(halves[i].ref, bytes);
    return 0;
  }
  Slot* const to[2] = {BucketAt(halves[0], 0), BucketAt(halves[1], 0)};
  const int shift = 31 - segment.depth;  // brings the bit that tells the halves apart to the top
  uint64_t strays[kBucketsMax * kSlots];
  uint32_t count = 0;
  for (uint32_t i = 0; i < segment.slots(); ++i) {
    const uint64_t entry = from[i].load(std::memory_order_relaxed) & ~kStateBit;
    const bool stray =
        entry != 0 && BucketOf(static_cast<uint32_t>(entry >> 32), kBucketsMax) != i / kSlots;
    strays[count] = entry;
    count += stray ? 1 : 0;
    const uint64_t stays = stray ? 0 : entry;
    const uint64_t second = static_cast<uint64_t>(static_cast<int64_t>(entry << shift) >> 63);
    to[0][i].store(stays & ~second, std::memory_order_relaxed);
    to[1][i].store(stays & second, std::memory_order_relaxed);
  }
  // Those that lived beside their home find room in it now, or where they were.
  for (uint32_t i = 0; i < count; ++i) {
    Slot* const half = to[strays[i] << shift >> 63];
    const uint32_t home = BucketOf(static_cast<uint32_t>(strays[i] >> 32), kBucketsMax);
    PutNear(half, home, strays[i]);
  }
  return 2;
}

// REQUIRES: there is room near home.
void BlockTable::PutNear(Slot* segment, uint32_t home, uint64_t entry) {
  Slot* const at = segment + size_t{home} * kSlots;
  for (uint32_t i = 0; i < kNeighbours; ++i) {
    Slot* const bucket = segment + size_t{home ^ i} * kSlots;
    const int free = FreeSlot(bucket);
    if (free < 0) continue;
    Put(&bucket[free], entry);
    if (i != 0) SetDisplaced(at, std::min(Displaced(at) + 1, kCountMax));
    return;
  }
}

// The entries in one segment of another size, or in two; 0 when that cannot be.
int BlockTable::Reshape(const Segment& segment, Aim aim, std::span<uint64_t> entries,
                        Segment* halves) const {
  const bool grow = aim == Aim::kGrow;
  // An almost empty segment with a full neighbourhood: growing would never end.
  if (grow && segment.buckets >= 16 && entries.size() * 4 < segment.slots()) return 0;
  halves[0] = {.index = segment.index, .depth = segment.depth};
  const uint32_t least =
      grow ? std::bit_ceil(segment.buckets + 1) : BucketsFor(static_cast<uint32_t>(entries.size()));
  if (Fill(entries, least, &halves[0])) return 1;
  if (!grow || segment.depth >= kDepthMax) return 0;
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
    return 0;
  }
  return 2;
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
    const uint32_t home = BucketOf(static_cast<uint32_t>(entry >> 32), to->buckets);
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
    if (bucket == home) continue;
    Slot* const first = slots + home * kSlots;
    SetDisplaced(first, std::min(Displaced(first) + 1, kCountMax));
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
      if (BucketOf(static_cast<uint32_t>(slot >> 32), segment.buckets) != i / kSlots)
        ++shape.displaced;
    }
  }
  return shape;
}

}  // namespace kvatlas::atlas
