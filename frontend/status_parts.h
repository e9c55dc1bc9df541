// The parts of a frontend's /status, as JSON.

#ifndef KVATLAS_FRONTEND_STATUS_PARTS_H_
#define KVATLAS_FRONTEND_STATUS_PARTS_H_

#include <string>
#include <vector>

#include "frontend/cluster_client/peer_watch.h"
#include "frontend/engine_client/engine_loads.h"
#include "frontend/prompt/served_names.h"
#include "indexer/base/memory_budget.h"

namespace kvatlas {

std::string MemoryJson(const MemoryBudget& memory);
std::string PeersJson(const std::vector<PeerState>& nodes, const std::vector<PeerState>& leaves);
// Names that are not the model's own.
std::string NamesJson(const ServedNames& names);
std::string EngineLoadsJson(const std::vector<EngineLoadState>& engines);

}  // namespace kvatlas

#endif  // KVATLAS_FRONTEND_STATUS_PARTS_H_
