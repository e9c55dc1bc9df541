// Does a worker have a block with these tokens, and how many of the prompt's in a row? The field's first index: a
// dictionary of dictionaries.
//
//   holder → { local hash → sequence hashes }          sequence hash → { position, parent, local hash, holders }
//
// *From*: "Flash Indexer" §1 and §2, where it is Python, then Rust behind an actor (`actor.h`). The second table is
// ours: the interface asks for positions, and for a count of distinct blocks.
// *Truth* of `nested_map`: over-counts. It asks whether the holder has some block of this content, not which one,
// so content that diverged and met again, or a prompt that repeats itself, counts as deep as its words are known:
//
//   holder has [a b] and [x y]; asked for [a y]        the answer is 2, the truth is 1
//   holder has [a];             asked for [a a a]      the answer is 3, the truth is 1
//
// It is right when every block's content is unique, as it is where nobody gives local hashes.
// *Truth* of `nested_map_exact`: as `index.h`. The prompt's sequence hash must be among those under the local
// hash. So content alone is not enough to ask: whoever asks hashes the chain.
// *Threads*: one mutex (`serial_index.h`).
// *Cost*: a query walks the prompt once per holder, D·W probes. `nested_map` removes as its source does: one pass
// over all that the holder has, for every event; `nested_map_exact` finds the local hash in the second table.

#ifndef KVATLAS_INDEXER_INDEX_FIELD_NESTED_MAP_H_
#define KVATLAS_INDEXER_INDEX_FIELD_NESTED_MAP_H_

#include <memory>

#include "indexer/index/index.h"

namespace kvatlas {

std::unique_ptr<Index> MakeNestedMapIndex(const IndexOptions& options);
std::unique_ptr<Index> MakeExactNestedMapIndex(const IndexOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_FIELD_NESTED_MAP_H_
