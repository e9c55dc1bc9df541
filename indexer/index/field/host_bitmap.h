// A bit for each of 256 hosts at every block: the field's "host bitmap" (Modular, "Why LLM inference needs a
// new kind of router", part 2).
//
//   sequence hash ──Fibonacci hashing──▶ shard (one of 256) ──▶ 256 bits: who has the block in any tier
//   host ──▶ for each tier, a map { sequence hash → position, parent }
//   alive mask: 256 bits
//
// *Place*: kept to compare with. The original caps a cell at 256 hosts, so that a set is four words in
// place; so does this.
// *Truth*: `host_bitmap` takes it that who has a block has all before it, and bisects over positions: with
// holes it over-counts, and says so of itself in `IndexKind`. For hosts without holes it is exact, also
// beside writers. `host_bitmap_exact` intersects at every position instead: exact with holes, and never above
// what was true at some instant; a host that loses blocks while it is asked for may count the first block
// only. Both find hosts by all tiers together and then, when fewer are asked for, walk the tier maps of each
// host found: such answers are exact in both.
// *Threads*: any. A host's mutex is held for the length of its events, a shard's lock for one block; the
// order is host, then shard.
// *Removal in two phases*: `SetMasked` takes the host out of every answer at once, by one bit of the alive
// mask; `Sweep` then clears its bits in bounded steps, a shard's lock for one block at a time, and gives back
// its maps and the blocks that nobody else has; `RemoveHolder` does both and frees the number.
// *Cost*: a query of D blocks is K · log2 D shared locks for K different depths (D of them for the exact
// one); asking for fewer than all tiers adds a look into the tier maps for each block of each host. A stored
// or removed block is two table accesses. About 70 bytes a distinct block and 45 a holding in a tier.
// *Bounds*: 256 hosts, `AddHolder` is RESOURCE_EXHAUSTED beyond; `IndexOptions` but `bytes_max`, which is not
// counted, and `keep_local_hashes`: local hashes are not kept.

#ifndef KVATLAS_INDEXER_INDEX_FIELD_HOST_BITMAP_H_
#define KVATLAS_INDEXER_INDEX_FIELD_HOST_BITMAP_H_

#include <cstdint>
#include <memory>

#include "indexer/index/index.h"

namespace kvatlas {

inline constexpr uint32_t kHostBitmapHolders = 256;

std::unique_ptr<Index> MakeHostBitmapIndex(const IndexOptions& options);
std::unique_ptr<Index> MakeHostBitmapExactIndex(const IndexOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_FIELD_HOST_BITMAP_H_
