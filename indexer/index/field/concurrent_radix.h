// A tree of blocks with a reader-writer lock at each: the field's "concurrent radix tree" (Flash Indexer §5).
//
//   root ──local hash──▶ node { sequence hash, holders × tiers, children by local hash } ──▶ node …
//                          ▲
//   holder ──▶ { sequence hash → node }      (its lookup table: who takes a block out never walks the tree)
//
// *Place*: kept to compare with, and as a second opinion in tests. One node a block, as in the original;
// runs of blocks share a node in its successors.
// *Truth*: never above what was true at some instant, holes included: a query takes the holders of every
// block on its way, not only where their number changes. It may be below in two cases. A store whose
// parent the holder does not have is dropped, as in the original, and counted in `Stats().shape` as
// "blocks_without_parent": after a hole the engine's next block is lost if it hangs directly below. A block
// that two senders name differently below one parent keeps its first name; the second sender's is dropped
// ("blocks_renamed"). A holder that loses blocks while it is asked for may count the first block only.
// What hangs below a hole stays where it is (the original forgets it when the last holder of the block
// above leaves), so that it counts again when the missing block is stored again.
// *Names*: the tree is keyed by local hash when stores have local hashes, and queries then need them too;
// by sequence hash when they have none. One index sees one kind of store.
// *Threads*: any. Reads run on the caller's thread, hand over hand with shared locks. Writes of one holder
// are serial: with `IndexOptions::executor` each event is a task on the lane of the holder's number, without
// one it is applied by the caller. With an executor
//   - `Apply` returns at once with OK, and an event refused is seen in `Stats().refused_blocks` only; with a
//     `ChangeLog` it waits for its task, because that is complete when it returns;
//   - overlaps are of the events whose tasks have run: they wait for nothing;
//   - everything else waits for the events applied before: `HoldingsOf`, `DigestOf`, `Sweep` and
//     `RemoveHolder` for those of the holder, `Stats`, `Check` and the destructor for all. Called from a task
//     of the executor they may wait for themselves.
// *Cost*: a query of D blocks takes D shared locks and D set intersections; a stored block one shared lock
// on the parent and one exclusive on the block (exclusive on both when it is new), a removed block one.
// About 290 bytes a distinct block and 30 a holding. `Stats` and `Check` walk the tree.
// *Bounds*: `IndexOptions` but `bytes_max`, which is not counted. Events that wait in the executor are not
// bounded here.

#ifndef KVATLAS_INDEXER_INDEX_FIELD_CONCURRENT_RADIX_H_
#define KVATLAS_INDEXER_INDEX_FIELD_CONCURRENT_RADIX_H_

#include <memory>

#include "indexer/index/index.h"

namespace kvatlas {

std::unique_ptr<Index> MakeConcurrentRadixIndex(const IndexOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_FIELD_CONCURRENT_RADIX_H_
