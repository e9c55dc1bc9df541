// The leaf indexer of one cell, assembled: workers' streams in, questions answered, coverage
// upward.
//
//   workers ══ gRPC Holdings ══▶ HolderRegistry ──▶ CoverageReporter ══ gRPC Holdings ══▶ parents
//   engines ══ ZeroMQ ══▶ ZmqIngest ─▶ EngineDirectory ─╯  │
//   askers  ══ gRPC Leaf, HTTP ══▶ LeafService, HttpApi ───╯
//   sgl-router ══ gRPC KVIndexer ══▶ KvIndexerService, by the names that SglangBlockHashes has of engines' blocks
//   replicas ══ HTTP /snapshot, /dump ══▶ PeerRecovery ─▶ EngineDirectory
//
//   workers ══ logs in Redis ══▶ RedisReader ─▶ HolderRegistry
//   disk    ══ Checkpointer ══▶ HolderRegistry, EngineDirectory
//
// *Truth*: a leaf restores its checkpoint before it listens for streams and questions over gRPC.
// With peers it recovers engines from them, or else from its checkpoint; until then engines are in
// no answer and the leaf is not ready. Nor is it ready before the workers that came back are caught
// up with (`readiness.h`). A leaf that is stopped writes a last checkpoint.
// *Threads*: gRPC's, HTTP's, the ingest's, one while it recovers, one that writes checkpoints, and
// a timer: coverage for parents every 10 ms, leases and repairs every 200 ms. Every method may be
// called from any thread; `Stop` once.
// *Lifetime*: on `Stop` new streams and questions are refused, engines' streams end, parents are
// told goodbye, running calls get the grace.
//
// Example:
//   absl::StatusOr<std::unique_ptr<Leaf>> leaf = Leaf::Start({.cell = "cell-a", .grpc =
//   {"127.0.0.1", 0}});
//   (*leaf)->grpc_address();   // with the port that was taken

#ifndef KVATLAS_INDEXER_LEAF_LEAF_H_
#define KVATLAS_INDEXER_LEAF_LEAF_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "indexer/base/address.h"
#include "indexer/base/clock.h"
#include "indexer/base/hash.h"
#include "indexer/base/memory_budget.h"
#include "indexer/base/shard_map.h"
#include "indexer/base/waypoints.h"
#include "indexer/checkpoint/checkpointer.h"
#include "indexer/checkpoint/engine_restore.h"
#include "indexer/checkpoint/peer_recovery.h"
#include "indexer/compat/sglang/kv_indexer.h"
#include "indexer/coverage/coverage_reporter.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/kv_events/engine_worker.h"
#include "indexer/kv_events/zmq_ingest.h"
#include "indexer/process/readiness.h"
#include "indexer/registry/holder_registry.h"
#include "indexer/telemetry/process_memory.h"
#include "indexer/transport/redis/redis_log_options.h"

namespace kvatlas {

// The engines' own streams, and other replicas.
struct LeafEngineOptions {
  std::vector<EngineRegistration> workers;  // registered at the start
  NamedByFlags named;                       // of a checkpoint's engines that are not among them
  // The leaf is not ready before so many workers are there.
  uint32_t min_initial_workers = 0;
  Duration ready_after = ReadinessOptions().ready_after;  // how long it waits for restored workers
  bool local_hashes = true;  // 8 bytes a block more; without them there is no /dump
  ZmqIngestOptions ingest;
  EngineWorkerOptions worker;    // its bounds
  PeerRecoveryOptions recovery;  // peers; the contract is filled in
};

struct LeafHttpOptions {
  uint32_t io_threads = 2;    // that answer queries
  uint32_t pool_threads = 2;  // for everything that may take long
  bool test_endpoints = false;
  bool ui_explain = false;      // the page explains prompts also where `http` is beyond loopback
  std::string access_log = {};  // file; empty: none
  std::string trace_id_header = "x-trace-id";
  std::vector<Address> mooncake = {};  // where Mooncake's interface is served too
  bool mooncake_data = false;          // its answers in {"data":…}
};

struct LeafOptions {
  std::string cell = "cell";
  std::string replica;
  Address grpc{"127.0.0.1", 7410};
  Address http{"127.0.0.1", 8090};
  std::string advertise;  // the gRPC address as others reach it; empty: the one listened on
  std::vector<std::pair<std::string, std::string>> labels;
  ShardMap parents;
  bool parents_may_come = false;                                     // `CoverageReporterOptions`
  const WaypointSchedule* schedule = &WaypointSchedule::Standard();  // of what parents are told
  HashContract contract;
  uint64_t memory_bytes_max = 0;  // `MemoryBudget`; 0: no limit
  MemoryBudget::Meter memory_meter = ResidentBytes;
  HolderRegistryOptions registry;  // contract, schedule, observer and memory are filled in
  CoverageOptions coverage;
  SenderOptions sender = CoverageReporterOptions().sender;  // to parents
  LeafEngineOptions engines;
  // Whether the log says that there is no worker yet, and which flags of kvatlas-leaf name some.
  bool says_no_workers = true;
  LeafHttpOptions http_api;
  // Workers' streams through Redis too; the cell is filled in. Nothing: only over gRPC.
  std::optional<RedisLogOptions> redis;
  KvIndexerOptions kv_indexer;   // SGLang's interface; without a domain it knows nothing
  CheckpointOptions checkpoint;  // cell, replica and contract are filled in
};

class Leaf {
 public:
  // UNAVAILABLE: an address cannot be had; it is named. INVALID_ARGUMENT: an unknown index, a bad
  // name, an engine that cannot be registered, or a checkpoint directory that cannot be written.
  // RESOURCE_EXHAUSTED: no address space for `kv_indexer.names`. FAILED_PRECONDITION: another
  // process has the directory of checkpoints. Where a flag of kvatlas-leaf sets the value, the
  // message begins with it: "--grpc: cannot listen …".
  static absl::StatusOr<std::unique_ptr<Leaf>> Start(LeafOptions options);
  ~Leaf();  // Stop(0)

  Leaf(const Leaf&) = delete;
  Leaf& operator=(const Leaf&) = delete;

  Address grpc_address() const;
  Address http_address() const;
  std::vector<Address> mooncake_addresses() const;
  const HolderRegistry& registry() const;
  HolderRegistry& registry();
  // Counts a question that was asked of `registry` in this process, for `queries` of the status.
  void CountQuery();
  EngineDirectory& engines();
  Readiness readiness();
  std::vector<ParentStats> parents() const;
  // Writes one now (`Checkpointer::WriteNow`). NOT_FOUND: there is no directory for them.
  absl::StatusOr<CheckpointReport> Checkpoint();
  // Other parents from now on (`coverage_reporter.h`). FAILED_PRECONDITION: there were none before,
  // or none are given.
  absl::Status SetParents(ShardMap parents);

  // Probes hear that it is not ready from now on; it goes on serving.
  void SetNotReady();
  // Whether all of its listeners take connections (`ProcessHealth::deaf`).
  bool live() const;

  // Idempotent.
  void Stop(Duration grace);

 private:
  struct Parts;
  explicit Leaf(std::unique_ptr<Parts> parts);
  const std::unique_ptr<Parts> parts_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_LEAF_LEAF_H_
