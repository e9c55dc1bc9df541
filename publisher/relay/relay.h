// Relays engines that cannot embed the publisher: their native event streams are read as a leaf
// would read them, and told to leaves over our own stream, which adds snapshots, digests and
// acknowledgements.
//
//   engine ══ ZeroMQ ══▶ ZmqIngest ─▶ EngineWorker (one per instance) ─▶ RelayRank (one per rank) ══ gRPC ══▶ leaf, replica 0
//                                                                                                 ├══════▶ leaf, replica 1
//                                                                                                 ╰══════▶ log in Redis
//
// *Truth*: as `EngineWorker` and `RelayRank` say. Token ids end here: leaves are told hashes.
// *Threads*: any. Two of its own: one writes to leaves `batch_age` after something changed, and
// ticks the streams;
// one looks at engines' connections. Registrations and removals are done one at a time.
// *Bounds*: `RelayOptions`. *Lifetime*: on `Stop` the engines' streams end, then those to the
// leaves.
//
// Example:
//   absl::StatusOr<std::unique_ptr<Relay>> relay = Relay::Start({.leaves = {"127.0.0.1:7410"},
//   .workers = {registration}});

#ifndef KVATLAS_PUBLISHER_RELAY_RELAY_H_
#define KVATLAS_PUBLISHER_RELAY_RELAY_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/hash.h"
#include "indexer/kv_events/engine_registration.h"
#include "indexer/kv_events/engine_worker.h"
#include "indexer/kv_events/zmq_ingest.h"
#include "indexer/stream/sender.h"
#include "indexer/telemetry/health.h"
#include "indexer/transport/redis/redis_log_options.h"
#include "publisher/relay/relay_rank.h"

namespace kvatlas {

struct RelayOptions {
  // HOST:PORT of every replica of the cell's leaf, or where they are found, whenever they come and
  // go (`found_leaves.h`); at most 16. None: only through Redis.
  std::vector<std::string> leaves = {};
  std::string cell = {};                          // its leaves are found by leases in Redis
  Duration find_every = std::chrono::seconds(1);  // looks at Redis; DNS names take five times that
  // The log of a cell, which every replica of its leaf reads; beside leaves, or instead of them.
  std::optional<RedisLogOptions> redis = {};
  std::vector<EngineRegistration> workers = {};  // registered at the start
  // Labels of every holder, beside {"via", "relay"}.
  std::vector<std::pair<std::string, std::string>> labels = {};
  HashContract contract = {};
  ZmqIngestOptions ingest = {};
  EngineWorkerOptions worker = {};  // its bounds
  SenderOptions sender = {};
  Duration lease_ttl = std::chrono::seconds(10);  // of an engine that is not heard
  Duration batch_age = std::chrono::milliseconds(2);
  uint32_t instances_max = 4096;
  uint32_t ranks_max = 16384;  // of all instances together
  uint64_t blocks_max = 0;     // of all ranks together; 0: no limit
  // Before that many ranks are offered, this relay is not ready.
  uint32_t min_initial_workers = 0;
  // For the goodbye of a rank that is unregistered; other registrations wait meanwhile.
  Duration goodbye_for = std::chrono::seconds(1);
  // Makes the link that carries a stream; gRPC when empty.
  MakeRelayLink make_link = {};
  const Clock* clock = &Clock::Real();
};

struct RelayListener {
  EngineRegistration registration;
  ZmqStreamStats stream;
};

struct RelayInstance {
  std::string name;
  Domain domain;
  uint32_t block_size = 0;               // 0: not learned yet
  std::vector<RelayListener> listeners;  // by rank
  EngineWorkerStats worker;
  std::vector<RelayRankStats> ranks;  // by rank
};

class Relay {
 public:
  // INVALID_ARGUMENT: an option is out of range, or a worker cannot be registered. UNAVAILABLE: an
  // address to bind cannot be had. Neither engines nor leaves need be reachable.
  static absl::StatusOr<std::unique_ptr<Relay>> Start(RelayOptions options);
  ~Relay();  // Stop(false, 0)

  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // INVALID_ARGUMENT: an endpoint or a name. ALREADY_EXISTS: the rank; or the instance belongs
  // elsewhere; or another block size than the domain's. RESOURCE_EXHAUSTED. UNAVAILABLE: an address
  // to bind cannot be had.
  absl::Status Register(const EngineRegistration& registration);
  // Without a rank: the whole instance. Leaves forget it at once. NOT_FOUND.
  absl::Status Unregister(const std::string& instance, const std::string& model,
                          const std::optional<std::string>& group, std::optional<uint32_t> rank);

  // In order of instance (numbers before names).
  std::vector<RelayInstance> Instances() const;
  // Visits what leaves are told, rank by rank, each a consistent cut; of one instance when it is
  // named. `visit` returns false to end it.
  void ForEachDump(const std::optional<Domain>& domain, const std::string& instance,
                   const std::function<bool(const RelayRankDump&)>& visit) const;

  Readiness readiness() const;
  const RelayOptions& options() const;
  // The leaves that are told now: addresses, and the log's without its password.
  std::vector<std::string> leaves() const;
  uint64_t blocks_held() const;

  // With `goodbye` leaves forget the engines at once; else a restart within the lease goes
  // unnoticed by queries. What is due is sent for at most `flush_for`. Idempotent.
  void Stop(bool goodbye, Duration flush_for);

 private:
  struct State;
  explicit Relay(std::unique_ptr<State> state);
  const std::unique_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_PUBLISHER_RELAY_RELAY_H_
