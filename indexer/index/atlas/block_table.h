// The one table of an atlas: sequence hash → the word of the heap that holds the hash in its run's
// array. One entry a distinct block, however many hold it.
//
//   directory   extendible hashing: the low bits of the mixed hash choose a segment
//   segment     1 … 64 buckets of 8 slots; it doubles or splits in two when a bucket's
//               neighbourhood is full, and shrinks in upkeep. So nothing ever stops for a growth of everything: the
//               longest step moves 512 slots.
//   bucket      one cache line (`bucket.h`); an entry is the mixed hash and a word. The bucket's state: for each of its three
//               neighbours, whether entries that are at home here live there.
//
// *Truth*: the name is verified against the word it leads to, so a hit is never another block.
// Entries move within a segment, or leave it, only while its entry in the directory changes, and a
// segment that was replaced stays readable as it was (`epoch.h`): a reader that found nothing sees
// whether the directory still says the same, and else looks again. Where an entry leads to a word
// that names another block by now, a reader sees whether the entry is still so, and else looks
// again. So a reader finds every block that some holder has all the time, wherever it is moved.
// *Threads*: one writer at a time; reads beside it take no lock, under an `EpochGuard`.
// *Cost*: a read looks at one cache line of the table, seldom two, and at the word. 8 bytes a slot,
// 44–88 % full; 64–80 % after upkeep where entries have gone.
// *Bounds*: 2^22 segments. A name whose neighbourhood stays full in a segment that is almost empty
// (an adversary's hashes) is refused like a table without memory.
// *Source*: R. Fagin et al., "Extendible hashing", 1979; the directory holds only the segments
// themselves, a missing entry means the one with the highest bit cleared, so doubling it only
// publishes a larger depth.

#ifndef KVATLAS_INDEXER_INDEX_ATLAS_BLOCK_TABLE_H_
#define KVATLAS_INDEXER_INDEX_ATLAS_BLOCK_TABLE_H_

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "indexer/base/ids.h"
#include "indexer/index/atlas/bucket.h"
#include "indexer/index/atlas/heap.h"

namespace kvatlas::atlas {

class BlockTable {
  // A directory entry, unpacked: depth (bits of the hash that all its entries share), number of
  // buckets, and their memory. `buckets` 0: an empty segment without memory.
  struct Segment {
    uint32_t index = 0;  // in the directory: the shared bits
    int depth = 0;
    uint32_t buckets = 0;
    Ref ref = 0;

    uint32_t slots() const { return buckets * kSlots; }
  };

 public:
  // Batches fetch this many blocks ahead, so that their cache misses overlap.
  static constexpr size_t kAhead = 16;

  // A hash, with the segment and home bucket that the directory gave for it; no bucket in a segment
  // without memory. A reader's is valid as long as its guard is held, the writer's until the table
  // grows or `Maintain` is called.
  class Lookup {
    friend class BlockTable;

    Slot* slots;
    uint64_t entry;  // the directory's
    uint32_t mixed;
    uint32_t index;  // in the directory

    Segment segment() const { return Unpack(entry, index); }
    uint32_t buckets() const { return static_cast<uint32_t>(entry >> 40 & 0xff); }
    uint32_t bucket() const { return BucketOf(mixed, buckets()); }
    // Neighbour i of it, 1 … 3.
    bool has_beside(uint32_t i) const { return (bucket() ^ i) < buckets(); }
    Slot* beside(uint32_t i) const { return slots + (ptrdiff_t{bucket() ^ i} - bucket()) * kSlots; }
    bool IsHomeOf(uint64_t other) const { return HomeIn(other, buckets()) == bucket(); }
  };

  // An entry, for the writer; valid as long as its `Lookup`, and until the block is moved or
  // erased.
  struct Found {
    Ref word = 0;  // 0: there is none
    Slot* slot = nullptr;
    uint32_t beside = 0;  // the neighbour it lives in, 0: at home
  };

  // Null when the address space cannot be had. `seed` makes the mixing unpredictable.
  static std::unique_ptr<BlockTable> Create(Heap* heap, uint64_t seed);
  ~BlockTable();

  // ---- Readers ----

  // The block's word, or 0.
  Ref Find(SequenceHash block) const {
    Lookup lookup;
    StartLookup(block, &lookup);
    return Find(block, &lookup);
  }

  // The same from a lookup that was started before. If the block has moved since, the lookup is
  // started again; on return it is the one that was used.
  Ref Find(SequenceHash block, Lookup* lookup) const;

  void StartLookup(SequenceHash block, Lookup* lookup) const {
    StartLookup(Mix(block, seed_), lookup);
  }

  // Fetches what `Find` and the writes will look at first: `lookup`.
  void Prefetch(SequenceHash block, Lookup* lookup) const {
    StartLookups(std::span(&block, 1), lookup);
  }
  void Prefetch(SequenceHash block) const {
    Lookup lookup;
    Prefetch(block, &lookup);
  }

  // ---- The writer ----

  // The block's entry.
  Found FindEntry(SequenceHash block, const Lookup& lookup) const;

  // Fetches all that `FindEntry` and then the block's run will look at, for blocks that are
  // scattered: step by step for all of them, so that they wait together. At most `kAhead`, to
  // `lookups`; found(words) says where they may be, 0: not known.
  template <typename Visit>
  void FetchScattered(std::span<const SequenceHash> blocks, Lookup* lookups, Visit found) const;

  // Outcome of `Insert`.
  struct Inserted {
    enum What { kInserted, kExists, kNoMemory } what = kInserted;
    Ref existing = 0;  // kExists: where
  };
  // Makes `word` the block's place, unless it has one: the hash is written there when it is certain
  // that it has none.
  Inserted Insert(SequenceHash block, Ref word);

  // Inserts block i at `first + i`, which holds the hash already, in order; stops at the first that
  // is not inserted, whose outcome goes to `*stopped`. Returns how many were inserted.
  size_t InsertMany(std::span<const SequenceHash> blocks, Ref first, Inserted* stopped);

  // The block at `from` is at `to` now; both hold the hash. REQUIRES: it is in the table with
  // `from`.
  void Move(SequenceHash block, Ref from, Ref to);

  // REQUIRES: the block is in the table with `word`.
  void Erase(SequenceHash block, Ref word) {
    Lookup lookup;
    StartLookup(block, &lookup);
    Erase(lookup, EntryOf(lookup, word));
  }

  // The same of one that was found.
  void Erase(const Lookup& lookup, const Found& found);

  // Erases block i, which is in the table with `words[i]`.
  void EraseMany(std::span<const SequenceHash> blocks, std::span<const Ref> words);

  // The table's shape; exact when no writer is inside.
  struct Shape {
    uint64_t entries = 0;
    uint64_t slots = 0;
    uint64_t segments = 0;
    uint64_t displaced = 0;  // entries away from home
  };
  Shape CountShape() const;

  // Shrinks some segments, appends the words of their entries, about `steps`, and moves the cursor
  // to where the next call goes on; every entry that stays comes up once a round. A call goes round
  // once at most; returns the steps.
  size_t Maintain(uint32_t* cursor, size_t steps, std::vector<Ref>* words);

  // Entries moved by the longest step of growth or upkeep so far. For tests.
  uint32_t longest_step() const { return longest_step_; }

  // Calls visit(word) for every entry; REQUIRES: no writer.
  template <typename Visit>
  void ForEach(Visit visit) const;

 private:
  static constexpr uint32_t kBucketsMax = 64;
  static constexpr uint32_t kSlotsMax = kBucketsMax * kSlots;
  // An entry lives in bucket home ^ 0 … 3: four lines in a row.
  static constexpr uint32_t kNeighbours = 4;
  static constexpr int kDepthMax = 22;
  // The state bits of slots 1 … 3 say which neighbours.
  static constexpr uint32_t kNearStates = ((1u << kNeighbours) - 1) & ~1u;

  // The directory at one moment, for many hashes.
  struct View {
    const std::atomic<uint64_t>* directory;
    char* region;
    uint64_t seed;
    uint32_t bits;       // of the directory's depth
    uint32_t bits_less;  // and of one less

    bool Enter(uint64_t entry, uint32_t index, uint32_t mixed, Lookup* lookup) const;
    // False where it takes more than a look: `StartLookup`.
    bool Start(uint32_t mixed, Lookup* lookup) const;
  };
  View Look() const;

  BlockTable(Heap* heap, std::atomic<uint64_t>* directory, uint64_t seed);

  static uint32_t Mix(SequenceHash block, uint64_t seed) {
    const unsigned __int128 product =
        static_cast<unsigned __int128>(Raw(block) ^ seed) * 0x9E3779B97F4A7C15u;
    return static_cast<uint32_t>(static_cast<uint64_t>(product) ^
                                 static_cast<uint64_t>(product >> 64) ^
                                 static_cast<uint64_t>(product >> 32));
  }
  Ref Candidate(const Lookup& lookup) const;
  void StartLookup(uint32_t mixed, Lookup* lookup) const;
  void StartLookups(std::span<const SequenceHash> blocks, Lookup* lookups) const;
  Slot* BucketAt(const Segment& segment, uint32_t bucket) const {
    return heap_->At<Slot>(segment.ref) + size_t{bucket} * kSlots;
  }
  static uint32_t BucketOf(uint32_t mixed, uint32_t buckets) {
    return (mixed >> 16) * buckets >> 16;
  }
  // The home of an entry in a segment of so many buckets.
  static uint32_t HomeIn(uint64_t slot, uint32_t buckets) {
    return BucketOf(static_cast<uint32_t>(slot >> 32), buckets);
  }
  static uint64_t Pack(const Segment& segment);
  static Segment Unpack(uint64_t entry, uint32_t index);

  // A bit for each neighbour 1 … 3 in which there are entries that are at home here.
  static uint32_t Near(const Slot* bucket) { return States(bucket) & kNearStates; }
  bool IsCurrent(const Segment& segment) const {
    return directory_[segment.index].load(std::memory_order_acquire) == Pack(segment);
  }

  // For readers. Sets `*changes` where an entry may have been the block's and is not what it was:
  // then 0 says nothing.
  Ref FindIn(const Lookup& lookup, SequenceHash block, bool* changes) const;

  // Calls match(word) for entries that have the tag, until it is true.
  template <typename Match>
  Found FindIf(const Lookup& lookup, Match match) const;
  Found EntryOf(const Lookup& lookup, Ref word) const;
  void Place(Slot* slot, uint64_t entry, SequenceHash block) const;
  static bool InsertAtHome(const Lookup& lookup, Ref word);
  Inserted InsertSlowly(Lookup* lookup, SequenceHash block, Ref word);
  Inserted InsertNear(const Lookup& lookup, SequenceHash block, uint64_t entry) const;

  bool Grow(const Segment& segment);
  enum class Aim { kGrow, kFit };
  bool Rebuild(const Segment& segment, Aim aim);
  // A half of a full segment while it is split: its slots; entries that came home (`copies`) and
  // the slots from which they came (`old`), `moved` of each.
  struct Half {
    uint64_t slots[kSlotsMax];
    uint16_t copies[kSlotsMax];
    uint16_t old[kSlotsMax];
    uint32_t moved = 0;

    void BringHome(uint16_t stray);
    void DropOld();
  };
  bool Split(const Segment& segment);
  void PublishSecond(const Segment& half);
  void MergeEmpty(Segment segment);
  int Reshape(const Segment& segment, Aim aim);
  bool FillHalves(const Segment& segment, std::span<uint64_t> entries, Segment* halves) const;
  bool Fill(std::span<const uint64_t> entries, uint32_t least, Segment* to) const;
  bool TryFill(std::span<const uint64_t> entries, Segment* to) const;
  static uint32_t BucketsFor(uint32_t entries);

  Heap* const heap_;
  std::atomic<uint64_t>* const directory_;
  const uint64_t seed_;
  std::atomic<int> depth_{0};

  // The writer's own. Segments at each depth, by which the directory's depth shrinks again; how
  // often a segment was replaced: while that stays the same, lookups are valid.
  uint32_t at_depth_[kDepthMax + 1] = {1};
  uint32_t rebuilds_ = 0;
  uint32_t longest_step_ = 0;
};

template <typename Visit>
void BlockTable::FetchScattered(std::span<const SequenceHash> blocks, Lookup* lookups,
                                Visit found) const {
  Ref words[kAhead];
  const size_t count = std::min(blocks.size(), kAhead);
  StartLookups(blocks.first(count), lookups);
  for (size_t i = 0; i < count; ++i) {
    words[i] = Candidate(lookups[i]);
    __builtin_prefetch(&heap_->word(words[i]));
    __builtin_prefetch(heap_->At<char>(heap_->RunOf(words[i])), 1);
  }
  found(std::span<const Ref>(words, count));
}

template <typename Visit>
void BlockTable::ForEach(Visit visit) const {
  const uint32_t end = uint32_t{1} << depth_.load(std::memory_order_acquire);
  for (uint32_t index = 0; index < end; ++index) {
    const uint64_t entry = directory_[index].load(std::memory_order_acquire);
    if (entry == 0) continue;
    const Segment segment = Unpack(entry, index);
    for (uint32_t i = 0; i < segment.slots(); ++i) {
      const Ref word = BucketAt(segment, 0)[i].load(std::memory_order_relaxed) & kWordMask;
      if (word != 0) visit(word);
    }
  }
}

}  // namespace kvatlas::atlas

#endif  // KVATLAS_INDEXER_INDEX_ATLAS_BLOCK_TABLE_H_
