#include "tools/testing/mock_engine/engine_cache.h"

#include <algorithm>
#include <utility>

namespace kvatlas {
namespace {

uint32_t ChunkBlocks(const EngineCacheOptions& options) {
  if (options.hybrid.plain()) return 0;
  const uint32_t tokens =
      options.hybrid.kind == CacheKind::kState ? options.hybrid.tokens : options.chunk_tokens;
  return std::max(1u, tokens / options.block_size);
}

}  // namespace

EngineCache::EngineCache(const EngineCacheOptions& options)
    : options_(options),
      window_blocks_(options.hybrid.kind == CacheKind::kWindow
                         ? WindowBlocks(options.hybrid, options.block_size)
                         : 0),
      chunk_blocks_(ChunkBlocks(options)),
      pool_(options.capacity_blocks) {}

uint32_t EngineCache::Reusable(std::span<const SequenceHash> sequence, uint32_t limit) const {
  const uint32_t held = std::min(Held(sequence), limit);
  switch (options_.hybrid.kind) {
    case CacheKind::kWindow: {
      uint32_t run = 0;  // window blocks held in a row, from `end` back
      for (uint32_t end = held, i = held; i > 0; --i) {
        run = pool_.Has({sequence[i - 1], kMockSide}) ? run + 1 : 0;
        if (run == 0) end = i - 1;
        if (run > 0 && (run == window_blocks_ || i == 1)) return end;
      }
      return 0;
    }
    case CacheKind::kState: {
      uint32_t length = held;
      while (length > 0 && !pool_.Has({sequence[length - 1], kMockSide})) --length;
      return length;
    }
    case CacheKind::kFull:
    case CacheKind::kChunk:
      break;
  }
  return held;
}

uint64_t EngineCache::SideNeeds(size_t blocks) const {
  if (options_.hybrid.plain()) return 0;
  const uint64_t computed = options_.hybrid.kind == CacheKind::kState ? 1 : chunk_blocks_;
  return std::min<uint64_t>(blocks, SidesKept() + computed);
}

uint32_t EngineCache::SidesKept() const {
  return options_.hybrid.kind == CacheKind::kState ? 1 : window_blocks_;
}

EngineCache::Holding EngineCache::Take(std::vector<SequenceHash> sequence, uint32_t reused,
                                       std::vector<Event>* events) {
  Holding holding{.blocks = std::move(sequence), .sides = {}};
  const auto blocks = static_cast<uint32_t>(holding.blocks.size());
  const uint32_t held = Held(holding.blocks);
  for (uint32_t i = 0; i < held; ++i) pool_.Touch({holding.blocks[i]});
  if (!options_.hybrid.plain()) TouchSides(&holding, reused);
  for (uint32_t begin = reused; begin < blocks;) {
    const uint32_t end = chunk_blocks_ == 0 ? blocks : std::min(blocks, begin + chunk_blocks_);
    Compute(&holding, begin, end, held, events);
    begin = end;
  }
  FreeBehind(&holding, blocks);
  return holding;
}

void EngineCache::TouchSides(Holding* holding, uint32_t reused) {
  for (uint32_t i = reused - std::min(reused, SidesKept()); i < reused; ++i) {
    pool_.Touch({holding->blocks[i], kMockSide});
    holding->sides.push_back(i);
  }
}

// 1. Side blocks behind the window, or the state before the last, are freed: FreeBehind.
// 2. Side blocks of the chunk that are still cached are used where they are, before anything is
//   evicted.
// 3. New blocks of both classes, each evicting one once the pool is full.
// 4. What was evicted is said first: a block of a later chunk may be among it, and is stored again
//   there.
void EngineCache::Compute(Holding* holding, uint32_t begin, uint32_t end, uint32_t held,
                          std::vector<Event>* events) {
  FreeBehind(holding, begin);
  const std::span<const SequenceHash> blocks = holding->blocks;
  std::vector<PoolBlock> evicted;
  Stored side{.blocks = {}, .side = kMockSide};
  if (!options_.hybrid.plain()) {
    const uint32_t first = options_.hybrid.kind == CacheKind::kState ? end - 1 : begin;
    for (uint32_t i = first; i < end; ++i) {
      holding->sides.push_back(i);
      if (const PoolBlock block{blocks[i], kMockSide}; pool_.Has(block)) {
        pool_.Touch(block);
      } else {
        side.blocks.push_back(blocks[i]);
      }
    }
  }
  Stored main{.position = std::max(begin, held), .blocks = {}};
  if (main.position > 0) main.parent = blocks[main.position - 1];
  for (uint32_t i = main.position; i < end; ++i) {
    pool_.Add({blocks[i]}, &evicted);
    main.blocks.push_back(blocks[i]);
  }
  for (const SequenceHash hash : side.blocks) pool_.Add({hash, kMockSide}, &evicted);
  Removed removed[2] = {{.blocks = {}}, {.blocks = {}, .side = kMockSide}};
  for (const PoolBlock& block : evicted) removed[block.side].blocks.push_back(block.hash);
  for (Removed& of_class : removed) {
    if (!of_class.blocks.empty()) events->push_back(std::move(of_class));
  }
  if (!main.blocks.empty()) events->push_back(std::move(main));
  if (!side.blocks.empty()) events->push_back(std::move(side));
}

void EngineCache::FreeBehind(Holding* holding, uint32_t length) {
  const uint32_t first_kept = length - std::min(length, SidesKept());
  // A state class has no block at most places: the last one before `length` is kept, wherever it
  // ends.
  const bool state = options_.hybrid.kind == CacheKind::kState;
  size_t behind = 0;
  while (behind < holding->sides.size() &&
         (state ? behind + 1 < holding->sides.size() : holding->sides[behind] < first_kept)) {
    ++behind;
  }
  for (size_t i = behind; i-- > 0;) pool_.Release({holding->blocks[holding->sides[i]], kMockSide});
  holding->sides.erase(holding->sides.begin(), holding->sides.begin() + behind);
}

void EngineCache::Free(const Holding& holding) {
  for (size_t i = holding.sides.size(); i-- > 0;) {
    pool_.Release({holding.blocks[holding.sides[i]], kMockSide});
  }
  pool_.Free(holding.blocks);
}

}  // namespace kvatlas
