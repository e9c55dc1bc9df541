// How fast is a structure when several threads write and ask at once, as fast as they can?
//
//   first half of the file     its events, unmeasured, on the event threads
//   ── all threads meet ──
//   second half                event threads apply its events, each the workers w with w % threads = its number;
//                              query threads ask its queries again and again until the last event is applied
//
// *Truth*: events of a worker stay in order. Block ops per second are those of events plus those of
// queries. With no event thread every query thread asks all queries `query_passes` times; with no
// query thread only events are measured. What structures hand to their executor is waited for
// inside the window.

#ifndef KVATLAS_TOOLS_BENCH_CLOSED_BENCH_H_
#define KVATLAS_TOOLS_BENCH_CLOSED_BENCH_H_

#include "tools/bench/bench_input.h"
#include "tools/bench/bench_options.h"
#include "tools/bench/bench_result.h"
#include "tools/bench/contender.h"

namespace kvatlas {

// REQUIRES: an event thread or a query thread.
BenchResult RunClosed(const Contender& contender, const BenchInput& input,
                      const BenchOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_CLOSED_BENCH_H_
