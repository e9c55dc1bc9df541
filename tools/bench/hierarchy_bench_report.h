// What does a run of `hierarchy_bench` look like? As a JSON line, and several of them as a table
// with their spread.

#ifndef KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_REPORT_H_
#define KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_REPORT_H_

#include <span>
#include <string>

#include "tools/bench/hierarchy_bench.h"

namespace kvatlas {

// One line without its end. What was not measured is null.
std::string ToJson(const HierarchyBenchResult& result);

// Runs that differ by their seed: mean, smallest and largest.
std::string ToTable(std::span<const HierarchyBenchResult> results);

// Of a sweep: a line per point, hits, updates, bytes and wrong cells as means over its runs, which
// follow each other in `results`, `runs` each. `labels` name the points.
std::string ToFrontier(std::span<const HierarchyBenchResult> results, size_t runs,
                       std::span<const std::string> labels);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_REPORT_H_
