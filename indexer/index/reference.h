// The right answer to every question. The slow structure that every other one is compared with.
//
//   holder → { block → tiers }        block → { position, parent, number of holders }
//
// *Truth*: `index.h`, with nothing to weigh against it: each call is one instant.
// *Threads*: one mutex around everything.
// *Cost*: a query walks the prompt once per holder.

#ifndef KVATLAS_INDEXER_INDEX_REFERENCE_H_
#define KVATLAS_INDEXER_INDEX_REFERENCE_H_

#include <memory>

#include "indexer/index/index.h"

namespace kvatlas {

std::unique_ptr<Index> MakeReferenceIndex(const IndexOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_INDEX_REFERENCE_H_
