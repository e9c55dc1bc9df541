// What would these engines have told an index? Ops files from a trace, or of a shape that breaks
// structures.
//
//   trace          every request is one query, then the events that it causes at the worker it is routed to
//   shared_root    every worker holds one root and continuations of its own: the root's holder set is everybody
//   roots          a million distinct first blocks
//   deep           one sequence of 100,000 blocks, held to different depths
//   children       300,000 continuations of one node
//
// *Truth*: with LRU eviction no engine ever has a hole; with random eviction they do, and a store
// after a hole names blocks that the worker still holds. With `truncate_percent` that share of the
// requests runs only a random prefix of what was asked, so that a hole is healed by a store that
// does not name what is behind it. The same options give the same file, byte for byte.
// *Bounds*: a request with more blocks than an engine's pool is refused as vLLM refuses it: the
// query is there, events are not (`OpsSummary::too_long`).

#ifndef KVATLAS_TOOLS_BENCH_MAKE_OPS_H_
#define KVATLAS_TOOLS_BENCH_MAKE_OPS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/bench/ops.h"
#include "tools/trace/trace.h"

namespace kvatlas {

enum class OpsRouting { kRandom, kAffinity };
enum class OpsEviction { kLru, kRandom };
enum class OpsShape { kTrace, kSharedRoot, kRoots, kDeep, kChildren };

// 0: what is usual for the shape (`WithDefaults`).
struct OpsOptions {
  OpsShape shape = OpsShape::kTrace;
  uint32_t workers = 0;
  uint64_t requests = 0;
  uint64_t seed = 42;

  // Of kTrace.
  std::string trace;
  uint32_t split = 8;
  uint64_t capacity = 16384;
  // Every event is that of so many workers: `workers` × `dup` in all.
  uint32_t dup = 1;
  OpsRouting routing = OpsRouting::kRandom;
  OpsEviction eviction = OpsEviction::kLru;
  uint32_t truncate_percent = 0;

  // Of the others: blocks that all sequences share, and blocks of each one's own.
  uint32_t root_blocks = 0;
  uint32_t branch_blocks = 0;
};

// The same with no 0 where the shape has a usual value.
OpsOptions WithDefaults(OpsOptions options);

struct OpsSummary {
  OpsHeader header;
  uint64_t requests = 0;
  uint64_t too_long = 0;
  // Blocks asked for that were cached where the request went.
  uint64_t cached_blocks = 0;
};

// Makes the file. NOT_FOUND or INVALID_ARGUMENT as `ReadTrace`, or what a write said.
absl::StatusOr<OpsSummary> MakeOps(const OpsOptions& options, const std::string& path);

// The requests of a trace; `out` was created with `options.workers` × `options.dup` workers.
void WriteTraceOps(const OpsOptions& options, const std::vector<TraceRequest>& trace,
                   OpsWriter* out, OpsSummary* summary);

// The other shapes. REQUIRES: `WithDefaults`, `options.shape` is not kTrace.
void WriteShapeOps(const OpsOptions& options, OpsWriter* out, OpsSummary* summary);

// The well-known inputs a … i of `README.md`; `trace` stays empty. NOT_FOUND for another name.
absl::StatusOr<OpsOptions> WellKnownInput(std::string_view name);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_MAKE_OPS_H_
