#include "indexer/index/atlas/block_table.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include "indexer/index/atlas/pause.h"
#include "indexer/index/atlas/spin_lock.h"

namespace kvatlas::atlas {
namespace {

constexpr size_t kDirectoryBytes = (size_t{1} << 22) * sizeof(uint64_t);

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
  directory_[0].store(Pack({}), std::memory_order_release);
}

BlockTable::~BlockTable() { munmap(static_cast<void*>(directory_), kDirectoryBytes); }

// ---- Where a hash belongs ----

uint64_t BlockTable::Pack(const Segment& segment) {
  return kValid | uint64_t(segment.depth) << 56 | uint64_t{segment.buckets} << 40 | segment.ref;
}

BlockTable::Segment BlockTable::Unpack(uint64_t entry, uint32_t index) {
  return {.index = index,
          .depth = static_cast<int>(entry >> 56 & 0x7f),
          .buckets = static_cast<uint32_t>(entry >> 40 & 0xff),
          .ref = static_cast<Ref>(entry & kWordMask)};
}

BlockTable::View BlockTable::Look() const {
  const int depth = depth_.load(std::memory_order_acquire);
  return {.directory = directory_,
          .region = heap_->At<char>(0),
          .seed = seed_,
          .bits = LowBits(~uint32_t{0}, depth),
          .bits_less = LowBits(~uint32_t{0}, std::max(depth - 1, 0))};
}

// What a directory entry says of the hash: false where it is another segment's, by an old depth.
inline bool BlockTable::View::Enter(uint64_t entry, uint32_t index, uint32_t mixed,
                                    Home* home) const {
  const uint32_t depth = entry >> 56 & 0x7f;
  const uint32_t buckets = static_cast<uint32_t>(entry >> 40 & 0xff);
  home->entry = entry;
  home->mixed = mixed;
  home->index = index;
  home->slots = reinterpret_cast<Slot*>(region + (entry & kWordMask) * 8 +
                                        size_t{BucketOf(mixed, buckets)} * kLineBytes);
  // Its low `depth` bits are the index.
  return uint64_t{mixed ^ index} << 32 << (32 - depth) == 0;
}

// Nearly all segments are as deep as the directory or one less: which of the two is as good as random, so that a branch
// would be a guess.
inline bool BlockTable::View::Find(uint32_t mixed, Home* home) const {
  const uint32_t index = mixed & bits;
  const uint32_t less = mixed & bits_less;
  const uint64_t entry = directory[index].load(std::memory_order_acquire);
  const uint64_t other = directory[less].load(std::memory_order_acquire);
  const uint64_t missing = -uint64_t{entry == 0};
  return Enter(entry | (other & missing), index ^ ((index ^ less) & static_cast<uint32_t>(missing)),
               mixed, home) &&
         home->entry != 0;
}

void BlockTable::FindHome(uint32_t mixed, Home* home) const {
  for (;;) {
    const View view = Look();
    if (view.Find(mixed, home)) return;
    uint32_t index = mixed & view.bits;
    uint64_t entry = directory_[index].load(std::memory_order_acquire);
    while (entry == 0) {
      index ^= std::bit_floor(index);
      entry = directory_[index].load(std::memory_order_acquire);
    }
    // Else split while we looked: the other half is published before this one.
    if (view.Enter(entry, index, mixed, home)) return;
  }
}

// Finds and fetches up to `kAhead` homes.
void BlockTable::FetchHomes(std::span<const SequenceHash> blocks, Home* homes) const {
  const View view = Look();
  for (SequenceHash block : blocks.first(std::min(blocks.size(), kAhead))) {
    const uint32_t mixed = Mix(block, view.seed);
    if (!view.Find(mixed, homes)) FindHome(mixed, homes);
    __builtin_prefetch(homes++->slots, 1);
  }
}

// ---- Reading ----

Ref BlockTable::FindIn(const Home& home, SequenceHash block, bool* changes) const {
  const auto look = [&](const Slot* bucket) -> Ref {
    uint32_t like_it = LikeIt(bucket, home.mixed);
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
  if (at_home != 0) return at_home;
  for (uint32_t near = Near(home.slots); near != 0; near &= near - 1) {
    const Ref word = look(home.beside(static_cast<uint32_t>(std::countr_zero(near))));
    if (word != 0) return word;
  }
  return 0;
}

Ref BlockTable::Find(SequenceHash block, Home* home) const {
  for (;;) {
    bool changes = false;
    const Ref word = home->buckets() == 0 ? 0 : FindIn(*home, block, &changes);
    if (word != 0) return word;
    // An entry of a segment that was replaced is what it was, wherever the block went since. Partner: the release
    // stores of `Split`, behind the one to the directory.
    std::atomic_thread_fence(std::memory_order_acquire);
    const uint64_t entry = home->entry;
    FindHome(home->mixed, home);
    if (!changes && entry == home->entry) return 0;
  }
}

// What looks like the block at home: a hint. Nothing depends on what is there, so that several of them wait together.
Ref BlockTable::Candidate(const Home& home) const {
  const uint32_t like_it = LikeIt(home.slots, home.mixed);
  const uint64_t entry =
      home.slots[std::countr_zero(like_it | 0x80u)].load(std::memory_order_relaxed);
  return static_cast<Ref>(entry & kWordMask) * (like_it != 0);
}

// ---- Writing ----

inline void BlockTable::LockHome(Home* home) const {
  while (home->buckets() != 0) {
    Lock(home->slots);
    if (directory_[home->index].load(std::memory_order_acquire) == home->entry) return;
    Unlock(home->slots);
    FindHome(home->mixed, home);
  }
}

BlockTable::Inserted BlockTable::Insert(SequenceHash block, Ref word) {
  Home home;
  FindHome(block, &home);
  LockHome(&home);
  return InsertSlowly(&home, block, word);
}

size_t BlockTable::InsertMany(std::span<const SequenceHash> blocks, Ref first, Inserted* stopped) {
  // A chunk is inserted while the next one is fetched: fetching waits for nothing, and a lock would make it wait.
  Home homes[2][kAhead];
  const bool alone = gate_.alone();
  FetchHomes(blocks, homes[0]);
  for (size_t begin = 0; begin < blocks.size(); begin += kAhead) {
    Home* const now = homes[begin / kAhead % 2];
    const size_t end = std::min(begin + kAhead, blocks.size());
    FetchHomes(blocks.subspan(end), homes[1 - begin / kAhead % 2]);
    for (size_t i = begin; i < end; ++i) {
      Home& home = now[i - begin];
      const Ref word = first + static_cast<Ref>(i);
      if (!alone || !IsCurrent(home)) LockHome(&home);
      if (home.buckets() != 0 && InsertAtHome(home, word)) {
        if (!alone) Unlock(home.slots);
        continue;
      }
      *stopped = InsertSlowly(&home, blocks[i], word);
      if (stopped->what != Inserted::kInserted) return i;
    }
  }
  return blocks.size();
}

// The usual case: there is room at home, and nothing there looks like it. REQUIRES: home is locked and has memory.
inline bool BlockTable::InsertAtHome(const Home& home, Ref word) {
  const uint32_t free = FreeSlots(home.slots);
  if ((LikeIt(home.slots, home.mixed) | Near(home.slots)) != 0 || free == 0) return false;
  Put(&home.slots[std::countr_zero(free)], uint64_t{home.mixed} << 32 | word);
  return true;
}

// The block's hash, and the entry that leads to it.
void BlockTable::Place(Slot* slot, uint64_t entry, SequenceHash block) const {
  heap_->word(static_cast<Ref>(entry & kWordMask)).store(Raw(block), std::memory_order_release);
  Pause();
  Put(slot, entry);
}

// Home is locked, unless it has no memory.
BlockTable::Inserted BlockTable::InsertSlowly(Home* home, SequenceHash block, Ref word) {
  const uint64_t entry = uint64_t{home->mixed} << 32 | word;
  for (int round = 0;; ++round) {
    if (home->buckets() != 0) {
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
    FindHome(home->mixed, home);
    LockHome(home);
  }
}

// At home or in one of the next buckets, unless it is there. kNoMemory: there is no room near home, or, `again`, one of
// the next buckets is taken.
BlockTable::Inserted BlockTable::InsertNear(const Home& home, SequenceHash block, uint64_t entry,
                                            bool* again) const {
  if ((LikeIt(home.slots, home.mixed) | Near(home.slots)) != 0) {
    bool changes = false;  // not under the lock
    const Ref existing = FindIn(home, block, &changes);
    if (existing != 0) return {.what = Inserted::kExists, .existing = existing};
  }
  const int free = FreeSlot(home.slots);
  if (free >= 0) {
    Place(&home.slots[free], entry, block);
    return {};
  }
  for (uint32_t i = 1; i < kNeighbours; ++i) {
    if (!home.has_beside(i)) continue;
    Slot* const next = home.beside(i);
    // Never waits for it: its owner may be waiting for ours.
    if (!TryLock(next)) {
      *again = true;
      continue;
    }
    const int slot = FreeSlot(next);
    if (slot >= 0) {
      SetState(&home.slots[i], true);
      Place(&next[slot], entry, block);
    }
    Unlock(next);
    if (slot >= 0) return {};
  }
  return {.what = Inserted::kNoMemory};
}

bool BlockTable::Replace(const Home& home, Ref from, Ref to) {
  const uint64_t entry = uint64_t{home.mixed} << 32 | from;
  const uint64_t replacement = to == 0 ? 0 : (uint64_t{home.mixed} << 32 | to);
  for (uint32_t like_it = LikeIt(home.slots, home.mixed); like_it != 0; like_it &= like_it - 1) {
    Slot* const slot = &home.slots[std::countr_zero(like_it)];
    if ((slot->load(std::memory_order_relaxed) & ~kStateBit) != entry) continue;
    Put(slot, replacement);
    Pause();
    return true;
  }
  for (uint32_t near = Near(home.slots); near != 0; near &= near - 1) {
    const uint32_t i = static_cast<uint32_t>(std::countr_zero(near));
    Slot* const at = home.beside(i);
    int slot = 0;
    bool others = false;
    for (uint32_t each = 0; each < kSlots; ++each) {
      const uint64_t there = at[each].load(std::memory_order_relaxed) & ~kStateBit;
      if (there == entry) {
        slot = each + 1;
      } else {
        others = others || (there != 0 && home.IsHomeOf(there));
      }
    }
    if (slot == 0) continue;
    if (!TryLock(at)) return false;
    Put(&at[slot - 1], replacement);
    Unlock(at);
    Pause();
    // Entries of this home change under its lock alone.
    if (to == 0 && !others) SetState(&home.slots[i], false);
    return true;
  }
  return true;  // Only a bug leads here; `Check` of the index finds it.
}

void BlockTable::Move(SequenceHash block, Ref from, Ref to) {
  Home home;
  FindHome(block, &home);
  for (int round = 0;; ++round) {
    LockHome(&home);
    if (home.buckets() == 0) return;
    const bool done = Replace(home, from, to);
    Unlock(home.slots);
    if (done) return;
    SpinWait(round);
  }
}

void BlockTable::Erase(Home* home, Ref word) {
  if (EraseAt(home, word)) MaybeShrink(*home);
}

// Whether its home is empty then.
bool BlockTable::EraseAt(Home* home, Ref word) {
  // The usual case: nobody else writes, and it is at home.
  if (gate_.alone() && IsCurrent(*home)) {
    const uint64_t entry = uint64_t{home->mixed} << 32 | word;
    for (uint32_t like_it = LikeIt(home->slots, home->mixed); like_it != 0;
         like_it &= like_it - 1) {
      Slot& slot = home->slots[std::countr_zero(like_it)];
      const uint64_t there = slot.load(std::memory_order_relaxed);
      if ((there & ~kStateBit) != entry) continue;
      slot.store(there & kStateBit, std::memory_order_release);
      Pause();
      return IsEmpty(home->slots);
    }
  }
  for (int round = 0;; ++round) {
    LockHome(home);
    if (home->buckets() == 0) return false;
    const bool done = Replace(*home, word, 0);
    const bool empty = done && IsEmpty(home->slots);
    Unlock(home->slots);
    if (done) return empty;
    SpinWait(round);
  }
}

void BlockTable::EraseMany(std::span<const SequenceHash> blocks, std::span<const Ref> words) {
  Home homes[2][kAhead];
  FetchHomes(blocks, homes[0]);
  for (size_t begin = 0; begin < words.size(); begin += kAhead) {
    Home* const now = homes[begin / kAhead % 2];
    const size_t end = std::min(begin + kAhead, words.size());
    FetchHomes(blocks.subspan(end), homes[1 - begin / kAhead % 2]);
    // What is beside an empty one is fetched for all of them.
    size_t emptied = 0;
    for (size_t i = begin; i < end; ++i) {
      if (!EraseAt(&now[i - begin], words[i])) continue;
      now[emptied] = now[i - begin];
      if (now[emptied].has_beside(1)) __builtin_prefetch(now[emptied].beside(1));
      ++emptied;
    }
    for (size_t i = 0; i < emptied; ++i) MaybeShrink(now[i]);
  }
}

}  // namespace kvatlas::atlas
