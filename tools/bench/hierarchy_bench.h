// How good is a sparse upper level? Many cells, one hierarchy node and a frontend in one process,
// over a simulated network, beside choices that know everything or nothing.
//
//   trace ─▶ Frontend (the product's) ─▶ Hierarchy::FindCells ─▶ leaves of K cells ─▶ worker ─▶ mock engine
//                                            ▲ coverage, with delay and loss              │ events
//                                            └──────────────── BenchCell ◀────────────────┘
//
// *Truth*: `best_same_state` asks the frontend's cost function for the best of all workers just
// before each request;
// the others are runs of their own: exact_global (that choice, taken every time), one_cell (a
// user's cell is a hash of the prompt's first 1,024 tokens; the best worker there), random (any
// worker). All hits are what engines really had. A run depends on its options alone, but for
// `find_cells_us`, which is this machine's.
// *Cost*: about 3 seconds for the conversation trace and 16 x 8 workers.
// *Threads*: one.

#ifndef KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_H_
#define KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/waypoints.h"
#include "tools/trace/trace.h"

namespace kvatlas {

struct HierarchyBenchOptions {
  uint32_t cells = 16;
  uint32_t workers = 8;      // per cell
  uint64_t capacity = 4096;  // blocks of an engine
  uint32_t split = 8;
  std::string schedule = WaypointSchedule::Standard().Name();
  uint32_t ask = 2;
  double delay_ms = 0;
  double loss = 0;
  double partition_every_s = 0;  // mean, of each cell; 0: none
  double partition_for_s = 30;
  uint32_t liars = 0;  // cells whose leaves have nothing of what they report
  double doubt_half_life_s = 30;
  uint64_t budget = 0;  // waypoints a cell may have announced; 0: no limit
  double withdraw_delay_ms = 100;
  double report_every_ms = 20;
  // As `CoverageReporterOptions`.
  double digest_every_s = 15, load_every_ms = 50, load_step = 8, load_refresh_s = 30;
  uint64_t seed = 1;
  uint32_t best_every = 1;  // of so many requests one is compared with the best in the same state
  std::string index_name = "atlas";
};

struct HitRates {
  std::optional<double> kvatlas, best_same_state, exact_global, one_cell, random;
};

struct Quantiles {
  std::optional<double> p50, p99;
};

struct HierarchyBenchResult {
  HierarchyBenchOptions options;
  std::string workload;
  std::optional<uint64_t> requests, too_long, fallbacks;
  uint64_t cells = 0;
  std::optional<uint64_t> workers;
  HitRates hit_rate;
  // Of requests that were compared: blocks got over the best in the same state.
  std::optional<double> of_best;
  std::optional<double> regret_blocks_mean, regret_blocks_p99;
  std::optional<double> wrong_cell_rate;
  std::optional<uint64_t> updates, bytes, leaf_updates, leaf_bytes;
  std::optional<uint64_t> load_bytes, leaf_load_bytes;  // of these bytes, for load alone
  std::optional<double> update_ratio, bytes_ratio;
  Quantiles find_cells_us, staleness_ms;
  // Of the index, a (cell, waypoint) pair: at the end; and after five minutes of ticks, of which
  // one takes so long.
  std::optional<double> hierarchy_bytes_per_coverage, hierarchy_bytes_tended, tick_us;
  std::optional<uint64_t> coverage,
      hierarchy_bytes;  // (cell, waypoint) pairs, and the index's bytes at the end
  std::optional<uint64_t> snapshots, messages_lost;
  // At rest after the run: (cell, waypoint) pairs that are above and should not be, or the other
  // way round.
  std::optional<uint64_t> wrong_at_rest;
  // Of the mode that has no trace (`hierarchy_bench_scale.h`).
  std::optional<double> snapshot_ms, snapshot_queries, find_cells_us_during_snapshot_p99;
  // Of a real node over gRPC (`hierarchy_bench_grpc.h`).
  Quantiles find_cells_grpc_us;
  std::optional<double> qps, answer_bytes;
  std::optional<double> node_cpu_us, client_cpu_us;  // of processors, a question
  double seconds = 0;
};

// INVALID_ARGUMENT: the schedule is no schedule. The baselines of `hit_rate` are not in it.
absl::StatusOr<HierarchyBenchResult> RunHierarchyBench(const std::vector<TraceRequest>& trace,
                                                       const HierarchyBenchOptions& options);

// exact_global, one_cell and random: they depend on neither schedule, network nor budget.
HitRates RunBaselines(const std::vector<TraceRequest>& trace, const HierarchyBenchOptions& options);

// By nearest rank; nothing of nothing. Reorders `values`.
std::optional<double> QuantileOf(std::vector<double>* values, double share);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_H_
