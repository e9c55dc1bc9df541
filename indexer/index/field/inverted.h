// Which workers have a block with these tokens? The dictionary of dictionaries turned inside out, so that a
// prompt is walked once instead of once per worker.
//
//   local hash → { sequence hash → { position, parent, holders × tiers } }
//   holder     → { sequence hash → local hash }
//
// *From*: "Flash Indexer" §3. The second table is the "reverse lookup" that it weighs: without one, every removal
// scans the whole index.
// *Truth* of `inverted`: over-counts. At each block it takes together the holders of all sequences under that
// content, so content that diverged and met again, or a prompt that repeats itself, counts too far:
//
//   holder 0 has [a b], holder 1 has [a x] and [y b]; asked for [a b]      1 gets 2, the truth is 1
//
// It is right when every block's content is unique, as it is where nobody gives local hashes.
// *Truth* of `inverted_exact`: as `index.h`. It looks under the local hash for the prompt's own sequence hash;
// which local hash that is, a third table says, so that it may be asked by sequence hash alone.
// *Threads*: one mutex (`serial_index.h`).
// *Cost*: a query is D probes and a set intersection at each of them, D·W at most. The source's D + W counts a
// holder only where it drops out; that needs a guess from the sizes of the sets, which holes make wrong.
// A hash set per distinct block and one more per local hash: memory is not its strength.

#ifndef KVATLAS_INDEXER_INDEX_FIELD_INVERTED_H_
#define KVATLAS_INDEXER_INDEX_FIELD_INVERTED_H_

#include <memory>

#include "indexer/index/index.h"

namespace kvatlas {

std::unique_ptr<Index> MakeInvertedIndex(const IndexOptions& options);
std::unique_ptr<Index> MakeExactInvertedIndex(const IndexOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_FIELD_INVERTED_H_
