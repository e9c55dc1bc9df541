// How much of a prompt can an engine reuse, and what does it keep of a request? A pool of blocks
// under the rules of a model that has full attention and perhaps one side class (`hybrid.h`).
//
//   request of n blocks, r of them reused
//     main class    0 ........ r .................. n      all are held until it ends
//     window class        [w . r)  chunk │ chunk │ …       those behind the window are freed as chunks are computed
//     state class           [r)        e │     e │ …       one at the end of each chunk; all but the last are freed
//
// *Truth*: reusable is the largest length that every class accepts (`cache_class.h`), as vLLM looks
// it up. A request takes all of its blocks at once, chunk after chunk as vLLM's scheduler would;
// what it frees early stays cached and is evicted in its turn. A block that is computed again while
// it is cached is used where it is: there are no second copies.
// *Threads*: none; the owner serialises.
// *Cost*: constant per block taken, freed or evicted; a look-up costs a bisection of the prompt
// and, in a window class, a probe for each block walked back.
// *Bounds*: the pool's capacity, side blocks included. A prompt that needs more (`Needs`) is never
// taken.

#ifndef KVATLAS_TOOLS_TESTING_MOCK_ENGINE_ENGINE_CACHE_H_
#define KVATLAS_TOOLS_TESTING_MOCK_ENGINE_ENGINE_CACHE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "indexer/base/event.h"
#include "indexer/base/ids.h"
#include "tools/testing/mock_engine/block_pool.h"
#include "tools/testing/mock_engine/hybrid.h"

namespace kvatlas {

struct EngineCacheOptions {
  uint64_t capacity_blocks = 4096;
  uint32_t block_size = 64;
  HybridOptions hybrid = {};
  // Tokens that are computed at once beside a window; a state class has its own number.
  uint32_t chunk_tokens = 8192;
};

class EngineCache {
 public:
  explicit EngineCache(const EngineCacheOptions& options);

  // Leading blocks of `sequence` that the main class holds.
  uint32_t Held(std::span<const SequenceHash> sequence) const {
    return pool_.CachedPrefix(sequence);
  }

  // The largest number of leading blocks, at most `limit`, that every class accepts.
  uint32_t Reusable(std::span<const SequenceHash> sequence, uint32_t limit) const;

  // Blocks that a request of `blocks` uses at the same time, at most.
  uint64_t Needs(size_t blocks) const { return blocks + SideNeeds(blocks); }
  // Whether a request fits beside those that run.
  bool Fits(std::span<const SequenceHash> sequence) const {
    return pool_.Fits(sequence, SideNeeds(sequence.size()));
  }

  // A request's blocks while it runs.
  struct Holding {
    std::vector<SequenceHash> blocks;
    std::vector<uint32_t> sides;  // places of the side blocks in use, ascending
  };

  // Takes all blocks of `sequence` of which `reused` are reused; appends what is stored and
  // removed, in order. Events of side classes name main blocks, not side blocks (`SideName`).
  // REQUIRES: `Fits(sequence)`; `reused` is `Reusable` of some limit.
  Holding Take(std::vector<SequenceHash> sequence, uint32_t reused, std::vector<Event>* events);

  // The request has ended: its blocks become free, tails before heads, those of the side class
  // first.
  void Free(const Holding& holding);

  // Every cached block of a class: of the side class by the main block that ends where it ends.
  std::vector<SequenceHash> Contents(SideClass side = 0) const { return pool_.Contents(side); }

  const BlockPool& pool() const { return pool_; }

 private:
  uint64_t SideNeeds(size_t blocks) const;
  // Side blocks before a boundary that a request keeps in use there.
  uint32_t SidesKept() const;
  void TouchSides(Holding* holding, uint32_t reused);
  void Compute(Holding* holding, uint32_t begin, uint32_t end, uint32_t held,
               std::vector<Event>* events);
  // Frees side blocks that a request which has come to `length` blocks needs no more.
  void FreeBehind(Holding* holding, uint32_t length);

  const EngineCacheOptions options_;
  const uint32_t window_blocks_;  // of a window class, else 0
  const uint32_t chunk_blocks_;   // 0: prompts are computed at once
  BlockPool pool_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_TESTING_MOCK_ENGINE_ENGINE_CACHE_H_
