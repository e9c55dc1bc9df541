// Several indexes of one kind that answer as one: holder h is in shard h mod N, under number h / N.
// A holder's overlap does not depend on other holders, so answers are the same; each shard has a
// writer of its own.
//
// *When*: several streams apply at once, on several cores, and wait for the one writer of an index.
// A query makes one walk a shard.
// *Truth*: that of the kind. An answer puts together what its shards say one after the other; each
// holder's overlap is true as in `index.h`.
// *Threads*: any.
// *Bounds*: `blocks_max`, `bytes_max` and `retained_bytes` are divided by N, so a store may be
// refused earlier than in one index;
// `address_bytes_max`, too, but for the least that an index needs. A block that holders of several
// shards have is stored, counted and paid for in each.
//
//   std::unique_ptr<Index> index = *MakeIndex("atlas*4", {});

#ifndef KVATLAS_INDEXER_INDEX_SHARDED_INDEX_H_
#define KVATLAS_INDEXER_INDEX_SHARDED_INDEX_H_

#include <cstdint>
#include <functional>
#include <memory>

#include "indexer/index/index.h"

namespace kvatlas {

// `make` makes a shard; null when it does. REQUIRES: 2 to `kIndexShardsMax` shards.
std::unique_ptr<Index> MakeShardedIndex(
    uint32_t shards, const IndexOptions& options,
    const std::function<std::unique_ptr<Index>(const IndexOptions&)>& make);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_SHARDED_INDEX_H_
