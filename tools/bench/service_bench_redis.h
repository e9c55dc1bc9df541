// How many events a second does a leaf take through a log in Redis? Engines' streams are made
// before the clock runs and written by the publisher's own link; a reader has to have applied them.
//
// *Threads*: the caller's, and one per stream.

#ifndef KVATLAS_TOOLS_BENCH_SERVICE_BENCH_REDIS_H_
#define KVATLAS_TOOLS_BENCH_SERVICE_BENCH_REDIS_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/stream/messages.h"
#include "tools/bench/service_bench_engines.h"

namespace kvatlas {

struct RedisHoldings {
  Hello hello;
  std::vector<Batch> batches;
};

class RedisHoldingsBuilder {
 public:
  RedisHoldingsBuilder(const std::string& worker, uint32_t block_size);
  // A batch of its own.
  void Add(const BenchStep& step);
  RedisHoldings Finish() { return std::move(holdings_); }

 private:
  RedisHoldings holdings_;
};

struct RedisWritten {
  double seconds = 0;
  uint64_t bytes = 0;  // of commands' arguments
};

// Writes all streams at once and waits until the leaf says that it has applied the last batch of
// each. DEADLINE_EXCEEDED, or why Redis did not take it.
absl::StatusOr<RedisWritten> WriteHoldingsToRedis(const std::string& url, const std::string& cell,
                                                  std::span<const RedisHoldings> streams,
                                                  Duration timeout);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_SERVICE_BENCH_REDIS_H_
