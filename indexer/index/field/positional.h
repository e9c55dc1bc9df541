// A table keyed by place and content: the field's "positional" or "Flash" indexer (Flash Indexer §6, Dynamo's
// PositionalIndexer).
//
//   (position, local hash) ──▶ one (sequence hash, holders), or several of them      in 256 shards
//   holder ──▶ { sequence hash → (position, local hash) }
//
// A query takes the holders of its first block and then *jumps*: it looks `kPositionalJump` blocks ahead, counts who
// has the block there, and goes on if as many have it as are in play. Only where fewer do are the blocks in
// between looked at: one after the other (`positional`), or by bisection for each holder that was lost
// (`positional_binary`).
//
// *Truth*: right for holders whose blocks have no holes. With holes `positional` and `positional_binary`
// over-count, as the original does: a block ahead says what the prefix was, not that the holder still has it.
// And because holders are counted there and not compared, one that has no first block can stand in for one
// that was lost. `positional_verified` looks at every position and intersects: exact, and never above what
// was true at some instant; a holder that loses blocks while it is asked for may count the first block only.
// Two things of the original are left out: its article takes a place's only sequence for the prompt's without
// comparing (sequences that part and meet again would match), and its table never frees empty places.
// *Names*: keyed by local hash when stores have local hashes, and queries then need them too; by sequence
// hash when they have none. One index sees one kind of store.
// *Threads*: any. A holder's mutex is held for the length of its events, a shard's lock for one place; the
// order is holder, then shard.
// *Cost*: D blocks, jumps of J: D / J shared locks and counts when nobody drops out; each drop
// adds a scan of up to J places, or log2(J) places a holder; `positional_verified` takes D locks and
// intersections. A stored or removed block is two table accesses. About 90 bytes a distinct block and
// 50 a holding. `Stats` walks the table.
// *Bounds*: `IndexOptions` but `bytes_max`, which is not counted.

#ifndef KVATLAS_INDEXER_INDEX_FIELD_POSITIONAL_H_
#define KVATLAS_INDEXER_INDEX_FIELD_POSITIONAL_H_

#include <cstdint>
#include <memory>

#include "indexer/index/index.h"

namespace kvatlas {

// How far a query looks ahead.
inline constexpr uint32_t kPositionalJump = 32;

std::unique_ptr<Index> MakePositionalIndex(const IndexOptions& options);
std::unique_ptr<Index> MakePositionalBinaryIndex(const IndexOptions& options);
std::unique_ptr<Index> MakePositionalVerifiedIndex(const IndexOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_FIELD_POSITIONAL_H_
