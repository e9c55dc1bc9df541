// How fast is a structure on one thread, operation by operation in the order of the file?
//
// Every operation is timed by itself; block ops per second are all hashes over the sum of the
// times, so what the harness does in between costs nothing. Answers go to memory that is used
// again.
//
// Two figures of the same passes: from nothing to the end (cold: every repetition begins with an
// empty structure), and of the second half of the operations alone (steady: the structure has what
// the first half left).

#ifndef KVATLAS_TOOLS_BENCH_SEQ_BENCH_H_
#define KVATLAS_TOOLS_BENCH_SEQ_BENCH_H_

#include "tools/bench/bench_input.h"
#include "tools/bench/bench_options.h"
#include "tools/bench/bench_result.h"
#include "tools/bench/contender.h"

namespace kvatlas {

// All operations; those of the second half by themselves are its `steady`.
BenchResult RunSeq(const Contender& contender, const BenchInput& input,
                   const BenchOptions& options);

// The second half alone.
BenchResult RunSteady(const Contender& contender, const BenchInput& input,
                      const BenchOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_SEQ_BENCH_H_
