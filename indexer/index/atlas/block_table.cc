// Lookup, insert, move and erase; growth and upkeep are in `block_table_shape.cc`.
//
// A lookup has two halves. `StartLookup` goes through the directory: the low bits of the mixed hash
// are the index, and what it finds is the address of the home bucket. `FindIn` or `FindIf` looks at
// that line, and at the neighbours whose state bit says that entries of this home live there. The
// halves are apart so that a batch can start many lookups, whose lines are fetched together, before
// it looks at the first.
//
// R and W numbers: `atlas_index.h`.

#include "indexer/index/atlas/block_table.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>

#include "indexer/base/assert.h"
#include "indexer/index/atlas/pause.h"

namespace kvatlas::atlas {
namespace {

// Reserved at once and never moved, so that readers need no pointer to it; pages cost memory when
// they are first written.
constexpr size_t kDirectoryBytes = (size_t{1} << 22) * sizeof(uint64_t);

// Set in every entry: an entry of 0 means that the segment is found under the index with the
// highest bit cleared.
constexpr uint64_t kValid = uint64_t{1} << 63;

// A shift by 32 would be undefined.
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
//
// A directory entry is one word, so that readers see a segment as a whole: bit 63 valid, 62…56
// depth, 47…40 buckets, 30…0 the Ref of its memory (kRefBits).

uint64_t BlockTable::Pack(const Segment& segment) {
  return kValid | uint64_t(segment.depth) << 56 | uint64_t{segment.buckets} << 40 | segment.ref;
}

BlockTable::Segment BlockTable::Unpack(uint64_t entry, uint32_t index) {
  return {.index = index,
          .depth = static_cast<int>(entry >> 56 & 0x7f),
          .buckets = static_cast<uint32_t>(entry >> 40 & 0xff),
          .ref = static_cast<Ref>(entry & kWordMask)};
}

// One look at the depth serves a whole batch. A depth that is old by the time it is used leads to
// the right segment, or to one whose low bits are not the hash's, which `Enter` notices.
BlockTable::View BlockTable::Look() const {
  const int depth = depth_.load(std::memory_order_acquire);
  return {.directory = directory_,
          .region = heap_->At<char>(0),
          .seed = seed_,
          .bits = LowBits(~uint32_t{0}, depth),
          .bits_less = LowBits(~uint32_t{0}, std::max(depth - 1, 0))};
}

// Fills the lookup from a directory entry. False if the segment is not the hash's: its `depth` low
// bits differ from the index, which happens with an old view of the depth. The address is computed
// either way, without a branch; an empty segment gives one that is not used (`buckets` 0).
inline bool BlockTable::View::Enter(uint64_t entry, uint32_t index, uint32_t mixed,
                                    Lookup* lookup) const {
  const uint32_t depth = entry >> 56 & 0x7f;
  const uint32_t buckets = static_cast<uint32_t>(entry >> 40 & 0xff);
  lookup->entry = entry;
  lookup->mixed = mixed;
  lookup->index = index;
  lookup->slots = reinterpret_cast<Slot*>(region + (entry & kWordMask) * 8 +
                                          size_t{BucketOf(mixed, buckets)} * kLineBytes);
  // Its low `depth` bits are the index.
  return uint64_t{mixed ^ index} << 32 << (32 - depth) == 0;
}

// Nearly all segments are as deep as the directory or one less. Which of the two is as good as
// random, so a branch would be mispredicted half of the time: both entries are loaded, and a mask
// takes the second where the first is missing.
inline bool BlockTable::View::Start(uint32_t mixed, Lookup* lookup) const {
  const uint32_t index = mixed & bits;
  const uint32_t less = mixed & bits_less;
  const uint64_t entry = directory[index].load(std::memory_order_acquire);
  const uint64_t other = directory[less].load(std::memory_order_acquire);
  const uint64_t missing = -uint64_t{entry == 0};
  return Enter(entry | (other & missing), index ^ ((index ^ less) & static_cast<uint32_t>(missing)),
               mixed, lookup) &&
         lookup->entry != 0;
}

// The general case: clears the highest bit of the index until there is an entry. Entry 0 always
// exists.
void BlockTable::StartLookup(uint32_t mixed, Lookup* lookup) const {
  for (;;) {
    const View view = Look();
    if (view.Start(mixed, lookup)) return;
    uint32_t index = mixed & view.bits;
    uint64_t entry = directory_[index].load(std::memory_order_acquire);
    while (entry == 0) {
      index ^= std::bit_floor(index);
      entry = directory_[index].load(std::memory_order_acquire);
    }
    // Else the segment was split between the two loads: a split publishes the half with the larger
    // index first, so the next look finds it.
    if (view.Enter(entry, index, mixed, lookup)) return;
  }
}

// Starts lookups of up to `kAhead` blocks and fetches their home lines for writing. Nothing waits
// for a fetch here, so all of them are under way at once.
void BlockTable::StartLookups(std::span<const SequenceHash> blocks, Lookup* lookups) const {
  const View view = Look();
  for (SequenceHash block : blocks.first(std::min(blocks.size(), kAhead))) {
    const uint32_t mixed = Mix(block, view.seed);
    if (!view.Start(mixed, lookups)) StartLookup(mixed, lookups);
    __builtin_prefetch(lookups++->slots, 1);
  }
}

// ---- Reading ----

// 1. Entries with the tag are candidates; SSE compares a line at once, so each is loaded again as
//    an atomic word.
// 2. A candidate whose tag has changed since, or whose word names another block while the entry is
//    no longer the same, sets `*changes`.
// 3. The word decides: equal hash, equal block.
// 4. Home first, then the neighbours that have entries of this home.
// An entry moves between home and a neighbour only together with a new directory entry (`Split`,
// `Reshape`), which `Find` checks.
Ref BlockTable::FindIn(const Lookup& lookup, SequenceHash block, bool* changes) const {
  const auto look = [&](const Slot* bucket) -> Ref {
    uint32_t matching = MatchTag(bucket, lookup.mixed);
    for (; matching != 0; matching &= matching - 1) {
      const Slot& slot = bucket[std::countr_zero(matching)];
      const uint64_t entry = slot.load(std::memory_order_acquire);
      if (entry >> 32 != lookup.mixed) {
        *changes = true;
        continue;
      }
      const Ref word = static_cast<Ref>(entry & kWordMask);
      Pause();
      // Its run is wanted next.
      __builtin_prefetch(heap_->At<char>(heap_->RunOf(word)));
      if (word == 0) continue;
      // Partner: the release store of the writer that uses the word for another block, after the
      // entry led elsewhere: a reader that sees the one sees the other.
      if (heap_->word(word).load(std::memory_order_acquire) == Raw(block)) return word;
      *changes = *changes || slot.load(std::memory_order_relaxed) != entry;
    }
    return 0;
  };
  Pause();
  const Ref at_home = look(lookup.slots);
  Pause();
  if (at_home != 0) return at_home;
  for (uint32_t near = Near(lookup.slots); near != 0; near &= near - 1) {
    const Ref word = look(lookup.beside(static_cast<uint32_t>(std::countr_zero(near))));
    if (word != 0) return word;
  }
  return 0;
}

// Repeats until the block is found, or until neither an entry nor the directory changed under the
// look: then the block had no holder at some moment during the call (R2). Each repetition needs a
// change by the writer, so a reader beside a writer that sleeps does not loop.
Ref BlockTable::Find(SequenceHash block, Lookup* lookup) const {
  for (;;) {
    bool changes = false;
    const Ref word = lookup->buckets() == 0 ? 0 : FindIn(*lookup, block, &changes);
    if (word != 0) return word;
    // An entry of a segment that was replaced is what it was, wherever the block went since.
    // Partner: the release stores of `Split`, behind the one to the directory.
    std::atomic_thread_fence(std::memory_order_acquire);
    const uint64_t entry = lookup->entry;
    StartLookup(lookup->mixed, lookup);
    if (!changes && entry == lookup->entry) return 0;
  }
}

// The word of an entry at home that has the tag, 0 if there is none: a hint. No branch depends on
// loaded data, so the cache misses of several candidates overlap. If none matches, slot 7 is loaded
// and its word multiplied by 0.
Ref BlockTable::Candidate(const Lookup& lookup) const {
  const uint32_t matching = MatchTag(lookup.slots, lookup.mixed);
  const uint64_t entry =
      lookup.slots[std::countr_zero(matching | 0x80u)].load(std::memory_order_relaxed);
  return static_cast<Ref>(entry & kWordMask) * (matching != 0);
}

// ---- Writing ----

// The writer's search: nothing moves under it, so one pass decides. Returns the first entry with
// the tag for which match(word) is true, at home or in a neighbour that has entries of this home.
template <typename Match>
inline BlockTable::Found BlockTable::FindIf(const Lookup& lookup, Match match) const {
  if (lookup.buckets() == 0) return {};
  const auto look = [&](Slot* bucket, uint32_t beside) -> Found {
    for (uint32_t matching = MatchTag(bucket, lookup.mixed); matching != 0;
         matching &= matching - 1) {
      Slot* const slot = &bucket[std::countr_zero(matching)];
      const Ref word = static_cast<Ref>(slot->load(std::memory_order_relaxed) & kWordMask);
      if (word != 0 && match(word)) return {.word = word, .slot = slot, .beside = beside};
    }
    return {};
  };
  Found found = look(lookup.slots, 0);
  if (found.word != 0) return found;
  for (uint32_t near = Near(lookup.slots); near != 0; near &= near - 1) {
    const uint32_t i = static_cast<uint32_t>(std::countr_zero(near));
    found = look(lookup.beside(i), i);
    if (found.word != 0) return found;
  }
  return {};
}

BlockTable::Found BlockTable::FindEntry(SequenceHash block, const Lookup& lookup) const {
  return FindIf(lookup, [&](Ref word) {
    __builtin_prefetch(heap_->At<char>(heap_->RunOf(word)));
    return heap_->word(word).load(std::memory_order_relaxed) == Raw(block);
  });
}

// By word instead of by name: the word may have been overwritten already, as in `EraseBlocks` after
// `Kill`.
BlockTable::Found BlockTable::EntryOf(const Lookup& lookup, Ref word) const {
  const Found found = FindIf(lookup, [&](Ref each) { return each == word; });
  KVATLAS_ASSERT(found.word == word);  // the caller says that it is there
  return found;
}

BlockTable::Inserted BlockTable::Insert(SequenceHash block, Ref word) {
  Lookup lookup;
  StartLookup(block, &lookup);
  return InsertSlowly(&lookup, block, word);
}

size_t BlockTable::InsertMany(std::span<const SequenceHash> blocks, Ref first, Inserted* stopped) {
  // Two sets of lookups in turns: while one chunk is inserted, the lines of the next are on their
  // way.
  Lookup lookups[2][kAhead];
  StartLookups(blocks, lookups[0]);
  uint32_t rebuilds = rebuilds_;
  for (size_t begin = 0; begin < blocks.size(); begin += kAhead) {
    Lookup* const now = lookups[begin / kAhead % 2];
    const size_t end = std::min(begin + kAhead, blocks.size());
    // A lookup points into a segment and is void once that is replaced. `rebuilds` is the count at
    // which this chunk was started: if the previous chunk made the table grow since, all of them
    // start again; if this one does, its own rest.
    bool current = rebuilds == rebuilds_;
    rebuilds = rebuilds_;
    StartLookups(blocks.subspan(end), lookups[1 - begin / kAhead % 2]);
    for (size_t i = begin; i < end; ++i) {
      Lookup& lookup = now[i - begin];
      const Ref word = first + static_cast<Ref>(i);
      if (!current) [[unlikely]]
        StartLookup(lookup.mixed, &lookup);
      if (InsertAtHome(lookup, word)) [[likely]]
        continue;
      *stopped = InsertSlowly(&lookup, blocks[i], word);
      if (stopped->what != Inserted::kInserted) return i;
      current = current && rebuilds == rebuilds_;
    }
  }
  return blocks.size();
}

// The usual case, one line: a free slot at home, no entry there with the tag, and none of this home
// in a neighbour. Then the block is certainly new. The hash is in its word already (`WriteWords`),
// so only the slot is written. False: `InsertSlowly` decides.
inline bool BlockTable::InsertAtHome(const Lookup& lookup, Ref word) {
  if (lookup.buckets() == 0) return false;
  const uint32_t free = FreeSlots(lookup.slots);
  if ((MatchTag(lookup.slots, lookup.mixed) | Near(lookup.slots)) != 0 || free == 0) return false;
  Put(&lookup.slots[std::countr_zero(free)], uint64_t{lookup.mixed} << 32 | word);
  return true;
}

// Writes the hash into the block's word, then the entry that leads to it: a reader that finds the
// entry finds the hash.
void BlockTable::Place(Slot* slot, uint64_t entry, SequenceHash block) const {
  heap_->word(static_cast<Ref>(entry & kWordMask)).store(Raw(block), std::memory_order_release);
  Pause();
  Put(slot, entry);
}

// 1. A block that has an entry keeps it (kExists).
// 2. Home or a neighbour takes the entry (`InsertNear`).
// 3. Else the segment grows, and the lookup starts again. Growth ends in kNoMemory: no memory, or a
//    segment that is almost empty and yet full here (`Reshape`).
BlockTable::Inserted BlockTable::InsertSlowly(Lookup* lookup, SequenceHash block, Ref word) {
  const Found found = FindEntry(block, *lookup);
  if (found.word != 0) return {.what = Inserted::kExists, .existing = found.word};
  const uint64_t entry = uint64_t{lookup->mixed} << 32 | word;
  for (;;) {
    if (lookup->buckets() != 0) {
      const Inserted inserted = InsertNear(*lookup, block, entry);
      if (inserted.what != Inserted::kNoMemory) return inserted;
    }
    if (!Grow(lookup->segment())) return {.what = Inserted::kNoMemory};
    StartLookup(lookup->mixed, lookup);
  }
}

// Puts the entry at home or into one of the three neighbours. The state bit at home is set before
// the entry is there: a reader may see the bit without the entry, which costs it a line. kNoMemory:
// there is no room. REQUIRES: the block has no entry.
BlockTable::Inserted BlockTable::InsertNear(const Lookup& lookup, SequenceHash block,
                                            uint64_t entry) const {
  if (const int free = FreeSlot(lookup.slots); free >= 0) {
    Place(&lookup.slots[free], entry, block);
    return {};
  }
  for (uint32_t i = 1; i < kNeighbours; ++i) {
    if (!lookup.has_beside(i)) continue;
    Slot* const next = lookup.beside(i);
    const int slot = FreeSlot(next);
    if (slot < 0) continue;
    SetState(&lookup.slots[i], true);
    Place(&next[slot], entry, block);
    return {};
  }
  return {.what = Inserted::kNoMemory};
}

// One store: a reader finds the old word or the new one, and both hold the hash.
void BlockTable::Move(SequenceHash block, Ref from, Ref to) {
  Lookup lookup;
  StartLookup(block, &lookup);
  const Found found = EntryOf(lookup, from);
  Put(found.slot, uint64_t{lookup.mixed} << 32 | to);
  Pause();
}

// Empties the slot. If it was in a neighbour and the last entry of this home there, the state bit
// goes as well, after the entry: a bit without entries only costs readers a line.
void BlockTable::Erase(const Lookup& lookup, const Found& found) {
  Put(found.slot, 0);
  Pause();
  if (found.beside == 0) [[likely]]
    return;
  const Slot* const bucket = lookup.beside(found.beside);
  for (uint32_t i = 0; i < kSlots; ++i) {
    const uint64_t other = bucket[i].load(std::memory_order_relaxed) & ~kStateBit;
    if (other != 0 && lookup.IsHomeOf(other)) return;
  }
  SetState(&lookup.slots[found.beside], false);
}

// Pipelined like `InsertMany`. Erasing never grows the table, so lookups stay valid.
void BlockTable::EraseMany(std::span<const SequenceHash> blocks, std::span<const Ref> words) {
  Lookup lookups[2][kAhead];
  StartLookups(blocks, lookups[0]);
  for (size_t begin = 0; begin < words.size(); begin += kAhead) {
    Lookup* const now = lookups[begin / kAhead % 2];
    const size_t end = std::min(begin + kAhead, words.size());
    StartLookups(blocks.subspan(end), lookups[1 - begin / kAhead % 2]);
    for (size_t i = begin; i < end; ++i) Erase(now[i - begin], EntryOf(now[i - begin], words[i]));
  }
}

}  // namespace kvatlas::atlas
