// Block by block, which workers hold a prompt? `Leaf.Explain`, and the page's question of the same
// kind.
//
// *Truth*: as `Explanation`. *Cost*: a look-up, and a walk through all that each of the workers
// holds; two at a time in a process, further ones are RESOURCE_EXHAUSTED.
// *Bounds*: `kExplainedPromptBlocks` blocks, `kExplainedWorkersMax` workers.

#ifndef KVATLAS_INDEXER_LEAF_LEAF_EXPLAIN_H_
#define KVATLAS_INDEXER_LEAF_LEAF_EXPLAIN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "indexer/base/hash.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/security/security.h"
#include "proto/kvatlas/v1/leaf.pb.h"

namespace kvatlas {

inline constexpr uint32_t kExplainedPromptBlocks = 4096;
inline constexpr uint32_t kExplainedWorkersMax = 16;

// NOT_FOUND: no such domain, or one that the asker may not see. INVALID_ARGUMENT: no full block.
absl::Status ExplainPrompt(const HolderRegistry& registry, const HashContract& contract,
                           Security& security, const Identity& asker,
                           const v1::ExplainRequest& request, v1::ExplainResponse* response);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_LEAF_LEAF_EXPLAIN_H_
