// The state of an `EngineDirectory`, for its own sources: `engine_directory.cc` registers, lists
// and removes them, `engine_directory_recovery.cc` takes up what a replica or a checkpoint knew.

#ifndef KVATLAS_INDEXER_ENGINE_DIRECTORY_ENGINE_DIRECTORY_STATE_H_
#define KVATLAS_INDEXER_ENGINE_DIRECTORY_ENGINE_DIRECTORY_STATE_H_

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "indexer/base/mutex.h"
#include "indexer/engine_directory/engine_directory.h"
#include "indexer/engine_directory/rank_holders.h"
#include "indexer/kv_events/registered_worker.h"
#include "indexer/telemetry/log.h"

namespace kvatlas {

struct Listener {
  ZmqSource source;
  std::string url;  // of its registration
  ZmqStreamId stream = 0;
};

// One instance. Its identity does not change; its listeners are guarded by the directory.
struct Instance {
  EngineRegistration of;  // the first one
  Domain domain;
  std::shared_ptr<EngineWorker> worker;
  std::shared_ptr<RankHolders> holders;

  // Guarded by the directory's mutex.
  std::atomic<uint32_t> block_size{0};  // `kBlockSizeAuto`: the domain does not know it yet
  std::map<uint32_t, Listener> listeners;
  bool busy = false;         // it is registered or removed, outside the mutex
  bool restored = false;     // a peer told what it holds, at `adopted`
  bool unconfirmed = false;  // and knew no positions
  Time adopted{0};
  std::set<uint32_t>
      settled;  // ranks whose stream goes on from where that peer was, or was heard since
  std::set<uint32_t> resumed;  // restored from a checkpoint, and their stream has not caught up yet
  std::set<uint32_t> awaited;  // restored from a checkpoint and not heard yet: in no answer

  // Used by `Tick` alone.
  Time look_at{0};
  std::map<uint32_t, Time> gone_since;  // streams that are not connected
};
using InstancePtr = std::shared_ptr<Instance>;

struct InDomain {
  uint32_t block_size = 0;
  bool learns = false;  // its size is not known yet; holders stand under `kProvisionalBlockSize`
  std::vector<InstancePtr> instances;
};

// The block size of holders whose engine has not told one yet: they exist, so that requests may be
// sent to them, and hold nothing.
inline constexpr uint32_t kProvisionalBlockSize = 16;

// The status of a worker with several listeners: the worst, else the least ready.
inline ListenerStatus Worst(const std::vector<EngineListener>& listeners) {
  const auto any = [&](ListenerStatus status) {
    return std::any_of(listeners.begin(), listeners.end(),
                       [&](const EngineListener& of) { return of.stream.status == status; });
  };
  for (ListenerStatus status :
       {ListenerStatus::kFailed, ListenerStatus::kPending, ListenerStatus::kActive})
    if (any(status)) return status;
  return ListenerStatus::kPaused;
}

// A change of an instance marks it busy and works outside the mutex, so that a removal that waits
// for a stream holds up its own instance alone; other changes of the same instance wait. A domain
// lives as long as instances are listed under it, busy ones included, so that one cannot be dropped
// under a registration.
//
// Lock order: `mutex`, then `RankHolders`, the ingest, the registry; a worker's own before
// `RankHolders` too. A worker is never called with `mutex` held.
struct EngineDirectory::State {
  State(EngineDirectoryOptions given, HolderRegistry* registry, ZmqIngest* ingest)
      : options(std::move(given)),
        registry(registry),
        ingest(ingest),
        stores(registry),
        hidden(options.start_hidden) {}

  // ---- Under the mutex ----

  InstancePtr FindIdle(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    for (;;) {
      const auto it = instances.find(name);
      if (it == instances.end()) return nullptr;
      if (!it->second->busy) return it->second;
      changed.Wait(&mutex);
    }
  }

  InstancePtr Find(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const auto it = instances.find(name);
    return it == instances.end() ? nullptr : it->second;
  }

  std::optional<uint32_t> BlockSizeOf(const Domain& domain) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const auto it = domains.find(domain);
    if (it != domains.end() && it->second.learns) return std::nullopt;
    if (it != domains.end()) return it->second.block_size;
    const absl::StatusOr<uint32_t> known = registry->BlockSizeOf(domain);
    if (known.ok() && !registry->HoldersOf(domain).empty()) return *known;
    return std::nullopt;
  }

  absl::Status Mismatch(const Domain& domain, uint32_t existing, uint32_t requested) const {
    return absl::AlreadyExistsError("block_size mismatch for " + DomainText(domain) +
                                    ": existing=" + std::to_string(existing) +
                                    ", requested=" + std::to_string(requested));
  }

  // Whether the instance may be this: `instance` is what there is of that name, or null.
  absl::Status Fits(const EngineRegistration& registration, const Domain& domain,
                    const Instance* instance) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    if (instance != nullptr && !(instance->domain == domain)) {
      return absl::AlreadyExistsError(InstanceText(registration.instance) +
                                      " is already registered for " + DomainText(instance->domain));
    }
    const std::optional<uint32_t> block_size = BlockSizeOf(domain);
    if (block_size.has_value() && registration.block_size != kBlockSizeAuto &&
        *block_size != registration.block_size)
      return Mismatch(domain, *block_size, registration.block_size);
    if (instance == nullptr && instances.size() >= options.instances_max)
      return absl::ResourceExhaustedError("too many instances: " +
                                          std::to_string(options.instances_max));
    return absl::OkStatus();
  }

  // Enters an instance. The first known block size is the domain's; a domain whose instances are
  // all to learn theirs has none yet (`learns`).
  void List(const InstancePtr& instance) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    instances[instance->of.instance] = instance;
    InDomain& domain = domains[instance->domain];
    domain.instances.push_back(instance);
    const uint32_t size = instance->block_size;
    if (size == kBlockSizeAuto) {
      domain.learns = true;
    } else if (domain.learns) {
      SetBlockSize(&domain, size);
    } else {
      domain.block_size = size;
    }
  }

  // The domain did not know its block size until now: its learning instances get new holders.
  void SetBlockSize(InDomain* domain, uint32_t size) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    domain->block_size = size;
    domain->learns = false;
    std::vector<InstancePtr> learning;
    for (const InstancePtr& instance : domain->instances)
      if (instance->block_size == kBlockSizeAuto) learning.push_back(instance);
    for (const InstancePtr& instance : learning) instance->holders->Drop();
    for (const InstancePtr& instance : learning) {
      instance->block_size = size;
      instance->holders->AddAgain(size);
    }
  }

  // Called by a worker, with its lock: its engine has stored blocks of `found` tokens. The first
  // engine of the domain decides; returns the domain's size.
  uint32_t LearnBlockSize(const Domain& name, const std::string& instance, uint32_t found)
      ABSL_LOCKS_EXCLUDED(mutex) {
    MutexLock lock(&mutex);
    const auto it = domains.find(name);
    if (it == domains.end()) return found;  // it has just gone
    if (it->second.learns) {
      SetBlockSize(&it->second, found);
      Log(LogLevel::kInfo, "block size learned",
          {{"worker", instance}, {"domain", ToString(name)}, {"block_size", found}});
    }
    return it->second.block_size;
  }

  // Takes an instance out, and with the last one its domain, from the registry too.
  void Unlist(const InstancePtr& instance) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    instances.erase(instance->of.instance);
    const auto it = domains.find(instance->domain);
    std::vector<InstancePtr>& of = it->second.instances;
    of.erase(std::find(of.begin(), of.end(), instance));
    if (!of.empty()) return;
    domains.erase(it);
    registry->DropDomain(instance->domain);
  }

  void Done(Instance* instance) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    instance->busy = false;
    changed.SignalAll();
  }

  std::vector<InstancePtr> All() const {
    MutexLock lock(&mutex);
    std::vector<InstancePtr> all;
    all.reserve(instances.size());
    for (const auto& [name, instance] : instances) all.push_back(instance);
    return all;
  }

  // ---- Outside it ----

  // An instance with its worker and holders, marked busy. Its callbacks run in a lane's thread:
  // `learn_block_size` with the worker's lock, `resolve` without it, the writer's maker with it.
  InstancePtr Make(const EngineRegistration& registration, const Domain& domain, bool hide)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    auto instance = std::make_shared<Instance>();
    instance->of = registration;
    instance->block_size = registration.block_size;
    if (registration.block_size == kBlockSizeAuto)
      instance->block_size = BlockSizeOf(domain).value_or(kBlockSizeAuto);
    const bool learns = instance->block_size == kBlockSizeAuto;
    instance->domain = domain;
    instance->busy = true;
    instance->holders = std::make_shared<RankHolders>(
        registry, domain, learns ? kProvisionalBlockSize : instance->block_size.load(),
        registration.instance, hide, LabelsOf(registration),
        StoreTiersOf(registration).empty() ? RankStore()
                                           : RankStore{.holders = &stores,
                                                       .name = registration.store,
                                                       .tiers = StoreTiersOf(registration)});
    EngineWorkerOptions worker = options.worker;
    SetRegistered(registration, &worker);
    worker.block_size = learns ? 0 : instance->block_size.load();
    if (learns) {
      worker.learn_block_size = [this, domain, self = registration.instance](uint32_t found) {
        return LearnBlockSize(domain, self, found);
      };
    }
    worker.contract = options.contract;
    if (!(domain == options.pages_of)) worker.page_names = nullptr;
    worker.is_sglang =
        absl::EqualsIgnoreCase(absl::string_view(registration.engine_type), "sglang");
    worker.resolve = [this, domain, self = registration.instance](const EngineBlockHash& hash) {
      return Resolve(domain, self, hash);
    };
    instance->worker = std::make_shared<EngineWorker>(
        std::move(worker),
        [holders = instance->holders](uint32_t rank) { return holders->HolderOf(rank); });
    return instance;
  }

  // Asks the domain's other instances for a name. Called by workers, without their lock.
  std::optional<KnownBlock> Resolve(const Domain& domain, const std::string& asker,
                                    const EngineBlockHash& hash) const {
    std::vector<std::shared_ptr<EngineWorker>> workers;
    {
      MutexLock lock(&mutex);
      const auto it = domains.find(domain);
      if (it == domains.end()) return std::nullopt;
      for (const InstancePtr& instance : it->second.instances)
        if (instance->of.instance != asker) workers.push_back(instance->worker);
    }
    for (const std::shared_ptr<EngineWorker>& worker : workers)
      if (std::optional<KnownBlock> known = worker->Find(hash); known.has_value()) return known;
    return std::nullopt;
  }

  // The instance, found or made, busy with us.
  absl::StatusOr<InstancePtr> Begin(const EngineRegistration& registration, const Domain& domain,
                                    bool may_have_rank) {
    MutexLock lock(&mutex);
    InstancePtr instance = FindIdle(registration.instance);
    if (absl::Status bad = Fits(registration, domain, instance.get()); !bad.ok()) return bad;
    if (instance == nullptr) {
      instance = Make(registration, domain, hidden);
      List(instance);
    } else if (!may_have_rank && instance->listeners.contains(registration.rank)) {
      return absl::AlreadyExistsError(RankText(registration.instance, registration.rank) +
                                      " already registered");
    }
    instance->busy = true;
    return instance;
  }

  // The holder and the stream of one rank.
  absl::StatusOr<Listener> Listen(const Instance& instance, const EngineRegistration& of) {
    if (instance.block_size != 0) {
      absl::Status held = instance.holders->Add(of.rank, of.url);
      if (absl::IsFailedPrecondition(held)) {
        const absl::StatusOr<uint32_t> size = registry->BlockSizeOf(instance.domain);
        if (size.ok()) held = Mismatch(instance.domain, *size, instance.block_size);
      }
      if (!held.ok()) return held;
    }
    Listener listener{.source = SourceOf(of), .url = of.url};
    const absl::StatusOr<ZmqStreamId> stream = ingest->Add(listener.source, instance.worker);
    if (!stream.ok()) {
      instance.holders->Remove(of.rank);
      return stream.status();
    }
    listener.stream = *stream;
    return listener;
  }

  // Drops all that the instance holds, from index and memory. REQUIRES: busy with us, without
  // listeners.
  void Forget(const Instance& instance) {
    const std::vector<uint32_t> ranks = instance.holders->ranks();
    instance.holders->RemoveAll();
    for (uint32_t rank : ranks) instance.worker->RemoveRank(rank);
  }

  // Ends these streams, and with `all` the instance. REQUIRES: busy with us, and its listeners are
  // these no more.
  void End(const InstancePtr& instance, const std::map<uint32_t, Listener>& listeners, bool all) {
    for (const auto& [rank, listener] : listeners) ingest->Remove(listener.stream);
    if (all) {
      Forget(*instance);
      const EngineWorkerStats stats = instance->worker->Stats();
      MutexLock lock(&mutex);
      AddCounts(stats, &gone);
      Unlist(instance);
      Done(instance.get());
      return;
    }
    // Ranks that their batches named go with them: those are no longer listened to.
    for (const auto& [stream, listener] : listeners) {
      for (uint32_t rank : instance->worker->RemoveStream(stream, options.clock->Now())) {
        if (Listens(*instance, rank)) continue;
        instance->holders->Remove(rank);
        instance->worker->RemoveRank(rank);
      }
    }
    MutexLock lock(&mutex);
    Done(instance.get());
  }

  bool Listens(const Instance& instance, uint32_t rank) const {
    MutexLock lock(&mutex);
    return instance.listeners.contains(rank);
  }

  EngineEntry Describe(const Instance& instance,
                       const std::map<uint32_t, Listener>& listeners) const {
    EngineEntry entry{
        .instance = instance.of.instance,
        .domain = instance.domain,
        .block_size = instance.block_size == kBlockSizeAuto ? 0 : instance.block_size.load(),
        .source = instance.of.source,
        .engine_type = instance.of.engine_type,
        .lora_name = instance.of.lora_name,
        .image_token = instance.of.image_token,
        .counts_copies = instance.of.counts_copies,
        .eagle_drop = instance.of.eagle_drop,
        .chunk_tokens = instance.of.chunk_tokens,
        .window_tokens = instance.of.window_tokens,
        .hybrid = instance.of.hybrid,
        .offload_chunk_tokens = instance.of.offload_chunk_tokens,
        .silent_tiers = instance.of.silent_tiers,
        .additional_salt = instance.of.additional_salt,
        .url = instance.of.url,
        .first_rank = instance.of.first_rank,
        .silent_blocks = instance.of.silent_blocks,
        .silent_seconds = instance.of.silent_seconds,
        .store = instance.of.store,
        .store_tiers = instance.of.store_tiers,
        .listeners = {},
        .worker = {}};
    for (const auto& [rank, listener] : listeners) {
      entry.listeners.push_back({.rank = rank,
                                 .endpoint = listener.source.endpoint,
                                 .replay_endpoint = listener.source.replay_endpoint,
                                 .topic = listener.source.topic,
                                 .server_key = listener.source.server_key,
                                 .bind = listener.source.bind,
                                 .from_flags = listener.source.from_flags,
                                 .url = listener.url,
                                 .stream = {}});
    }
    return entry;
  }

  // False: a stream went away meanwhile.
  bool FillStats(const Instance& instance, const std::map<uint32_t, Listener>& listeners,
                 EngineEntry* entry) const {
    for (EngineListener& listener : entry->listeners) {
      absl::StatusOr<ZmqStreamStats> stats = ingest->Stats(listeners.at(listener.rank).stream);
      if (!stats.ok()) return false;
      listener.stream = *std::move(stats);
    }
    entry->status = Worst(entry->listeners);
    entry->worker = instance.worker->Stats();
    return true;
  }

  // The streams that a pause or a resume is about.
  absl::StatusOr<std::map<uint32_t, Listener>> ListenersOf(const std::string& name,
                                                           std::optional<uint32_t> rank) const {
    MutexLock lock(&mutex);
    const InstancePtr instance = Find(name);
    if (instance == nullptr || instance->listeners.empty())
      return absl::NotFoundError(InstanceText(name) + " not found");
    if (!rank.has_value()) return instance->listeners;
    const auto it = instance->listeners.find(*rank);
    if (it == instance->listeners.end())
      return absl::NotFoundError(RankText(name, *rank) + " not found");
    return std::map<uint32_t, Listener>{*it};
  }

  // All of them or, when one cannot, none.
  absl::Status PauseOrResume(const std::string& name, std::optional<uint32_t> rank, bool pause) {
    const absl::StatusOr<std::map<uint32_t, Listener>> listeners = ListenersOf(name, rank);
    if (!listeners.ok()) return listeners.status();
    for (const auto& [number, listener] : *listeners) {
      const absl::StatusOr<ZmqStreamStats> stats = ingest->Stats(listener.stream);
      if (!stats.ok()) return absl::NotFoundError(RankText(name, number) + " not found");
      const bool can = pause ? stats->status == ListenerStatus::kPending ||
                                   stats->status == ListenerStatus::kActive
                             : stats->status == ListenerStatus::kPaused ||
                                   stats->status == ListenerStatus::kFailed;
      if (can) continue;
      return absl::FailedPreconditionError(RankText(name, number) + " cannot be " +
                                           (pause ? "paused" : "resumed") + " from status " +
                                           std::string(ListenerStatusName(stats->status)));
    }
    for (const auto& [number, listener] : *listeners) {
      absl::Status status =
          pause ? ingest->Pause(listener.stream) : ingest->Resume(listener.stream);
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  bool IsOpen() const {
    MutexLock lock(&mutex);
    return open;
  }

  // One look at an instance, from `Tick`.
  //
  // 1. An instance without a stream that no registration took over is forgotten after
  //    `adopted_ttl`.
  // 2. A rank with a stream is `heard` while it is connected and read, and `alive` until it has not
  //    been heard for a lease. A rank of a checkpoint (`awaited`) is neither before its engine is
  //    there.
  // 3. Ranks that only batches named follow the instance's streams.
  void LookAt(const InstancePtr& instance, Time now) {
    std::map<uint32_t, Listener> listeners;
    std::set<uint32_t> awaited;
    bool forget = false;
    {
      MutexLock lock(&mutex);
      // It may have gone since `Tick` took it from the list; ending it twice would remove a new
      // instance of the same name.
      if (instance->busy || Find(instance->of.instance) != instance) return;
      listeners = instance->listeners;
      awaited = instance->awaited;
      forget = listeners.empty() && open && now - instance->adopted > options.adopted_ttl;
      instance->busy = forget;
    }
    if (forget) return End(instance, {}, /*all=*/true);
    std::set<uint32_t> heard_first;
    bool any_heard = listeners.empty(), any_alive = listeners.empty();
    for (const auto& [rank, listener] : listeners) {
      const absl::StatusOr<ZmqStreamStats> stats = ingest->Stats(listener.stream);
      if ((!stats.ok() || stats->arrived) && awaited.erase(rank) > 0) heard_first.insert(rank);
      const bool is_awaited = awaited.contains(rank);
      // A stream that is not read hears nothing, though it is connected.
      const bool reads = !stats.ok() || IsRead(*stats);
      const bool heard = !stats.ok() || (stats->connected && reads && !is_awaited);
      const bool alive = heard || (!is_awaited && !GoneForLong(&instance->gone_since, rank, now));
      if (heard) instance->gone_since.erase(rank);
      if (!stats.ok() || stats->connection.ever) {
        instance->holders->SetReached(rank);
      } else {
        instance->look_at = now;  // soon again
      }
      instance->holders->SetAlive(rank, heard, alive);
      any_heard = any_heard || heard;
      any_alive = any_alive || alive;
    }
    if (!awaited.empty()) instance->look_at = now;  // its answers wait for that
    // Ranks that only batches named come by any of its streams; those of a peer's dump by none.
    any_alive = any_alive && awaited.empty();
    for (uint32_t rank : instance->holders->ranks())
      if (!listeners.contains(rank)) instance->holders->SetAlive(rank, any_heard, any_alive);
    if (heard_first.empty()) return;
    MutexLock lock(
        &mutex);  // after `SetAlive`: readiness must not see a rank settled that is not in answers yet
    for (uint32_t rank : heard_first) instance->awaited.erase(rank);
  }

  static bool IsRead(const ZmqStreamStats& stats) {
    return stats.status == ListenerStatus::kActive || stats.status == ListenerStatus::kPending;
  }

  // Whether readiness still waits for that stream, which was restored from a checkpoint.
  bool IsBehind(const Listener& listener, bool is_awaited, Duration since_opened) const {
    const absl::StatusOr<ZmqStreamStats> stats = ingest->Stats(listener.stream);
    if (!stats.ok() || !IsRead(*stats)) return false;
    if (!stats->connected && since_opened > options.lease_ttl) return false;
    return is_awaited || stats->tracker.replaying;
  }

  bool GoneForLong(std::map<uint32_t, Time>* gone_since, uint32_t rank, Time now) const {
    return now - gone_since->try_emplace(rank, now).first->second > options.lease_ttl;
  }

  const EngineDirectoryOptions options;
  // A tenth of the lease, so that it is kept about that exactly.
  const Duration look_every = std::clamp<Duration>(
      options.lease_ttl / 10, std::chrono::milliseconds(50), std::chrono::seconds(1));
  HolderRegistry* const registry;
  ZmqIngest* const ingest;
  StoreHolders stores;

  Mutex tick_mutex;  // before all others
  mutable Mutex mutex;
  CondVar changed;  // an instance is no longer busy, or gone
  std::map<std::string, InstancePtr, InstanceLess> instances ABSL_GUARDED_BY(mutex);
  absl::flat_hash_map<Domain, InDomain> domains ABSL_GUARDED_BY(mutex);
  bool hidden ABSL_GUARDED_BY(mutex);
  bool open ABSL_GUARDED_BY(mutex) = false;
  Time opened ABSL_GUARDED_BY(mutex){0};
  EngineWorkerStats gone ABSL_GUARDED_BY(mutex);
};

}  // namespace kvatlas

#endif  // KVATLAS_INDEXER_ENGINE_DIRECTORY_ENGINE_DIRECTORY_STATE_H_
