// Metrics of engines and their streams for Prometheus, under Dynamo's names where there are such,
// and under ours.
//
//   dynamo_kvindexer_models, _workers, _listeners{status}
//   dynamo_kvrouter_kv_cache_events_applied{event_type,status},
//   _kv_cache_event_warnings{warning_kind}
//   kvatlas_engine_…{model,group,worker,rank}: last_number, gaps_total, messages_lost_total,
//   replays_total{result},
//     restarts_total, duplicates_total, bytes_total, undecodable_total, connected, silent_seconds,
//     lag_seconds, blocks{tier}, names, name_bytes, parked_blocks, suspect_blocks, trust,
//     refused_total{reason}
//
// *Truth*: as of the scrape; series go with their workers, sums do not go down. *Cost*: per scrape
// a look at every stream and worker. *Bounds*: `kEngineRanksShown` worker ranks by themselves; the
// others are counted in kvatlas_engine_ranks_not_shown.

#ifndef KVATLAS_INDEXER_ENGINE_DIRECTORY_ENGINE_METRICS_H_
#define KVATLAS_INDEXER_ENGINE_DIRECTORY_ENGINE_METRICS_H_

#include <cstddef>
#include <string>

#include "indexer/engine_directory/engine_directory.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {

inline constexpr size_t kEngineRanksShown = 2048;

// The families above, as text.
void AppendEngineMetrics(const EngineDirectory& directory, std::string* text);

// Adds them to each scrape. The directory outlives `metrics`' last scrape.
void AddEngineMetrics(const EngineDirectory* directory, Metrics* metrics);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_ENGINE_DIRECTORY_ENGINE_METRICS_H_
