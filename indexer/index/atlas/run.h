// A run: up to 256 consecutive blocks of one sequence, kept together, and which holders have which
// of them.
//
//       ┌─────────────┬───┬────┬────┬────┬────┬────┬──────┐
//       │ header      │   │ h0 │ h1 │ h2 │ h3 │ …  │      │   a bit a block that is dead; sequence hashes, `len` of
//       └─────────────┴───┴────┴────┴────┴────┴────┴──────┘   `capacity` are used; then local hashes
//         holders[3] ──▶ either up to three numbers of holders that have all of it, each with its tier,
//                        or sections, one a tier (`members.h`): any number of holders, and those that have part
//
// One allocation of its own size class, found from any of its words (`heap.h`).
//
// A block that no holder has any more is dead: its word is the complement of its hash, so that no
// prompt matches it, and the table does not know it; it may be stored again, here or elsewhere. The
// last block is never dead. A holder has all of a run, which is all that is not dead, or part of
// it, or nothing; so a block that its only holder loses costs a bit. Nothing in a run says where
// the next run is: the next block is found by its name (`block_table.h`), so a run has any number
// of children, at any offset, and they cost it nothing.
//
// *Threads*: one writer, and readers beside it: see "How atlas is read" in `atlas_index.h`. Fields
// that are not atomic are the writer's own, or do not change while a reader can find the run. The
// first 8 bytes of a run that was freed stay as they are until it is a run again (`heap.h`).

#ifndef KVATLAS_INDEXER_INDEX_ATLAS_RUN_H_
#define KVATLAS_INDEXER_INDEX_ATLAS_RUN_H_

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>

#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "indexer/index/atlas/heap.h"

namespace kvatlas::atlas {

inline constexpr uint32_t kRunBlocksMax = 256;

// A set of offsets in a run.
struct Offsets {
  static constexpr int kWords = kRunBlocksMax / 64;
  uint64_t words[kWords] = {};

  // [from, to)
  static Offsets Range(uint32_t from, uint32_t to) {
    Offsets range;
    for (int i = 0; i < kWords; ++i) {
      const uint32_t first = static_cast<uint32_t>(i) * 64;
      if (to <= first || from >= first + 64) continue;
      const uint32_t low = from > first ? from - first : 0;
      const uint32_t high = std::min<uint32_t>(to - first, 64);
      range.words[i] = (~uint64_t{0} << low) & (~uint64_t{0} >> (64 - high));
    }
    return range;
  }

  bool Has(uint32_t offset) const { return (words[offset / 64] >> (offset % 64) & 1) != 0; }
  void Add(uint32_t offset) { words[offset / 64] |= uint64_t{1} << (offset % 64); }
  bool Any() const { return (words[0] | words[1] | words[2] | words[3]) != 0; }
  uint32_t Count() const {
    uint32_t count = 0;
    for (uint64_t word : words) count += static_cast<uint32_t>(std::popcount(word));
    return count;
  }
  // The smallest; kRunBlocksMax when empty.
  uint32_t First() const {
    for (uint32_t i = 0; i < kWords; ++i) {
      if (words[i] != 0) return i * 64 + static_cast<uint32_t>(std::countr_zero(words[i]));
    }
    return kRunBlocksMax;
  }
  // One more than the largest; 0 when empty.
  uint32_t End() const {
    for (int i = kWords; i-- > 0;) {
      if (words[i] != 0) return static_cast<uint32_t>(i * 64 + 64 - std::countl_zero(words[i]));
    }
    return 0;
  }
  // The smallest offset at or after `from` that is not in the set; at most kRunBlocksMax.
  uint32_t FirstMissing(uint32_t from) const {
    for (uint32_t i = from / 64; i < kWords; ++i) {
      const uint64_t missing =
          ~words[i] & (i == from / 64 ? ~uint64_t{0} << (from % 64) : ~uint64_t{0});
      if (missing != 0) return i * 64 + static_cast<uint32_t>(std::countr_zero(missing));
    }
    return kRunBlocksMax;
  }
  // The smallest offset at or after `from` that is in the set; kRunBlocksMax when there is none.
  uint32_t Next(uint32_t from) const {
    for (uint32_t i = from / 64; i < kWords; ++i) {
      const uint64_t left =
          words[i] & (i == from / 64 ? ~uint64_t{0} << (from % 64) : ~uint64_t{0});
      if (left != 0) return i * 64 + static_cast<uint32_t>(std::countr_zero(left));
    }
    return kRunBlocksMax;
  }
  // Offsets [from, to), counted from `from`.
  Offsets Slice(uint32_t from, uint32_t to) const {
    Offsets slice;
    const uint32_t shift = from % 64;
    for (uint32_t i = from / 64, out = 0; i < kWords; ++i, ++out) {
      slice.words[out] = words[i] >> shift;
      if (shift != 0 && i + 1 < kWords) slice.words[out] |= words[i + 1] << (64 - shift);
    }
    return slice & Range(0, to - from);
  }
  // Calls visit(offset) for each, in order.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (int i = 0; i < kWords; ++i) {
      for (uint64_t word = words[i]; word != 0; word &= word - 1)
        visit(static_cast<uint32_t>(i * 64 + std::countr_zero(word)));
    }
  }

  friend Offsets operator|(const Offsets& a, const Offsets& b) {
    Offsets c;
    for (int i = 0; i < kWords; ++i) c.words[i] = a.words[i] | b.words[i];
    return c;
  }
  friend Offsets operator&(const Offsets& a, const Offsets& b) {
    Offsets c;
    for (int i = 0; i < kWords; ++i) c.words[i] = a.words[i] & b.words[i];
    return c;
  }
  // a without b.
  friend Offsets operator-(const Offsets& a, const Offsets& b) {
    Offsets c;
    for (int i = 0; i < kWords; ++i) c.words[i] = a.words[i] & ~b.words[i];
    return c;
  }
  friend bool operator==(const Offsets&, const Offsets&) = default;
};

// A word of `Run::holders`: a section, or one holder that has all in one tier, or nothing.
using Holders = uint32_t;
inline constexpr Holders kSectionBit = uint32_t{1} << 31;
inline constexpr int kHolderBits = 28;
inline constexpr Holders kFree = kSectionBit - 1;
inline constexpr uint32_t kInlineHolders = 3;

inline Holders InlineHolder(Tier tier, uint32_t holder) {
  return static_cast<uint32_t>(tier) << kHolderBits | holder;
}
inline Tier TierOf(Holders one) { return static_cast<Tier>(one >> kHolderBits); }
// The section, or 0, without a branch: Ref 0 is never used, and may be fetched.
inline Ref SectionOf(Holders first) {
  return (first & ~kSectionBit) * ((first & kSectionBit) / kSectionBit);
}
inline uint32_t HolderOf(Holders one) { return one & ((uint32_t{1} << kHolderBits) - 1); }

struct Run {
  // Even: as it stands. Odd: something is being taken out of it, or it was replaced and is dead. It
  // changes whenever a reader's earlier look could claim more than is true later; growth leaves it
  // alone.
  std::atomic<uint32_t> version;
  bool alive;    // false: replaced or freed
  uint8_t died;  // since it was last looked whether the run is worth its room
  std::atomic<uint16_t> len;
  uint64_t parent;  // name of the block before the first
  Position start;   // position of the first block
  uint16_t capacity;
  bool holes;  // some are dead
  // The bits of dead blocks, for a capacity of at most 32.
  uint32_t dead_few;
  std::atomic<Holders> holders[kInlineHolders];

  static constexpr uint32_t kFew = 32;
  static uint32_t DeadWords(uint32_t capacity) {
    return capacity <= kFew ? 0 : (capacity + 63) / 64;
  }

  // Where in the run, in words, its hashes begin.
  uint32_t first() const { return sizeof(Run) / 8 + DeadWords(capacity); }
  std::atomic<uint64_t>* words() {
    return reinterpret_cast<std::atomic<uint64_t>*>(this + 1) + DeadWords(capacity);
  }
  const std::atomic<uint64_t>* words() const {
    return reinterpret_cast<const std::atomic<uint64_t>*>(this + 1) + DeadWords(capacity);
  }
  std::atomic<uint64_t>* locals() { return words() + capacity; }
  uint64_t* dead_many() { return reinterpret_cast<uint64_t*>(this + 1); }

  Offsets Dead() {
    Offsets dead;
    if (!holes) return dead;
    dead.words[0] = dead_few;
    for (uint32_t i = 0; i < DeadWords(capacity); ++i) dead.words[i] = dead_many()[i];
    return dead;
  }
  void SetDead(const Offsets& dead) {
    dead_few = static_cast<uint32_t>(dead.words[0]);
    for (uint32_t i = 0; i < DeadWords(capacity); ++i) dead_many()[i] = dead.words[i];
    holes = dead.Any();
  }
  void AddDead(uint32_t offset) {
    if (capacity <= kFew) {
      dead_few |= uint32_t{1} << offset;
    } else {
      dead_many()[offset / 64] |= uint64_t{1} << (offset % 64);
    }
    holes = true;
  }
  // Blocks with a holder.
  Offsets Live() { return Offsets::Range(0, len.load(std::memory_order_relaxed)) - Dead(); }
};
static_assert(sizeof(Run) == 40);

}  // namespace kvatlas::atlas

#endif  // KVATLAS_INDEXER_INDEX_ATLAS_RUN_H_
