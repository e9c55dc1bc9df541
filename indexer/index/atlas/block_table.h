// Where is the block of this name? The one table of an atlas: sequence hash → the word of the heap that holds
// the hash in its run's array. One entry a distinct block, whoever holds it.
//
//   directory   extendible hashing: the low bits of the mixed hash choose a segment
//   segment     1 … 64 buckets of 8 slots; it doubles or splits in two when a bucket's
//               neighbourhood is full, and shrinks when it is almost empty. So nothing ever stops for a
//               growth of everything: the longest step moves 512 slots.
//   bucket      one cache line (`bucket.h`); an entry is the mixed hash and a word. The bucket's state: locked, and for
//               each of its three neighbours whether entries that are at home here live there.
//
// *Truth*: the name is verified against the word it leads to, so a hit is never another block. Entries move within a
// segment, or leave it, only while its entry in the directory changes, and a segment that was replaced stays readable
// as it was (`epoch.h`): who found nothing sees whether the directory still says the same, and else looks again. Where an
// entry leads to a word that names another block by now, a reader sees whether the entry is still so, and else looks
// again. So he finds every block that somebody holds all the time, wherever it is moved.
// *Threads*: reads take no lock. Writes lock the block's home bucket, and while one grows, its segment; a writer who is
// alone (`writer_gate.h`) locks nothing.
// Everything under an `EpochGuard`.
// *Cost*: a read looks at one cache line of the table, seldom two, and at the word. 8 bytes a slot, 44–88 % full.
// *Bounds*: 2^22 segments. A name whose neighbourhood stays full in a segment that is almost empty (an adversary's
// hashes) is refused like a table without memory.
// *Source*: R. Fagin et al., "Extendible hashing", 1979; the directory holds only the segments themselves, a
// missing entry means the one with the highest bit cleared, so it doubles in no time.

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

#include "absl/base/thread_annotations.h"
#include "indexer/base/ids.h"
#include "indexer/index/atlas/bucket.h"
#include "indexer/index/atlas/heap.h"
#include "indexer/index/atlas/spin_lock.h"
#include "indexer/index/atlas/writer_gate.h"

namespace kvatlas::atlas {

class BlockTable {
  // What a directory entry says: valid bit, depth (bits of the hash that all its entries share), buckets, where they are.
  // `buckets` 0: an empty segment without memory.
  struct Segment {
    uint32_t index = 0;  // in the directory: the shared bits
    int depth = 0;
    uint32_t buckets = 0;
    Ref ref = 0;

    uint32_t slots() const { return buckets * kSlots; }
  };

 public:
  // Many blocks: they are fetched this far ahead.
  static constexpr size_t kAhead = 16;

  // A hash on its way into its home bucket, which is nowhere in a segment without memory: what the directory said, for
  // as long as the guard is held. Small, because one is made for every block.
  class Home {
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

  // Null when the address space cannot be had. `seed` makes the mixing unpredictable.
  static std::unique_ptr<BlockTable> Create(Heap* heap, uint64_t seed);
  ~BlockTable();

  // Who is inside takes locks, or, alone, none.
  WriterGate* gate() const { return &gate_; }

  // The block's word, or 0.
  Ref Find(SequenceHash block) const {
    Home home;
    FindHome(block, &home);
    return Find(block, &home);
  }

  // The same from where it was fetched, which may be where it is no more: what is found then may have moved.
  Ref Find(SequenceHash block, Home* home) const;

  void FindHome(SequenceHash block, Home* home) const { FindHome(Mix(block, seed_), home); }

  // Fetches what `Find` and the writes will look at first: `home`.
  void Prefetch(SequenceHash block, Home* home) const { FetchHomes(std::span(&block, 1), home); }
  void Prefetch(SequenceHash block) const {
    Home home;
    Prefetch(block, &home);
  }

  // Fetches all that `Find` and then the block's run will look at, for blocks that are scattered: step by step for
  // all of them, so that they wait together. At most `kAhead`, to `homes`; found(words) says where they may be, 0: not known.
  template <typename Found>
  void FetchScattered(std::span<const SequenceHash> blocks, Home* homes, Found found) const;

  // What `Insert` found.
  struct Inserted {
    enum What { kInserted, kExists, kNoMemory } what = kInserted;
    Ref existing = 0;  // kExists: where
  };
  // Makes `word` the block's place, unless it has one: the hash is written there when it is certain that it has none,
  // and before anybody else can give it one.
  Inserted Insert(SequenceHash block, Ref word);

  // Inserts block i at `first + i`, which holds the hash already, in order; stops at the first that is not inserted,
  // whose outcome goes to `*stopped`. Returns how many were inserted.
  size_t InsertMany(std::span<const SequenceHash> blocks, Ref first, Inserted* stopped);

  // The block at `from` is at `to` now; both hold the hash. REQUIRES: it is in the table with `from`.
  void Move(SequenceHash block, Ref from, Ref to);

  // REQUIRES: the block is in the table with `word`.
  void Erase(SequenceHash block, Ref word) {
    Home home;
    FindHome(block, &home);
    Erase(&home, word);
  }

  // The same of one that was fetched.
  void Erase(Home* home, Ref word);

  // Erases block i, which is in the table with `words[i]`.
  void EraseMany(std::span<const SequenceHash> blocks, std::span<const Ref> words);

  // What the table looks like; exact when nobody writes.
  struct Shape {
    uint64_t entries = 0;
    uint64_t slots = 0;
    uint64_t segments = 0;
    uint64_t displaced = 0;  // entries away from home
  };
  Shape CountShape() const;

  // Tidies some segments, appends the words of their entries, about `steps`, and moves the cursor to where the next
  // call goes on; every entry that stays comes up once a round. A call goes round once at most; returns the steps.
  size_t Tend(uint32_t* cursor, size_t steps, std::vector<Ref>* words);

  // Calls visit(word) for every entry; REQUIRES: nobody writes.
  template <typename Visit>
  void ForEach(Visit visit) const;

 private:
  static constexpr uint32_t kBucketsMax = 64;
  static constexpr uint32_t kSlotsMax = kBucketsMax * kSlots;
  // An entry lives in bucket home ^ 0 … 3: four lines in a row.
  static constexpr uint32_t kNeighbours = 4;
  static constexpr int kDepthMax = 22;
  // Whose state bits say what: slot 0 the lock, slots 1 … 3 the neighbours.
  static constexpr int kLockSlot = 0;
  static constexpr uint32_t kNearStates = ((1u << kNeighbours) - 1) & ~1u;

  // The directory at one moment, for many hashes.
  struct View {
    const std::atomic<uint64_t>* directory;
    char* region;
    uint64_t seed;
    uint32_t bits;       // of the directory's depth
    uint32_t bits_less;  // and of one less

    bool Enter(uint64_t entry, uint32_t index, uint32_t mixed, Home* home) const;
    // False where it takes more than a look: `FindHome`.
    bool Find(uint32_t mixed, Home* home) const;
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
  Ref Candidate(const Home& home) const;
  void FindHome(uint32_t mixed, Home* home) const;
  void FetchHomes(std::span<const SequenceHash> blocks, Home* homes) const;
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

  void Lock(Slot* bucket) const {
    for (int round = 0; !TryLock(bucket);) {
      do {
        SpinWait(round++);
      } while ((bucket[kLockSlot].load(std::memory_order_relaxed) & kStateBit) != 0);
    }
  }
  bool TryLock(Slot* bucket) const {
    return gate_.alone() ||
           (bucket[kLockSlot].fetch_or(kStateBit, std::memory_order_acquire) & kStateBit) == 0;
  }
  void Unlock(Slot* bucket) const {
    if (!gate_.alone()) SetState(&bucket[kLockSlot], false);
  }
  // A bit for each neighbour 1 … 3 in which there are entries that are at home here.
  static uint32_t Near(const Slot* bucket) { return States(bucket) & kNearStates; }

  // Locks the home bucket of a hash, in a segment that was not replaced; the segment may have no memory, then
  // nothing is locked.
  void LockHome(Home* home) const;
  bool IsCurrent(const Home& home) const {
    return directory_[home.index].load(std::memory_order_acquire) == home.entry &&
           home.buckets() != 0;
  }
  bool IsCurrent(const Segment& segment) const {
    return directory_[segment.index].load(std::memory_order_acquire) == Pack(segment);
  }

  // Sets `*changes` where an entry may have been the block's and is not what it was: then 0 says nothing. REQUIRES: home
  // is locked, or somebody looks at it.
  Ref FindIn(const Home& home, SequenceHash block, bool* changes) const;
  void Place(Slot* slot, uint64_t entry, SequenceHash block) const;
  static bool InsertAtHome(const Home& home, Ref word);
  Inserted InsertSlowly(Home* home, SequenceHash block, Ref word);
  Inserted InsertNear(const Home& home, SequenceHash block, uint64_t entry, bool* again) const;
  bool EraseAt(Home* home, Ref word);
  // Replaces the word of an entry; 0 erases it. REQUIRES: home locked.
  bool Replace(const Home& home, Ref from, Ref to);

  bool Grow(const Segment& segment);
  void MaybeShrink(const Home& home);
  enum class Aim { kGrow, kFit };
  bool Rebuild(const Segment& segment, Aim aim);
  // A half of a full segment while it is split: its slots, where copies of entries are, and what they are copies of.
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
  // Held while the directory gets another shape: segments divided or merged, or memory for one that had none.
  SpinLock shape_lock_;
  uint32_t at_depth_[kDepthMax + 1] ABSL_GUARDED_BY(shape_lock_) = {1};
  mutable WriterGate gate_;
};

template <typename Found>
void BlockTable::FetchScattered(std::span<const SequenceHash> blocks, Home* homes,
                                Found found) const {
  Ref words[kAhead];
  const size_t count = std::min(blocks.size(), kAhead);
  FetchHomes(blocks.first(count), homes);
  for (size_t i = 0; i < count; ++i) {
    words[i] = Candidate(homes[i]);
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
