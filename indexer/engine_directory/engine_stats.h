// Statistics of the engines that a leaf listens to, added to those of any holder.

#ifndef KVATLAS_INDEXER_ENGINE_DIRECTORY_ENGINE_STATS_H_
#define KVATLAS_INDEXER_ENGINE_DIRECTORY_ENGINE_STATS_H_

#include "indexer/engine_directory/engine_directory.h"
#include "proto/kvatlas/v1/leaf.pb.h"

namespace kvatlas {

// Adds to the holders in `response` the engines that feed them.
void FillEngines(const EngineDirectory& directory, v1::StatsResponse* response);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_ENGINE_DIRECTORY_ENGINE_STATS_H_
