// What does one leaf do per second, over loopback, and what does it cost? Starts a leaf (or is
// pointed at any service that answers like one), gives it engines, drives it, and says what was
// measured.
//
//   query_http    POST /query_by_hash, or /query with tokens, over keep-alive connections
//   query_grpc    Leaf.FindOverlapsStream by sequence hashes, as a frontend asks
//   ingest_zmq    vLLM's KV events from PUB sockets until all of it can be asked for
//   ingest_grpc   Holdings streams, likewise
//   ingest_redis  the same through the log of a redis-server that is started beside the leaf
//
// Ingest has two workloads. *Steady*: every engine holds `capacity` blocks and evicts the oldest
// while it stores new ones;
// ingest_zmq fills the engines before the clock runs, the others while it runs. *Cold* (`cold`):
// from an empty service on, blocks that are all different, nothing evicted.
//
// *Truth*: an answer counts when its status is 200 (or OK); the answers of every prompt are read
// and compared before the clock runs. Ingest ends when the last block of every engine is found by a
// query, never when it was sent. The client's own processor time is beside the leaf's, since they
// share the machine.
// *Threads*: `RunServiceBench` uses the calling thread, one more for sending or probing, and
// gRPC's.

#ifndef KVATLAS_TOOLS_BENCH_SERVICE_BENCH_H_
#define KVATLAS_TOOLS_BENCH_SERVICE_BENCH_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/bench/service_bench_result.h"

namespace kvatlas {

struct ServiceBenchOptions {
  std::string what;  // as above
  std::string leaf;  // path of the binary
  // http://HOST:PORT of a service that runs already, and its process for figures of cost (0: none).
  std::string url;
  uint32_t pid = 0;

  double seconds = 10;  // of queries; of ingest at a rate
  double warm_up_s = 1;
  double qps = 0;  // query_http: requests, ingest_zmq: blocks per second; 0: as fast as it goes
  uint32_t connections = 16;
  uint32_t in_flight = 16;  // query_grpc: questions on each connection's stream
  uint32_t workers = 0;     // engines; 0: what is usual (query 16, ingest 8)
  uint32_t block_size = 16;
  uint64_t seed = 42;

  // Queries.
  uint32_t blocks = 0;    // of a prompt; 0: 512 over HTTP, 190 over gRPC
  uint32_t tokens = 0;    // above 0: /query with so many token ids instead of /query_by_hash
  uint32_t prompts = 16;  // distinct, each held by every worker
  std::string load;       // "zmq" or "grpc": how workers come in; empty: what the query uses

  // Ingest.
  bool cold = false;                   // no capacity, nothing held before
  uint64_t ingest_blocks = 4'000'000;  // stored while measured, by all engines
  uint64_t capacity = 60'000;  // blocks an engine has room for; more are evicted first. 0: no limit
  uint32_t sequence_blocks = 512;  // of a prompt
  uint32_t event_blocks = 128;     // stored by one event, and by one batch
  uint32_t lag_probes_per_s = 50;
};

// Whether everything fits together; says what does not.
absl::Status CheckServiceBench(const ServiceBenchOptions& options);

absl::StatusOr<ServiceBenchResult> RunServiceBench(ServiceBenchOptions options);

}  // namespace kvatlas

#endif  // KVATLAS_TOOLS_BENCH_SERVICE_BENCH_H_
