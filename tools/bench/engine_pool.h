// Which blocks does an engine still have after this request, and which did it give up? What
// `make_ops` needs of an engine: serve a request and say what was evicted.
//
// Two ways of giving up: the least recently used block, tails of sequences before their heads, as
// vLLM does (no holes, ever); or any block at random, harsher than any engine, so that sequences
// get holes.
//
// *Threads*: none.
// *Bounds*: `capacity` blocks; a request that has more is refused.

#ifndef KVATLAS_TOOLS_BENCH_ENGINE_POOL_H_
#define KVATLAS_TOOLS_BENCH_ENGINE_POOL_H_

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <vector>

#include "indexer/base/ids.h"

namespace kvatlas {

class EnginePool {
 public:
  virtual ~EnginePool() = default;

  // Leading blocks of `sequence` that are cached.
  virtual uint32_t CachedPrefix(std::span<const SequenceHash> sequence) const = 0;

  // Serves a request: afterwards all of `sequence` is cached. Appends what was evicted, in order,
  // none of it in `sequence`. False, and nothing happens, when it has more blocks than the pool.
  virtual bool Serve(std::span<const SequenceHash> sequence,
                     std::vector<SequenceHash>* evicted) = 0;
};

std::unique_ptr<EnginePool> MakeLruEnginePool(uint64_t capacity);

// `random` outlives the pool.
std::unique_ptr<EnginePool> MakeRandomEnginePool(uint64_t capacity, std::mt19937_64* random);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_ENGINE_POOL_H_
