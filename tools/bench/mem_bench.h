// How much memory does a structure take, and how much does it give back?
//
// Every structure is measured in a process of its own, forked for it: anonymous resident memory
// (`RssAnon`) after the allocator gave back what it could, minus that before the structure was
// made. Events are made one by one, so that nothing else is in the difference.
//
//   build ─▶ bytes_built ─▶ (churn ─▶ bytes_after_churn) ─▶ clear every worker ─▶ upkeep ─▶ bytes_after_clear
//
// Churn replaces every worker's holdings again and again: the file's stores once more with other
// hashes, and for every block stored one of those from the pass before removed, until `churn` times
// the live holdings were stored.
//
// *Truth*: live holdings and distinct blocks are counted by a model in another process, in shared
// memory.
// *Bounds*: REQUIRES that the calling process has no other threads.

#ifndef KVATLAS_TOOLS_BENCH_MEM_BENCH_H_
#define KVATLAS_TOOLS_BENCH_MEM_BENCH_H_

#include "tools/bench/bench_options.h"
#include "tools/bench/bench_result.h"
#include "tools/bench/contender.h"
#include "tools/bench/ops.h"

namespace kvatlas {

BenchResult RunMem(const Contender& contender, const OpsFile& file, const BenchOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_MEM_BENCH_H_
