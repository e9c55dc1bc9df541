// The series that every program has, about its build and what it uses:
// `kvatlas_build_info`, `kvatlas_clock_seconds` (for alerts on clocks that differ) and `process_*`,
// named as Prometheus' own client libraries name them.
//
// *Threads*: any. *Cost*: three small files of /proc per scrape, and a directory of as many entries
// as the process has descriptors.
// *Truth*: a series whose file cannot be read, as when no descriptor is left, is absent.

#ifndef KVATLAS_INDEXER_PROCESS_PROCESS_METRICS_H_
#define KVATLAS_INDEXER_PROCESS_PROCESS_METRICS_H_

#include <string>
#include <string_view>

#include "indexer/telemetry/metrics.h"

namespace kvatlas {

// `program` as in the ready line. Once per `Metrics`.
void AddProcessMetrics(std::string_view program, Metrics* metrics);

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_PROCESS_PROCESS_METRICS_H_
