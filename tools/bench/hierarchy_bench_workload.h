// What other traces are there? Four made ones, in the form of a trace, that share prefixes
// differently from the conversation trace.
//
//   sessions   a few system prompts, conversations of many turns: each prompt is the one before, its answer, a question
//   agents     longer: 20 to 60 turns, tools' output between them, up to 60,000 tokens
//   documents  long documents, some far more popular, asked about with a unique tail
//   short      templates of 512 or 1,024 tokens and one to three ids of one's own: hardly anything comes back
//
// Each request names its session.
//
// *Truth*: a function of name, requests and seed.

#ifndef KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_WORKLOAD_H_
#define KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_WORKLOAD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/trace/trace.h"

namespace kvatlas {

std::vector<std::string> WorkloadNames();

// In order of time. `per_s`: requests a second over the whole fleet. INVALID_ARGUMENT: no such
// name.
absl::StatusOr<std::vector<TraceRequest>> MakeWorkload(const std::string& name, uint64_t requests,
                                                       double per_s, uint64_t seed);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_WORKLOAD_H_
