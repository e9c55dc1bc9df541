// How many questions and how many events a second does a leaf take over gRPC? Messages are
// serialized before the clock runs and go out as bytes, since the client shares the machine with
// the leaf.
//
// *Threads*: the caller's and gRPC's.

#ifndef KVATLAS_TOOLS_BENCH_SERVICE_BENCH_GRPC_H_
#define KVATLAS_TOOLS_BENCH_SERVICE_BENCH_GRPC_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/ids.h"
#include "proto/kvatlas/v1/leaf.pb.h"
#include "tools/bench/service_bench_engines.h"
#include "tools/bench/service_bench_http.h"

namespace kvatlas {

// Calls of one method, one outstanding on each of several connections.
class GrpcLoad {
 public:
  // `requests` are serialized messages, asked by turns; they outlive the load.
  GrpcLoad(const std::string& target, std::string method, uint32_t connections, double qps,
           std::span<const std::string> requests);
  ~GrpcLoad();
  GrpcLoad(const GrpcLoad&) = delete;
  GrpcLoad& operator=(const GrpcLoad&) = delete;

  // As `HttpLoad::Run`; what was outstanding at the end is waited for and not counted.
  HttpLoadResult Run(double seconds);

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

// A serialized FindOverlaps of the bench's domain.
std::string FindOverlapsRequestOf(std::span<const SequenceHash> blocks);

absl::StatusOr<v1::FindOverlapsResponse> FindOverlaps(const std::string& target,
                                                      std::span<const SequenceHash> blocks);

// One engine's stream of holdings, ready to be written: a hello, then batches in messages.
struct HoldingsStream {
  std::string hello;
  std::vector<std::string> batches;
  uint64_t bytes = 0;  // of batches
};

class HoldingsStreamBuilder {
 public:
  HoldingsStreamBuilder(const std::string& worker, uint32_t block_size);
  // A batch of its own.
  void Add(const BenchStep& step);
  HoldingsStream Finish() { return std::move(stream_); }

 private:
  HoldingsStream stream_;
};

// Writes all streams at once and waits until every batch is acknowledged. Returns the seconds it
// took. DEADLINE_EXCEEDED, or what the leaf refused it for.
absl::StatusOr<double> WriteHoldings(const std::string& target,
                                     std::span<const HoldingsStream> streams, Duration timeout);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_SERVICE_BENCH_GRPC_H_
