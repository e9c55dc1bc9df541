// How many questions a second does a leaf answer over FindOverlapsStream, as a frontend asks? Some
// streams, each with many questions in flight; when answers come, as many new questions go out in
// one message.
//
// *Threads*: the caller's waits; one for each stream, and gRPC's.

#ifndef KVATLAS_TOOLS_BENCH_SERVICE_BENCH_STREAM_H_
#define KVATLAS_TOOLS_BENCH_SERVICE_BENCH_STREAM_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "proto/kvatlas/v1/leaf.pb.h"
#include "tools/bench/service_bench_http.h"

namespace kvatlas {

class GrpcStreamLoad {
 public:
  // `requests` are serialized FindOverlapsRequests, asked by turns. Each of `streams` has a
  // connection of its own and `in_flight` questions.
  GrpcStreamLoad(std::string target, uint32_t streams, uint32_t in_flight,
                 std::span<const std::string> requests);

  // As fast as it goes. What is in flight at the end is cancelled and not counted.
  HttpLoadResult Run(double seconds);

 private:
  HttpLoadResult RunOne(uint32_t stream, double seconds) const;

  const std::string target_;
  const uint32_t streams_;
  const uint32_t in_flight_;
  std::vector<v1::FindOverlapsRequest> questions_;
};

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_SERVICE_BENCH_STREAM_H_
