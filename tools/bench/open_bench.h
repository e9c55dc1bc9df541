// How much can be offered to a structure before it falls behind?
//
// Operations are issued at `speed` times their recorded times: events by threads to which workers
// stick, queries by turns. Latency counts from the moment an operation was due. A speed is
// sustained when at least 99 % of the offered rate is achieved, drain included; the highest such
// speed is looked for by doubling, then by halving the interval. Every trial starts with an empty
// structure.
//
// *Truth*: an operation that is not due is waited for by spinning, so a thread needs a core of its
// own. The trace's bursts are in it: operations of one recorded moment are due at once.

#ifndef KVATLAS_TOOLS_BENCH_OPEN_BENCH_H_
#define KVATLAS_TOOLS_BENCH_OPEN_BENCH_H_

#include "tools/bench/bench_input.h"
#include "tools/bench/bench_options.h"
#include "tools/bench/bench_result.h"
#include "tools/bench/contender.h"

namespace kvatlas {

// REQUIRES: at least one event thread and one query thread. Percentiles are those of the best
// trial.
BenchResult RunOpen(const Contender& contender, const BenchInput& input,
                    const BenchOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_OPEN_BENCH_H_
