// How does it change with one thing? A sweep: the same runs at several values of one option.
//
// *Format*: `ToCurves` is one SVG document without scripts or outside references: a panel for hits
// against the best in the same state, one for wrong cells, one for what is sent.

#ifndef KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_SWEEP_H_
#define KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_SWEEP_H_

#include <span>
#include <string>
#include <vector>

#include "tools/bench/hierarchy_bench.h"

namespace kvatlas {

struct SweepPoint {
  std::string series;  // points of one are joined; empty: stands alone
  std::string label;
  double x = 0;
  HierarchyBenchOptions options;
};

struct Sweep {
  std::string x_name;
  bool logarithmic = false;
  std::vector<SweepPoint> points;
};

// schedule, staleness, ask, budget, split, withdraw, loss.
std::vector<std::string> SweepNames();

// REQUIRES: `name` is one of them.
Sweep MakeSweep(const std::string& name, const HierarchyBenchOptions& base);

// `results`: of every point `runs`, which follow each other.
std::string ToCurves(const Sweep& sweep, std::span<const HierarchyBenchResult> results, size_t runs,
                     const std::string& title);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_SWEEP_H_
