// A holder's blocks as runs: blocks that follow one another, parents first, each block in one run.
//
// *Cost*: about 40 ns a block and 12 bytes beside the holdings.

#ifndef KVATLAS_INDEXER_CHECKPOINT_CHECKPOINT_RUNS_H_
#define KVATLAS_INDEXER_CHECKPOINT_CHECKPOINT_RUNS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "indexer/index/index.h"

namespace kvatlas {

// `visit` gets places in `holdings` whose blocks follow one another in the same tiers, at most
// `kBatchBlocksMax`; a run comes after the one that its parent is in. Anything but OK ends it.
// REQUIRES: each block is there once.
absl::Status VisitRuns(const std::vector<Holding>& holdings,
                       const std::function<absl::Status(std::span<const uint32_t>)>& visit);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_CHECKPOINT_CHECKPOINT_RUNS_H_
