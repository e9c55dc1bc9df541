// The cache classes of a worker: the parts of its cache that must agree before it can reuse a
// prefix.
//
// A model with full attention alone has one class of cached blocks, the *main class*. A hybrid
// model has *side classes* beside it (sliding windows, recurrent states, chunked local attention),
// whose blocks the engine evicts independently. A prefix of L tokens is reusable only when every
// class accepts L:
//
//   class    accepts L when
//   main     every block up to L is held
//   window   the blocks that cover the `window_tokens` before L are held, or all blocks from the start up to L
//   state    the one block that ends at L is held
//   chunk    the blocks from the last multiple of `window_tokens` up to L are held
//
// and L is a multiple of every class's block size, but for states beside nothing but full attention
// (`EndsEvery`). Source: vLLM 0.33 `kv_cache_coordinator.py`
// (`HybridKVCacheCoordinator.find_longest_cache_hit`) and `single_type_kv_cache_manager.py`;
// SGLang's unified radix cache.
//
// *Names*: a side block is named by the main block that ends where it ends, or, where no main block
// ends there, by the next one behind it that ends together with a side block, and the tokens in
// between: `SideName`. Reusable lengths are such common ends. Names of different classes differ, so
// that main and side blocks of a holder are one set for streams, digests and snapshots.

#ifndef KVATLAS_INDEXER_BASE_CACHE_CLASS_H_
#define KVATLAS_INDEXER_BASE_CACHE_CLASS_H_

#include <cstdint>
#include <vector>

#include "indexer/base/ids.h"

namespace kvatlas {

enum class CacheKind : uint8_t { kFull = 0, kWindow = 1, kState = 2, kChunk = 3 };
inline constexpr int kCacheKinds = 4;

struct CacheClass {
  CacheKind kind = CacheKind::kFull;
  uint32_t block_size = 0;  // tokens of one block of this class
  // Tokens before the boundary that must be held: of a window, one less than the engine's window
  // where the engine counts the next token in (vLLM), the window itself where it does not (SGLang).
  // Of a chunk: its size. Of the main class: tokens that tiers beside the device load only together
  // (`LoadableBlocks`), 0: blocks are loaded one by one. Else 0.
  uint32_t window_tokens = 0;
  // EAGLE and multi-token prediction: the engine matches one block more than it reuses.
  bool drops_last = false;

  friend bool operator==(const CacheClass&, const CacheClass&) = default;
};

// The classes of one holder's cache. Empty: the main class alone.
struct CacheLayout {
  CacheClass main;  // `kind` is kFull
  bool has_main =
      true;  // false: no class with full attention; then prefixes are limited by side classes alone
  std::vector<CacheClass>
      sides;  // in the order in which they became known; at most `kSideClassesMax`

  bool plain() const {
    return sides.empty() && has_main && !main.drops_last && main.window_tokens == 0;
  }

  friend bool operator==(const CacheLayout&, const CacheLayout&) = default;
};

inline constexpr size_t kSideClassesMax = 16;

// In `Stored` and `Removed`: 0 is the main class, i the class `CacheLayout::sides[i - 1]`.
using SideClass = uint8_t;
// In dumps and images alone: a side block whose class is not known. No sender sends it.
inline constexpr SideClass kUnknownSide = 255;

// Tells classes apart in names: equal for equal kind, block size and window, whatever the worker.
uint64_t SideTag(const CacheClass& side);

// The name of the side block of the class with this tag that ends `back` tokens before the end of
// the main block `twin`. One to one in `twin` for each class and `back`.
inline SequenceHash SideName(uint64_t tag, SequenceHash twin, uint32_t back = 0) {
  uint64_t name = (Raw(twin) ^ tag) + back * 0x9e3779b97f4a7c15;
  name *= 0xff51afd7ed558ccd;
  return SequenceHash{name ^ name >> 32};
}

// Tokens between the lengths at which blocks of this class of the layout end: its block size. But
// where a layout has full attention and states alone, and no class drops its last block, vLLM keeps
// states that end inside a block of theirs and reuses them (`partial_hash_hits_enabled` in
// `kv_cache_utils.py`): then the main class's block size, which theirs are multiples of.
uint32_t EndsEvery(const CacheLayout& layout, const CacheClass& of);

// Leading blocks that a holder can reuse whose tiers beside the device load chunks
// (`CacheLayout::main.window_tokens`), where `device` of them are on the device and `all` in some
// tier.
// Behind what is on the device only whole chunks are loaded, which begin at multiples of their size
// (vLLM 0.33, offloading/scheduler.py, `get_num_new_matched_tokens`).
uint32_t LoadableBlocks(const CacheLayout& layout, uint32_t block_size, uint32_t device,
                        uint32_t all);

// The least common multiple of `EndsEvery` of all classes: a reusable length is a multiple of it.
// 0: beyond 2^32.
uint32_t AlignmentOf(const CacheLayout& layout);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_BASE_CACHE_CLASS_H_
