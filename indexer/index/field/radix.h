// How far down a tree of blocks is a worker at every node? A tree with a node per distinct block, children by
// content, and a table per worker to find its nodes by name.
//
//   root ── a ── b ── c            node: key, name, position, parent, children by key, holders × tiers, uses
//           │    └─── d            holder → { sequence hash → node }
//           └─── e
//
// *From*: "Flash Indexer" §4, and the single-threaded tree that Dynamo first shipped. Every node counts the queries
// that came through it, as the source does for its hot prefixes; the sum is "uses" in `IndexStats::shape`.
// *Truth* of `radix`: never over-counts, may under-count:
//
//   A store after a block that the holder does not have is refused: FAILED_PRECONDITION, counted in
//   `refused_blocks`. So whoever lost an event loses the rest of that sequence.
//       [a b]; store c after x                       the answer for [a b x c] is 2, then and later
//   A node that nobody holds any more is cut off with everything below, as though nobody could have that either.
//   Its blocks are still the holder's, are found by name for removal and for a store after them, but no
//   query reaches them, and storing the missing block again does not bring them back. What is
//   stored again with it does come back.
//       [a b c d e], remove c, store c               3, the truth is 5
//       [a b c d e], remove c, store [c d e]         5
//   While another holder keeps the node, nothing is forgotten:
//       both have [a b c], one removes and stores b  3 for both
//
// A holder that gives one place two names (equal content after equal content) gets INVALID_ARGUMENT.
// *Truth* of `radix_exact`: as `index.h` among senders that keep to *Names* there. Three changes: a node that nobody
// holds stays as long as something hangs below; a parent that nobody has is put into the tree as an empty node,
// which is joined to the rest when it is stored; and children are found by sequence hash, so that a name has one
// node, for all holders. The first who stores a block decides where it hangs: a wrong parent hides the
// block from everybody's overlaps until nobody holds it.
// *Threads*: one mutex (`serial_index.h`).
// *Cost*: a query is D probes and a set intersection at each of them, D·W at most; a block of an event one or two
// probes in the holder's table and one in the parent's children. Three tables per distinct block.

#ifndef KVATLAS_INDEXER_INDEX_FIELD_RADIX_H_
#define KVATLAS_INDEXER_INDEX_FIELD_RADIX_H_

#include <memory>

#include "indexer/index/index.h"

namespace kvatlas {

std::unique_ptr<Index> MakeRadixIndex(const IndexOptions& options);
std::unique_ptr<Index> MakeExactRadixIndex(const IndexOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_FIELD_RADIX_H_
