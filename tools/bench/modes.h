// How is one structure measured on one input? A function for each mode of `index_bench`; what a
// mode measures, and how, its source says.

#ifndef KVATLAS_TOOLS_BENCH_MODES_H_
#define KVATLAS_TOOLS_BENCH_MODES_H_

#include "tools/bench/bench_input.h"
#include "tools/bench/bench_options.h"
#include "tools/bench/bench_result.h"
#include "tools/bench/contender.h"
#include "tools/bench/ops.h"

namespace kvatlas {

// All operations; those of the second half by themselves are its `steady`.
BenchResult RunSeq(const Contender& contender, const BenchInput& input,
                   const BenchOptions& options);

// The second half alone.
BenchResult RunSteady(const Contender& contender, const BenchInput& input,
                      const BenchOptions& options);

// REQUIRES: an event thread or a query thread.
BenchResult RunClosed(const Contender& contender, const BenchInput& input,
                      const BenchOptions& options);

// REQUIRES: at least one event thread and one query thread. Percentiles are those of the best
// trial.
BenchResult RunOpen(const Contender& contender, const BenchInput& input,
                    const BenchOptions& options);

// REQUIRES that the calling process has no other threads.
BenchResult RunMem(const Contender& contender, const OpsFile& file, const BenchOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_MODES_H_
