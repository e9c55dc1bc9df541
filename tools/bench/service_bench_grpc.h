// How many questions and how many events a second does a leaf take over gRPC? Batches of events
// are serialized before the clock runs and go out as bytes, since the client shares the machine
// with the leaf.
//
// *Threads*: the caller's and gRPC's.

#ifndef KVATLAS_TOOLS_BENCH_SERVICE_BENCH_GRPC_H_
#define KVATLAS_TOOLS_BENCH_SERVICE_BENCH_GRPC_H_

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/ids.h"
#include "proto/kvatlas/v1/leaf.pb.h"
#include "tools/bench/service_bench_engines.h"
#include "tools/bench/service_bench_http.h"

namespace kvatlas {

// FindOverlapsStream, as a frontend asks: some streams, each on a connection of its own and with
// many questions in flight; when answers come, as many new questions go out in one message.
// *Threads*: the caller's waits; one for each stream.
class GrpcLoad {
 public:
  // `questions` are asked by turns.
  GrpcLoad(std::string target, uint32_t streams, uint32_t in_flight,
           std::vector<v1::FindOverlapsRequest> questions)
      : target_(std::move(target)),
        streams_(streams),
        in_flight_(in_flight),
        questions_(std::move(questions)) {}

  // As fast as it goes. What is in flight at the end is cancelled and not counted.
  HttpLoadResult Run(double seconds);

 private:
  HttpLoadResult RunOne(uint32_t stream, double seconds) const;

  const std::string target_;
  const uint32_t streams_;
  const uint32_t in_flight_;
  const std::vector<v1::FindOverlapsRequest> questions_;
};

// A question of the bench's domain.
v1::FindOverlapsRequest FindOverlapsRequestOf(std::span<const SequenceHash> blocks);

// By a call, not measured.
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
