// The default structure: one hash table of blocks, in shards, with the set of holders at each block.
//
//   sequence hash ──mix──▶ shard (one of 256, each with a reader-writer lock)
//                            └▶ block { position, parent, holders with a tier mask each }
//   holder number ───────▶ holder { write mutex, its blocks, digest, finished removals, masked }
//
// *Truth*: `index.h`: exact with holes, never above what was true at some instant. How reads stay
// true beside writes is written above `FlatIndex::FindOverlaps`.
// *Threads*: any. A holder's mutex is held for the length of its events, a shard's lock for one
// block and never two at once; the order is holder, then shard.
// *Cost*: a stored or removed block is two table accesses and one lock. A query takes one shared
// lock a block until nobody is left, and ANDs the set there with the groups of 64 holders still in
// play; a holder that removed something meanwhile is walked once more, alone, and waits for that
// holder's event. Reads allocate nothing but the result. Clearing a holder costs its own blocks.
// *Bounds*: `IndexOptions`. Tables shrink when they are less than an eighth full.

#ifndef KVATLAS_INDEXER_INDEX_FLAT_H_
#define KVATLAS_INDEXER_INDEX_FLAT_H_

#include <memory>

#include "indexer/index/index.h"

namespace kvatlas {

std::unique_ptr<Index> MakeFlatIndex(const IndexOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_FLAT_H_
