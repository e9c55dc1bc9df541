// What does a hierarchy of thousands of cells cost? No engines and no trace: every cell reports a
// made coverage (`hierarchy_bench_synthetic.h`) over a real stream's messages, then questions are
// asked. Then another cell sends a snapshot of a million waypoints of its own, part by part, while
// a second thread goes on asking.
//
// *Truth*: latencies are this machine's, of `Hierarchy::FindCells` for the best `best` cells. Bytes
// are what the index says.

#ifndef KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_SCALE_H_
#define KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_SCALE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "tools/bench/hierarchy_bench.h"

namespace kvatlas {

struct ScaleOptions {
  uint32_t cells = 1000;
  uint32_t waypoints = 2000;  // of a cell
  uint32_t questions = 50000;
  uint32_t best = 32;                     // as a frontend asks
  uint32_t snapshot_waypoints = 1000000;  // 0: no snapshot
  uint64_t seed = 1;
};

// INVALID_ARGUMENT, INTERNAL: the hierarchy refused a stream.
absl::StatusOr<HierarchyBenchResult> RunScaleBench(const ScaleOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_SCALE_H_
