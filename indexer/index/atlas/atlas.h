// The default structure: exact overlaps at the speed of memory. The default structure.
//
// *Truth*: all of `index.h`, holes included. Except where writers change a run during each of over
// a hundred looks of one query at it: no holder is then answered deeper than that run's beginning,
// and those that are deeper are not exact.
// *Threads*: any. Readers take no lock, never wait and write nothing that other threads write. One
// writer at a time: calls that change something take turns on a mutex, for some hundred
// microseconds at most; writes scale over cores by several indexes (`sharded_index.h`).
// *Cost*: about 20–24 bytes a distinct block and a bit a holder and run; a holder that lost part of
// a run a bit a block. A new block is one entry in one table; a block that another holder has is a
// comparison. A query looks at a few cache lines for every run it passes.
// *Bounds*: 16 GiB of memory, 2^31 words, in an index, and `address_bytes_max`; a sequence of any
// depth; `holders_max` holders. `IndexStats::bytes` is measured, not estimated.
// *Example*: `index.h`. How it works: `atlas_index.h`.

#ifndef KVATLAS_INDEXER_INDEX_ATLAS_ATLAS_H_
#define KVATLAS_INDEXER_INDEX_ATLAS_ATLAS_H_

#include <memory>

#include "indexer/index/index.h"

namespace kvatlas {

// Null when the address space cannot be had.
std::unique_ptr<Index> MakeAtlasIndex(const IndexOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_ATLAS_ATLAS_H_
