// What was measured, and how is it told? One structure on one input: the fields of a JSON line and
// the rows of a table for people.
//
// *Truth*: what was not measured is absent here, `null` in JSON and a dash in the table, never a
// number.

#ifndef KVATLAS_TOOLS_BENCH_BENCH_RESULT_H_
#define KVATLAS_TOOLS_BENCH_BENCH_RESULT_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/bench/timing.h"

namespace kvatlas {

struct CheckResult {
  uint64_t queries = 0;
  // (query, holder) pairs in which the one or the other has an overlap.
  uint64_t checked = 0;
  uint64_t over = 0;
  uint64_t under = 0;
  uint64_t over_blocks = 0;
  uint64_t under_blocks = 0;
};

struct MemoryResult {
  uint64_t holdings = 0;
  uint64_t distinct_blocks = 0;
  // Anonymous resident memory above what was there before the structure.
  uint64_t bytes_built = 0;
  uint64_t bytes_peak = 0;
  uint64_t bytes_after_clear = 0;
  // Of clearing one worker.
  Percentiles clear_us;
  // Of processor time.
  double clear_ns_per_block = 0;
  // Of `--churn`: blocks stored meanwhile and memory before the clear.
  std::optional<uint64_t> churn_stored_blocks;
  std::optional<uint64_t> bytes_after_churn;
  // What the structure says of itself when built.
  uint64_t bytes_stated = 0;
};

// What the same loop costs over a structure that does nothing.
struct HarnessCost {
  double block_ops_per_s = 0;
  std::optional<double> ns_per_stored_block;
  std::optional<double> ns_per_removed_block;
  std::optional<double> ns_per_query_block;
};

// Of one thread: what repetitions say when of every operation only its fastest is taken. Each does
// the same to the same state, so what remains is the structure without the machine's other work.
// REQUIRES two warm repetitions.
struct Undisturbed {
  double block_ops_per_s = 0;
  std::optional<double> ns_per_stored_block;
  std::optional<double> ns_per_removed_block;
  std::optional<double> ns_per_query_block;
  std::optional<Percentiles> query_ns;
  std::optional<Percentiles> write_ns;
};

// Of a coverage that was fed with changes, at the end of a repetition.
struct CoverageResult {
  uint64_t covered = 0;    // waypoints that some holder has
  uint64_t announced = 0;  // that were taken to be announced, some more than once
};

struct BenchResult {
  std::string index;
  std::string mode;
  std::string query;
  std::string sink = "none";
  uint32_t event_threads = 0;
  uint32_t query_threads = 0;
  std::optional<std::string> skipped;

  std::optional<uint64_t> block_ops;
  std::optional<double> block_ops_per_s;
  std::optional<double> block_ops_per_s_median;
  std::optional<double> block_ops_per_s_worst;
  std::optional<double> block_ops_per_s_first;
  // Of processor time, the harness's share included.
  std::optional<double> block_ops_per_cpu_s;
  std::optional<Undisturbed> undisturbed;
  std::optional<double> event_block_ops_per_s;
  std::optional<double> query_block_ops_per_s;
  // Closed loop: per second of processor time of the threads that did it, so per thread.
  std::optional<double> event_block_ops_per_cpu_s;
  std::optional<double> query_block_ops_per_cpu_s;
  std::optional<double> ns_per_stored_block;
  std::optional<double> ns_per_removed_block;
  std::optional<double> ns_per_query_block;
  std::optional<Percentiles> query_ns;
  std::optional<Percentiles> write_ns;
  std::optional<uint32_t> write_blocks_max;
  std::optional<double> results_per_query;
  // Events that were not OK, of one repetition.
  std::optional<uint64_t> refused_events;
  // What the first of them said.
  std::optional<std::string> refused_why;
  std::optional<double> sustained_block_ops_per_s;
  std::optional<double> sustained_speed;

  // Mode seq: the second half of the stream alone, in the same repetitions; its speed, as of the
  // whole, and nothing else. Null: not measured.
  std::shared_ptr<const BenchResult> steady;

  std::optional<CoverageResult> coverage;
  std::optional<MemoryResult> memory;
  std::optional<CheckResult> check;
  std::optional<std::string> check_skipped;
  std::optional<HarnessCost> harness;
};

// One line of JSON, with `ops` the input's name.
std::string ToJson(const BenchResult& result, const std::string& ops);

// A row for each figure that some result has, named as in JSON, and a column for each structure.
std::string ToTable(std::span<const BenchResult> results);

// What several repetitions say together: every column's best; block ops also median, worst and
// first. The first touches its memory for the first time and is left out of the others where there
// are more.
BenchResult Together(const std::vector<BenchResult>& repetitions);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_BENCH_RESULT_H_
