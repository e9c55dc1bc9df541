// A `HolderRegistry` in /metrics: totals, domains, and each stream with its age and how far it is
// behind.
//
//   PREFIX_streams_open, PREFIX_streams_refused_total, …                      of the process
//   PREFIX_holders{domain}, PREFIX_blocks{domain}, PREFIX_gaps_total{domain}, …   by domain
//   PREFIX_holders_by_trust{domain,trust}, PREFIX_holders_masked{domain}, PREFIX_stream_age_max_seconds{domain}, …   for alerts
//   PREFIX_stream_age_seconds{domain,holder}, …_behind_batches, …_trust, …_masked   by stream
//
// *Threads*: any. *Cost*: per scrape a lock per holder, and a sort of them where there are more
// than `kStreamSeriesMax`.
// *Bounds*: `kStreamSeriesMax` streams have series of their own, the worst ones: not exact, then
// silent for longest.

#ifndef KVATLAS_INDEXER_TRANSPORT_HOLDER_METRICS_H_
#define KVATLAS_INDEXER_TRANSPORT_HOLDER_METRICS_H_

#include <cstddef>
#include <string>

#include "indexer/registry/holder_registry.h"
#include "indexer/telemetry/metrics.h"

namespace kvatlas {

inline constexpr size_t kStreamSeriesMax = 512;

// `prefix` is "kvatlas_leaf" or "kvatlas_hierarchy". Registry and metrics outlive each other's use.
// Once per `Metrics`.
void AddHolderMetrics(const HolderRegistry* registry, const std::string& prefix, Metrics* metrics);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_TRANSPORT_HOLDER_METRICS_H_
