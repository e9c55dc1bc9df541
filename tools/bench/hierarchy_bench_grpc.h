// How long does a real kvatlas-hierarchy take to find cells among thousands? It is started as a
// process, told a made coverage (`hierarchy_bench_synthetic.h`) over a gRPC stream per cell, and
// then asked over gRPC on loopback at a rate of so many questions a second, whether it keeps up or
// not: latency counts from when a question was due. It is asked as a frontend does, over a stream
// that stays open and answers taken apart; or with calls.
//
// *Truth*: latencies are seen by this client, which shares the machine with the node.
// *Threads*: the caller's and gRPC's.

#ifndef KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_GRPC_H_
#define KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_GRPC_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "tools/bench/hierarchy_bench.h"
#include "tools/bench/hierarchy_bench_scale.h"

namespace kvatlas {

struct GrpcScaleOptions {
  ScaleOptions scale;  // of it the cells, their waypoints, `best` and the seed
  std::string binary;  // kvatlas-hierarchy
  double qps = 5000;
  double seconds = 5;
  bool question_streams = true;
  uint32_t connections = 8;  // without streams: each with one call at a time
};

// UNAVAILABLE: the node does not come up. DEADLINE_EXCEEDED: it does not take the streams.
// INTERNAL: a question failed.
absl::StatusOr<HierarchyBenchResult> RunGrpcScaleBench(const GrpcScaleOptions& options);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_HIERARCHY_BENCH_GRPC_H_
