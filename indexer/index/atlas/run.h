// What is a run? Up to 256 consecutive blocks of one sequence, kept together, and who holds which of them.
//
//       word base ──▶ ┌────┬────┬────┬────┬────┬────┐
//       of the heap   │ h0 │ h1 │ h2 │ h3 │ …  │    │   sequence hashes; `len` of `capacity` are used
//                     └────┴────┴────┴────┴────┴────┘
//       tiers[t] ──▶ section: holders that have all of [0, len)         a bit or a number each
//                       └──▶ partials: (holder, a bit for every block it has)
//
// A holder has all of a run, or part of it, or nothing; a hole is a zero bit. Nothing in a run says where the next
// run is: the next block is found by its name (`block_table.h`), so a run has any number of children, at any
// offset, and they cost it nothing.
//
// *Threads*: a run is written under its lock and read without. What readers depend on together (base, len, the
// holders) never changes in place in a way that could be misread: see "How atlas is read" in `atlas_index.h`.

#ifndef KVATLAS_INDEXER_INDEX_ATLAS_RUN_H_
#define KVATLAS_INDEXER_INDEX_ATLAS_RUN_H_

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>

#include "indexer/base/ids.h"
#include "indexer/base/tier.h"
#include "indexer/index/atlas/heap.h"
#include "indexer/index/atlas/spin_lock.h"

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

struct Run {
  // Even: as it stands. Odd: something is being taken out of it, or it was replaced and is dead. It changes
  // whenever a reader's earlier look could claim more than is true later; growth leaves it alone.
  std::atomic<uint32_t> version{0};
  SpinLock lock;
  uint64_t parent = 0;  // name of the block before the first
  Position start = 0;   // position of the first block
  Ref base = 0;         // word of the first block's hash
  uint16_t capacity = 0;
  std::atomic<uint16_t> len{0};
  bool dead = false;  // under `lock`: replaced or freed; look again
  // A block below `len` may be held by nobody. Its word is the complement of its hash, so that nobody matches it:
  // it may be stored again, and then stand elsewhere.
  std::atomic<bool> holes{false};
  std::atomic<Ref> tiers[kTiers] = {};  // sections
};
static_assert(sizeof(Run) <= 64);

}  // namespace kvatlas::atlas

#endif  // KVATLAS_INDEXER_INDEX_ATLAS_RUN_H_
