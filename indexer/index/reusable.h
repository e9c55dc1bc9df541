// Leading blocks of a prompt that holders of hybrid models can reuse.
//
//   main overlap of each holder, from the index ─▶ Reusable ◀─ rows of side blocks, from the `SideIndex`
//                                                     │
//                                                     ▼
//                       the largest length that every class of the holder's layout accepts (`cache_class.h`)
//
// *Truth*: what the engine's own look-up finds: vLLM 0.33's
// `HybridKVCacheCoordinator.find_longest_cache_hit`, whose fixed point is the largest length that
// all classes accept. With dropped blocks (EAGLE), and chunks that begin inside a block, its steps
// are taken one by one, since their order matters there.
// Too little, never too much, is said where a class drops its last block and its blocks end inside
// main ones: the block behind the boundary may then have no name in the prompt.
// *Threads*: one; the caller keeps a `SideIndex::Reader` meanwhile.
// *Cost*: without dropped blocks, from the deepest holder down: a probe of the side index for each
// side block looked at and at most 7 more, each at most once, and twice a word for 64 holders and
// block; it ends where every holder has its answer, which for holders with whole windows is after
// one window. With dropped blocks: the same probes, and a bit a holder and block.
// *Memory*: the object's, reused from query to query.

#ifndef KVATLAS_INDEXER_INDEX_REUSABLE_H_
#define KVATLAS_INDEXER_INDEX_REUSABLE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "indexer/base/cache_class.h"
#include "indexer/base/ids.h"
#include "indexer/base/overlap.h"
#include "indexer/base/tier.h"
#include "indexer/index/index.h"
#include "indexer/index/side_index.h"

namespace kvatlas {

class Reusable {
 public:
  // Appends to `found` how much of the prompt `blocks`, which more tokens follow, each of `holders`
  // can reuse (h is bit h % 64 of word h / 64), in no particular order, 0 blocks included. All of
  // them have this layout. `held`: what their main class holds; a holder that is in no step of it
  // gets no entry. Where the layout has no main class, `held` is not looked at, and all of
  // `holders` have an entry. `block_size`: of the domain, tokens.
  void Find(const CacheLayout& layout, std::span<const SequenceHash> blocks, uint32_t block_size,
            TierMask tiers, const SideIndex::Reader& sides, const OverlapSteps& held,
            std::span<const uint64_t> holders, std::vector<Overlap>* found);

  // The name of that class's block that ends at token `end` of a prompt; nothing: the prompt ends
  // before its twin. A state's may end inside a block of its class.
  static std::optional<SequenceHash> NameAt(const CacheClass& side,
                                            std::span<const SequenceHash> blocks,
                                            uint32_t block_size, uint64_t end);

  // The first block of a side class that must be held, with all behind it, for a prefix of `length`
  // tokens: the table in `cache_class.h`. `length / block_size`: none must. REQUIRES: `length` is a
  // multiple of the class's block size, and not 0.
  static uint64_t FirstNeeded(const CacheClass& side, uint64_t length);

 private:
  // Rows of one side class, by the number of the block from 0; read when first needed.
  struct Side {
    CacheClass of;  // with `EndsEvery` as its block size
    uint64_t tag = 0;
    uint64_t common = 0;    // tokens between ends that are main blocks' too
    uint64_t per_unit = 0;  // blocks in one alignment
    uint64_t needed = 0;    // blocks before a boundary, of a class that is no chunk
    size_t named = 0;       // blocks from the prompt's start that have a name
    std::vector<uint64_t> rows;
    std::vector<uint8_t> known;
    size_t ahead = 1;  // rows to read at once: more with each time
    // State of the last prefix asked for in `Accept`: rows of the blocks [low, end) were combined
    // by AND, in two parts, so that a shorter prefix costs the rows that are new in it: `below` for
    // [low, split), and for each block b in [split, end) row b of `above` for [split, b].
    size_t low = SIZE_MAX, split = SIZE_MAX;
    std::vector<uint64_t> below, above;
  };

  // REQUIRES: a block that has a name.
  SequenceHash NameOf(const Side& side, size_t block) const {
    if (side.of.block_size == block_size_) return SideName(side.tag, blocks_[block]);
    const uint64_t end = (block + 1) * side.of.block_size;
    const uint64_t twin = (end + side.common - 1) / side.common * side.common;
    return SideName(side.tag, blocks_[twin / block_size_ - 1], static_cast<uint32_t>(twin - end));
  }
  void Open(const CacheLayout& layout);
  const uint64_t* Row(Side* side, size_t block) {
    if (!side->known[block]) ReadRows(side, block);
    return side->rows.data() + block * words_;
  }
  // That of `block` and of some before it: walks go from deep to shallow.
  void ReadRows(Side* side, size_t block);
  bool Has(Side* side, size_t block, uint32_t holder) {
    return (Row(side, block)[holder / 64] >> (holder % 64) & 1) != 0;
  }
  // Writes those of `among` whose class accepts so many units of the alignment; false: none does.
  // REQUIRES: less at each call.
  bool Accept(Side* side, uint64_t units, const uint64_t* among, uint64_t* accepted);
  // Takes those of `holders` that hold the prefixes of this step into `pending_`.
  void Join(const OverlapSteps& held, size_t step, std::span<const uint64_t> holders);
  void FindAllAtOnce(const OverlapSteps& held, std::span<const uint64_t> holders,
                     std::vector<Overlap>* found);
  // As the engine does it, step by step: the largest lengths found by one class of one holder, at
  // most `length_max`.
  uint64_t FindOfMain(uint64_t held, uint64_t length_max, bool drop) const;
  uint64_t FindOfSide(Side* side, uint32_t holder, uint64_t length_max, bool drop);
  uint64_t FindStepByStep(const CacheLayout& layout, uint32_t holder, uint64_t held);

  std::span<const SequenceHash> blocks_;
  uint64_t block_size_ = 0;
  uint64_t tokens_ = 0;
  uint64_t alignment_ = 0;
  TierMask tiers_;
  const SideIndex::Reader* reader_ = nullptr;
  size_t words_ = 0;
  std::vector<Side> sides_;
  size_t sides_used_ = 0;
  std::vector<uint64_t> pending_, accepted_;
  OverlapSteps all_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_REUSABLE_H_
