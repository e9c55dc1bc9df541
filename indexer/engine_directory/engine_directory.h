// Which engines does this leaf listen to? Workers are registered with an endpoint each; the
// directory makes what reads it, keeps its holders in the registry, and lists, pauses and removes
// it.
//
//   Register ─▶ EngineWorker (one per instance) ◀─ ZmqIngest (one stream per rank)
//                    └─ a holder per rank ─▶ HolderRegistry::AddLocal
//
// *Truth*: an instance belongs to one domain (model, routing group). The first registration of a
// domain fixes its block size; when its last instance goes, the domain goes too. The texts of
// refusals are those of Dynamo's indexer, since clients read them.
// *Threads*: any. *Bounds*: `EngineDirectoryOptions`, the registry's and the ingest's.

#ifndef KVATLAS_INDEXER_ENGINE_DIRECTORY_ENGINE_DIRECTORY_H_
#define KVATLAS_INDEXER_ENGINE_DIRECTORY_ENGINE_DIRECTORY_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "indexer/base/clock.h"
#include "indexer/base/domain.h"
#include "indexer/base/hash.h"
#include "indexer/kv_events/engine_registration.h"
#include "indexer/kv_events/engine_worker.h"
#include "indexer/kv_events/zmq_ingest.h"
#include "indexer/registry/holder_registry.h"

namespace kvatlas {

struct EngineListener {
  uint32_t rank = 0;
  std::string endpoint;
  std::string replay_endpoint;
  std::string topic;
  std::string server_key = {};
  bool bind = false;
  bool from_flags = false;  // never of another process's word
  std::string url = {};     // where requests for this rank go; empty: where the instance's
  // In a snapshot: whether its writer had the listener from its flags. Nothing: an older writer,
  // which does not say so.
  std::optional<bool> told_from_flags = {};
  ZmqStreamStats stream;
};

struct EngineEntry {
  std::string instance;
  Domain domain;
  uint32_t block_size = 0;
  std::string source;
  std::string engine_type;
  std::string lora_name;
  std::optional<uint32_t> image_token;
  bool counts_copies = true;
  std::string eagle_drop;
  uint32_t chunk_tokens = 0;
  uint32_t window_tokens = 0;
  bool hybrid = false;
  uint32_t offload_chunk_tokens = 0;
  std::string silent_tiers;
  std::string additional_salt;
  std::string url;
  uint32_t first_rank = 0;
  uint32_t silent_blocks = 0;
  uint32_t silent_seconds = 0;
  std::string store;
  std::string store_tiers;
  std::vector<EngineListener> listeners;             // by rank
  ListenerStatus status = ListenerStatus::kPending;  // failed > pending > active > paused
  EngineWorkerStats worker;
};

// Adds what `from` counts to `to`; ranks and texts stay.
void AddCounts(const EngineWorkerStats& from, EngineWorkerStats* to);

struct EngineDirectoryOptions {
  HashContract contract;
  // For every worker; name, block size, contract, adapter and salt are filled in. `page_names` is
  // for workers of the domain `pages_of` alone.
  EngineWorkerOptions worker;
  Domain pages_of;
  uint32_t instances_max = 65536;
  // A rank is in no answer when its stream's connection has been gone, or its stream not read
  // (paused, failed), for longer.
  Duration lease_ttl = std::chrono::seconds(10);
  // An instance that a peer knew and that is not registered here is forgotten after this.
  Duration adopted_ttl = std::chrono::minutes(5);
  // Engines are in no answer before `Open`: they are still being recovered.
  bool start_hidden = false;
  const Clock* clock = &Clock::Real();
};

class EngineDirectory {
 public:
  // Registry and ingest outlive the directory.
  EngineDirectory(EngineDirectoryOptions options, HolderRegistry* registry, ZmqIngest* ingest);
  ~EngineDirectory();

  // INVALID_ARGUMENT: an endpoint (`CheckZmqSource`), checked first, or a text that is too long.
  // ALREADY_EXISTS: the rank; or the instance belongs elsewhere; or another block size than the
  // domain's. RESOURCE_EXHAUSTED. UNAVAILABLE: an address to bind cannot be had. Adapter, salt,
  // type and source are the instance's: those of its first registration. A block size of 0 is
  // taken, as the field's services do: such a domain never holds anything. With `kBlockSizeAuto` it
  // is the domain's, or else learned from the first stored block of any such instance of the
  // domain; until then the instance's ranks are there and hold nothing.
  absl::Status Register(const EngineRegistration& registration);

  // Without a rank, or without a group: the whole instance. Ranks that only a stream's batches
  // named go with it. NOT_FOUND.
  absl::Status Unregister(const std::string& instance, const std::string& model,
                          const std::optional<std::string>& group, std::optional<uint32_t> rank);

  // In order of instance (numbers before names).
  std::vector<EngineEntry> List(std::optional<std::string_view> model = std::nullopt,
                                std::optional<std::string_view> group = std::nullopt) const;

  // NOT_FOUND; FAILED_PRECONDITION: wrong status.
  absl::Status Pause(const std::string& instance, std::optional<uint32_t> rank);
  absl::Status Resume(const std::string& instance, std::optional<uint32_t> rank);

  // How busy a rank is, where something else than its events says it. Nothing when there is no such
  // rank.
  void SetLoad(const std::string& instance, uint32_t rank, const Load& load);

  // Nothing: the domain has no instance.
  std::optional<uint32_t> BlockSizeOf(const Domain& domain) const;
  // Domains that have an instance, in order.
  std::vector<Domain> Domains() const;

  // `EngineWorker::look_aheads` of all its workers: prompts are to be asked under such hashes too.
  uint32_t LookAheads(const Domain& domain) const;

  // Every name of every worker of a domain, worker by worker, each a consistent cut.
  void ForEachAlias(
      const Domain& domain,
      const std::function<void(const std::string& instance, const EngineAlias&)>& visit) const;

  // Instances that listen.
  size_t instances() const;

  // Not opened yet, with `start_hidden`: its engines are not to be shown yet.
  bool recovering() const;
  // Opens the ingest's gate, and shows what was hidden until now. Idempotent.
  void Open();

  // Time passes, every 200 ms or so.
  void Tick();

  // ---- Between replicas ----

  // The worker of an instance that need not be registered (its endpoint is not looked at): made
  // when it is new, to be filled by `EngineWorker::Restore`. As `Register`. Names restored into a
  // stream that does not go on from a known position are in doubt (`EngineWorker::Lost`), from
  // `Open` or a later registration on. `unconfirmed`: its source knew no positions at all; then it
  // is only in doubt where a replay will say better, and what is not registered is forgotten after
  // `adopted_ttl`.
  absl::StatusOr<std::shared_ptr<EngineWorker>> Adopt(const EngineRegistration& registration,
                                                      bool unconfirmed);
  // Where that stream goes on from; before `Open`. `earlier`: where this leaf itself was before it
  // was started again, so that what is held is in no answer before the engine is there, and
  // degraded until the stream goes on from that position. NOT_FOUND; FAILED_PRECONDITION.
  absl::Status ResumeFrom(const std::string& instance, uint32_t rank,
                          const StreamPosition& position, bool earlier = false);
  // Visits every stream of an instance with its position while nothing of it is being applied: what
  // `visit` reads of the worker's ranks that this stream publishes belongs to that position.
  // Without a stream, once without a rank. NOT_FOUND.
  absl::Status Cut(const std::string& instance,
                   const std::function<void(std::optional<uint32_t> stream_rank,
                                            std::optional<StreamPosition> position,
                                            const EngineWorker& worker)>& visit) const;
  // Listening or not, without statistics; a block size of 0 may be one that is not learned yet.
  // Nothing: no such instance.
  std::optional<EngineEntry> Find(const std::string& instance) const;
  // Null: no such instance. Its worker as it is now, whatever becomes of the instance.
  std::shared_ptr<const EngineWorker> WorkerOf(const std::string& instance) const;
  // Instances of a checkpoint (`ResumeFrom`, `earlier`) that readiness waits for:
  //   an engine that is not connected: up to one lease after `Open`;
  //   one without a replay endpoint: until its first message;
  //   one that replays: until the replay ends or fails.
  // A stream that is paused or has failed is not waited for.
  size_t Unsettled();
  // Streams that no engine is connected to, those aside that bind.
  size_t Unconnected() const;
  // Every instance, listening or not, in order; without statistics.
  std::vector<EngineEntry> Registrations() const;
  // Counts of instances that are gone.
  EngineWorkerStats GoneStats() const;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_ENGINE_DIRECTORY_ENGINE_DIRECTORY_H_
