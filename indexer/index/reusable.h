// How many leading blocks of a prompt can holders of hybrid models reuse?
//
//   main overlap of each holder, from the index ─▶ Reusable ◀─ rows of side blocks, from the `SideIndex`
//                                                     │
//                                                     ▼
//                       the largest length that every class of the holder's layout accepts (`cache_class.h`)
//
// *Truth*: what the engine's own look-up finds: vLLM 0.33's `HybridKVCacheCoordinator.find_longest_cache_hit`, whose fixed
// point is the largest length that all classes accept. With dropped blocks (EAGLE), and chunks that begin inside a block, its
// steps are taken one by one, since their order matters there.
// Too little, never too much, is said where a class drops its last block and its blocks end inside main ones: the block
// behind the boundary may then have no name in the prompt.
// *Threads*: one; the caller keeps a `SideIndex::Reader` meanwhile.
// *Cost*: without dropped blocks, from the deepest holder down: a probe of the side index for each side block looked at,
// each at most once, and a word for 64 holders and block; it ends where every holder has its answer, which for holders
// with whole windows is after one window. With dropped blocks: the same probes, and a bit a holder and block.
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
#include "indexer/index/side_index.h"

namespace kvatlas {

class Reusable {
 public:
  // For each of `holders`, all of this layout: from the blocks that its main class holds to those that it can reuse of the
  // prompt `blocks`, more tokens following it. `block_size`: of the domain, tokens. Where the layout has no main class, what
  // `holders` says is not looked at. REQUIRES: no holder twice.
  void Find(const CacheLayout& layout, std::span<const SequenceHash> blocks, uint32_t block_size,
            TierMask tiers, const SideIndex::Reader& sides, std::span<Overlap> holders);

  // The name of that class's block that ends at token `end` of a prompt; nothing: the prompt ends before its twin.
  static std::optional<SequenceHash> NameAt(const CacheClass& side,
                                            std::span<const SequenceHash> blocks,
                                            uint32_t block_size, uint64_t end);

  // The first block of a side class that must be held, with all behind it, for a prefix of `length` tokens: the table in
  // `cache_class.h`. `length / block_size`: none must. REQUIRES: `length` is a multiple of the class's block size, and not 0.
  static uint64_t FirstNeeded(const CacheClass& side, uint64_t length);

 private:
  // Rows of one side class, by the number of the block from 0; read when first needed.
  struct Side {
    CacheClass of;
    uint64_t tag = 0;
    uint64_t common = 0;  // tokens between ends that are main blocks' too
    size_t blocks = 0;    // of the prompt
    std::vector<uint64_t> rows;
    std::vector<uint8_t> known;
  };

  std::optional<SequenceHash> NameOf(const Side& side, size_t block) const;
  void Open(const CacheLayout& layout, std::span<const Overlap> holders);
  const uint64_t* Row(Side* side, size_t block);
  bool Has(Side* side, size_t block, uint32_t holder) {
    return (Row(side, block)[holder / 64] >> (holder % 64) & 1) != 0;
  }
  // Of the holders in `accepted`, leaves those whose class accepts `length` tokens.
  void Accept(Side* side, uint64_t length, std::span<uint64_t> accepted);
  void FindAllAtOnce(uint64_t alignment, std::span<Overlap> holders);
  // As the engine does it, step by step: the largest lengths found by one class of one holder, at most `length_max`.
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
  std::vector<uint32_t> order_;  // of holders, deepest first
  std::vector<uint64_t> pending_, accepted_;
  std::vector<uint32_t> slot_of_;  // holder to its place in the caller's list
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_REUSABLE_H_
