// A bucket of the table: a cache line of eight slots, which are compared all at once.
//
//   slot        63…32 the mixed hash's low half | 31 a bit of the bucket's own state | 30…0 word, 0 = empty
//
// The meaning of the states: `block_table.h`.
//
// *Threads*: one writer; slots are atomic and change one by one. Which of them match is a hint to a
// reader: it loads those again.

#ifndef KVATLAS_INDEXER_INDEX_ATLAS_BUCKET_H_
#define KVATLAS_INDEXER_INDEX_ATLAS_BUCKET_H_

#if defined(__SSE4_1__)
#include <immintrin.h>
#endif

#include <atomic>
#include <bit>
#include <cstdint>

#include "indexer/index/atlas/heap.h"
#include "indexer/index/atlas/tsan.h"

namespace kvatlas::atlas {

using Slot = std::atomic<uint64_t>;

inline constexpr uint32_t kSlots = 8;
inline constexpr uint64_t kWordMask = (uint64_t{1} << kRefBits) - 1;
inline constexpr uint64_t kStateBit = uint64_t{1} << kRefBits;

inline void SetState(Slot* slot, bool to) {
  const uint64_t bit = to ? kStateBit : 0;
  slot->store((slot->load(std::memory_order_relaxed) & ~kStateBit) | bit,
              std::memory_order_release);
}

inline void Put(Slot* slot, uint64_t entry) {
  // Partner: the acquire loads of `FindIn`, so that a reader that finds the word sees its hash.
  slot->store((slot->load(std::memory_order_relaxed) & kStateBit) | entry,
              std::memory_order_release);
}

// ---- Eight slots at once ----
//
// Words change one by one and are never torn, so that they may be read two by two. ThreadSanitizer
// cannot know that, so its builds compare one word at a time (`tsan.h`).

#if defined(__SSE4_1__) && !KVATLAS_THREAD_SANITIZER

// The low (0) or high (1) halves of four pairs of words as a bit each.
template <int kHalf>
inline uint32_t Gather(__m128i a, __m128i b, __m128i c, __m128i d) {
  constexpr int kPick = kHalf == 0 ? 0x88 : 0xdd;
  const __m128 first = _mm_shuffle_ps(_mm_castsi128_ps(a), _mm_castsi128_ps(b), kPick);
  const __m128 second = _mm_shuffle_ps(_mm_castsi128_ps(c), _mm_castsi128_ps(d), kPick);
  return static_cast<uint32_t>(_mm_movemask_ps(first) | _mm_movemask_ps(second) << 4);
}

// A bit a slot: those whose entry has this mixed hash.
inline uint32_t MatchTag(const Slot* bucket, uint32_t mixed) {
  const __m128i* const pairs = reinterpret_cast<const __m128i*>(bucket);
  const __m128i wanted = _mm_set1_epi32(static_cast<int>(mixed));
  return Gather<1>(_mm_cmpeq_epi32(_mm_load_si128(pairs), wanted),
                   _mm_cmpeq_epi32(_mm_load_si128(pairs + 1), wanted),
                   _mm_cmpeq_epi32(_mm_load_si128(pairs + 2), wanted),
                   _mm_cmpeq_epi32(_mm_load_si128(pairs + 3), wanted));
}

// A bit a slot: those without an entry.
inline uint32_t FreeSlots(const Slot* bucket) {
  const __m128i* const pairs = reinterpret_cast<const __m128i*>(bucket);
  const __m128i mask = _mm_set1_epi64x(static_cast<int64_t>(kWordMask));
  const __m128i zero = _mm_setzero_si128();
  return Gather<0>(_mm_cmpeq_epi32(_mm_and_si128(_mm_load_si128(pairs), mask), zero),
                   _mm_cmpeq_epi32(_mm_and_si128(_mm_load_si128(pairs + 1), mask), zero),
                   _mm_cmpeq_epi32(_mm_and_si128(_mm_load_si128(pairs + 2), mask), zero),
                   _mm_cmpeq_epi32(_mm_and_si128(_mm_load_si128(pairs + 3), mask), zero));
}

// A bit a slot: the bucket's state.
inline uint32_t States(const Slot* bucket) {
  static_assert(kRefBits == 31, "the state is the low half's sign");
  const __m128i* const pairs = reinterpret_cast<const __m128i*>(bucket);
  return Gather<0>(_mm_load_si128(pairs), _mm_load_si128(pairs + 1), _mm_load_si128(pairs + 2),
                   _mm_load_si128(pairs + 3));
}

// Copies entries into one of two buckets, which are without state: to `goes` where the bit is set
// that `shift` brings to the top. Counts them. Returns a bit a slot: those whose hash does not
// begin with the six bits `home`.
inline uint32_t PartitionBucket(const Slot* bucket, uint32_t home, int shift, uint64_t* stays,
                                uint64_t* goes, uint32_t* used) {
  const __m128i* const pairs = reinterpret_cast<const __m128i*>(bucket);
  const __m128i state = _mm_set1_epi64x(static_cast<int64_t>(kStateBit));
  const __m128i at_home = _mm_set1_epi64x(home);
  const __m128i count = _mm_cvtsi32_si128(shift);
  uint32_t others = 0;
  for (int i = 0; i < 4; ++i) {
    const __m128i entries = _mm_andnot_si128(state, _mm_load_si128(pairs + i));
    // The sign of the high half in all bits.
    const __m128i second =
        _mm_shuffle_epi32(_mm_srai_epi32(_mm_sll_epi64(entries, count), 31), 0xf5);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(stays) + i, _mm_andnot_si128(second, entries));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(goes) + i, _mm_and_si128(second, entries));
    const __m128i none = _mm_cmpeq_epi64(entries, _mm_setzero_si128());
    const __m128i fits = _mm_or_si128(none, _mm_cmpeq_epi64(_mm_srli_epi64(entries, 58), at_home));
    const auto bits = [](__m128i both) {
      return static_cast<uint32_t>(_mm_movemask_pd(_mm_castsi128_pd(both)));
    };
    others |= (bits(fits) ^ 3) << (2 * i);
    *used += 2 - static_cast<uint32_t>(std::popcount(bits(none)));
  }
  return others;
}

#else

inline uint32_t PartitionBucket(const Slot* bucket, uint32_t home, int shift, uint64_t* stays,
                                uint64_t* goes, uint32_t* used) {
  uint32_t others = 0;
  for (uint32_t i = 0; i < kSlots; ++i) {
    const uint64_t entry = bucket[i].load(std::memory_order_relaxed) & ~kStateBit;
    const bool second = static_cast<int64_t>(entry << shift) < 0;
    stays[i] = second ? 0 : entry;
    goes[i] = second ? entry : 0;
    *used += entry != 0 ? 1 : 0;
    if (entry != 0 && entry >> 58 != home) others |= 1u << i;
  }
  return others;
}

inline uint32_t MatchTag(const Slot* bucket, uint32_t mixed) {
  uint32_t matching = 0;
  for (uint32_t i = 0; i < kSlots; ++i)
    matching |= uint32_t{bucket[i].load(std::memory_order_relaxed) >> 32 == mixed} << i;
  return matching;
}

inline uint32_t FreeSlots(const Slot* bucket) {
  uint32_t free = 0;
  for (uint32_t i = 0; i < kSlots; ++i)
    free |= uint32_t{(bucket[i].load(std::memory_order_relaxed) & kWordMask) == 0} << i;
  return free;
}

inline uint32_t States(const Slot* bucket) {
  uint32_t states = 0;
  for (uint32_t i = 0; i < kSlots; ++i)
    states |= uint32_t{(bucket[i].load(std::memory_order_acquire) & kStateBit) != 0} << i;
  return states;
}

#endif

// -1: there is none.
inline int FreeSlot(const Slot* bucket) {
  const uint32_t free = FreeSlots(bucket);
  return free == 0 ? -1 : std::countr_zero(free);
}

}  // namespace kvatlas::atlas

#endif  // KVATLAS_INDEXER_INDEX_ATLAS_BUCKET_H_
